"""The demonstration's page: the same report that any evaluation gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gramloop.demo.experiment import Experiment
from gramloop.report.assemble import make_document
from gramloop.report.figures.drawing import draw_figures
from gramloop.report.load import load_runs
from gramloop.report.statistics import Gain, gains_of
from gramloop.report.writing import write_report

REPLICATES = 2000
TITLE = "Replay and its rivals on the embedded model"


def make_report(
    experiment: Experiment, folder: Path, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[Path, list[Gain]]:
    """Write the report; the page, and the gains with their intervals over images.

    ``on_progress`` hears what is being done.
    """
    loaded = load_runs([part.folder for part in experiment.parts], on_progress)
    gains = gains_of(loaded.runs, "images", replicates=REPLICATES, on_progress=on_progress)
    drawn = draw_figures(loaded, (), False, gains, on_progress)
    document = make_document(loaded, gains, drawn.figures, drawn.remarks)
    return write_report(replace(document, title=TITLE), folder, on_progress), gains
