"""Gain against cost: what each method brings for the blocks it executes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.report.figures.heat import signed
from gramloop.report.figures.style import CLASS_COLOURS, COLUMN, FAINT, INK, Drawn, Sheet, styled

_MARKERS = "oDsv^<>Ph8"
_HEIGHT, _LEGEND_ROW = 2.0, 0.135  # inches


@dataclass(frozen=True)
class Point:
    """One method: blocks executed per block of the ordinary model, and its mean gain with an interval."""

    method: str
    multiplier: float
    gain: float
    low: float | None = None
    high: float | None = None

    @property
    def words(self) -> str:
        """The numbers, as legend and captions give them."""
        span = ""
        if self.low is not None and self.high is not None:
            span = f" [{signed(self.low, 3)}, {signed(self.high, 3)}]"
        return f"{self.method}, {self.multiplier:.2f}×: {signed(self.gain, 3)}{span}"


def gain_against_cost(
    points: Sequence[Point],
    metric: str,
    level: float = 0.95,
    width: float = COLUMN,
    over: str = "shift families",
) -> Drawn:
    """A point with its interval for each method; the baseline is the cross at no gain and a cost of one."""
    if not points:
        raise GramLoopError("gain against cost needs at least one method beside the baseline")
    with styled():
        return Drawn(_draw(points, metric, width), "Gain against cost", *_words(points, metric, level, over))


def _draw(points: Sequence[Point], metric: str, width: float) -> Any:
    legend = _LEGEND_ROW * (len(points) + 1)
    sheet = Sheet(width, _HEIGHT + legend)
    axes = sheet.panel(0.52, 0.08, width - 0.62, _HEIGHT - 0.5)
    axes.axhline(0, color=FAINT, linewidth=0.7)
    axes.plot([1], [0], marker="+", color=INK, markersize=6, linestyle="none", label="baseline, 1×")
    last = max(point.multiplier for point in points)
    step = 0.028 * max(last - 1, 0.1)
    for index, point in enumerate(points):
        axes.errorbar(
            _beside(points, index, step),
            point.gain,
            yerr=_reach(point),
            marker=_MARKERS[index % len(_MARKERS)],
            color=CLASS_COLOURS[index % len(CLASS_COLOURS)],
            markersize=4.2,
            linewidth=1.0,
            capsize=2,
            linestyle="none",
            label=point.words,
        )
    axes.set_xlim(1 - 3 * step, last + 4 * step)
    axes.margins(y=0.12)
    axes.set_xlabel("blocks executed ÷ ordinary", labelpad=2)
    axes.set_ylabel(f"gain in mean {metric} (points)", labelpad=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color="#ececec", linewidth=0.5)
    axes.set_axisbelow(True)
    sheet.figure.legend(
        loc="lower left",
        bbox_to_anchor=(0.42 / width, 0.01),
        frameon=False,
        borderpad=0.2,
        labelspacing=0.3,
        handletextpad=0.2,
    )
    return sheet.figure


def _reach(point: Point) -> Any:
    if point.low is None or point.high is None:
        return None
    return [[max(point.gain - point.low, 0)], [max(point.high - point.gain, 0)]]


def _beside(points: Sequence[Point], index: int, step: float) -> float:
    """Methods of about equal cost stand side by side, so that their intervals do not hide each other."""
    own = points[index].multiplier
    together = [i for i, point in enumerate(points) if abs(point.multiplier - own) < 0.5 * step]
    return own + step * (together.index(index) - (len(together) - 1) / 2)


def _words(points: Sequence[Point], metric: str, level: float, over: str) -> tuple[str, str]:
    best = points[int(np.argmax([point.gain for point in points]))]
    with_interval = any(point.low is not None for point in points)
    bars = f" with {level:.0%} intervals of the paired bootstrap over {over}" * with_interval
    caption = (
        f"Gain in mean {metric} over all shifted conditions against transformer blocks executed{bars}; the cross "
        f"is the baseline. The largest gain has {best.method}: {signed(best.gain, 3)} at {best.multiplier:.2f} "
        "times the blocks. Methods of equal cost are drawn side by side."
    )
    return caption, f"Scatter plot. {caption} " + "; ".join(point.words for point in points) + "."
