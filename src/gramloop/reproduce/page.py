"""The page: every table and figure of a recipe, with the paper's numbers next to yours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.report.breakdowns import gram_consistency
from gramloop.report.document import Document, Section, run_facts
from gramloop.report.figures import Figures, Named
from gramloop.report.figures.charts import consistency_figure, severity_heat
from gramloop.report.figures.diagnostic import diagnostic, drift_maps
from gramloop.report.figures.pictures import (
    ComparedImage,
    KeptImage,
    kept_images,
    qualitative,
)
from gramloop.report.load import LoadedRuns, load_runs
from gramloop.report.run import Run
from gramloop.report.write import write_report
from gramloop.reproduce import tables
from gramloop.reproduce.pool import read_costs
from gramloop.reproduce.recipe import ImageRow, Output
from gramloop.reproduce.running import Reproduction
from gramloop.reproduce.tables import Context, PaperTable
from gramloop.util.plotting import drift_end
from gramloop.util.progress import tracked
from gramloop.util.table import Table

TITLE = "GramLoop: Training-Free Gram-Gated Replay for Robust Dense Prediction"
AUTHORS = "Yang Chen, Canyu Shen, Xinzhe Rao, Yuanyi Yan, Yunlu Chen, Meng Tang, Teng Long and Vincent Tao Hu"
REPORT = "report"  # the folder of the page, below that of the results
_OTHER = (
    "This recipe runs another model on other images than the paper: its layout is the paper's, and no number here can be "
    "compared with a printed one."
)


def make_page(work: Reproduction) -> Path:
    """Read the evaluations of a reproduction and write its page; returns the page."""
    folders = [work.out / name for name, one in work.evaluations.items() if one.methods]
    loaded = load_runs(folders) if folders else LoadedRuns((), ())
    title = work.recipe.title_of
    runs = {run.folder.name: replace(run, name=title(run.folder.name)) for run in loaded.runs}
    made = Context(work.recipe, runs, read_costs(work.out))
    return write_report(paper_document(made, work.outputs, loaded.warnings), work.out / REPORT)


def paper_document(made: Context, outputs: Mapping[str, Output], warnings: Iterable[str] = ()) -> Document:
    """The page of some outputs; an output that cannot be made becomes a warning."""
    sections: list[Section] = []
    remarks = [] if made.recipe.comparable else [_OTHER]
    for key, output in tracked(outputs.items(), "drawing", len(outputs)):
        drawn, tables, missing = Figures(), tuple[Table, ...](), f"{output.title} is left out"
        if output.layout in _FIGURES:
            figures = _FIGURES[output.layout](key, output, made)
            drawn.add(key, figures, True, missing)
            remarks += drawn.remarks
        else:
            try:
                found = _TABLES[output.layout](key, output, made)
                several = [found] if isinstance(found, PaperTable) else found
                tables = tuple(
                    each.side_by_side(key, output.title, made.recipe.comparable) for each in several
                )
            except GramLoopError as error:
                remarks.append(f"{missing}: {error}.")
        if tables or drawn.figures:
            sections.append(Section(key, output.title, "", tables, tuple(drawn.figures), folded=False))
    return Document(
        title="The paper's numbers and yours",
        about={"Recipe": made.recipe.title, "Paper": TITLE, "Version": f"gramloop {__version__}"},
        warnings=tuple(dict.fromkeys((*remarks, *warnings))),
        sections=tuple(sections),
        facts={
            "The paper": {"title": TITLE, "authors": AUTHORS},
            **{name: run_facts(run) for name, run in made.runs.items()},
        },
    )


# the paper's figures


def severity_figure(key: str, output: Output, made: Context) -> Named:
    """Gains by suite and severity, of the complete suites that have severities."""
    gains: dict[tuple[str, int], float] = {}
    runs = [made.runs[name] for name in output.evaluations]
    for run in runs:
        severities = sorted({each.severity for each in run.shifted})
        if not run.complete or output.method not in run.compared or 0 in severities:
            continue
        base, own = run.scores(BASELINE), run.scores(output.method)
        for severity in severities:
            at = [each for each in run.shifted if each.severity == severity]
            means = [float(np.mean([scores[each] for each in at])) for scores in (own, base)]
            gains[run.name, severity] = means[0] - means[1]
    metrics = " and ".join(dict.fromkeys(run.metric for run in runs))
    yield key, severity_heat(gains, metrics, output.method, "suite")


def gram_figure(key: str, output: Output, made: Context) -> Named:
    """Gram consistency at matched strength."""
    run = made.runs[output.evaluation]
    found = next((each for each in gram_consistency(run) if each.method == output.method), None)
    if found is None:
        raise GramLoopError(
            f"{run.name} has no drift of all its images; its evaluation needs diagnostics: true"
        )
    drawn = consistency_figure(found)
    counts = [made.counted(f"{kind} below uniform") for kind in ("families", "conditions")]
    words = (
        f" The gated replay ends below the uniform one in {found.families_below} of {len(found.families)} families"
        f"{counts[0]} and in {found.conditions_below} of {len(found.conditions)} conditions{counts[1]}."
    )
    yield key, replace(drawn, caption=drawn.caption + words)


def impulse_figure(key: str, output: Output, made: Context) -> Named:
    """Drift and gate of one image: under all conditions of the recipe, and under the last alone."""
    rows = []
    for each in output.rows:
        run = made.runs[each.evaluation]
        kept = _kept(run, output.method, each.condition, each.image or output.image)
        rows.append(kept.diagnosed(output.method, f"severity {kept.condition.severity}"))
    title, high = f"Image {output.image}", output.drift or drift_end(drift_maps(rows))
    yield f"{key}-last", diagnostic(rows[-1:], f"{title}, {rows[-1].label}", high)
    if len(rows) > 1:
        yield key, diagnostic(rows, title, high)


def _kept(run: Run, method: str, condition: str, image: str) -> KeptImage:
    """An image that an evaluation kept, by its id."""
    for each in kept_images(run, [method], condition or "*"):
        if each.is_called(condition or each.condition.key, image):
            return each
    raise GramLoopError(
        f"{run.name} keeps no picture of the image {image} under {condition}; its evaluation needs keep: [{image!r}]"
    )


def shift_figure(key: str, output: Output, made: Context) -> Named:
    """Input, annotation, baseline and method, a row for each image."""
    rows = [_compared(made.runs[each.evaluation], output.method, each) for each in output.rows]
    title = made.recipe.title_of
    words = output.title.removeprefix("Figure: ")
    yield key, qualitative(rows, words, (title("baseline"), title(output.method)))


def _compared(run: Run, method: str, row: ImageRow) -> ComparedImage:
    if row.image:
        kept, why = _kept(run, method, row.condition, row.image), "chosen"
    else:
        images = kept_images(run, [method], row.condition or "*")
        gains = [each.gain(method) for each in images]
        if not np.isfinite(gains).any():
            raise GramLoopError(
                f"{run.name} keeps no pictures under {row.condition or 'any condition'}; give it pictures: N"
            )
        kept, why = images[int(np.nanargmax(gains))], "largest gain of the images kept"
    found = kept.compared([method], f"{run.name} · {kept.place} · {why}")
    return found.part(row.crop, row.categories) if row.crop or row.categories else found


_TABLES: dict[str, Callable[[str, Output, Context], PaperTable | Iterable[PaperTable]]] = {
    "methods": tables.paper_methods,
    "intervals": tables.paper_intervals,
    "partitions": tables.paper_partitions,
    "placement": tables.paper_placement,
    "compute": tables.paper_compute,
    "families": tables.paper_families,
    "classes": tables.paper_classes,
}
_FIGURES: dict[str, Callable[[str, Output, Context], Named]] = {
    "severity": severity_figure,
    "consistency": gram_figure,
    "diagnostic": impulse_figure,
    "qualitative": shift_figure,
}
