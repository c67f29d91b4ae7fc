"""Object detection: scored boxes, scored by COCO's average precision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import Record
from gramloop.data.shifted import Shift, ShiftedRecord
from gramloop.data.truth import Instances
from gramloop.metrics.ap import DRAWS_AT_ONCE, ApResult, RankedMatches, rank_matches, score_matches
from gramloop.metrics.bootstrap import Score
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from gramloop.metrics.matching import Matches, match_boxes
from gramloop.tasks.base import Categories, ClassScores, Row, Rows, Task
from gramloop.tasks.box_fusion import fuse_boxes
from gramloop.tasks.class_names import Classes
from gramloop.tasks.prediction import Prediction, WindowMaps
from gramloop.tasks.semantic import renumbered

AP_METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")


@dataclass(frozen=True)
class Detection(Prediction):
    """Scored boxes, best first."""

    boxes: NDArray[np.float32]  # (n, 4): left, top, right, bottom
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids
    trace: WindowMaps | None = field(default=None, kw_only=True)


_MATCHES: WeakKeyDictionary[Rows, dict[tuple[int, ...], Matches]] = WeakKeyDictionary()


def _boxes(rows: Rows, categories: Categories) -> tuple[GroundTruthBoxes, BoxPredictions]:
    truth = GroundTruthBoxes(
        images=list(range(rows.images)),
        categories=sorted(categories.ids),
        image_ids=rows.owners("truth_labels"),
        boxes=rows.values["truth_boxes"].reshape(-1, 4),
        labels=rows.values["truth_labels"].astype(np.int64),
        areas=rows.values["truth_areas"],
        crowd=rows.values["truth_crowd"].astype(np.bool_),
    )
    found = BoxPredictions.from_corners(
        rows.owners("scores"),
        rows.values["boxes"].reshape(-1, 4),
        rows.values["scores"],
        rows.values["labels"],
    )
    return truth, found


class DetectionTask(Task[Detection, Instances]):
    """Rows keep every box with its truth: AP needs all images at once."""

    name = "detection"
    metrics = AP_METRICS
    columns = {
        "boxes": "float32[]",  # left, top, right, bottom of one box after the other
        "scores": "float32[]",
        "labels": "int32[]",
        "truth_boxes": "float64[]",  # left, top, width, height, as COCO writes them
        "truth_labels": "int32[]",
        "truth_areas": "float64[]",
        "truth_crowd": "bool[]",
    }
    picture_columns: ClassVar[Mapping[str, str]] = {}  # boxes are in the row anyway
    prediction = Detection
    thresholded = True
    draws_at_once = DRAWS_AT_ONCE

    def read_truth(self, record: Record) -> Instances:
        return record.instances()

    def as_truth(self, prediction: Detection, threshold: float) -> Instances:
        sure = prediction.scores >= threshold
        boxes = prediction.boxes[sure].astype(np.float64)  # (n, 4): left, top, right, bottom
        boxes[:, 2:] -= boxes[:, :2]
        return Instances(
            ids=np.arange(1, len(boxes) + 1),
            boxes=boxes,
            categories=prediction.labels[sure].astype(np.int64),
            areas=boxes[:, 2] * boxes[:, 3],
            iscrowd=np.zeros(len(boxes), dtype=np.bool_),
            segmentations=(None,) * len(boxes),
        )

    def move_truth(self, truth: Instances, record: ShiftedRecord, shift: Shift) -> Instances:
        columns = zip(truth.ids, truth.boxes, truth.categories, truth.areas, strict=True)
        entries = tuple(
            {
                "id": int(number),
                "bbox": box.tolist(),
                "category_id": int(label),
                "area": float(area),
                "iscrowd": 0,
            }
            for number, box, label, area in columns
        )
        return Instances.from_annotations(tuple(shift.annotations(entries, record)))

    def statistics(self, prediction: Detection, truth: Instances, categories: Categories) -> Row:
        return {
            "boxes": prediction.boxes.astype(np.float32).ravel(),
            "scores": prediction.scores.astype(np.float32),
            "labels": prediction.labels.astype(np.int32),
            "truth_boxes": truth.boxes.ravel(),
            "truth_labels": truth.categories.astype(np.int32),
            "truth_areas": truth.areas,
            "truth_crowd": truth.iscrowd,
        }

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        return ap_metrics(score_matches(self._matches(rows, categories), categories.ids))

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return self._ranked(rows, categories).average_precision

    def class_scores(self, rows: Rows, categories: Categories) -> ClassScores:
        order, every = categories.ids, np.ones((1, rows.images), dtype=np.int64)
        by_category = self._ranked(rows, categories).by_category(every, len(order))
        scores = by_category[0][np.argsort(np.argsort(order))]
        return ClassScores(scores, ~np.isnan(scores))

    def _ranked(self, rows: Rows, categories: Categories) -> RankedMatches:
        return rank_matches(self._matches(rows, categories), categories.ids, rows.images)

    def _matches(self, rows: Rows, categories: Categories) -> Matches:
        """Matched once for as long as the rows live: all scores follow from the same matches."""
        known = _MATCHES.setdefault(rows, {})
        key = tuple(categories.ids)
        if key not in known:
            known[key] = match_boxes(*_boxes(rows, categories))
        return known[key]

    def files(self, prediction: Detection, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        corners = prediction.boxes.astype(float)
        sizes = corners[:, 2:] - corners[:, :2]
        rows = [
            {
                "image_id": image_identity(image),
                "category_id": int(label),
                "bbox": [round(value, 3) for value in (*corner[:2].tolist(), *size.tolist())],
                "score": round(float(score), 6),
            }
            for corner, size, score, label in zip(
                corners, sizes, prediction.scores, prediction.labels, strict=True
            )
        ]
        return {".json": json_lines(rows)}

    def flip(self, prediction: Detection, width: int) -> Detection:
        left, top, right, bottom = prediction.boxes.T
        boxes = np.stack([width - right, top, width - left, bottom], axis=1)
        return replace(prediction, boxes=boxes, trace=None)

    def merge(self, predictions: Sequence[Detection]) -> Detection:
        """The fused boxes, best first; no more of them than the longest list had."""
        if len(predictions) == 1:
            return predictions[0]
        counts = [len(each.scores) for each in predictions]
        boxes, scores, labels = fuse_boxes(
            np.concatenate([each.boxes for each in predictions]).astype(np.float64),
            np.concatenate([each.scores for each in predictions]).astype(np.float64),
            np.concatenate([each.labels for each in predictions]),
            np.repeat(np.arange(len(counts)), counts),
            len(counts),
        )
        kept = slice(max(counts))
        return Detection(
            boxes[kept].astype(np.float32),
            scores[kept].astype(np.float32),
            labels[kept],
            blocks=sum(each.blocks for each in predictions),
        )

    def rescale(self, prediction: Detection, shown: tuple[int, int], size: tuple[int, int]) -> Detection:
        if shown == size:
            return prediction
        scale = np.array([size[1] / shown[1], size[0] / shown[0]] * 2, dtype=np.float32)
        return replace(prediction, boxes=prediction.boxes * scale)

    def renumber(self, prediction: Detection, numbers: Mapping[int, int]) -> Detection:
        labels = renumbered(prediction.labels, numbers)
        kept = labels >= 0
        return replace(
            prediction, boxes=prediction.boxes[kept], scores=prediction.scores[kept], labels=labels[kept]
        )


TASK = DetectionTask()


def ap_metrics(found: ApResult) -> dict[str, float]:
    """COCO's six numbers by their names."""
    values = (found.ap, found.ap50, found.ap75, found.small, found.medium, found.large)
    return dict(zip(AP_METRICS, values, strict=True))


def image_identity(image: Path) -> int | str:
    """An image's id in COCO files: its name without the ending, a number where it is one, as in COCO."""
    return int(image.stem) if image.stem.isascii() and image.stem.isdecimal() else image.stem


def json_lines(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """A JSON list with one entry on each line."""
    return ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode()
