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
from itertools import pairwise
from typing import Any

import numpy as np
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
_NONE = -1

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
    mine, true = (np.flatnonzero(np.isin(each, categories)) for each in (labels, truth.categories))
    own, objects = np.asarray(boxes, dtype=np.float64)[mine], truth.boxes[true]
    keys, true_keys = (
        np.searchsorted(np.sort(categories), each) for each in (labels[mine], truth.categories[true])
    )
    crowd, areas = truth.iscrowd[true], own[:, 2] * own[:, 3]
    kept, *bits, to_find = _matched(
        keys, scores[mine], areas, true_keys, truth.areas[true], crowd,
        lambda one, other: coco_overlap(own[one], objects[other], crowd[other]),
    )  # fmt: skip
    found, counted = (np.zeros((len(labels), len(AREAS)), dtype=np.uint16) for _ in bits)
    found[mine[kept]], counted[mine[kept]] = bits
    every = np.zeros(len(truth), dtype=np.uint8)
    every[true] = to_find
    owners, true_owners = np.zeros(len(labels), dtype=np.int64), np.zeros(len(truth), dtype=np.int64)
    return Matches(owners, scores, labels, found, counted, true_owners, truth.categories, every)


def match_masks(
    truth: ObjectMasks,
    masks: Sequence[RunLengths],
    scores: NDArray[Any],
    labels: NDArray[Any],
    categories: Sequence[int],
) -> Matches:
    """Match the predicted masks of one image; those of categories that are not listed are left out."""
    from hotcoco.mask import iou

    for name, each in (("true", truth.masks), ("predicted", masks)):
        if other := [mask["size"] for mask in each if tuple(mask["size"]) != truth.size]:
            (height, width), (rows, columns) = other[0], truth.size
            raise GramLoopError(f"a {name} mask is {width} x {height}, but its image is {columns} x {rows}")
    mine, true = (np.flatnonzero(np.isin(each, categories)) for each in (labels, truth.categories))
    mine = mine[np.lexsort((-np.asarray(scores)[mine], np.asarray(labels)[mine]))]
    true = true[np.argsort(truth.categories[true], kind="stable")]
    own, names = [masks[index] for index in mine.tolist()], np.asarray(labels)[mine].astype(np.int64)
    scores, true_names = np.asarray(scores, dtype=np.float64)[mine], truth.categories[true]

    def overlaps(one: NDArray[np.int64], other: NDArray[np.int64]) -> NDArray[np.float64]:
        """Pairs come category by category, each prediction with every object."""
        values = []
        for label in np.unique(names[one]):
            rows, columns = (list(dict.fromkeys(each[names[one] == label].tolist())) for each in (one, other))
            objects, crowd = [truth.masks[index] for index in true[columns]], truth.crowd[true[columns]]
            values.append(np.ravel(iou([own[row] for row in rows], objects, crowd.tolist())))
        return np.concatenate([np.zeros(0), *values])

    areas = np.array([mask_area(mask) for mask in own], dtype=np.float64)
    keys, true_keys = (np.searchsorted(np.sort(categories), each) for each in (names, true_names))
    kept, found, counted, to_find = _matched(
        keys, scores, areas, true_keys, truth.areas[true], truth.crowd[true], overlaps
    )
    owners, true_owners = np.zeros(len(kept), dtype=np.int64), np.zeros(len(true), dtype=np.int64)
    return Matches(owners, scores[kept], names[kept], found, counted, true_owners, true_names, to_find)


def _matched(
    keys: NDArray[np.int64],
    scores: NDArray[Any],
    areas: NDArray[np.float64],
    true_keys: NDArray[np.int64],
    true_areas: NDArray[np.float64],
    crowd: NDArray[np.bool_],
    overlaps: Overlaps,
) -> tuple[NDArray[np.int64], NDArray[np.uint16], NDArray[np.uint16], NDArray[np.uint8]]:
    """Match predictions to objects with the same key, a small number that stands for one image and category.

    Returns:
        The predictions that count, as increasing indices (n,); their bits ``found`` and ``counted``, (n, areas); and the
        bits ``to_find`` of the objects, (m,).
    """
    ignored = crowd | _outside(true_areas)  # (areas, m)
    # most predictions have no object of their category in the image, and need not be sorted
    many, true_many = (
        np.bincount(each, minlength=int(keys.max(initial=0)) + 1) for each in (keys, true_keys)
    )
    rows = np.flatnonzero(((true_many[: len(many)] > 0) | (many > MAX_PER_CATEGORY))[keys])
    rows = rows[np.lexsort((-scores[rows], keys[rows]))]
    beyond = _rank(keys[rows]) >= MAX_PER_CATEGORY
    outside = _outside(areas)  # (areas, n)
    found = np.zeros((len(keys), len(AREAS)), dtype=np.uint16)
    counted = np.where(outside.T, 0, EVERY_THRESHOLD).astype(np.uint16)
    kept = np.delete(np.arange(len(keys)), rows[beyond])
    rows = rows[~beyond]
    pairs = _near_pairs(keys[rows], true_keys, lambda one, other: overlaps(rows[one], other))
    with_pairs, taken = _choose(pairs, keys[rows], ignored, crowd)
    hit = taken != _NONE  # (areas, thresholds, predictions with pairs)
    if hit.any():
        chosen = rows[with_pairs]
        passed = hit & ignored[np.arange(len(AREAS))[:, None, None], taken]
        found[chosen] = np.tensordot(BITS, hit & ~passed, (0, 1)).T
        counted[chosen] = np.tensordot(BITS, ~(passed | ~hit & outside[:, None, chosen]), (0, 1)).T
    to_find = ((1 << np.arange(len(AREAS)))[:, None] * ~ignored).sum(axis=0).astype(np.uint8)
    return kept, found[kept], counted[kept], to_find


@dataclass(frozen=True)
class _Pairs:
    """Predictions and objects of one key that overlap by the lowest threshold or more, in order of predictions."""

    prediction: NDArray[np.int64]  # (pairs,)
    object: NDArray[np.int64]
    overlap: NDArray[np.float64]


def _near_pairs(keys: NDArray[np.int64], true_keys: NDArray[np.int64], overlaps: Overlaps) -> _Pairs:
    by_key = np.argsort(true_keys, kind="stable")
    first, last = (np.searchsorted(true_keys[by_key], keys, side) for side in ("left", "right"))
    many = last - first
    prediction = np.repeat(np.arange(len(keys)), many)
    within = np.arange(len(prediction)) - np.repeat(np.cumsum(many) - many, many)
    objects = by_key[first[prediction] + within]
    overlap = overlaps(prediction, objects)
    near = overlap >= THRESHOLDS[0]
    return _Pairs(prediction[near], objects[near], overlap[near])


def _choose(
    pairs: _Pairs, keys: NDArray[np.int64], ignored: NDArray[np.bool_], crowd: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Predictions that have pairs, (p,), and the object that each takes, (areas, thresholds, p); -1 for none.

    The first predictions of all keys choose together, then the second ones, and so on.
    """
    opens = np.diff(pairs.prediction, prepend=_NONE) > 0  # the first pair of each prediction
    predictions, slot = pairs.prediction[opens], np.cumsum(opens) - 1
    turns = _rank(keys[predictions])[slot] if len(slot) else slot
    taken = np.full((len(AREAS), len(THRESHOLDS), len(predictions)), _NONE)
    free = np.ones((len(AREAS), len(THRESHOLDS), len(crowd)), dtype=np.bool_)
    order = np.argsort(turns, kind="stable")
    for start, stop in pairwise(np.searchsorted(turns[order], np.arange(turns.max(initial=_NONE) + 2))):
        turn = order[start:stop]
        true, overlap = pairs.object[turn], pairs.overlap[turn]
        runs = np.flatnonzero(np.diff(slot[turn], prepend=_NONE) > 0)
        allowed = np.where((free[:, :, true] | crowd[true]) & (overlap >= _ENOUGH), overlap, _NONE)
        passed = ignored[:, None, true]
        best = _last_largest(np.where(passed, _NONE, allowed), runs)
        second = _last_largest(np.where(passed, allowed, _NONE), runs)
        chosen = np.where(best == _NONE, second, best)
        area, level, place = np.nonzero(chosen != _NONE)
        objects = true[chosen[area, level, place]]
        taken[area, level, slot[turn][runs][place]] = objects
        free[area, level, objects] = False
    return predictions, taken


def _last_largest(values: NDArray[np.float64], runs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The column of the largest value of each run of columns, the last of equals; -1 where all are below zero."""
    largest = np.maximum.reduceat(values, runs, axis=-1)
    lengths = np.diff(np.append(runs, values.shape[-1]))
    reached = (values == np.repeat(largest, lengths, axis=-1)) & (values >= 0)
    return np.maximum.reduceat(np.where(reached, np.arange(values.shape[-1]), _NONE), runs, axis=-1)


def _outside(areas: NDArray[np.float64]) -> NDArray[np.bool_]:  # (n,) → (areas, n)
    low, high = np.array(list(AREAS.values())).T[:, :, None]
    outside: NDArray[np.bool_] = (areas < low) | (areas > high)
    return outside


def _rank(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each entry among its equals, which stand together."""
    opens = np.flatnonzero(np.diff(keys, prepend=keys[:1] - 1) != 0)
    return np.arange(len(keys)) - np.repeat(opens, np.diff(np.append(opens, len(keys))))
