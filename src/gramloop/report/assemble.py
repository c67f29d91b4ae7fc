"""From loaded results to a document: which tables and figures there are, under which heading, in what order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gramloop import __version__
from gramloop.core.settings import describe_replay, replay_text
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.store import MANIFEST
from gramloop.mitigations.stack import stack_text
from gramloop.report.answers import answers_of
from gramloop.report.consistency import gram_consistency
from gramloop.report.costs import path_costs
from gramloop.report.document import Document, RenderedFigure, Section
from gramloop.report.evidence import evidence_of
from gramloop.report.load import LoadedRuns
from gramloop.report.run import TASK_WORDS, Run
from gramloop.report.stacking import stacks_of
from gramloop.report.statistics import Gain, verdicts_of
from gramloop.report.tables.ablation import partition_table, placement_table
from gramloop.report.tables.classes import class_tables
from gramloop.report.tables.conditions import every_condition, every_metric, family_means, group_means
from gramloop.report.tables.cost import cost_table
from gramloop.report.tables.gram import consistency_table
from gramloop.report.tables.main import gains_table, main_results, relative_results
from gramloop.report.tables.pairs import matrix_table, pairs_table, stacking_table
from gramloop.report.tables.qualities import quality_table
from gramloop.report.tables.table import Table
from gramloop.util.json_files import read_json

Tables = Callable[[LoadedRuns, Sequence[Gain]], Iterator[Table]]


@dataclass(frozen=True)
class _SectionPlan:
    key: str
    title: str
    text: str
    tables: Tables


def make_document(
    loaded: LoadedRuns,
    gains: Sequence[Gain],
    figures: Sequence[RenderedFigure] = (),
    remarks: Sequence[str] = (),
) -> Document:
    """The report; remarks join the warnings."""
    sections = []
    for part in _OUTLINE:
        tables = tuple(part.tables(loaded, gains))
        own = tuple(figure for figure in figures if figure.section == part.key)
        if tables or own:
            sections.append(Section(part.key, part.title, part.text, tables, own))
    known = {part.key for part in _OUTLINE}
    if others := tuple(figure for figure in figures if figure.section not in known):
        sections.append(Section("figures", "Further figures", "", (), others))
    return Document(
        title=f"{_subject(loaded)} on {_listed(dict.fromkeys(run.plan.suite for run in loaded.runs))}",
        subtitle=_subtitle(loaded),
        verdicts=tuple(verdicts_of(gains)),
        warnings=tuple(dict.fromkeys((*loaded.warnings, *remarks))),
        sections=tuple(sections),
        facts=_facts(loaded),
        answers=tuple(answers_of(evidence_of(gains), gains)),
    )


def _main(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    for number, group in enumerate(loaded.groups, start=1):
        end = "" if len(loaded.groups) == 1 else f"-{number}"
        yield main_results(group, f"main{end}")
        if (table := relative_results(group, f"relative{end}")) is not None:
            yield table
    if gains:
        yield gains_table(gains)
    yield from (found for run in loaded.runs if (found := quality_table(run)) is not None)


def _shifts(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    for run in loaded.runs:
        if run.shifted:
            yield family_means(run)
            if (kinds := group_means(run)) is not None:
                yield kinds


def _placement(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    shown = set()
    for group in loaded.groups:
        for run in group:
            table = placement_table(run, group)
            if table is not None and table.rows not in shown:  # peers would give the same table again
                shown.add(table.rows)
                yield table


def _partitions(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    yield from (table for run in loaded.runs if (table := partition_table(run)) is not None)


def _classes(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    for run in loaded.runs:
        for method in run.replays:
            if method in run.gated:  # the others are there for comparison
                yield from class_tables(run, method)


def _pairs(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    for evidence in evidence_of(gains):
        yield matrix_table(evidence)
        if stacks := stacks_of(evidence):
            yield stacking_table(evidence, stacks)
        yield pairs_table(evidence)


def _cost(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    for group in loaded.groups:
        for run in group:
            if costs := path_costs(run, group):
                device, diagnosed = run.plan.model.device.upper(), run.plan.diagnostics
                yield cost_table(costs, f"{run.key}-cost", run.name, device, diagnosed)


def _gram(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    for run in loaded.runs:
        yield from (consistency_table(run, found) for found in gram_consistency(run))


def _conditions(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    for run in loaded.runs:
        yield every_condition(run)
        if (metrics := every_metric(run)) is not None:
            yield metrics


def _none(loaded: LoadedRuns, gains: Sequence[Gain]) -> Iterator[Table]:
    return iter(())


_OUTLINE = (
    _SectionPlan("main", "Main results", "", _main),
    _SectionPlan("tradeoff", "Gain against cost", "", _none),
    _SectionPlan("methods", "Methods against each other", "", _pairs),
    _SectionPlan("severity", "By shift and severity", "", _shifts),
    _SectionPlan(
        "placement",
        "Placement of gate and update",
        "Drift can be measured, and the accepted step applied, at the end of the loop or at the last layer.",
        _placement,
    ),
    _SectionPlan(
        "partitions",
        "Partition consistency",
        "A gain that hangs on a few images is gone in the parts of the set that lack them.",
        _partitions,
    ),
    _SectionPlan("classes", "Classes", "", _classes),
    _SectionPlan(
        "consistency",
        "Gram consistency at matched strength",
        "The ungated replay accepts every step whole. The uniform one accepts, for every patch, the mean share that "
        "the gate would have accepted in this image. What is left between it and the gated one is the choice of "
        "patches.",
        _gram,
    ),
    _SectionPlan("cost", "Cost", "", _cost),
    _SectionPlan("diagnostic", "What the gate does in single images", "", _none),
    _SectionPlan("predictions", "Predictions", "", _none),
    _SectionPlan("conditions", "Every condition", "", _conditions),
)


def _listed(words: Sequence[str] | dict[str, None]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def _subject(loaded: LoadedRuns) -> str:
    others = any(method.mitigations for run in loaded.runs for method in run.plan.methods)
    return "Replay and its rivals" if others else "Gram-gated replay"


def _subtitle(loaded: LoadedRuns) -> str:
    runs = loaded.runs
    tasks = _listed(dict.fromkeys(TASK_WORDS[run.plan.task] for run in runs))
    conditions, images = (
        sum(len(run.results) for run in runs),
        sum(result.images for run in runs for result in run.results),
    )
    methods = len(dict.fromkeys(name for run in runs for name in run.methods))
    return (
        f"{tasks[0].upper()}{tasks[1:]}: {methods} methods, {conditions} conditions, {images:,} images; "
        f"from stored results, gramloop {__version__}"
    )


def _facts(loaded: LoadedRuns) -> dict[str, dict[str, str]]:
    facts = {run.name: _about_run(run) for run in loaded.runs}
    methods: dict[str, str] = {}
    for run in loaded.runs:
        for method in run.plan.methods:
            words = "the model as it is"
            if method.replay is not None:
                words = f"{describe_replay(method.replay)} ({replay_text(method.replay)})"
            if method.mitigations:
                words = stack_text(method.mitigations)
            told = methods.setdefault(method.name, words)
            if told != words:
                methods[f"{method.name} in {run.name}"] = words
    versions: dict[str, dict[str, None]] = {}
    for run in loaded.runs:
        for name, value in run.plan.versions.items():
            versions.setdefault(name, {})[value] = None
    return {**facts, "Methods": methods, "Versions": {name: _listed(each) for name, each in versions.items()}}


def _about_run(run: Run) -> dict[str, str]:
    plan = run.plan
    found = {
        "plan": plan.hash,
        "suite": plan.suite,
        "task": TASK_WORDS[plan.task],
        "conditions": f"{len(run.results)} complete of {len(plan.conditions)}",
        "images": _span(plan),
        **({"alignment": plan.alignment} if plan.task == "depth" else {"classes": str(len(plan.categories))}),
        "backbone": f"{plan.model.depth} blocks, weights in {plan.model.dtype}",
        "device": f"{plan.model.device}, {plan.model.threads} thread{'s' * (plan.model.threads != 1)} per worker",
        "batch": "1 image at a time" if plan.batch == 1 else f"{plan.batch} images of one size at a time",
        "sizes": ", ".join(f"{name} {value}" for name, value in plan.model.sizes.items())
        or "the model's own",
        "seed": f"{plan.seed} (no prediction depends on it)",
    }
    found.update({f"sha256 of {name}": value for name, value in plan.model.sha256.items()})
    found.update(_starts(run))
    return found


def _span(plan: Plan) -> str:
    numbers = sorted(set(plan.conditions.values()))
    few = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
    return f"{few} per condition"


def _starts(run: Run) -> dict[str, str]:
    """When it was run, from the manifest, where there is a whole one."""
    try:
        starts = read_json(run.folder / MANIFEST, "a manifest written by gramloop evaluate")["starts"]
        times = [str(start["time"]) for start in starts]
    except (GramLoopError, KeyError, TypeError):
        return {}
    if not times:
        return {}
    return {"run": times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}, in {len(times)} starts"}
