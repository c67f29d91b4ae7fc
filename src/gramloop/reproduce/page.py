"""The page: every table and figure of a recipe, with the paper's numbers next to yours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.report.document import Document, Section, described_weights
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
    "methods": tables.paper_methods,
    "intervals": tables.paper_intervals,
    "partitions": tables.paper_partitions,
    "placement": tables.paper_placement,
    "compute": tables.paper_compute,
    "families": tables.paper_families,
    "classes": tables.paper_classes,
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
        document = paper_document(made, work.outputs, loaded.warnings, advance)
    return write_report(document, work.out / REPORT)


def paper_document(
    made: Context,
    outputs: Mapping[str, Output],
    warnings: Iterable[str] = (),
    on_output: Callable[[str], None] = lambda name: None,
) -> Document:
    """The page of some outputs; an output that cannot be made becomes a warning."""
    sections: list[Section] = []
    remarks = [] if made.recipe.comparable else [_OTHER]
    for key, layout in outputs.items():
        drawn = Figures()
        missing = f"{layout.title} is left out"
        if layout.layout in _FIGURES:
            named = _FIGURES[layout.layout](key, layout, made)
            drawn.add(key, named, True, lambda _: None, missing)
            sections.append(Section(key, layout.title, "", (), tuple(drawn.figures), folded=False))
            remarks += drawn.remarks
        else:
            try:
                found = _TABLES[layout.layout](key, layout, made)
                several = [found] if isinstance(found, PaperTable) else found
                shown = tuple(
                    each.side_by_side(key, layout.title, made.recipe.comparable) for each in several
                )
                sections.append(Section(key, layout.title, "", shown, folded=False))
            except GramLoopError as error:
                remarks.append(f"{missing}: {error}.")
        on_output(key)
    counted = claims_table(made)
    if counted is not None:
        sections.append(Section("claims", "Claims of the text", "", (counted,), folded=False))
    paper = {"title": TITLE, "authors": ", ".join(AUTHORS), "code announced at": CODE, "BibTeX": BIBTEX}
    return Document(
        title="The paper's numbers and yours",
        about={"Recipe": made.recipe.title, "Paper": TITLE, "Version": f"gramloop {__version__}"},
        warnings=tuple(dict.fromkeys((*remarks, *warnings))),
        sections=tuple(sections),
        facts={"The paper": paper, **_plans(made)},
    )


def _plans(made: Context) -> dict[str, dict[str, str]]:
    """What was run, evaluation by evaluation; no times, so that the page is the same after any number of stops."""
    return {
        name: {
            "plan": run.plan.hash,
            "suite": run.plan.suite,
            "conditions": f"{len(run.results)} complete of {len(run.plan.conditions)}",
            "images": f"{run.plan.images:,}",
            "methods": ", ".join(method.name for method in run.plan.methods),
            "device": run.plan.model.device,
            **described_weights(run.plan.model.sha256),
        }
        for name, run in made.runs.items()
    }
