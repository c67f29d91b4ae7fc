"""Depth in the figure of predictions: input, truth, baseline and method, all panels of a figure on one scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.report.figures.panels import PixelRow, draw_values, nearest, shrunk
from gramloop.report.figures.style import DEPTH_MAP

_CLIPPED = (
    98  # percentile of the true depth at which the scale ends, so that the horizon does not hide the rest
)


@dataclass(frozen=True)
class DepthRow(PixelRow):
    """Depth maps in metres; nan where depth is not known."""

    def within(self, values: NDArray[np.float32]) -> float:
        """The share of pixels within a factor of 1.25 of the truth."""
        known = np.isfinite(self.truth)
        ratio = values[known] / self.truth[known]
        return float(np.mean((ratio < 1.25) & (ratio > 1 / 1.25)))


def depth_scale(rows: Sequence[DepthRow]) -> float:
    """The depth at which the scale of a figure ends."""
    known = np.concatenate([row.truth[np.isfinite(row.truth)] for row in rows])
    return float(np.percentile(known, _CLIPPED)) if known.size else 1.0


def draw_depth(panels: Sequence[Any], row: DepthRow, high: float) -> Any:
    """Truth, baseline and method in three panels; what is returned is what a colour bar belongs to."""
    small, shown = shrunk(row.image), None
    for panel, metres in zip(panels, (row.truth, row.baseline, row.method), strict=True):
        shown = draw_values(panel, nearest(metres, small.shape[:2]), DEPTH_MAP, high)
    return shown


def gist_of_depth(row: DepthRow) -> str:
    """The row in words."""
    before, after = (row.within(values) for values in (row.baseline, row.method))
    return f"{row.title}: {before:.1%} of pixels within a factor of 1.25 become {after:.1%}."
