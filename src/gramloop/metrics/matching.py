"""COCO's matching of predicted boxes or masks to the objects of an image.

Within one image and category, predictions choose in order of their scores, at most 100 of them. Each takes the free
object that it overlaps most, the last one of equals. Objects that do not count (crowds, and those outside a range of
areas) are only taken when no other is left, and a crowd by any number of predictions. What is kept of it are a few bytes
per prediction; the precision of any selection of images follows from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from hotcoco.mask import iou
from numpy.typing import NDArray

from gramloop.data.truth import Instances, ObjectMasks, RunLengths, mask_area
from gramloop.errors import GramLoopError

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of overlap
MAX_PER_CATEGORY = 100  # predictions of one image and category that count
AREAS: dict[str, tuple[float, float]] = {
    "all": (0, 1e10),
    "small": (0, 32**2),
    "medium": (32**2, 96**2),
    "large": (96**2, 1e10),
}
ALL, SMALL, MEDIUM, LARGE = range(4)  # indices of these ranges
BITS = (1 << np.arange(len(THRESHOLDS))).astype(np.uint16)
EVERY_THRESHOLD = int(BITS.sum())
_ENOUGH = np.minimum(THRESHOLDS, 1 - 1e-10)[:, None]  # what COCO's evaluator compares overlaps with

Overlaps = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float64]]


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


@dataclass(frozen=True)
class Matches:
    """How predictions and objects were matched, of one image or of many; row k of a column is one prediction or object.

    A bit of ``found`` and ``counted`` stands for a threshold of overlap, a bit of ``to_find`` for a range of areas. Of
    equal scores the earlier row ranks first.
    """

    images: NDArray[np.int64]  # (n,) the index of each prediction's image
    scores: NDArray[np.float64]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids
    found: NDArray[np.uint16]  # (n, areas) matched to an object that counts
    counted: NDArray[np.uint16]  # (n, areas) right or wrong, rather than ignored
    true_images: NDArray[np.int64]  # (m,)
    true_labels: NDArray[np.int64]  # (m,)
    to_find: NDArray[np.uint8]  # (m,)

    @cached_property
    def ranking(self) -> dict[int, NDArray[np.int64]]:
        """The rows of each category that was predicted, best first."""
        small = (
            self.labels.min(initial=0) >= 0 and self.labels.max(initial=0) < 2**16
        )  # 16 bits are sorted fast
        order = np.argsort(self.labels.astype(np.uint16) if small else self.labels, kind="stable")
        ends = np.flatnonzero(np.diff(self.labels[order], append=-1)) + 1
        ranking = {}
        for own in np.split(order, ends)[:-1]:
            ranking[int(self.labels[own[0]])] = own[np.argsort(-self.scores[own], kind="stable")]
        return ranking


def match_boxes(
    truth: Instances,
    boxes: NDArray[Any],
    scores: NDArray[Any],
    labels: NDArray[Any],
    categories: Sequence[int],
) -> Matches:
    """Match the predicted boxes of one image, (n, 4) left, top, width, height; row k stays that of box k.

    A box counts nowhere if its category is not listed, or if its image has 100 better ones of its category.
    """
    if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
        raise GramLoopError("a predicted box or its score is not finite; every number must be")
    boxes = np.asarray(boxes, dtype=np.float64)

    def overlaps(own: NDArray[np.int64], true: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(iou(boxes[own], truth.boxes[true], truth.iscrowd[true].tolist()))

    objects = truth.categories, truth.areas, truth.iscrowd
    return _match(scores, labels, boxes[:, 2] * boxes[:, 3], objects, categories, overlaps)


def match_masks(
    truth: ObjectMasks,
    masks: Sequence[RunLengths],
    scores: NDArray[Any],
    labels: NDArray[Any],
    categories: Sequence[int],
) -> Matches:
    """Match the predicted masks of one image; those of categories that are not listed are left out."""
    for name, each in (("true", truth.masks), ("predicted", masks)):
        if other := [mask["size"] for mask in each if tuple(mask["size"]) != truth.size]:
            (height, width), (rows, columns) = other[0], truth.size
            raise GramLoopError(f"a {name} mask is {width} x {height}, but its image is {columns} x {rows}")
    listed = np.flatnonzero(np.isin(labels, categories))
    masks = [masks[index] for index in listed.tolist()]

    def overlaps(own: NDArray[np.int64], true: NDArray[np.int64]) -> NDArray[np.float64]:
        objects = [truth.masks[index] for index in true]
        return np.asarray(iou([masks[index] for index in own], objects, truth.crowd[true].tolist()))

    areas = np.array([mask_area(mask) for mask in masks], dtype=np.float64)
    scores, labels = np.asarray(scores, dtype=np.float64)[listed], np.asarray(labels, dtype=np.int64)[listed]
    return _match(scores, labels, areas, (truth.categories, truth.areas, truth.crowd), categories, overlaps)


def _match(
    scores: NDArray[Any],
    labels: NDArray[Any],
    areas: NDArray[np.float64],
    objects: tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]],
    categories: Sequence[int],
    overlaps: Overlaps,
) -> Matches:
    """Match the predictions of one image to its objects, of which categories, areas and crowd flags are given."""
    true_labels, true_areas, crowd = objects
    outside, ignored = _outside(areas), crowd | _outside(true_areas)  # (areas, n), (areas, m)
    found = np.zeros((len(labels), len(AREAS)), dtype=np.uint16)
    counted = np.where(np.isin(labels, categories) & ~outside, EVERY_THRESHOLD, 0).T.astype(np.uint16)
    numbers, many = np.unique(labels, return_counts=True)
    for category in np.intersect1d(categories, [*true_labels, *numbers[many > MAX_PER_CATEGORY]]):
        own, true = np.flatnonzero(labels == category), np.flatnonzero(true_labels == category)
        own = own[np.argsort(-scores[own], kind="stable")]
        counted[own[MAX_PER_CATEGORY:]] = 0
        own = own[:MAX_PER_CATEGORY]
        if len(own) and len(true):
            hit, passed = _choose(overlaps(own, true), ignored[:, true], crowd[true])
            found[own] = (hit & ~passed) @ BITS
            counted[own] = ~(passed | ~hit & outside.T[own, :, None]) @ BITS
    to_find = (1 << np.arange(len(AREAS))) @ (~ignored & np.isin(true_labels, categories))
    images, true_images = (np.zeros(len(each), dtype=np.int64) for each in (labels, true_labels))
    columns = (found, counted, true_images, true_labels, to_find.astype(np.uint8))
    return Matches(images, scores, labels, *columns)


def _choose(
    overlap: NDArray[np.float64], ignored: NDArray[np.bool_], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Whether each prediction takes an object, and whether one that does not count, both (n, areas, thresholds).

    Args:
        overlap: of the predictions, best first, with the objects, (n, m).
        ignored: the objects that do not count in each range of areas, (areas, m).
        crowd: the objects that any number of predictions may take, (m,).
    """
    ranges, levels, many = np.arange(len(AREAS))[:, None], np.arange(len(THRESHOLDS)), len(crowd)
    hit, passed = np.zeros((2, len(overlap), len(AREAS), len(THRESHOLDS)), dtype=np.bool_)
    taken = np.zeros((len(AREAS), len(THRESHOLDS), many), dtype=np.bool_)
    for row in np.flatnonzero((overlap >= THRESHOLDS[0]).any(axis=1)):
        # an object that counts before one that does not, then the one with most overlap, the last of equals
        rank = np.argsort(np.argsort(overlap[row], kind="stable")) + many * ~ignored  # (areas, m)
        allowed = (overlap[row] >= _ENOUGH) & (crowd | ~taken)
        choice = np.where(allowed, rank[:, None], -1)
        best = choice.argmax(axis=-1)
        hit[row] = choice.max(axis=-1) >= 0
        passed[row] = hit[row] & ignored[ranges, best]
        taken[ranges, levels, best] |= hit[row]
    return hit, passed


def _outside(areas: NDArray[np.float64]) -> NDArray[np.bool_]:  # (n,) → (areas, n)
    low, high = np.array(list(AREAS.values())).T[:, :, None]
    outside: NDArray[np.bool_] = (areas < low) | (areas > high)
    return outside
