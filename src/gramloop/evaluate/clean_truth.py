"""Clean predictions in place of labels: made once per image, and moved where a shift moves the pixels."""

from __future__ import annotations

import pickle
import zlib
from collections import OrderedDict
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import LabelledImage, Record
from gramloop.data.shifted import Shift, ShiftedRecord
from gramloop.data.truth import DepthMap, Instances, ObjectMasks, PixelLabels, SegmentMap, Truth
from gramloop.errors import GramLoopError
from gramloop.evaluate.truth import SCORE, UNSCORED
from gramloop.shifts.geometry import warp_depth, warp_labels
from gramloop.tasks.base import read_labelled
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import InstanceMasks, object_masks
from gramloop.tasks.panoptic import Panoptic, segment_map
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.semantic import Segmentation

_KEPT = 1 << 28  # bytes of packed clean predictions in one process


def as_truth(found: Prediction, score: float = SCORE) -> Truth:
    """A prediction in place of labels: its label map, its boxes or masks of at least ``score``, its depth or segments."""
    if isinstance(found, Segmentation):
        return PixelLabels(found.labels.astype(np.uint16), UNSCORED)
    if isinstance(found, Detection):
        sure = found.scores >= score
        boxes = found.boxes[sure].astype(np.float64)  # (n, 4): left, top, right, bottom
        boxes[:, 2:] -= boxes[:, :2]
        return Instances(
            ids=np.arange(1, len(boxes) + 1),
            boxes=boxes,
            categories=found.labels[sure].astype(np.int64),
            areas=boxes[:, 2] * boxes[:, 3],
            iscrowd=np.zeros(len(boxes), dtype=np.bool_),
            segmentations=(None,) * len(boxes),
        )
    if isinstance(found, Depth):
        return DepthMap(_metres(found))
    if isinstance(found, Panoptic):
        return segment_map(found)
    if isinstance(found, InstanceMasks):
        return object_masks(found, score)
    raise GramLoopError(f"a {type(found).__name__} cannot take the place of labels")


def _metres(found: Depth) -> NDArray[np.float32]:  # → (H, W)
    """Distances, in the unit of the model; 0 where there is none, as at a disparity of 0."""
    values = found.values.astype(np.float32)
    if found.disparity:
        values = np.divide(1, values, out=np.zeros_like(values), where=values > 0)
    return np.where(np.isfinite(values) & (values > 0), values, np.float32(0))


def moved(truth: Truth, record: ShiftedRecord, shift: Shift) -> Truth:
    """The truth of a clean image after the move of its pixels."""
    if isinstance(truth, PixelLabels):
        return PixelLabels(warp_labels(truth.indices, shift.affine(record), truth.ignored), truth.ignored)
    if isinstance(truth, DepthMap):
        return replace(truth, metres=warp_depth(truth.metres, shift.affine(record)))
    if isinstance(truth, SegmentMap | ObjectMasks):
        return truth.moved(shift.affine(record))
    entries = tuple(
        {
            "id": int(number),
            "bbox": box.tolist(),
            "category_id": int(label),
            "area": float(area),
            "iscrowd": 0,
        }
        for number, box, label, area in zip(
            truth.ids, truth.boxes, truth.categories, truth.areas, strict=True
        )
    )
    return Instances.from_annotations(tuple(shift.annotations(entries, record)))


class CleanTruth:
    """Clean predictions of one predictor, each made once and kept: every condition shows the same images."""

    def __init__(self, predictor: Predictor[Prediction], score: float = SCORE) -> None:
        self.predictor, self.score = predictor, score
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def of(self, clean: Record | LabelledImage, shown: Record | LabelledImage) -> Truth:
        """What the plain model says on ``clean``, moved as the pixels of ``shown`` are; an error is a sentence."""
        key = str(clean.image_id)
        if key in self._packed:
            self._packed.move_to_end(key)
            truth: Truth = pickle.loads(zlib.decompress(self._packed[key]))
        else:
            truth = self._predict(clean)
            self._keep(key, truth)
        if isinstance(shown, ShiftedRecord) and shown.shift is not None and shown.shift.moves:
            return moved(truth, shown, shown.shift)
        return truth

    def _predict(self, clean: Record | LabelledImage) -> Truth:
        read = read_labelled(clean, self.predictor.task, labels=False)
        if isinstance(read, str):
            raise GramLoopError(read)
        return as_truth(self.predictor.predict(read.pixels), self.score)

    def _keep(self, key: str, truth: Truth) -> None:
        self._packed[key] = zlib.compress(pickle.dumps(truth), 1)
        self._bytes += len(self._packed[key])
        while self._bytes > _KEPT and len(self._packed) > 1:
            self._bytes -= len(self._packed.popitem(last=False)[1])
