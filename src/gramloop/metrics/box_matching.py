"""Which detection finds which object, by COCO's rule, for all images at once.

The evaluators match as well, and give one entry per image and category: half a million for one condition of COCO-C, and
a minute to read. Here a whole set is matched column by column. The rule, within one image and category: detections choose
in the order of their scores, at most 100 of them; each takes the object that it overlaps most among those that are free,
the later one of equals; what is not to be found (a crowd) is only taken where nothing else is left, and a crowd by any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.boxes import FoundBoxes, TrueBoxes
from gramloop.metrics.coco_ap import AREAS, DETECTIONS_PER_CATEGORY, numbered, refuse_foreign_labels

THRESHOLDS = np.linspace(0.5, 0.95, 10)
_SURE = 1 - 1e-10  # the overlap that is enough for any threshold
_NONE = -1


@dataclass(frozen=True)
class BoxMatches:
    """Matched detections, category by category and best first, and objects."""

    images: int
    places: NDArray[np.int64]  # (D,) the image of each detection, among the sorted ids
    categories: NDArray[np.int64]  # (D,) from 1, in sorted order
    found: NDArray[np.bool_]  # (thresholds, D) an object that counts
    counted: NDArray[np.bool_]  # (thresholds, D) neither a crowd's nor otherwise passed over
    true_places: NDArray[np.int64]  # (N,) the image of each object
    true_categories: NDArray[np.int64]  # (N,)
    to_find: NDArray[np.bool_]  # (N,)


def match_boxes(truth: TrueBoxes, detections: FoundBoxes) -> BoxMatches:
    """Match all detections of listed categories to objects of any area."""
    refuse_foreign_labels(truth, detections)
    truth, detections = numbered(truth, detections)
    images = len(truth.images)
    true_pairs = truth.labels * (images + 1) + truth.image_ids
    passed = truth.crowd | _outside(truth.areas)
    true_order = np.lexsort((passed, true_pairs))  # what counts first, else as listed
    pairs = detections.labels * (images + 1) + detections.image_ids
    order = np.lexsort((-detections.scores, pairs))
    order = order[_rank(pairs[order]) < DETECTIONS_PER_CATEGORY]
    taken = _matched(
        _Candidates.of(
            pairs[order],
            detections.boxes[order],
            true_pairs[true_order],
            truth.boxes[true_order],
            truth.crowd[true_order],
        ),
        passed[true_order],
        truth.crowd[true_order],
        len(order),
    )
    hit = taken != _NONE
    alone = ~hit & _outside(detections.boxes[order, 2] * detections.boxes[order, 3])
    counted = ~(hit & passed[true_order][taken] | alone) if len(truth.labels) else ~alone
    best_first = np.lexsort(
        (-detections.scores[order], detections.labels[order])
    )  # of equals as images are numbered
    return BoxMatches(
        images,
        detections.image_ids[order][best_first] - 1,
        detections.labels[order][best_first],
        (hit & counted)[:, best_first],
        counted[:, best_first],
        truth.image_ids - 1,
        truth.labels,
        ~passed,
    )


@dataclass(frozen=True)
class _Candidates:
    """Detections and objects of one image and category that overlap enough, in the order of the detections."""

    found: NDArray[np.int64]  # (n,) place of the detection
    true: NDArray[np.int64]  # (n,) place of the object
    overlap: NDArray[np.float64]  # (n,)
    turn: NDArray[np.int64]  # (n,) how many detections of the same image and category have chosen before

    @classmethod
    def of(
        cls,
        pairs: NDArray[np.int64],
        boxes: NDArray[np.float64],
        true_pairs: NDArray[np.int64],
        true_boxes: NDArray[np.float64],
        crowd: NDArray[np.bool_],
    ) -> _Candidates:
        first, last = (np.searchsorted(true_pairs, pairs, side) for side in ("left", "right"))
        many = last - first
        found = np.repeat(np.arange(len(pairs)), many)
        true = np.arange(len(found)) - np.repeat(np.cumsum(many) - many, many) + first[found]
        overlap = _overlap(boxes[found], true_boxes[true], crowd[true])
        near = overlap >= THRESHOLDS[0]
        found, true, overlap = found[near], true[near], overlap[near]
        opens = np.diff(found, prepend=_NONE) > 0  # the first candidate of each detection
        turn = _rank(pairs[found[opens]])[np.cumsum(opens) - 1] if len(found) else found
        return cls(found, true, overlap, turn)


def _matched(
    candidates: _Candidates, passed: NDArray[np.bool_], crowd: NDArray[np.bool_], many: int
) -> NDArray[np.int64]:
    """The object that each detection takes at each threshold, (thresholds, detections); -1 for none."""
    needed = np.minimum(THRESHOLDS, _SURE)[:, None]
    taken = np.full((len(THRESHOLDS), many), _NONE)
    free = np.ones((len(THRESHOLDS), len(passed)), dtype=np.bool_)
    order = np.argsort(candidates.turn, kind="stable")
    cuts = np.searchsorted(candidates.turn[order], np.arange(candidates.turn.max(initial=_NONE) + 2))
    for start, stop in pairwise(cuts):
        turn = order[start:stop]
        found, true, overlap = candidates.found[turn], candidates.true[turn], candidates.overlap[turn]
        opens = np.flatnonzero(np.diff(found, prepend=_NONE) > 0)
        open_to = (free[:, true] | crowd[true]) & (overlap >= needed)  # (thresholds, n)
        chosen = _largest(np.where(open_to & ~passed[true], overlap, _NONE), opens)
        second = _largest(np.where(open_to & passed[true], overlap, _NONE), opens)
        chosen = np.where(chosen == _NONE, second, chosen)  # (thresholds, detections of this turn)
        level, place = np.nonzero(chosen != _NONE)
        object_of = true[chosen[level, place]]
        taken[level, found[opens][place]] = object_of
        free[level, object_of] = False
    return taken


def _largest(values: NDArray[np.float64], opens: NDArray[np.int64]) -> NDArray[np.int64]:
    """The column of the largest value of each run of columns, the last of equals; -1 where all are below zero."""
    best = np.maximum.reduceat(values, opens, axis=1)
    lengths = np.diff(np.append(opens, values.shape[1]))
    reached = (values == np.repeat(best, lengths, axis=1)) & (values >= 0)
    return np.maximum.reduceat(np.where(reached, np.arange(values.shape[1]), _NONE), opens, axis=1)


def _overlap(
    boxes: NDArray[np.float64], true: NDArray[np.float64], crowd: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Intersection over union; over the detection's own area where the object is a crowd."""
    sides = np.minimum(boxes[:, :2] + boxes[:, 2:], true[:, :2] + true[:, 2:]) - np.maximum(
        boxes[:, :2], true[:, :2]
    )
    shared = np.where((sides > 0).all(axis=1), sides[:, 0] * sides[:, 1], 0.0)
    own = boxes[:, 2] * boxes[:, 3]
    union = np.where(crowd, own, own + true[:, 2] * true[:, 3] - shared)
    return np.divide(shared, union, out=np.zeros(len(shared)), where=shared > 0)


def _outside(areas: NDArray[np.float64]) -> NDArray[np.bool_]:
    low, high = AREAS["all"]
    return (areas < low) | (areas > high)


def _rank(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each entry among its equals, which stand together."""
    opens = np.flatnonzero(np.diff(keys, prepend=_NONE) != 0)
    return np.arange(len(keys)) - np.repeat(opens, np.diff(np.append(opens, len(keys))))
