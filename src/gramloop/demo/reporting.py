"""The demonstration's page: the same report that any evaluation gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gramloop.demo.experiment import Experiment
from gramloop.report.document import make_document
from gramloop.report.figures import draw_figures
from gramloop.report.load import load_runs
from gramloop.report.stats import Evidence, compare_methods
from gramloop.report.write import write_report

REPLICATES = 2000
TITLE = "Replay and its rivals on the embedded model"


def make_report(
    experiment: Experiment, folder: Path, on_progress: Callable[[str], None] = lambda _: None
) -> tuple[Path, list[Evidence]]:
    """Write the report; the page, and what is known of the methods, over images.

    ``on_progress`` hears what is being done.
    """
    loaded = load_runs([part.folder for part in experiment.parts], on_progress)
    evidence = compare_methods(loaded.runs, ("images",), replicates=REPLICATES, on_progress=on_progress)
    drawn = draw_figures(loaded, evidence, pdf=False, on_progress=on_progress)
    document = make_document(loaded, evidence, drawn.figures, drawn.remarks)
    return write_report(replace(document, title=TITLE), folder, on_progress), evidence
