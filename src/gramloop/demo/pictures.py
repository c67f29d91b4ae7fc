"""The demonstration's picture: input, annotation, both predictions, drift and gate, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from gramloop.data.scenes.drawing import CLASSES, THINGS
from gramloop.demo.exemplars import Exemplar
from gramloop.tasks.prediction import Detection

LEAST_SCORE = 0.4  # as in the paper's pictures; for display only
COLUMNS = ("input", "annotation", "ordinary", "GramLoop", "drift of the last proposal", "its gate")
_COLOURS = {
    "sky": "#a6cee3", "mountain": "#7b6d63", "grass": "#7fb069", "water": "#2f6690", "sand": "#e3cf9c",
    "brick": "#9c4a3c", "pavement": "#a9a9b2", "ball": "#ff7f0e", "crate": "#c68642", "tree": "#0b5d3b",
    "house": "#e377c2", "car": "#5b2a86", "boat": "#00bcd4", "mushroom": "#d62728", "cup": "#ffd92f",
}  # fmt: skip


def draw(rows: Sequence[Exemplar]) -> bytes:
    """The picture as PNG."""
    figure = Figure(figsize=(12.6, 2.1 * len(rows) + 0.8), facecolor="white")
    heights = [*([2.1] * len(rows)), 0.07]
    cells = figure.add_gridspec(
        len(rows) + 1, len(COLUMNS), height_ratios=heights, left=0.045, right=0.995, top=0.955, bottom=0.075,
        wspace=0.03, hspace=0.05,
    )  # fmt: skip
    grid = [
        [figure.add_subplot(cells[row, column]) for column in range(len(COLUMNS))] for row in range(len(rows))
    ]
    highest = max(float(np.quantile(_maps(seen)[0], 0.99)) for seen in rows)  # one scale, outliers clipped
    for panes, seen in zip(grid, rows, strict=True):
        shown = _draw_row(panes, seen, highest)
    for pane, title in zip(grid[0], COLUMNS, strict=True):
        pane.set_title(title, fontsize=10)
    for column, image, extend in ((4, shown[0], "max"), (5, shown[1], "neither")):
        place = figure.add_subplot(cells[len(rows), column])
        figure.colorbar(image, cax=place, orientation="horizontal", extend=extend).ax.tick_params(labelsize=7)
    legend = [Patch(color=_COLOURS[name], label=name) for name in CLASSES]
    figure.legend(handles=legend, loc="lower left", bbox_to_anchor=(0.04, 0.0), ncols=8, fontsize=7.5,
                  frameon=False, handlelength=1.0, columnspacing=1.2)  # fmt: skip
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _draw_row(panes: Any, seen: Exemplar, highest: float) -> tuple[Any, Any]:
    true = seen.truth
    drift, gate = _maps(seen)
    panes[0].imshow(seen.image)
    panes[0].set_ylabel(f"{seen.condition}\n{seen.kind}: {seen.gain:+.1f} pp", fontsize=9)
    panes[1].imshow(_painted(seen.image, true.labels.astype(np.int64) - 1))
    for (left, top, width, height), category in zip(true.boxes, true.categories, strict=True):
        _box(panes[1], left, top, width, height, THINGS[category])
    for pane, labels, found in (
        (panes[2], seen.segmentation.ordinary.labels, seen.detection.ordinary),
        (panes[3], seen.segmentation.replayed.labels, seen.detection.replayed),
    ):
        pane.imshow(_painted(seen.image, labels))
        _draw_detections(pane, found)
    for pane in panes:
        pane.set_xticks([])
        pane.set_yticks([])
        for side in pane.spines.values():
            side.set_visible(False)
    return (
        panes[4].imshow(drift, cmap="magma", vmin=0, vmax=highest),
        panes[5].imshow(gate, cmap="cividis", vmin=0, vmax=1),
    )


def _maps(seen: Exemplar) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    trace = seen.segmentation.replayed.trace
    assert trace is not None
    return trace.drift[-1], trace.gate[-1]


def _painted(image: NDArray[np.uint8], labels: NDArray[Any]) -> NDArray[np.uint8]:
    """The image in grey under the colours of its labels."""
    palette = np.array(
        [[int(_COLOURS[n][i : i + 2], 16) for i in (1, 3, 5)] for n in CLASSES], dtype=np.float64
    )
    grey = image.mean(-1, keepdims=True).repeat(3, -1)
    colour = np.where((labels >= 0)[..., None], palette[np.clip(labels, 0, None)], grey)
    painted: NDArray[np.uint8] = (0.25 * grey + 0.75 * colour).astype(np.uint8)
    return painted


def _draw_detections(pane: Axes, found: Detection) -> None:
    for (left, top, right, bottom), score, label in zip(found.boxes, found.scores, found.labels, strict=True):
        if score >= LEAST_SCORE:
            _box(pane, left, top, right - left, bottom - top, f"{THINGS[label - 1]} {score:.2f}")


def _box(pane: Any, left: float, top: float, width: float, height: float, text: str) -> None:
    pane.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor="black", linewidth=1.8))
    pane.add_patch(Rectangle((left, top), width, height, fill=False, edgecolor="white", linewidth=0.8))
    pane.text(left + 1, top - 1, text, fontsize=5.5, color="white", va="bottom",
              bbox={"facecolor": "black", "alpha": 0.6, "pad": 0.6, "linewidth": 0})  # fmt: skip
