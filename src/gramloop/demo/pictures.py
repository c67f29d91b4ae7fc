"""The demonstration's picture: input, annotation, both predictions, drift and gate, and below them depth, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from gramloop.data.scenes.drawing import CLASSES, THINGS
from gramloop.demo.exemplars import Exemplar
from gramloop.report.figures.depth import DepthRow, depth_scale, draw_depth
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
from gramloop.report.figures.style import DRIFT_MAP, FULL, GAINED, GATE_MAP, INK, LOST, Drawn, Sheet, styled

_COLUMNS = ("input", "annotation", "ordinary", "GramLoop", "proposal drift", "gate")
_COLOURS = {
    "sky": "#a6cee3", "mountain": "#7b6d63", "grass": "#7fb069", "water": "#2f6690", "sand": "#e3cf9c",
    "brick": "#9c4a3c", "pavement": "#a9a9b2", "ball": "#ff7f0e", "crate": "#c68642", "tree": "#0b5d3b",
    "house": "#e377c2", "car": "#5b2a86", "boat": "#00bcd4", "mushroom": "#d62728", "cup": "#ffd92f",
}  # fmt: skip
_BY_LABEL = {index: _COLOURS[name] for index, name in enumerate(CLASSES)}
_HEAD, _SIDE, _GAP, _EDGE, _FOOT = 0.18, 0.29, 0.05, 0.02, 0.42  # inches
_SMALL = 0.66  # of the boxes in the report, whose panels are larger
_WIDTH = (FULL - _SIDE - _EDGE - (len(_COLUMNS) - 1) * _GAP) / len(_COLUMNS)


def draw(rows: Sequence[Exemplar]) -> Drawn:
    """The picture, with what replay alone gets right and wrong outlined."""
    with styled():
        sheet = Sheet(FULL, _HEAD + 2 * len(rows) * (_WIDTH + _GAP) + _FOOT)
        left = [_SIDE + column * (_WIDTH + _GAP) for column in range(len(_COLUMNS))]
        for x, name in zip(left, _COLUMNS, strict=True):
            sheet.text(x + _WIDTH / 2, 0.04, name, ha="center")
        maps = [_diagnosed(seen) for seen in rows]
        high = drift_scale(maps)
        deep = [_depth_row(seen) for seen in rows]
        for index, (seen, found, metres) in enumerate(zip(rows, maps, deep, strict=True)):
            top = _HEAD + 2 * index * (_WIDTH + _GAP)
            panels = [sheet.panel(x, top, _WIDTH, _WIDTH) for x in left]
            panels[0].set_ylabel(found.label, fontsize=6.5, labelpad=2)
            _draw_scene(panels[:4], seen)
            drift = draw_values(panels[4], found.drift, DRIFT_MAP, high)
            gate = draw_values(panels[5], found.gate, GATE_MAP, 1.0)
            under = top + _WIDTH + _GAP
            below_scene = [sheet.panel(x, under, _WIDTH, _WIDTH) for x in left[1:4]]
            shown_depth = draw_depth(below_scene, metres, depth_scale(deep))
            place = (left[0] + 0.06, under + _WIDTH / 2, _WIDTH - 0.12)
            colour_bar(sheet, shown_depth, place, "depth (m)", beyond=True)
        below = sheet.height - _FOOT + 0.04
        exceeds = any(bool(found.drift.max() > high) for found in maps)
        colour_bar(sheet, drift, (left[4] + 0.06, below, _WIDTH - 0.12), "Gram drift", beyond=exceeds)
        colour_bar(sheet, gate, (left[5] + 0.06, below, _WIDTH - 0.12), "gate")
        _draw_legends(sheet, below)
        return Drawn(sheet.figure, "Three scenes", "", "")


def _diagnosed(seen: Exemplar) -> Diagnosed:
    trace = seen.segmentation.replayed.trace
    assert trace is not None
    label = f"{seen.condition}\n{seen.kind}: {signed(seen.gain, 1)} pp"
    return Diagnosed(label, seen.image, trace.drift[-1], trace.gate[-1], None)


def _depth_row(seen: Exemplar) -> DepthRow:
    known = np.where(seen.truth.depth > 0, seen.truth.depth, np.float32(np.nan))
    return DepthRow(seen.condition, seen.image, known, seen.depth.ordinary.values, seen.depth.replayed.values)


def _draw_scene(panels: Sequence[Any], seen: Exemplar) -> None:
    maps, boxes, true = seen.segmentation, seen.detection, seen.truth
    labels = true.labels.astype(np.int64) - 1
    row = SegmentationRow(
        seen.condition, seen.image, labels, maps.ordinary.labels, maps.replayed.labels, ignored=-1
    )
    photograph(panels[0], seen.image)
    for panel, each in zip(panels[1:], (row.truth, row.baseline, row.method), strict=True):
        photograph(panel, painted(seen.image, each, _BY_LABEL, row.ignored))
    for mask, colour in ((row.lost, LOST), (row.gained, GAINED)):
        draw_outline(panels[3], mask, colour, seen.image.shape[:2])
    corners = np.asarray(true.boxes, dtype=np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    for box, category in zip(corners, true.categories, strict=True):
        draw_box(panels[1], box, INK, THINGS[category], scale=_SMALL)
    for panel, found in zip(panels[2:], (boxes.ordinary, boxes.replayed), strict=True):
        sure = shown_boxes(found)
        for box, score, label in zip(sure.boxes, sure.scores, sure.labels, strict=True):
            draw_box(panel, box, INK, f"{THINGS[label - 1]} {score:.2f}", scale=_SMALL)


def _draw_legends(sheet: Sheet, top: float) -> None:
    outlines = [
        Line2D([], [], color=colour, label=f"{word} by replay")
        for colour, word in ((GAINED, "gained"), (LOST, "lost"))
    ]
    classes = [Patch(color=_COLOURS[name], label=name) for name in CLASSES]
    draw_legend(sheet, classes[:8], top)
    draw_legend(sheet, [*classes[8:], *outlines], top + 0.14)
