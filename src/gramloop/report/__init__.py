"""Reports: stored results become tables, figures and one page; nothing here runs a model."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.report.answers import answers_of, read_answers
    from gramloop.report.document import Document, report_document
    from gramloop.report.figures import Figures, draw_figures
    from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
    from gramloop.report.load import LoadedRuns, load_runs
    from gramloop.report.run import Run
    from gramloop.report.stats import Evidence, compare_methods
    from gramloop.report.write import write_report
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Diagnosed", "Document", "Evidence", "Figures", "LoadedRuns", "Run", "answers_of",
    "compare_methods", "diagnostic", "draw_figures", "load_runs", "read_answers", "report_document",
    "write_report",
]  # fmt: skip
