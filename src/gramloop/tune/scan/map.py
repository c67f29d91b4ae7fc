"""A picture of a scan: start x end of the window, one panel per question."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.tune.scan.scanning import Scan
from gramloop.tune.scan.scores import DEFAULT, ranked

_MARKED = 5
_INK, _PAPER, _NOT_SCANNED = "#1c2330", "#ffffff", "#eceef2"


@dataclass(frozen=True)
class _Panel:
    title: str
    values: NDArray[np.float64]  # (W,)
    colours: str
    middle: float | None = None  # diverging colours around this value
    logarithmic: bool = False


def draw_map(scan: Scan, score: str = DEFAULT) -> bytes:
    """A PNG with drift, step, amplification and contraction of every window, and the first five of the ranking."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = _panels(scan)
    columns = 3
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.9 * columns, 4.6 * rows + 0.9), facecolor=_PAPER, layout="constrained")
    FigureCanvasAgg(figure)
    places = [entry.window for entry in ranked(scan, score)[:_MARKED]]
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, panel in zip(axes, panels, strict=False):
        _draw(figure, axis, scan, panel, places)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    figure.suptitle(
        f"{scan.host}, {scan.depth} blocks: one replay of every window, {len(scan.images)} "
        f"{'image' if len(scan.images) == 1 else 'images'} under {len(scan.conditions)} conditions\n"
        f"numbers: the first {len(places)} by the score {score.replace('_', ' ')}",
        fontsize=12,
        color=_INK,
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _panels(scan: Scan) -> list[_Panel]:
    panels = [
        _Panel(
            "Gram drift at the last block (median)", scan.typical("drift_median"), "viridis_r", None, True
        ),
        _Panel("Length of the step, relative to the state", scan.typical("step"), "viridis_r"),
        _Panel("Drift per step, √drift / step", scan.typical("amplification"), "viridis_r"),
        _Panel("Second step / first step\n(below 1: contracts)", scan.typical("step_ratio"), "RdBu_r", 1.0),
        _Panel("Drift of the second replay / first", scan.typical("growth_2"), "viridis_r"),
    ]
    if scan.paired:
        ratio = scan.shifted_to_clean("step")
        panels.append(_Panel("Step on shifted / on clean images", ratio, "PuOr_r", 1.0))
    return panels


def _draw(figure: Any, axis: Any, scan: Scan, panel: _Panel, places: Sequence[tuple[int, int]]) -> None:
    grid = np.full((scan.depth, scan.depth), np.nan)  # (start, end)
    for (start, end), value in zip(scan.windows, panel.values, strict=True):
        grid[start, end] = value
    axis.set_facecolor(_NOT_SCANNED)
    image = axis.imshow(grid, cmap=panel.colours, norm=_norm(panel), origin="upper")
    for number, (start, end) in enumerate(places, start=1):
        axis.text(
            end,
            start,
            str(number),
            ha="center",
            va="center",
            fontsize=9 if scan.depth <= 16 else 6,
            weight="bold",
            color=_INK,
            bbox={"boxstyle": "circle,pad=0.18", "facecolor": _PAPER, "edgecolor": _INK, "linewidth": 0.8},
        )
    ticks = range(0, scan.depth, 1 if scan.depth <= 16 else 4)
    axis.set_xticks(ticks)
    axis.set_yticks(ticks)
    axis.set_xlabel("last block of the window", color=_INK)
    axis.set_ylabel("first block", color=_INK)
    axis.set_title(panel.title, fontsize=10.5, color=_INK)
    axis.tick_params(labelsize=8, length=2)
    figure.colorbar(image, ax=axis, shrink=0.82, pad=0.02)


def _norm(panel: _Panel) -> Any:
    from matplotlib.colors import LogNorm, Normalize, TwoSlopeNorm

    finite = panel.values[np.isfinite(panel.values)]
    if panel.middle is not None:
        reach = max(float(np.abs(finite - panel.middle).max(initial=0.0)), 1e-6)
        return TwoSlopeNorm(panel.middle, panel.middle - reach, panel.middle + reach)
    if panel.logarithmic and (finite > 0).any():
        positive = finite[finite > 0]
        return LogNorm(positive.min(), max(positive.max(), positive.min() * 1.01))
    return Normalize()
