"""The demonstration's picture: input, annotation, all predictions, and below them depth; at the end drift and gate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gramloop.data.scenes.drawing import CLASSES, THINGS
from gramloop.demo.exemplars import Exemplar
from gramloop.demo.methods import CHANGED, ORDINARY, REPLAY
from gramloop.report.figures.depth import DepthRow, depth_scale
from gramloop.report.figures.diagnostic import Diagnosed, drift_scale
from gramloop.report.figures.heat import signed
from gramloop.report.figures.matching import shown_boxes
from gramloop.report.figures.panels import (
    colour_bar,
    draw_box,
    draw_legend,
    draw_outline,
    draw_values,
    painted,
    photograph,
)
from gramloop.report.figures.qualitative import SegmentationRow
from gramloop.report.figures.style import (
    DEPTH_MAP,
    DRIFT_MAP,
    FULL,
    GAINED,
    GATE_MAP,
    INK,
    LOST,
    Drawn,
    Sheet,
    styled,
)

_WAYS = (ORDINARY, *CHANGED)
_COLUMNS = ("input", "annotation", *_WAYS, "drift and gate")
_COLOURS = {
    "sky": "#a6cee3", "mountain": "#7b6d63", "grass": "#7fb069", "water": "#2f6690", "sand": "#e3cf9c",
    "brick": "#9c4a3c", "pavement": "#a9a9b2", "ball": "#ff7f0e", "crate": "#c68642", "tree": "#0b5d3b",
    "house": "#e377c2", "car": "#5b2a86", "boat": "#00bcd4", "mushroom": "#d62728", "cup": "#ffd92f",
}  # fmt: skip
_BY_LABEL = {index: _COLOURS[name] for index, name in enumerate(CLASSES)}
_HEAD, _SIDE, _GAP, _EDGE, _FOOT = 0.18, 0.29, 0.04, 0.02, 0.42  # inches
_SMALL = 0.66  # of the boxes in the report, whose panels are larger
_WIDTH = (FULL - _SIDE - _EDGE - (len(_COLUMNS) - 1) * _GAP) / len(_COLUMNS)


def draw(rows: Sequence[Exemplar]) -> Drawn:
    """The picture, with what each method alone gets right and wrong, against the ordinary prediction, outlined."""
    with styled():
        sheet = Sheet(FULL, _HEAD + 2 * len(rows) * (_WIDTH + _GAP) + _FOOT)
        left = [_SIDE + column * (_WIDTH + _GAP) for column in range(len(_COLUMNS))]
        for x, name in zip(left, _COLUMNS, strict=True):
            sheet.text(x + _WIDTH / 2, 0.04, name, ha="center")
        maps = [_diagnosed(seen) for seen in rows]
        high = drift_scale(maps)
        furthest = depth_scale([_depth_row(seen) for seen in rows])
        for index, (seen, found) in enumerate(zip(rows, maps, strict=True)):
            top = _HEAD + 2 * index * (_WIDTH + _GAP)
            panels = [sheet.panel(x, top, _WIDTH, _WIDTH) for x in left]
            panels[0].set_ylabel(found.label, fontsize=6, labelpad=2)
            _draw_scene(panels[:-1], seen)
            drift = draw_values(panels[-1], found.drift, DRIFT_MAP, high)
            under = top + _WIDTH + _GAP
            below = [sheet.panel(x, under, _WIDTH, _WIDTH) for x in left[1:]]
            shown_depth = _draw_depths(below[:-1], seen, furthest)
            gate = draw_values(below[-1], found.gate, GATE_MAP, 1.0)
            place = (left[0] + 0.06, under + _WIDTH / 2, _WIDTH - 0.12)
            colour_bar(sheet, shown_depth, place, "depth (m)", beyond=True)
        foot = sheet.height - _FOOT + 0.04
        exceeds = any(bool(found.drift.max() > high) for found in maps)
        colour_bar(sheet, drift, (left[-2] + 0.06, foot, _WIDTH - 0.12), "Gram drift", beyond=exceeds)
        colour_bar(sheet, gate, (left[-1] + 0.06, foot, _WIDTH - 0.12), "gate")
        _draw_legends(sheet, foot)
        return Drawn(sheet.figure, "Three scenes", "", "")


def _diagnosed(seen: Exemplar) -> Diagnosed:
    trace = seen.segmentation[REPLAY].trace
    assert trace is not None
    label = f"{seen.condition}\n{seen.kind}: {signed(seen.gain, 1)} pp"
    return Diagnosed(label, seen.image, trace.drift[-1], trace.gate[-1], None)


def _depth_row(seen: Exemplar) -> DepthRow:
    known = np.where(seen.truth.depth > 0, seen.truth.depth, np.float32(np.nan))
    metres = (seen.depth[way].values for way in (ORDINARY, REPLAY))
    return DepthRow(seen.condition, seen.image, known, *metres)


def _draw_depths(panels: Sequence[Any], seen: Exemplar, high: float) -> Any:
    known = _depth_row(seen).truth
    for panel, metres in zip(panels, (known, *(seen.depth[way].values for way in _WAYS)), strict=True):
        shown = draw_values(panel, metres, DEPTH_MAP, high)
    return shown


def _draw_scene(panels: Sequence[Any], seen: Exemplar) -> None:
    labels, maps = seen.truth.labels.astype(np.int64) - 1, seen.segmentation
    photograph(panels[0], seen.image)
    photograph(panels[1], painted(seen.image, labels, _BY_LABEL, -1))
    corners = np.asarray(seen.truth.boxes, dtype=np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    for box, category in zip(corners, seen.truth.categories, strict=True):
        draw_box(panels[1], box, INK, THINGS[category], scale=_SMALL)
    for panel, way in zip(panels[2:], _WAYS, strict=True):
        photograph(panel, painted(seen.image, maps[way].labels, _BY_LABEL, -1))
        row = SegmentationRow(
            seen.condition, seen.image, labels, maps[ORDINARY].labels, maps[way].labels, ignored=-1
        )
        for mask, colour in ((row.lost, LOST), (row.gained, GAINED)):
            draw_outline(panel, mask, colour, seen.image.shape[:2])
        sure = shown_boxes(seen.detection[way])
        for box, score, label in zip(sure.boxes, sure.scores, sure.labels, strict=True):
            draw_box(panel, box, INK, f"{THINGS[label - 1]} {score:.2f}", scale=_SMALL)


def _draw_legends(sheet: Sheet, top: float) -> None:
    outlines = [
        Line2D([], [], color=colour, label=f"{word} against ordinary")
        for colour, word in ((GAINED, "gained"), (LOST, "lost"))
    ]
    classes = [Patch(color=_COLOURS[name], label=name) for name in CLASSES]
    draw_legend(sheet, classes[:8], top)
    draw_legend(sheet, [*classes[8:], *outlines], top + 0.14)
