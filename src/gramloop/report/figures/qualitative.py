"""Images with their predictions side by side: input, annotation, baseline and method, one row per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.report.figures.boxes import DetectionRow, draw_detection, gist_of_boxes, legend_of_boxes
from gramloop.report.figures.depth import DepthRow, depth_scale, draw_depth, gist_of_depth
from gramloop.report.figures.panels import (
    PixelRow,
    colour_bar,
    draw_legend,
    draw_outline,
    painted,
    photograph,
    shrunk,
)
from gramloop.report.figures.segments import (
    SegmentsRow,
    draw_segments,
    gist_of_segments,
    words_of_segments,
)
from gramloop.report.figures.style import CLASS_COLOURS, FULL, GAINED, LOST, OTHER, Drawn, Sheet, styled

_GAP, _HEAD, _TITLE, _LEGEND, _EDGE = 0.06, 0.17, 0.17, 0.19, 0.02  # inches
_SCALE = 0.32  # inches of a colour bar with its words
_TALLEST = 1.35  # of a panel's width


@dataclass(frozen=True)
class SegmentationRow(PixelRow):
    """Label maps."""

    names: Mapping[int, str] = field(default_factory=dict)
    ignored: int = 255

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Pixels that are scored."""
        valid: NDArray[np.bool_] = self.truth != self.ignored
        return valid

    @property
    def gained(self) -> NDArray[np.bool_]:
        """Scored pixels that the method gets right and the baseline does not."""
        return _both(self.valid, self.method == self.truth, self.baseline != self.truth)

    @property
    def lost(self) -> NDArray[np.bool_]:
        """Scored pixels that the baseline gets right and the method does not."""
        return _both(self.valid, self.baseline == self.truth, self.method != self.truth)

    @property
    def present(self) -> dict[int, int]:
        """Classes of the row with their pixels over the three label maps, the largest first."""
        labels, counts = np.unique(np.stack([self.truth, self.baseline, self.method]), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {int(labels[i]): int(counts[i]) for i in order if labels[i] != self.ignored}


Row = SegmentationRow | DetectionRow | DepthRow | SegmentsRow


def _both(*masks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    every: NDArray[np.bool_] = np.logical_and.reduce(masks)
    return every


def qualitative(
    rows: Sequence[Row],
    title: str = "Predictions",
    methods: Sequence[str] = ("baseline", "gramloop"),
    truth: str = "annotation",
) -> Drawn:
    """The figure, a row of four panels for each image; ``truth`` is what predictions are compared with."""
    if not rows:
        raise GramLoopError("a figure of predictions needs at least one image")
    with styled():
        return Drawn(_draw(rows, methods, truth), title, *_words(rows, methods, truth))


def _draw(rows: Sequence[Row], methods: Sequence[str], truth: str) -> Any:
    width = (FULL - 3 * _GAP - 2 * _EDGE) / 4
    heights = [width * min(_shape(row)[0] / _shape(row)[1], _TALLEST) for row in rows]
    detects = any(isinstance(row, DetectionRow) for row in rows)
    legends = [_LEGEND if isinstance(row, SegmentationRow | SegmentsRow) else 0.05 for row in rows]
    deep = [row for row in rows if isinstance(row, DepthRow)]
    below = _LEGEND * detects + _SCALE * bool(deep)
    sheet = Sheet(FULL, _HEAD + sum(heights) + sum(legends) + _TITLE * len(rows) + below)
    left = [_EDGE + column * (width + _GAP) for column in range(4)]
    for x, name in zip(left, ("input", truth, *methods), strict=True):
        sheet.text(x + width / 2, 0.03, name, ha="center", fontweight="bold")
    colours = iter(class_colours([row for row in rows if isinstance(row, SegmentationRow | SegmentsRow)]))
    top = _HEAD
    for row, tall, legend in zip(rows, heights, legends, strict=True):
        sheet.text(_EDGE, top + 0.045, row.title, fontsize=6.5)
        top += _TITLE
        panels = [sheet.panel(x, top, width, tall) for x in left]
        if isinstance(row, DetectionRow):
            draw_detection(panels, row)
        elif isinstance(row, DepthRow):
            photograph(panels[0], shrunk(row.image), high=row.image.shape[:2])
            shown = draw_depth(panels[1:], row, depth_scale(deep))
        elif isinstance(row, SegmentsRow):
            draw_segments(sheet, panels, row, next(colours), top + tall)
        else:
            draw_segmentation(sheet, panels, row, next(colours), top + tall)
        top += tall + legend
    if deep:
        place = (left[1] + 0.06, sheet.height - below + 0.02, 3 * width + 2 * _GAP - 0.12)
        colour_bar(sheet, shown, place, "depth (m)", beyond=True)
    if detects:
        draw_legend(sheet, legend_of_boxes(methods, truth), sheet.height - 0.01, lower=True)
    return sheet.figure


def _shape(row: Row) -> tuple[float, float]:
    if isinstance(row, DetectionRow):
        left, top, right, bottom = row.view
        return bottom - top, right - left
    return row.image.shape[0], row.image.shape[1]


def draw_segmentation(
    sheet: Sheet, panels: Sequence[Any], row: SegmentationRow, colours: Mapping[int, str], below: float
) -> None:
    """Input, truth, baseline and method in four panels, and the classes' colours below."""
    size = row.image.shape[0], row.image.shape[1]
    small = shrunk(row.image)
    photograph(panels[0], small, high=size)
    for panel, labels in zip(panels[1:], (row.truth, row.baseline, row.method), strict=True):
        photograph(panel, painted(small, labels, colours, row.ignored), high=size)
    for mask, colour in ((row.lost, LOST), (row.gained, GAINED)):
        draw_outline(panels[3], mask, colour, small.shape[:2])
    handles: list[Any] = [
        Patch(color=colour, label=row.names.get(label, f"class {label}")) for label, colour in colours.items()
    ]
    if len(row.present) > len(colours):
        handles.append(Patch(color=OTHER, label="others"))
    share = max(int(row.valid.sum()), 1)
    for mask, colour, word in ((row.gained, GAINED, "gained"), (row.lost, LOST, "lost")):
        handles.append(Line2D([], [], color=colour, linewidth=1.4, label=f"{word} {mask.sum() / share:.1%}"))
    draw_legend(sheet, handles, below + 0.02)


def class_colours(rows: Sequence[SegmentationRow | SegmentsRow]) -> list[dict[int, str]]:
    """The largest classes of each row with a colour of their own, which a class keeps from row to row if it can."""
    known: dict[int, str] = {}
    found = []
    for row in rows:
        largest = list(row.present)[: len(CLASS_COLOURS)]
        own: dict[int, str] = {}
        for label in largest:
            if label in known and known[label] not in own.values():
                own[label] = known[label]
        for label in largest:
            if label not in own:
                free = [colour for colour in CLASS_COLOURS if colour not in own.values()]
                own[label] = next((colour for colour in free if colour not in known.values()), free[0])
                known.setdefault(label, own[label])
        found.append({label: own[label] for label in largest})
    return found


def _words(rows: Sequence[Row], methods: Sequence[str], truth: str) -> tuple[str, str]:
    parts = [f"Columns: input, {truth}, {methods[0]}, {methods[1]}; every row says why it was chosen."]
    if any(isinstance(row, SegmentationRow) for row in rows):
        parts.append(
            f"Green outlines: scored pixels in which {methods[1]} alone agrees with the {truth}; magenta: those in which "
            f"{methods[0]} alone does. White pixels have no label."
        )
    if any(isinstance(row, DetectionRow) for row in rows):
        parts.append(
            "Boxes with a score of at least 0.40, matched greedily to annotations of the same category at an "
            "overlap of at least 0.50; these filters serve the picture and enter no score."
        )
    if any(isinstance(row, SegmentsRow) for row in rows):
        parts.append(words_of_segments(methods, truth))
    if any(isinstance(row, DepthRow) for row in rows):
        parts.append(
            "Depth in metres, aligned as it was scored, all panels on one scale; white pixels have no known depth."
        )
    caption = " ".join(parts)
    return caption, " ".join([caption, *(_gist(row) for row in rows)])


def _gist(row: Row) -> str:
    if isinstance(row, DetectionRow):
        return gist_of_boxes(row)
    if isinstance(row, DepthRow):
        return gist_of_depth(row)
    if isinstance(row, SegmentsRow):
        return gist_of_segments(row)
    share = max(int(row.valid.sum()), 1)
    return f"{row.title}: {row.gained.sum() / share:.1%} of pixels gained, {row.lost.sum() / share:.1%} lost."
