"""The figures of a report: `all_pictures` draws those that gathered results allow.

The figures themselves know no store: each takes arrays, and gives a `Drawn` with its words.
"""

from gramloop.report.figures.drawing import SECTIONS, Pictures, all_pictures, draw_all

__all__ = ["SECTIONS", "Pictures", "all_pictures", "draw_all"]
