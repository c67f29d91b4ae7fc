"""From loaded results to a document: verdicts, warnings, and sections of tables and figures in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import Method
from gramloop.evaluate.store import MANIFEST
from gramloop.mitigations.stack import stack_text
from gramloop.replay.config import describe_replay, replay_text
from gramloop.report.answers import Answer, answers_of
from gramloop.report.consistency import gram_consistency
from gramloop.report.load import LoadedRuns
from gramloop.report.run import Run
from gramloop.report.stats import Evidence, Verdict
from gramloop.report.tables.checks import class_tables, consistency_table, partition_table, placement_table
from gramloop.report.tables.conditions import (
    cost_table,
    every_condition,
    every_metric,
    family_means,
    group_means,
    path_costs,
    quality_table,
)
from gramloop.report.tables.main import (
    gains_table,
    main_results,
    matrix_table,
    pairs_table,
    relative_results,
    stacking_table,
)
from gramloop.util.json_files import read_json
from gramloop.util.table import Table


@dataclass(frozen=True)
class RenderedFigure:
    """A drawn figure."""

    key: str  # names its files
    title: str
    caption: str
    png: bytes
    pdf: bytes | None
    alt: str  # the figure in words
    section: str = ""  # the key of the section it belongs to


@dataclass(frozen=True)
class Section:
    """A part of the report under one heading."""

    key: str
    title: str
    text: str
    tables: tuple[Table, ...] = ()
    figures: tuple[RenderedFigure, ...] = ()


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    subtitle: str
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # configuration and versions
    answers: tuple[Answer, ...] = ()


def make_document(
    loaded: LoadedRuns,
    evidence: Sequence[Evidence],
    figures: Sequence[RenderedFigure] = (),
    remarks: Sequence[str] = (),
) -> Document:
    """The report of loaded results, the evidence of their methods and figures; remarks join the warnings."""
    sections = []
    for key, title, text, make in _OUTLINE:
        tables = tuple(table for table in make(loaded, evidence) if table is not None)
        own = tuple(figure for figure in figures if figure.section == key)
        if tables or own:
            sections.append(Section(key, title, text, tables, own))
    others = any(method.mitigations for run in loaded.runs for method in run.plan.methods)
    suites = _listed(dict.fromkeys(run.plan.suite for run in loaded.runs))
    return Document(
        title=f"{'Mitigations' if others else 'Gram-gated replay'} on {suites}",
        subtitle=_subtitle(loaded),
        verdicts=tuple(each.verdict(method) for each in evidence for method in each.run.compared),
        warnings=tuple(dict.fromkeys((*loaded.warnings, *remarks))),
        sections=tuple(sections),
        facts=_facts(loaded),
        answers=tuple(answers_of(evidence)),
    )


Tables = Iterator[Table | None]


def _main(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    for number, group in enumerate(loaded.groups, start=1):
        end = "" if len(loaded.groups) == 1 else f"-{number}"
        yield main_results(group, f"main{end}")
        yield relative_results(group, f"relative{end}")
    if evidence:
        yield gains_table(evidence)
    yield from map(quality_table, loaded.runs)


def _methods(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    for each in evidence:
        if each.several:
            yield matrix_table(each)
            yield stacking_table(each) if each.stacks else None
            yield pairs_table(each)


def _shifts(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    for run in loaded.runs:
        if run.shifted:
            yield family_means(run)
            yield group_means(run)


def _placement(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    seen = set()
    for group in loaded.groups:
        for run in group:
            table = placement_table(run, group)
            if table is not None and table.rows not in seen:  # peers would give the same table again
                seen.add(table.rows)
                yield table


def _partitions(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    yield from map(partition_table, loaded.runs)


def _classes(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    for run in loaded.runs:
        for method in run.compared:
            if method in run.gated:  # the others are there for comparison
                yield from class_tables(run, method)


def _gram(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    for run in loaded.runs:
        yield from (consistency_table(run, found) for found in gram_consistency(run))


def _cost(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    for group in loaded.groups:
        for run in group:
            if costs := path_costs(run, group):
                device, diagnosed = run.plan.model.device.upper(), run.plan.diagnostics
                yield cost_table(costs, f"{run.key}-cost", run.name, device, diagnosed)


def _conditions(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    for run in loaded.runs:
        yield every_condition(run)
        yield every_metric(run)


def _figures_only(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Tables:
    return iter(())


_PLACEMENT = (
    "Drift can be measured, and the accepted step applied, at the end of the loop or at the last layer."
)
_PARTITIONS = "A gain that hangs on a few images is gone in the parts of the set that lack them."
_CONSISTENCY = (
    "The ungated replay accepts every step whole. The uniform one accepts, for every patch, the mean share that the gate "
    "would have accepted in this image. What is left between it and the gated one is the choice of patches."
)
_OUTLINE: tuple[tuple[str, str, str, Callable[[LoadedRuns, Sequence[Evidence]], Tables]], ...] = (
    ("main", "Main results", "", _main),
    ("tradeoff", "Gain against cost", "", _figures_only),
    ("methods", "Methods against each other", "", _methods),
    ("severity", "By shift and severity", "", _shifts),
    ("placement", "Placement of gate and update", _PLACEMENT, _placement),
    ("partitions", "Partition consistency", _PARTITIONS, _partitions),
    ("classes", "Classes", "", _classes),
    ("consistency", "Gram consistency at matched strength", _CONSISTENCY, _gram),
    ("cost", "Cost", "", _cost),
    ("diagnostic", "What the gate does in single images", "", _figures_only),
    ("predictions", "Predictions", "", _figures_only),
    ("conditions", "Every condition", "", _conditions),
)


def _listed(words: Sequence[str] | Mapping[str, None]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def _subtitle(loaded: LoadedRuns) -> str:
    runs = loaded.runs
    tasks = _listed(dict.fromkeys(run.task.title for run in runs))
    methods = len(dict.fromkeys(name for run in runs for name in run.methods))
    conditions = sum(len(run.results) for run in runs)
    images = sum(result.images for run in runs for result in run.results)
    return (
        f"{tasks[0].upper()}{tasks[1:]}: {methods} methods, {conditions} conditions, {images:,} images; "
        f"from stored results, gramloop {__version__}"
    )


def _facts(loaded: LoadedRuns) -> dict[str, dict[str, str]]:
    methods: dict[str, str] = {}
    versions: dict[str, dict[str, None]] = {}
    for run in loaded.runs:
        for method in run.plan.methods:
            words = _describe(method)
            if methods.setdefault(method.name, words) != words:
                methods[f"{method.name} in {run.name}"] = words
        for name, value in run.plan.versions.items():
            versions.setdefault(name, {})[value] = None
    facts = {run.name: _about_run(run) for run in loaded.runs}
    return {**facts, "Methods": methods, "Versions": {name: _listed(each) for name, each in versions.items()}}


def _describe(method: Method) -> str:
    if method.mitigations:
        return stack_text(method.mitigations)
    if method.replay is not None:
        return f"{describe_replay(method.replay)} ({replay_text(method.replay)})"
    return "the model as it is"


def _about_run(run: Run) -> dict[str, str]:
    plan, model = run.plan, run.plan.model
    numbers = sorted(set(plan.conditions.values()))
    images = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
    return {
        "plan": plan.hash,
        "suite": plan.suite,
        "task": run.task.title,
        "conditions": f"{len(run.results)} complete of {len(plan.conditions)}",
        "images": f"{images} per condition",
        **({"alignment": plan.alignment} if run.task.aligns else {"classes": str(len(plan.categories))}),
        "backbone": f"{model.depth} blocks, weights in {model.dtype}",
        "device": f"{model.device}, {model.threads} thread{'s' * (model.threads != 1)} per worker",
        "batch": "1 image at a time" if plan.batch == 1 else f"{plan.batch} images of one size at a time",
        "sizes": ", ".join(f"{name} {value}" for name, value in model.sizes.items()) or "the model's own",
        "seed": f"{plan.seed} (no prediction depends on it)",
        **{f"sha256 of {name}": value for name, value in model.sha256.items()},
        **_starts(run),
    }


def _starts(run: Run) -> dict[str, str]:
    """When it was run, where there is a whole manifest."""
    try:
        starts = read_json(run.folder / MANIFEST, "a manifest written by gramloop evaluate")["starts"]
        times = [str(start["time"]) for start in starts]
    except (GramLoopError, KeyError, TypeError):
        return {}
    if not times:
        return {}
    return {"run": times[0] if len(times) == 1 else f"{times[0]} to {times[-1]}, in {len(times)} starts"}
