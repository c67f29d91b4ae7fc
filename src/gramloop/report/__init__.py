"""Reports: stored results become tables, figures and one page; nothing here runs a model."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.report.assemble import make_document
    from gramloop.report.document import Document
    from gramloop.report.load import Gathered, Run, gather
    from gramloop.report.statistics import Gain, gains_of
    from gramloop.report.writing import write_report
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = ["Document", "Gain", "Gathered", "Run", "gains_of", "gather", "make_document", "write_report"]
