"""The demonstration's page: the same report that any evaluation gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gramloop.demo.experiment import Experiment
from gramloop.evaluate.answer import Answer
from gramloop.report.document import make_document
from gramloop.report.figures import draw_figures
from gramloop.report.load import load_runs
from gramloop.report.stats import compare_methods
from gramloop.report.write import write_report

REPLICATES = 2000
TITLE = "Replay and its rivals on the embedded model"


def make_report(
    experiment: Experiment, folder: Path, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[Path, tuple[Answer, ...]]:
    """Write the report with intervals over images; the page and its answers."""
    loaded = load_runs([part.folder for part in experiment.parts], on_progress)
    evidence = compare_methods(loaded.runs, ("images",), replicates=REPLICATES, on_progress=on_progress)
    drawn = draw_figures(loaded, evidence, pdf=False, on_progress=on_progress)
    document = make_document(loaded, evidence, drawn.figures, drawn.remarks, folder)
    return write_report(
        replace(document, title=TITLE, about={**document.about, "Command": "gramloop demo"}),
        folder,
        on_progress,
    ), document.answers
