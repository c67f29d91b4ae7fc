"""What is in a prediction, as a small table."""

from __future__ import annotations

from functools import singledispatch

import numpy as np

from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation
from gramloop.util.table import ShownTable

_ROWS = 10  # of many boxes or classes


@singledispatch
def table_of(found: Prediction) -> ShownTable:
    """The table of a prediction; of a kind that is not known here, what every prediction has."""
    return ShownTable(type(found).__name__, (), (), (_blocks(found),))


@table_of.register
def _(found: Segmentation) -> ShownTable:
    labels, counts = np.unique(found.labels, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    rows = tuple((int(labels[i]), int(counts[i]), f"{counts[i] / found.labels.size:.1%}") for i in order)
    title = f"Segmentation of {_size(found.labels.shape)}"
    return _cut(found, title, ("class", "pixels", "share"), rows, "classes, largest first")


@table_of.register
def _(found: Detection) -> ShownTable:
    rows = tuple(
        (int(label), float(score), *(f"{side:.1f}" for side in box))
        for label, score, box in zip(found.labels, found.scores, found.boxes, strict=True)
    )
    columns = ("category", "score", "left", "top", "right", "bottom")
    return _cut(found, f"{len(rows)} detected boxes", columns, rows, "boxes, best first")


@table_of.register
def _(found: Depth) -> ShownTable:
    values = found.values[np.isfinite(found.values)]
    ends = np.quantile(values, [0, 0.5, 1]).tolist() if values.size else [None] * 3
    what = "Inverse depth" if found.disparity else "Depth in metres"
    title = f"{what} of {_size(found.values.shape)}"
    return _cut(found, title, ("smallest", "median", "largest"), (tuple(ends),), "")


@table_of.register
def _(found: Panoptic) -> ShownTable:
    sizes = dict(zip(*np.unique(found.segments, return_counts=True), strict=True))
    rows = tuple(
        (info.id, info.category, "thing" if info.is_thing else "stuff", info.score, int(sizes[info.id]))
        for info in found.infos
    )
    title = f"{len(rows)} segments in {_size(found.segments.shape)}"
    return _cut(found, title, ("segment", "category", "kind", "score", "pixels"), rows, "segments")


@table_of.register
def _(found: InstanceMasks) -> ShownTable:
    rows = tuple(
        (int(label), float(score), *(f"{side:.0f}" for side in box))
        for label, score, box in zip(found.labels, found.scores, found.boxes, strict=True)
    )
    title = f"{len(rows)} masks in {_size(found.size)}"
    return _cut(
        found, title, ("category", "score", "left", "top", "right", "bottom"), rows, "masks, best first"
    )


def _cut(
    found: Prediction, title: str, columns: tuple[str, ...], rows: tuple[tuple[object, ...], ...], what: str
) -> ShownTable:
    notes = [f"The first {_ROWS} of {len(rows)} {what}."] if len(rows) > _ROWS else []
    return ShownTable(title, columns, rows[:_ROWS], (*notes, _blocks(found)))  # type: ignore[arg-type]


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[0]} pixels"


def _blocks(found: Prediction) -> str:
    replayed = "" if found.trace is None else ", replayed; its trace has the maps of drift and gate"
    return f"{found.blocks} transformer block{'s' * (found.blocks != 1)} executed per view{replayed}."
