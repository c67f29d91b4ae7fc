"""Annotated and predicted boxes of a whole set, as columns, and their intersection over union."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from gramloop.data.records import DataSet, ImageId, Record


class ScoredBoxes(Protocol):
    """The predicted boxes of one image."""

    @property
    def boxes(self) -> NDArray[Any]: ...  # (n, 4): left, top, right, bottom

    @property
    def scores(self) -> NDArray[Any]: ...  # (n,)

    @property
    def labels(self) -> NDArray[Any]: ...  # (n,)


@dataclass(frozen=True)
class GroundTruthBoxes:
    """The annotated objects of a set; row k of every column belongs to object k."""

    images: Sequence[ImageId]  # every image to be scored, including those without objects
    categories: Sequence[int]
    image_ids: NDArray[Any]  # (N,)
    boxes: NDArray[Any]  # (N, 4): left, top, width, height
    labels: NDArray[Any]  # (N,) category ids
    areas: NDArray[Any]  # (N,) of the object, which decides whether it is small, medium or large
    crowd: NDArray[np.bool_]  # (N,)

    def __post_init__(self) -> None:
        _check_columns("annotated boxes", self.boxes, self.image_ids, self.labels, self.areas, self.crowd)
        if len(set(self.images)) != len(self.images) or not len(self.images):
            raise GramLoopError("ground truth needs at least one image, and each image once")
        if unlisted := sorted(set(np.unique(self.labels).tolist()) - set(self.categories)):
            raise GramLoopError(f"the ground truth holds category {unlisted[0]}, which it does not list")

    @classmethod
    def of(cls, data: DataSet, records: Iterable[Record] | None = None) -> GroundTruthBoxes:
        """The ground truth of a detection set, or of some of its records."""
        chosen = list(data if records is None else records)
        objects = [record.instances() for record in chosen]
        owners = np.repeat(np.arange(len(chosen)), [len(each) for each in objects])
        return cls(
            images=[record.image_id for record in chosen],
            categories=sorted(data.categories),
            image_ids=np.array([record.image_id for record in chosen])[owners],
            boxes=_concat([each.boxes for each in objects], (0, 4)),
            labels=_concat([each.categories for each in objects], (0,)).astype(np.int64),
            areas=_concat([each.areas for each in objects], (0,)),
            crowd=_concat([each.iscrowd for each in objects], (0,)).astype(np.bool_),
        )


@dataclass(frozen=True)
class BoxPredictions:
    """The predicted boxes of a set, in any order; row k of every column belongs to box k."""

    image_ids: NDArray[Any]  # (N,)
    boxes: NDArray[Any]  # (N, 4): left, top, width, height
    scores: NDArray[Any]  # (N,)
    labels: NDArray[Any]  # (N,) category ids

    def __post_init__(self) -> None:
        _check_columns("predicted boxes", self.boxes, self.image_ids, self.scores, self.labels)
        finite = np.isfinite(self.boxes).all(axis=1) & np.isfinite(self.scores)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise GramLoopError(
                f"a prediction in image {self.image_ids[row]} is not finite: "
                f"box {self.boxes[row].tolist()}, score {self.scores[row]}"
            )

    @classmethod
    def from_corners(
        cls, image_ids: NDArray[Any], corners: NDArray[Any], scores: NDArray[Any], labels: NDArray[Any]
    ) -> BoxPredictions:
        """Predictions whose boxes are left, top, right, bottom, (N, 4)."""
        boxes = np.asarray(corners, dtype=np.float64).copy()
        boxes[:, 2:] -= boxes[:, :2]
        return cls(image_ids, boxes, scores, labels)

    @classmethod
    def of(cls, predictions: Mapping[Any, ScoredBoxes]) -> BoxPredictions:
        """The predictions of images, by image id."""
        each = list(predictions.values())
        owners = np.repeat(np.arange(len(each)), [len(one.scores) for one in each])
        return cls.from_corners(
            np.array(list(predictions))[owners],
            _concat([one.boxes for one in each], (0, 4)),
            _concat([one.scores for one in each], (0,)),
            _concat([one.labels for one in each], (0,)),
        )


def box_iou(boxes: NDArray[Any], others: NDArray[Any]) -> NDArray[np.float64]:
    """Intersection over union of every box with every other; 0 where both are empty.

    Args:
        boxes: (n, 4) left, top, right, bottom.
        others: (m, 4) likewise.

    Returns:
        (n, m).
    """
    boxes, others = np.asarray(boxes, dtype=np.float64), np.asarray(others, dtype=np.float64)
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(axis=-1)
    areas = [np.clip(each[:, 2:] - each[:, :2], 0, None).prod(axis=-1) for each in (boxes, others)]
    union = areas[0][:, None] + areas[1][None] - both
    ratio: NDArray[np.float64] = np.divide(both, union, out=np.zeros_like(both), where=union > 0)
    return ratio


def coco_overlap(
    boxes: NDArray[np.float64], objects: NDArray[np.float64], crowd: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Overlap of box k with object k as COCO's evaluator rounds it; over the box's own area where it is a crowd.

    Args:
        boxes: (n, 4) left, top, width, height.
        objects: (n, 4) likewise.
        crowd: (n,) whether the object is a crowd.

    Returns:
        (n,).
    """
    ends = np.minimum(boxes[:, :2] + boxes[:, 2:], objects[:, :2] + objects[:, 2:])
    sides = ends - np.maximum(boxes[:, :2], objects[:, :2])
    shared = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], 0.0)
    own = boxes[:, 2] * boxes[:, 3]
    union = np.where(crowd, own, own + objects[:, 2] * objects[:, 3] - shared)
    return np.divide(shared, union, out=np.zeros(len(shared)), where=shared > 0)


def image_places(image_ids: NDArray[Any], images: NDArray[Any]) -> NDArray[np.int64]:
    """The index of each id among the sorted ids of all images."""
    if not len(image_ids):
        return np.zeros(0, dtype=np.int64)
    ids = np.asarray(image_ids)
    found = np.searchsorted(images, ids).clip(max=len(images) - 1)
    if (unknown := images[found] != ids).any():
        raise GramLoopError(f"image {ids[unknown][0]} has boxes, but is not among the images to be scored")
    return found.astype(np.int64)


def _check_columns(owner: str, boxes: NDArray[Any], *columns: NDArray[Any]) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise GramLoopError(f"{owner} need four numbers each, (N, 4), not {boxes.shape}")
    if any(column.shape != (len(boxes),) for column in columns):
        shapes = [column.shape for column in columns]
        raise GramLoopError(f"{owner}: {len(boxes)} boxes, but columns of shapes {shapes}")


def _concat(parts: list[NDArray[Any]], empty: tuple[int, ...]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(empty)
