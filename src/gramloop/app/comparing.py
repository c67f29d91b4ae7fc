"""Ordinary and treated side by side: as a row of the report's figures, and as numbers.

Both are compared with the ordinary prediction of the clean image, as ``gramloop evaluate --truth clean`` does: what a
number says is agreement with it, not accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gramloop.app.trial import Outcome
from gramloop.data.suites import Condition
from gramloop.data.truth import DepthMap, Instances, ObjectMasks, PixelLabels, SegmentMap, Truth
from gramloop.errors import GramLoopError
from gramloop.metrics.boxes import box_iou
from gramloop.report.figures.boxes import DetectionRow
from gramloop.report.figures.depth import DepthRow
from gramloop.report.figures.kept import KeptImage
from gramloop.report.figures.matching import OVERLAP, Annotated
from gramloop.report.figures.qualitative import Row, SegmentationRow
from gramloop.report.figures.segments import SegmentsRow
from gramloop.tasks.base import Categories, get_task, task_of
from gramloop.tasks.class_names import Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import SHOWN, InstanceMasks, object_masks
from gramloop.tasks.panoptic import Panoptic, segment_map
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation

ORDINARY, TREATED = "ordinary", "treated"
SCORES = {
    "semantic": "mIoU",
    "detection": "F1 of boxes",
    "depth": "delta1",
    "panoptic": "PQ",
    "instance": "F1 of masks",
}  # of one image, as `KeptImage.score` computes them


@dataclass(frozen=True)
class Agreement:
    """How far the predictions agree with that of the clean image, in percent; nan where there is nothing to compare."""

    metric: str
    ordinary: float
    treated: float | None


def names_of(classes: Classes) -> dict[int, str]:
    """The names of classes, those without one by their number."""
    return {number: name or f"class {number}" for number, name in classes.items()}


def row_of(outcome: Outcome) -> Row:
    """The image, the clean prediction, and both predictions; without mitigations the ordinary one twice."""
    names = names_of(outcome.opened.predictor.classes)
    image, truth = outcome.shown.pixels, outcome.truth
    pair = outcome.ordinary.prediction, outcome.final
    first, second = (task_of(each).align(each, truth, "auto") for each in pair)
    if isinstance(truth, PixelLabels):
        before, after = (cast(Segmentation, each).labels for each in (first, second))
        return SegmentationRow("", image, truth.indices.astype(np.int32), before, after, names, truth.ignored)
    if isinstance(truth, Instances):
        found = [cast(Detection, each) for each in (first, second)]
        return DetectionRow("", image, annotated(truth), found[0], found[1], names)
    if isinstance(truth, DepthMap):
        metres = [cast(Depth, each).values for each in (first, second)]
        known = np.where(truth.known, truth.metres, np.float32(np.nan))
        return DepthRow("", image, known, metres[0], metres[1])
    maps = [_segments(each) for each in (first, second)]
    return SegmentsRow("", image, _true_segments(truth), maps[0], maps[1], names)


def annotated(truth: Instances) -> Annotated:
    """Boxes by their corners."""
    corners = truth.boxes.copy()
    corners[:, 2:] += corners[:, :2]
    return Annotated(corners, truth.categories)


def _true_segments(truth: Truth) -> SegmentMap:
    if isinstance(truth, ObjectMasks):
        return truth.as_map()
    assert isinstance(truth, SegmentMap)
    return truth


def _segments(found: Prediction) -> SegmentMap:
    if isinstance(found, Panoptic):
        return segment_map(found)
    if isinstance(found, InstanceMasks):
        return object_masks(found, SHOWN).as_map()
    raise GramLoopError(f"there is no picture of a {type(found).__name__}")


def agreement_of(outcome: Outcome) -> Agreement:
    """The scores that the report gives single images, with the clean prediction in place of labels."""
    named = {ORDINARY: outcome.ordinary.prediction}
    if outcome.treated is not None:
        named[TREATED] = outcome.treated.prediction
    task, categories = get_task(outcome.task), Categories(dict.fromkeys(_categories(outcome, named), ""))
    rows = {
        name: task.statistics(task.align(found, outcome.truth, "auto"), outcome.truth, categories)
        for name, found in named.items()
    }
    kept = KeptImage(Condition("clean"), 0, "", rows)
    scores = {name: kept.score(outcome.task, name) for name in rows}
    return Agreement(SCORES[outcome.task], scores[ORDINARY], scores.get(TREATED))


def _categories(outcome: Outcome, named: Mapping[str, Prediction]) -> list[int]:
    """The numbers of classes; of label maps every number up to the largest."""
    if isinstance(outcome.truth, PixelLabels):
        truth = outcome.truth.indices
        top = int(truth[truth != outcome.truth.ignored].max(initial=0))
        top = max(top, *(int(cast(Segmentation, each).labels.max(initial=0)) for each in named.values()))
        return list(range(top + 1))
    if isinstance(outcome.truth, DepthMap):
        return []
    present = set(outcome.truth.categories.tolist())
    for found in named.values():
        if isinstance(found, Panoptic):
            present.update(info.category for info in found.infos)
        elif isinstance(found, Detection | InstanceMasks):
            present.update(found.labels.tolist())
    return sorted(present | set(outcome.opened.predictor.classes))


def absent(found: Detection, other: Detection) -> NDArray[np.bool_]:  # → (n,)
    """Which boxes have no counterpart of the same class in the other prediction."""
    if not len(other.scores):
        return np.ones(len(found.scores), dtype=np.bool_)
    same = np.asarray(found.labels)[:, None] == np.asarray(other.labels)[None]
    alone: NDArray[np.bool_] = ~((box_iou(found.boxes, other.boxes) >= OVERLAP) & same).any(axis=1)
    return alone
