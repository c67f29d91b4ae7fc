"""Annotated and detected boxes of a whole set, as columns: what average precision is computed from."""

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
    """One image's prediction, as :class:`gramloop.tasks.detect.Detection`."""

    @property
    def boxes(self) -> NDArray[Any]: ...  # (n, 4): left, top, right, bottom

    @property
    def scores(self) -> NDArray[Any]: ...  # (n,)

    @property
    def labels(self) -> NDArray[Any]: ...  # (n,)


@dataclass(frozen=True)
class TrueBoxes:
    """The annotated objects of a set; row k of every column belongs to object k."""

    images: Sequence[ImageId]  # every image to be scored, also those without an object
    categories: Sequence[int]
    image_ids: NDArray[Any]  # (N,)
    boxes: NDArray[Any]  # (N, 4): left, top, width, height
    labels: NDArray[Any]  # (N,) category ids
    areas: NDArray[Any]  # (N,) of the object, which decides whether it is small, medium or large
    crowd: NDArray[np.bool_]  # (N,)

    def __post_init__(self) -> None:
        _check_columns("truth", self.boxes, self.image_ids, self.labels, self.areas, self.crowd)
        if len(set(self.images)) != len(self.images) or not len(self.images):
            raise GramLoopError("the truth needs at least one image, and each once")
        if strangers := sorted(set(np.unique(self.labels).tolist()) - set(self.categories)):
            raise GramLoopError(f"the truth holds the category {strangers[0]}, which it does not list")

    @classmethod
    def of(cls, data: DataSet, records: Iterable[Record] | None = None) -> TrueBoxes:
        """The truth of a detection set, or of some of its records."""
        chosen = list(data if records is None else records)
        objects = [record.instances() for record in chosen]
        owners = np.repeat(np.arange(len(chosen)), [len(each) for each in objects])
        return cls(
            images=[record.image_id for record in chosen],
            categories=sorted(data.categories),
            image_ids=np.array([record.image_id for record in chosen])[owners],
            boxes=_joined([each.boxes for each in objects], (0, 4)),
            labels=_joined([each.categories for each in objects], (0,)).astype(np.int64),
            areas=_joined([each.areas for each in objects], (0,)),
            crowd=_joined([each.iscrowd for each in objects], (0,)).astype(np.bool_),
        )


@dataclass(frozen=True)
class FoundBoxes:
    """The predicted boxes of a set, in any order; row k of every column belongs to box k."""

    image_ids: NDArray[Any]  # (N,)
    boxes: NDArray[Any]  # (N, 4): left, top, width, height
    scores: NDArray[Any]  # (N,)
    labels: NDArray[Any]  # (N,) category ids

    def __post_init__(self) -> None:
        _check_columns("detections", self.boxes, self.image_ids, self.scores, self.labels)
        finite = np.isfinite(self.boxes).all(axis=1) & np.isfinite(self.scores)
        if not finite.all():
            row = int(np.flatnonzero(~finite)[0])
            raise GramLoopError(
                f"a detection in image {self.image_ids[row]} is not finite: "
                f"box {self.boxes[row].tolist()}, score {self.scores[row]}"
            )

    @classmethod
    def from_corners(
        cls, image_ids: NDArray[Any], corners: NDArray[Any], scores: NDArray[Any], labels: NDArray[Any]
    ) -> FoundBoxes:
        """Detections whose boxes are left, top, right, bottom, (N, 4)."""
        boxes = np.asarray(corners, dtype=np.float64).copy()
        boxes[:, 2:] -= boxes[:, :2]
        return cls(image_ids, boxes, scores, labels)

    @classmethod
    def of(cls, predictions: Mapping[Any, ScoredBoxes]) -> FoundBoxes:
        """Detections from the predictions of images, by image id."""
        each = list(predictions.values())
        owners = np.repeat(np.arange(len(each)), [len(one.scores) for one in each])
        return cls.from_corners(
            np.array(list(predictions))[owners],
            _joined([one.boxes for one in each], (0, 4)),
            _joined([one.scores for one in each], (0,)),
            _joined([one.labels for one in each], (0,)),
        )


def places(image_ids: NDArray[Any], images: NDArray[Any]) -> NDArray[np.int64]:
    """Where ids stand among the sorted ids of all images."""
    if not len(image_ids):
        return np.zeros(0, dtype=np.int64)
    ids = np.asarray(image_ids)
    found = np.searchsorted(images, ids).clip(max=len(images) - 1)
    if (strange := images[found] != ids).any():
        raise GramLoopError(f"image {ids[strange][0]} has boxes, but is not among the images to be scored")
    return found.astype(np.int64)


def _check_columns(owner: str, boxes: NDArray[Any], *columns: NDArray[Any]) -> None:
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise GramLoopError(f"the {owner} need boxes of four numbers, (N, 4), not {boxes.shape}")
    if any(column.shape != (len(boxes),) for column in columns):
        shapes = [column.shape for column in columns]
        raise GramLoopError(f"the {owner} have {len(boxes)} boxes, but columns of shapes {shapes}")


def _joined(parts: list[NDArray[Any]], empty: tuple[int, ...]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(empty)
