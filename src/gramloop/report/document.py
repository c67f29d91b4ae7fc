"""From loaded results to a document: verdicts, warnings, and sections of tables and figures in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.evaluate.answer import Answer, model_options, short_path
from gramloop.evaluate.methods import Method
from gramloop.evaluate.store import MANIFEST
from gramloop.mitigations.stack import stack_text
from gramloop.replay.config import replay_text
from gramloop.report.answers import answers_of
from gramloop.report.breakdowns import (
    class_tables,
    consistency_tables,
    cost_table,
    every_condition,
    every_metric,
    family_means,
    placements_table,
    quality_table,
)
from gramloop.report.load import LoadedRuns
from gramloop.report.run import Run
from gramloop.report.stats import Evidence
from gramloop.report.tables import gains_table, main_results, matrix_table, pairs_table, relative_results
from gramloop.util.json_files import read_json
from gramloop.util.plotting import CaptionedFigure
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
    dark: bytes | None = None  # the PNG for a dark page, of figures with photographs, whose colours must stay

    @classmethod
    def of(
        cls, key: str, drawn: CaptionedFigure, section: str, pdf: bool = True, photograph: bool = False
    ) -> RenderedFigure:
        """Render a figure."""
        files = drawn.png(), drawn.pdf() if pdf else None
        dark = drawn.dark_png() if photograph else None
        return cls(key, drawn.title, drawn.caption, *files, drawn.alt, section, dark)


@dataclass(frozen=True)
class Section:
    """A part of the report under one heading."""

    key: str
    title: str
    text: str
    tables: tuple[Table, ...] = ()
    figures: tuple[RenderedFigure, ...] = ()
    folded: bool = True


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    about: Mapping[str, str] = field(default_factory=dict)  # model, data and command
    answers: tuple[Answer, ...] = ()
    figures: tuple[RenderedFigure, ...] = ()  # of the answers
    warnings: tuple[str, ...] = ()
    sections: tuple[Section, ...] = ()  # everything else
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # configuration and versions

    def figures_of(self, answer: Answer) -> list[RenderedFigure]:
        """The chart of an answer and the pictures of its method."""
        return [figure for figure in self.figures if figure.section == answer_section(answer.name)]


def answer_section(name: str) -> str:
    """The section of the figures of an answer."""
    return f"answer {name}"


def report_document(
    loaded: LoadedRuns,
    evidence: Sequence[Evidence],
    figures: Sequence[RenderedFigure] = (),
    remarks: Sequence[str] = (),
    folder: Path | None = None,
) -> Document:
    """The report of loaded results.

    Args:
        loaded: The results.
        evidence: Their methods compared.
        figures: What was drawn of them.
        remarks: Further warnings.
        folder: Where the report will be written, for the lines that use its files.
    """
    sections = []
    for key, title, text, made in _outline(loaded, evidence):
        tables = tuple(table for table in made if table is not None)
        own = tuple(figure for figure in figures if figure.section == key)
        if tables or own:
            sections.append(Section(key, title, text, tables, own))
    others = any(method.stack and method.replay is None for run in loaded.runs for method in run.plan.methods)
    suites = _listed(dict.fromkeys(run.plan.suite for run in loaded.runs))
    return Document(
        title=f"{'Mitigations' if others else 'Gram-gated replay'} on {suites}",
        about=_about(loaded),
        answers=tuple(answers_of(loaded.runs, evidence, folder)),
        figures=tuple(figure for figure in figures if figure.section.startswith(answer_section(""))),
        warnings=tuple(dict.fromkeys((*loaded.warnings, *remarks))),
        sections=tuple(sections),
        facts=_facts(loaded),
    )


Tables = Iterable[Table | None]


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
            yield pairs_table(each)
    found = (placements_table(run, group) for group in loaded.groups for run in group)
    yield from {
        table.rows: table for table in found if table is not None
    }.values()  # peers give the same table


def _classes(runs: Sequence[Run]) -> Tables:
    for run in runs:
        for method in run.compared:
            if method in run.gated:  # the others are there for comparison
                yield from class_tables(run, method)


_CONSISTENCY = (
    "The ungated replay accepts every step whole. The uniform one accepts, for every patch, the mean share that the gate "
    "would have accepted in this image. What is left between it and the gated one is the choice of patches."
)


def _outline(loaded: LoadedRuns, evidence: Sequence[Evidence]) -> Iterator[tuple[str, str, str, Tables]]:
    """Key, title, text and tables of every section."""
    runs = loaded.runs
    yield "main", "Main results", "", _main(loaded, evidence)
    yield "methods", "Methods against each other", "", _methods(loaded, evidence)
    yield "severity", "By shift and severity", "", map(family_means, runs)
    yield "classes", "Classes", "", _classes(runs)
    matched = (table for run in runs for table in consistency_tables(run))
    yield "consistency", "Gram consistency at matched strength", _CONSISTENCY, matched
    yield "cost", "Cost", "", map(cost_table, runs)
    yield "predictions", "Predictions", "", ()  # figures alone
    every = (table for run in runs for table in (every_condition(run), every_metric(run)))
    yield "conditions", "Every condition", "", every


def _listed(words: Sequence[str] | Mapping[str, None]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last


def _about(loaded: LoadedRuns) -> dict[str, str]:
    """Model and data, and the command that evaluated the first suite, where one did."""
    runs = loaded.runs
    models = _listed(dict.fromkeys(_model_name(each) for each in runs))
    tasks = _listed(dict.fromkeys(each.plan.task for each in runs))
    roots = _listed(dict.fromkeys(short_path(each.plan.data.root) for each in runs))
    images = max(max(each.plan.conditions.values()) for each in runs)
    return {
        "Model": f"{models}, {tasks}",
        "Data": f"{roots}: {images:,} images, {_listed(dict.fromkeys(_conditions_of(each) for each in runs))}",
        **_command(runs[0]),
    }


def _starts(run: Run) -> list[Mapping[str, object]]:
    """What the manifest keeps of every start; nothing where there is no whole one."""
    try:
        starts = read_json(run.folder / MANIFEST, "a manifest written by gramloop evaluate")["starts"]
        return [dict(start) for start in starts]
    except (GramLoopError, KeyError, TypeError, ValueError):
        return []


def _command(run: Run) -> dict[str, str]:
    """The last command that ran it; one that only resumes a folder says less than the one before."""
    commands = [str(start["command"]) for start in _starts(run) if "command" in start]
    found = [each for each in commands if "--suite" in each] or commands
    return {"Command": found[-1]} if found else {}


def _model_name(run: Run) -> str:
    options = model_options(run.plan.model)
    if options == "--model tiny":
        return "tiny (embedded; it knows drawn scenes only)"
    return options.removeprefix("--model ") or next(iter(run.plan.model.files.values()), run.plan.model.kind)


def _conditions_of(run: Run) -> str:
    many = len(run.plan.conditions)
    return f"{run.plan.suite} ({many} condition{'s' * (many != 1)})"


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
    facts = {run.name: {**run_facts(run), **_times(run)} for run in loaded.runs}
    return {**facts, "Methods": methods, "Versions": {name: _listed(each) for name, each in versions.items()}}


def _describe(method: Method) -> str:
    if method.replay is not None:
        return f"a replay: {replay_text(method.replay) or 'as published'}"
    return stack_text(method.stack) or "the model as it is"


def run_facts(run: Run) -> dict[str, str]:
    """What was run on what; no times, so that it is the same after any number of starts."""
    plan, model = run.plan, run.plan.model
    numbers = sorted(set(plan.conditions.values()))
    images = f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
    return {
        "plan": plan.hash,
        "suite": plan.suite,
        "task": plan.task,
        "conditions": f"{len(run.results)} complete of {len(plan.conditions)}",
        "images": f"{images} per condition",
        **({"alignment": plan.alignment} if run.task.aligns else {"classes": str(len(plan.categories))}),
        "backbone": f"{model.depth} blocks, weights in {model.dtype}",
        "device": f"{model.device}, {model.threads} thread{'s' * (model.threads != 1)} per worker",
        "batch": "1 image at a time" if plan.batch == 1 else f"{plan.batch} images of one size at a time",
        "sizes": ", ".join(f"{name} {value}" for name, value in model.sizes.items()) or "the model's own",
        "seed": f"{plan.seed} (no prediction depends on it)",
        # checksums, and what else identifies a model, such as a version
        **{f"sha256 of {name}" if len(value) == 64 else name: value for name, value in model.sha256.items()},
    }


def _times(run: Run) -> dict[str, str]:
    """When it was run."""
    times = [str(start["time"]) for start in _starts(run) if "time" in start]
    if len(times) < 2:
        return {"run": times[0]} if times else {}
    return {"run": f"{times[0]} to {times[-1]}, in {len(times)} starts"}
