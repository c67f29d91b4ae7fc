"""Object detection: scored boxes, scored by COCO's average precision."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import Record, Shift
from gramloop.data.truth import Instances
from gramloop.errors import GramLoopError
from gramloop.metrics.ap import AP_METRICS, DRAWS_AT_ONCE, RankedMatches, box_average_precision, rank_matches
from gramloop.metrics.bootstrap import Score
from gramloop.metrics.matching import AREAS, Matches, box_iou, match_boxes
from gramloop.tasks.base import Categories, ClassScores, Row, Rows, Task, Truth
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Changes, DrawStyle, Prediction, PredictionT
from gramloop.tasks.semantic import renumbered
from gramloop.util.plotting import BLUE, GAINED, GREEN, LOST, draw_box, photograph, shrunk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE_SCORE, PICTURE_OVERLAP = 0.40, 0.50  # of boxes that a report shows, and that count as the same
_MOST_DRAWN = 40  # boxes in one panel; with more of them none can be seen
FUSION_IOU = 0.55  # as published
_TINY = np.finfo(float).tiny
_Floats = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class Detection(Prediction):
    """Scored boxes, best first."""

    boxes: NDArray[np.float32]  # (n, 4): left, top, right, bottom
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids


class MatchedTask(Task[PredictionT, Truth]):
    """A task whose rows keep how an image's objects were matched: a set's average precision follows from the matches."""

    columns: ClassVar[Mapping[str, str]] = {
        "scores": "float32[]",
        "labels": "int32[]",
        "found": "uint16[]",  # the four ranges of areas of one prediction after the other
        "counted": "uint16[]",
        "truth_labels": "int32[]",
        "to_find": "uint8[]",
    }
    metrics = AP_METRICS
    thresholded = True
    draws_at_once = DRAWS_AT_ONCE

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return self._ranked(rows, categories).average_precision

    def class_scores(self, rows: Rows, categories: Categories) -> ClassScores:
        all_images, ranked = np.ones((1, rows.images), dtype=np.int64), self._ranked(rows, categories)
        (by_category,) = ranked.by_category(all_images, len(categories.ids))
        scores = by_category[np.argsort(np.argsort(categories.ids))]
        return ClassScores(scores, ~np.isnan(scores))

    def _ranked(self, rows: Rows, categories: Categories) -> RankedMatches:
        return rank_matches(self.matches(rows, categories), categories.ids, rows.images)

    def matched(self, found: Matches) -> Row:
        """What is stored of the matches of one image."""
        return {
            "scores": found.scores.astype(np.float32),
            "labels": found.labels.astype(np.int32),
            "found": found.found.ravel(),
            "counted": found.counted.ravel(),
            "truth_labels": found.true_labels.astype(np.int32),
            "to_find": found.to_find,
        }

    def matches(self, rows: Rows, categories: Categories) -> Matches:
        """The matches of all images; predictions that have no category of the truth do not belong to it."""
        labels = rows.values["labels"].astype(np.int64)
        if len(labels) and not np.isin(labels, categories.ids).any():
            raise GramLoopError(
                "no prediction has a category of the ground truth: predictions have "
                f"{np.unique(labels)[:5].tolist()}…, the ground truth lists {sorted(categories.ids)[:5]}…"
            )
        return Matches(
            rows.owners("scores"),
            rows.values["scores"].astype(np.float64),
            labels,
            rows.values["found"].astype(np.uint16).reshape(-1, len(AREAS)),
            rows.values["counted"].astype(np.uint16).reshape(-1, len(AREAS)),
            rows.owners("truth_labels"),
            rows.values["truth_labels"].astype(np.int64),
            rows.values["to_find"].astype(np.uint8),
        )


class DetectionTask(MatchedTask[Detection, Instances]):
    """Rows keep every box, for figures, and how it was matched."""

    name = "detection"
    figure_caption = (
        "Boxes with a score of at least 0.40. Green frames: objects of the {truth} that {after} alone finds, magenta: those "
        "that {before} alone finds, by a box of the same category with an overlap of at least 0.50; these filters serve the "
        "picture and enter no score."
    )
    columns: ClassVar[Mapping[str, str]] = {
        **MatchedTask.columns,
        "boxes": "float32[]",  # left, top, right, bottom of one box after the other
        "truth_boxes": "float64[]",  # left, top, width, height, as COCO writes them
        "truth_crowd": "bool[]",
    }
    picture_columns: ClassVar[Mapping[str, str]] = {}  # boxes are in the row anyway
    prediction = Detection

    def read_truth(self, record: Record) -> Instances:
        return record.instances()

    def as_truth(self, prediction: Detection, threshold: float) -> Instances:
        sure = prediction.scores >= threshold
        boxes = _with_sizes(prediction.boxes[sure])
        numbers, crowd = np.arange(1, len(boxes) + 1), np.zeros(len(boxes), dtype=np.bool_)
        labels = prediction.labels[sure].astype(np.int64)
        return Instances(numbers, boxes, labels, boxes[:, 2] * boxes[:, 3], crowd)

    def move_truth(self, truth: Instances, record: Record, shift: Shift) -> Instances:
        names = ("id", "bbox", "category_id", "area")
        columns = (each.tolist() for each in (truth.ids, truth.boxes, truth.categories, truth.areas))
        rows = zip(*columns, strict=True)
        entries = [{**dict(zip(names, row, strict=True)), "iscrowd": 0} for row in rows]
        return Instances.from_annotations(tuple(shift.annotations(entries, record)))

    def statistics(self, prediction: Detection, truth: Instances, categories: Categories) -> Row:
        boxes, scores = prediction.boxes.astype(np.float32), prediction.scores.astype(np.float32)
        found = match_boxes(truth, _with_sizes(boxes), scores, prediction.labels, categories.ids)
        shapes = {"boxes": boxes.ravel(), "truth_boxes": truth.boxes.ravel(), "truth_crowd": truth.iscrowd}
        return {**self.matched(found), **shapes}

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        return box_average_precision(self.matches(rows, categories), categories.ids)

    def decode(self, row: Row, column: str = "picture") -> Detection | None:
        if column == "picture":
            corners, scores = (np.asarray(row[name], dtype=np.float32) for name in ("boxes", "scores"))
            return Detection(corners.reshape(-1, 4), scores, np.asarray(row["labels"], dtype=np.int64))
        single = ~np.asarray(row["truth_crowd"], dtype=np.bool_)
        boxes = np.asarray(row["truth_boxes"], dtype=np.float64).reshape(-1, 4)
        return _annotated(boxes[single], np.asarray(row["truth_labels"], dtype=np.int64)[single])

    def as_prediction(self, truth: Instances) -> Detection:
        """Crowds are regions, not objects, and are not drawn."""
        single = ~truth.iscrowd
        return _annotated(truth.boxes[single], truth.categories[single])

    def describe(self, prediction: Detection, style: DrawStyle) -> str:
        count = len(sure_boxes(prediction, style.threshold).scores)
        most = f"best {_MOST_DRAWN} of " * (count > _MOST_DRAWN)
        return f"{most}{count} box{'es' * (count != 1)} ≥ {style.threshold:g}"

    def draw(self, axes: Axes, image: RGB, prediction: Detection, style: DrawStyle) -> None:
        photograph(axes, shrunk(image, 1024), image.shape)
        found = sure_boxes(prediction, style.threshold)
        drawn = list(zip(found.boxes, found.scores, found.labels.tolist(), strict=True))[:_MOST_DRAWN]
        for box, score, label in reversed(drawn):  # the surest on top
            if np.isnan(score):
                draw_box(axes, box, GREEN, style.name(label), dashed=True)
            else:
                draw_box(axes, box, BLUE, f"{style.name(label)} {score:.2f}")

    def changes(
        self, before: Detection, after: Detection, truth: Detection | None, style: DrawStyle
    ) -> Changes:
        """Which annotated objects are found."""
        if truth is None:
            return Changes("")
        sure = (sure_boxes(each, style.threshold) for each in (before, after))
        first, second = ({*recovered_boxes(each, truth).tolist()} - {-1} for each in sure)
        gained, lost = sorted(second - first), sorted(first - second)
        marked = [*((place, LOST) for place in lost), *((place, GAINED) for place in gained)]
        return Changes(
            f"of {len(truth.scores)} objects {len(first)} are found before and {len(second)} after",
            boxes=[(truth.boxes[place], colour) for place, colour in marked],
            legend=((GAINED, f"gained {len(gained)}"), (LOST, f"lost {len(lost)}")),
        )

    def files(self, prediction: Detection, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        boxes = [[round(value, 3) for value in box] for box in _with_sizes(prediction.boxes).tolist()]
        return {".json": result_lines(image, prediction, "bbox", boxes)}

    def flip(self, prediction: Detection, width: int) -> Detection:
        left, top, right, bottom = prediction.boxes.T
        boxes = np.stack([width - right, top, width - left, bottom], axis=1)
        return replace(prediction, boxes=boxes, trace=None)

    def merge(self, predictions: Sequence[Detection]) -> Detection:
        """The fused boxes, best first; no more of them than the longest list had."""
        counts = [len(each.scores) for each in predictions]
        boxes, scores, labels = fuse_boxes(
            np.concatenate([each.boxes for each in predictions]).astype(np.float64),
            np.concatenate([each.scores for each in predictions]).astype(np.float64),
            np.concatenate([each.labels for each in predictions]),
            np.repeat(np.arange(len(counts)), counts),
            len(counts),
        )
        kept, blocks = slice(max(counts)), sum(each.blocks for each in predictions)
        scored = boxes[kept].astype(np.float32), scores[kept].astype(np.float32)
        return Detection(*scored, labels[kept], blocks=blocks)

    def rescale(self, prediction: Detection, input_size: tuple[int, int], size: tuple[int, int]) -> Detection:
        scale = np.array([size[1] / input_size[1], size[0] / input_size[0]] * 2, dtype=np.float32)
        return replace(prediction, boxes=prediction.boxes * scale)

    def renumber(self, prediction: Detection, numbers: Mapping[int, int]) -> Detection:
        labels = renumbered(prediction.labels, numbers)
        kept = labels >= 0
        boxes, scores = prediction.boxes[kept], prediction.scores[kept]
        return replace(prediction, boxes=boxes, scores=scores, labels=labels[kept])


def _with_sizes(corners: NDArray[Any]) -> NDArray[np.float64]:
    """Boxes of left, top, right, bottom as left, top, width, height."""
    boxes = corners.astype(np.float64)
    boxes[:, 2:] -= boxes[:, :2]
    return boxes


def _annotated(boxes: NDArray[Any], labels: NDArray[np.int64]) -> Detection:
    """Boxes of left, top, width, height as a detection; truth has no scores."""
    corners = np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
    return Detection(corners, np.full(len(boxes), np.nan, dtype=np.float32), labels)


def sure_boxes(found: Detection, threshold: float) -> Detection:
    """The boxes that score at least the threshold, by falling score."""
    order = np.argsort(-found.scores, kind="stable")
    kept = order[~(found.scores[order] < threshold)]  # truth has no scores, and stays
    return Detection(found.boxes[kept], found.scores[kept], found.labels[kept])


def recovered_boxes(found: Detection, truth: Detection) -> NDArray[np.int64]:  # → (n,)
    """For each prediction the true box that it recovers, or -1; for pictures alone, for AP has no threshold.

    Predictions are served by falling score, in their order where scores tie. Each takes the free true box of
    its category that it overlaps most, if by `PICTURE_OVERLAP` or more.
    """
    partner = np.full(len(found.scores), -1, dtype=np.int64)
    if not len(found.scores) or not len(truth.scores):
        return partner
    shared = box_iou(found.boxes, truth.boxes)
    shared[found.labels[:, None] != truth.labels[None]] = -1
    for index in np.argsort(-found.scores, kind="stable"):
        best = int(shared[index].argmax())
        if shared[index, best] >= PICTURE_OVERLAP:
            partner[index] = best
            shared[:, best] = -1
    return partner


def image_identity(image: Path) -> int | str:
    """An image's id in COCO files: its name without the ending, a number where it is one, as in COCO."""
    return int(image.stem) if image.stem.isascii() and image.stem.isdecimal() else image.stem


def result_lines(image: Path, found: Any, part: str, shapes: Sequence[object]) -> bytes:
    """Scored objects as COCO's results list them, one on each line; ``part`` names the shapes."""
    identity, columns = image_identity(image), zip(found.labels, shapes, found.scores, strict=True)
    rows = (
        {"image_id": identity, "category_id": int(label), part: shape, "score": round(float(score), 6)}
        for label, shape, score in columns
    )
    return ("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n").encode()


def fuse_boxes(
    boxes: _Floats,
    scores: _Floats,
    labels: NDArray[np.int64],
    views: NDArray[np.int64],
    count: int,
    iou: float = FUSION_IOU,
) -> tuple[_Floats, _Floats, NDArray[np.int64]]:
    """Weighted box fusion (Solovyev et al., 2021): one list of boxes from several views of an image, best first.

    Boxes (n, 4) of one class that overlap by more than ``iou`` become one, the mean of their corners weighted by score. Its
    score is the sum of theirs over ``count``, the number of views, so a box that only one view holds counts less. A fused
    box takes at most one box of each of the ``views`` (n,): boxes that a detector kept separate stay separate.
    """
    fused: list[tuple[_Floats, float, int]] = []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        mine = mine[np.argsort(-scores[mine], kind="stable")]
        for group in _groups(boxes[mine], views[mine], scores[mine], iou):
            weights, total = scores[mine[group]], scores[mine[group]].sum()
            share = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
            fused.append((share @ boxes[mine[group]], float(total / count), int(label)))
    fused.sort(key=lambda each: -each[1])
    return (
        np.array([box for box, _, _ in fused]).reshape(-1, 4),
        np.array([score for _, score, _ in fused], dtype=np.float64),
        np.array([label for _, _, label in fused], dtype=np.int64),
    )


def _groups(boxes: _Floats, views: NDArray[np.int64], scores: _Floats, iou: float) -> list[list[int]]:
    """Which boxes, best first, become one: each joins the fused box that it overlaps most."""
    groups: list[list[int]] = []
    corners = np.zeros((4, len(boxes)))  # of the fused boxes so far
    areas = np.zeros(len(boxes))
    taken = np.zeros((int(views.max()) + 1, len(boxes)), dtype=np.bool_)  # which views a fused box has
    own_areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    plain = zip(boxes.tolist(), own_areas.tolist(), views.tolist(), strict=True)  # fast with single numbers
    for index, (corner, area, view) in enumerate(plain):
        count, box = len(groups), boxes[index]
        overlaps = _ious(corner, area, corners[:, :count], areas[:count])
        overlaps[taken[view, :count]] = -1.0
        at = int(overlaps.argmax()) if count else 0
        if count and overlaps[at] > iou:
            groups[at].append(index)
            weights = np.maximum(scores[groups[at]], _TINY)
            box = weights / weights.sum() @ boxes[groups[at]]
        else:
            at = count
            groups.append([index])
        corners[:, at], taken[view, at] = box, True
        areas[at] = (box[2] - box[0]) * (box[3] - box[1])
    return groups


def _ious(box: Sequence[float], area: float, corners: _Floats, areas: _Floats) -> _Floats:
    """Overlaps of one box with others, (4, n) and (n,): faster than `box_iou` for few boxes."""
    wide = np.minimum(box[2], corners[2]) - np.maximum(box[0], corners[0])
    high = np.minimum(box[3], corners[3]) - np.maximum(box[1], corners[1])
    shared = np.maximum(wide, 0) * np.maximum(high, 0)
    ratio: _Floats = shared / np.maximum(areas + area - shared, _TINY)
    return ratio
