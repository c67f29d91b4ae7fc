"""Predictions of one image, mirrored back and made one: averages of probabilities or of depth, fused boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.mitigations.fusion import fused
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation


def merged(looks: Sequence[Prediction]) -> Prediction:
    """One prediction of several; a single one is returned as it is. Blocks add up, traces are dropped."""
    first = looks[0]
    if len(looks) == 1:
        return first
    blocks = sum(look.blocks for look in looks)
    if isinstance(first, Segmentation):
        scores = [look.scores for look in looks if isinstance(look, Segmentation)]
        mean: NDArray[np.float32] = np.stack([_needed(each) for each in scores]).mean(0, dtype=np.float32)
        return Segmentation(mean.argmax(0).astype(np.int32), mean, blocks=blocks)
    if isinstance(first, Detection):
        return fused([look for look in looks if isinstance(look, Detection)])
    if isinstance(first, Depth):
        values = [look.values for look in looks if isinstance(look, Depth)]
        if first.disparity:  # each look has a scale and a shift of its own
            values = [values[0], *(_in_frame(each, values[0]) for each in values[1:])]
        return Depth(np.stack(values).mean(0, dtype=np.float32), first.disparity, blocks=blocks)
    raise GramLoopError(f"several predictions of the kind {type(first).__name__} cannot be made one")


def mirrored(found: Prediction, width: int) -> Prediction:
    """The prediction of the image with left and right exchanged, so many pixels wide; without its trace."""
    found = replace(found, trace=None)
    if isinstance(found, Segmentation):
        scores = None if found.scores is None else found.scores[:, :, ::-1]
        return replace(found, labels=found.labels[:, ::-1], scores=scores)
    if isinstance(found, Detection):
        left, top, right, bottom = found.boxes.T
        boxes = np.stack([width - right, top, width - left, bottom], axis=1)
        return replace(found, boxes=boxes)
    if isinstance(found, Depth):
        return replace(found, values=found.values[:, ::-1])
    raise GramLoopError(f"a prediction of the kind {type(found).__name__} cannot be mirrored")


def _in_frame(values: NDArray[np.float32], frame: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values scaled and shifted so that they lie nearest to others, by least squares; finite ones decide."""
    finite = np.isfinite(values) & np.isfinite(frame)
    x, y = values[finite].astype(np.float64), frame[finite].astype(np.float64)
    spread = x.var() if len(x) else 0.0
    scale = float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 0 else 1.0
    shift = float(y.mean() - scale * x.mean()) if len(x) else 0.0
    moved: NDArray[np.float32] = (scale * values.astype(np.float64) + shift).astype(np.float32)
    return moved


def _needed(scores: NDArray[np.float32] | None) -> NDArray[np.float32]:
    if scores is None:
        raise GramLoopError("this predictor gives labels without scores, and only scores can be averaged")
    return scores
