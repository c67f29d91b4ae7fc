"""The page: every table and figure of a recipe, with the paper's numbers next to yours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.report.document import Document, RenderedFigure, Section, described_weights
from gramloop.report.figures import Figures
from gramloop.report.load import LoadedRuns, load_runs, report_workers
from gramloop.report.write import write_report
from gramloop.reproduce import figures, tables
from gramloop.reproduce.paper import AUTHORS, BIBTEX, CODE, TITLE
from gramloop.reproduce.pool import read_costs
from gramloop.reproduce.recipe import Output
from gramloop.reproduce.running import Reproduction
from gramloop.reproduce.tables import Context, PaperTable, claims_table
from gramloop.util.progress import progress_bar

REPORT = "report"  # the folder of the page, below that of the results
_TABLES: dict[str, Any] = {
    "methods": tables.main_table,
    "intervals": tables.intervals_table,
    "partitions": tables.partitions_table,
    "placement": tables.placement_table,
    "compute": tables.compute_table,
    "families": tables.families_table,
    "classes": tables.classes_tables,
}
_FIGURES: dict[str, Any] = {
    "severity": figures.severity_figure,
    "consistency": figures.gram_figure,
    "diagnostic": figures.impulse_figure,
    "qualitative": figures.shift_figure,
}
_OTHER = (
    "This recipe runs another model on other images than the paper: its layout is the paper's, and no number here can be "
    "compared with a printed one."
)


def make_page(work: Reproduction) -> Path:
    """Read the evaluations of a reproduction and write its page; returns the page."""
    folders = [work.out / name for name, one in work.evaluations.items() if one.methods]
    with progress_bar("reading", None) as advance:
        loaded = load_runs(folders, advance, report_workers(folders)) if folders else LoadedRuns((), ())
    title = work.recipe.title_of
    runs = {run.folder.name: replace(run, name=title(run.folder.name)) for run in loaded.runs}
    made = Context(work.recipe, runs, read_costs(work.out))
    with progress_bar("drawing", len(work.outputs)) as advance:
        document = make_document(made, work.outputs, loaded.warnings, advance)
    return write_report(document, work.out / REPORT)


def make_document(
    made: Context,
    outputs: dict[str, Output] | Any,
    warnings: Iterable[str] = (),
    on_output: Any = lambda name: None,
) -> Document:
    """The page of some outputs; an output that cannot be made becomes a warning."""
    sections: list[Section] = []
    remarks: list[str] = []
    for key, layout in outputs.items():
        try:
            sections.append(_section(key, layout, made, remarks))
        except GramLoopError as error:
            remarks.append(f"{layout.title} is left out: {error}.")
        on_output(key)
    comparable = made.recipe.comparable
    counted = claims_table(made)
    if counted is not None:
        sections.append(Section("claims", "Claims of the text", "", (counted,), folded=False))
    return Document(
        title="The paper's numbers and yours",
        about={"Recipe": made.recipe.title, "Paper": TITLE, "Version": f"gramloop {__version__}"},
        warnings=tuple(dict.fromkeys((*([] if comparable else [_OTHER]), *remarks, *warnings))),
        sections=tuple(sections),
        facts={
            "The paper": {
                "title": TITLE,
                "authors": ", ".join(AUTHORS),
                "code announced at": CODE,
                "BibTeX": BIBTEX,
            },
            **_plans(made),
        },
    )


def _section(key: str, layout: Output, made: Context, remarks: list[str]) -> Section:
    if layout.layout in _FIGURES:
        drawn = Figures()
        drawn.add(
            key,
            _FIGURES[layout.layout](key, layout, made),
            True,
            lambda _: None,
            f"{layout.title} is left out",
        )
        remarks += drawn.remarks
        found: list[RenderedFigure] = drawn.figures
        return Section(key, layout.title, "", (), tuple(found), folded=False)
    one = _TABLES[layout.layout](key, layout, made)
    several: list[PaperTable] = one if isinstance(one, list) else [one]
    return Section(
        key,
        layout.title,
        "",
        tuple(each.side_by_side(made.recipe.comparable) for each in several),
        folded=False,
    )


def _plans(made: Context) -> dict[str, dict[str, str]]:
    """What was run, evaluation by evaluation; no times, so that the page is the same after any number of stops."""
    found = {}
    for name, run in made.runs.items():
        plan = run.plan
        found[name] = {
            "plan": plan.hash,
            "suite": plan.suite,
            "conditions": f"{len(run.results)} complete of {len(plan.conditions)}",
            "images": f"{plan.images:,}",
            "methods": ", ".join(method.name for method in plan.methods),
            "device": plan.model.device,
            **described_weights(plan.model.sha256),
        }
    return found
