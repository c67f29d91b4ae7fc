"""Instance segmentation: scored masks of single objects, scored by COCO's average precision of masks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.records import Record, Shift
from gramloop.data.truth import ObjectMasks, RunLengths, SegmentMap, decode_mask, encode_mask, mask_area
from gramloop.errors import GramLoopError
from gramloop.metrics.ap import DRAWS_AT_ONCE, mask_average_precision, rank_matches
from gramloop.metrics.bootstrap import Score
from gramloop.metrics.matching import ALL, AREAS, THRESHOLDS, Matches, match_masks
from gramloop.tasks.base import Categories, ClassScores, Row, Rows
from gramloop.tasks.class_names import Classes
from gramloop.tasks.detection import (
    AP_METRICS,
    ap_by_class,
    ap_metrics,
    image_identity,
    json_lines,
)
from gramloop.tasks.panoptic import SegmentTask
from gramloop.tasks.prediction import DrawStyle, Prediction
from gramloop.tasks.semantic import renumbered

SHOWN = 0.4  # least score of a mask that a stored picture keeps


@dataclass(frozen=True, repr=False)
class InstanceMasks(Prediction):
    """Scored masks of single objects, best first; they may overlap.

    Masks are kept as run lengths: a hundred of a photograph would fill a gigabyte as pixels.
    """

    masks: tuple[RunLengths, ...]  # n, as COCO's results have them
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids
    boxes: NDArray[np.float32]  # (n, 4): left, top, right, bottom of the masks' pixels; zeros if empty
    size: tuple[int, int]  # height and width of the image, which every mask has

    def __post_init__(self) -> None:
        many = len(self.masks)
        shapes = self.scores.shape, self.labels.shape, self.boxes.shape
        if shapes != ((many,), (many,), (many, 4)):
            raise GramLoopError(
                f"{many} masks have scores {shapes[0]}, labels {shapes[1]} and boxes {shapes[2]}; they are ({many},), "
                f"({many},) and ({many}, 4)"
            )
        if misfits := [mask["size"] for mask in self.masks if tuple(mask["size"]) != self.size]:
            raise GramLoopError(
                f"a mask of {misfits[0][1]} x {misfits[0][0]} pixels does not fit an image of "
                f"{self.size[1]} x {self.size[0]}"
            )

    @classmethod
    def from_masks(
        cls, masks: NDArray[np.bool_], scores: NDArray[np.generic], labels: NDArray[np.generic]
    ) -> Self:  # (n, H, W), (n,), (n,)
        """Masks of pixels in any order."""
        best = np.argsort(-scores.astype(np.float64), kind="stable")
        return cls(
            tuple(encode_mask(masks[index]) for index in best),
            scores[best].astype(np.float32),
            labels[best].astype(np.int64),
            np.array([box_around(masks[index]) for index in best], dtype=np.float32).reshape(-1, 4),
            (masks.shape[1], masks.shape[2]),
        )

    def mask(self, index: int) -> NDArray[np.bool_]:  # → (H, W)
        """One of the masks as pixels."""
        return decode_mask(self.masks[index]).astype(np.bool_)


class InstanceTask(SegmentTask[InstanceMasks, ObjectMasks]):
    """Rows keep how masks and objects were matched, not the masks: a set's AP follows from the matches."""

    name = "instance"
    title = "instance segmentation"
    class_metric = "Mask AP"
    image_metric = "F1 over overlaps from 0.50 to 0.95"
    metrics_caption = (
        "COCO's average precision of masks in percent: over IoU 0.50 to 0.95, at 0.50, at 0.75, and of small, medium and "
        "large objects."
    )
    metrics = AP_METRICS
    columns: ClassVar[Mapping[str, str]] = {
        "scores": "float32[]",
        "labels": "int32[]",
        "found": "uint16[]",  # the four ranges of areas of one mask after the other
        "counted": "uint16[]",
        "truth_labels": "int32[]",
        "to_find": "uint8[]",
    }
    prediction = InstanceMasks
    truth_noun = "masks"
    thresholded = True
    draws_at_once = DRAWS_AT_ONCE

    def read_truth(self, record: Record) -> ObjectMasks:
        return record.object_masks()

    def truth_shape(self, truth: ObjectMasks) -> tuple[int, ...]:
        return truth.size

    def as_truth(self, prediction: InstanceMasks, threshold: float) -> ObjectMasks:
        return object_masks(prediction, threshold)

    def move_truth(self, truth: ObjectMasks, record: Record, shift: Shift) -> ObjectMasks:
        return truth.moved(shift.affine(record))

    def statistics(self, prediction: InstanceMasks, truth: ObjectMasks, categories: Categories) -> Row:
        matches = match_masks(truth, prediction.masks, prediction.scores, prediction.labels, categories.ids)
        return {
            "scores": matches.scores.astype(np.float32),
            "labels": matches.labels.astype(np.int32),
            "found": matches.found.ravel(),
            "counted": matches.counted.ravel(),
            "truth_labels": matches.true_labels.astype(np.int32),
            "to_find": matches.to_find,
        }

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        return ap_metrics(mask_average_precision(self._matches(rows), categories.ids, rows.images))

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return rank_matches(self._matches(rows), categories.ids, rows.images).average_precision

    def class_scores(self, rows: Rows, categories: Categories, members: NDArray[np.int64]) -> ClassScores:
        ranked = rank_matches(self._matches(rows), categories.ids, rows.images)
        return ap_by_class(ranked, categories, members)

    def image_score(self, row: Row) -> float:
        return 100 * shown_f1(row)

    def _matches(self, rows: Rows) -> Matches:
        return Matches(
            rows.owners("scores"),
            rows.values["scores"].astype(np.float64),
            rows.values["labels"].astype(np.int64),
            rows.values["found"].astype(np.uint16).reshape(-1, len(AREAS)),
            rows.values["counted"].astype(np.uint16).reshape(-1, len(AREAS)),
            rows.owners("truth_labels"),
            rows.values["truth_labels"].astype(np.int64),
            rows.values["to_find"].astype(np.uint8),
        )

    def encode(self, prediction: InstanceMasks) -> Row:
        return self.encode_truth(object_masks(prediction, SHOWN))

    def encode_truth(self, truth: ObjectMasks) -> Row:
        masks = [
            {"counts": mask["counts"], "category_id": int(label)}
            for mask, label in zip(truth.masks, truth.categories, strict=True)
        ]
        return {"picture": json.dumps({"size": list(truth.size), "masks": masks}).encode()}

    def stored_truth(self, row: Row, column: str) -> ObjectMasks:
        content = json.loads(row[column])
        masks: list[RunLengths] = [
            {"size": content["size"], "counts": each["counts"]} for each in content["masks"]
        ]
        return ObjectMasks(
            tuple(masks),
            np.array([each["category_id"] for each in content["masks"]], dtype=np.int64),
            np.array([mask_area(mask) for mask in masks], dtype=np.float64),
            np.zeros(len(masks), dtype=np.bool_),
            (int(content["size"][0]), int(content["size"][1])),
        )

    def as_prediction(self, truth: ObjectMasks) -> InstanceMasks:
        """Crowds are regions, not objects, and are not drawn."""
        single = np.flatnonzero(~truth.crowd)
        boxes = np.array([box_around(truth.mask(index)) for index in single.tolist()], dtype=np.float32)
        masks, scores = tuple(truth.masks[index] for index in single), np.ones(len(single), dtype=np.float32)
        return InstanceMasks(masks, scores, truth.categories[single], boxes.reshape(-1, 4), truth.size)

    def segments(self, prediction: InstanceMasks, threshold: float) -> SegmentMap:
        return object_masks(prediction, threshold).as_map()

    def size(self, prediction: InstanceMasks, image: Sequence[int] | None = None) -> tuple[int, int]:
        return prediction.size

    def describe(self, prediction: InstanceMasks, style: DrawStyle) -> str:
        count = int((prediction.scores >= style.threshold).sum())
        return f"{count} mask{'s' * (count != 1)} ≥ {style.threshold:g}"

    def files(self, prediction: InstanceMasks, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        rows = [
            {
                "image_id": image_identity(image),
                "category_id": int(label),
                "segmentation": mask,
                "score": round(float(score), 6),
            }
            for mask, score, label in zip(prediction.masks, prediction.scores, prediction.labels, strict=True)
        ]
        return {".json": json_lines(rows)}

    def rescale(
        self, prediction: InstanceMasks, shown: tuple[int, int], size: tuple[int, int]
    ) -> InstanceMasks:
        masks = [
            np.asarray(Image.fromarray(prediction.mask(index)).resize((size[1], size[0])))
            for index in range(len(prediction.masks))
        ]
        stacked = np.stack(masks) if masks else np.zeros((0, *size), dtype=np.bool_)
        moved = InstanceMasks.from_masks(stacked, prediction.scores, prediction.labels)
        return replace(prediction, masks=moved.masks, boxes=moved.boxes, size=size)

    def renumber(self, prediction: InstanceMasks, numbers: Mapping[int, int]) -> InstanceMasks:
        labels = renumbered(prediction.labels, numbers)
        kept = labels >= 0
        return replace(
            prediction,
            masks=tuple(mask for mask, keep in zip(prediction.masks, kept, strict=True) if keep),
            boxes=prediction.boxes[kept],
            scores=prediction.scores[kept],
            labels=labels[kept],
        )


def object_masks(prediction: InstanceMasks, threshold: float = 0.0) -> ObjectMasks:
    """The masks that score at least the threshold and hold a pixel, as truth is kept; none is a crowd."""
    areas = np.array([mask_area(mask) for mask in prediction.masks], dtype=np.float64)
    sure = (prediction.scores >= threshold) & (areas > 0)
    return ObjectMasks(
        tuple(mask for mask, kept in zip(prediction.masks, sure, strict=True) if kept),
        prediction.labels[sure].astype(np.int64),
        areas[sure],
        np.zeros(int(sure.sum()), dtype=np.bool_),
        prediction.size,
    )


def shown_f1(row: Mapping[str, Any]) -> float:
    """F1 of one image's masks that pictures show, the mean over COCO's thresholds of overlap."""
    sure = np.asarray(row["scores"]) >= SHOWN
    hits, seen = (
        _bits(row[name]).reshape(-1, len(AREAS), len(THRESHOLDS))[sure, ALL].sum(axis=0)
        for name in ("found", "counted")
    )
    many = seen + (np.asarray(row["to_find"], dtype=np.int64) & 1 << ALL > 0).sum()  # (thresholds,)
    return float(np.divide(2 * hits, many, out=np.ones(len(THRESHOLDS)), where=many > 0).mean())


def _bits(values: Any) -> NDArray[np.bool_]:  # (n,) → (n, thresholds)
    bits: NDArray[np.bool_] = (
        np.asarray(values, dtype=np.int64)[:, None] & 1 << np.arange(len(THRESHOLDS)) > 0
    )
    return bits


def box_around(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:  # (H, W)
    """Left, top, right and bottom of a mask's pixels, the latter two one beyond the last; zeros if it has none."""
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    if not len(columns):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
