"""Reports: stored results become tables, figures and one page; nothing here runs a model."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.report.answers import answers_of
    from gramloop.report.assemble import make_document
    from gramloop.report.document import Answer, Document
    from gramloop.report.evidence import Evidence, evidence_of
    from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
    from gramloop.report.figures.drawing import Figures, draw_figures
    from gramloop.report.load import LoadedRuns, load_runs
    from gramloop.report.run import Run
    from gramloop.report.statistics import Gain, gains_of, verdict_of
    from gramloop.report.writing import write_report
    from gramloop.util.table import Column, Table
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Answer", "Column", "Diagnosed", "Document", "Evidence", "Figures", "Gain", "LoadedRuns", "Run", "Table",
    "answers_of", "diagnostic", "draw_figures", "evidence_of", "gains_of", "load_runs", "make_document", "verdict_of",
    "write_report",
]  # fmt: skip
