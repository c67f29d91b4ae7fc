"""Average precision of resampled images, without matching detections again.

Which detection finds which object is decided within an image, so it does not change when the image is drawn
twice or not at all; only its weight does. Boxes or masks are matched once, and the curves of many draws are then
computed together: straight for a few, and by `gramloop.metrics.ap_draws` for the thousands of a bootstrap. The result
is that of COCO's evaluator on a set with the images repeated, up to the order of equal scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.ap_draws import EXACT, HEAVIEST, Ranked, average_precision, can_compile, listed
from gramloop.metrics.bootstrap import Delta, Score, Weights
from gramloop.metrics.box_matching import match_boxes
from gramloop.metrics.boxes import FoundBoxes, TrueBoxes
from gramloop.metrics.means import mean_of_known

if TYPE_CHECKING:
    from gramloop.metrics.ap_kernel import Lists

RECALLS = np.linspace(0, 1, 101)  # where COCO reads the curve of precision
NUMBERS_AT_ONCE = 4_000_000  # of one array: draws x detections
MANY = 64  # draws, and
MUCH = 20_000_000  # draws x detections x thresholds, from which on it pays to load what is compiled
DRAWS_AT_ONCE = 2000  # that are handed over together in a bootstrap


@dataclass(frozen=True)
class MatchedCategory:
    """Detections of one category, best first, and how they were matched at each of T thresholds."""

    owners: NDArray[np.int64]  # (D,) the image of each, by place
    found: NDArray[np.bool_]  # (T, D) an object that counts
    counted: NDArray[np.bool_]  # (T, D) neither a crowd's nor otherwise passed over
    objects: NDArray[np.int64]  # (images,) objects to be found

    def average_precision(self, weights: Weights) -> NDArray[np.float64]:
        """Percent, (draws,); NaN where no object was drawn."""
        rows = max(1, NUMBERS_AT_ONCE // max(len(self.owners), 1))
        parts = [self._some(weights[start : start + rows]) for start in range(0, len(weights), rows)]
        return np.concatenate(parts)

    def _some(self, weights: Weights) -> NDArray[np.float64]:
        objects = (weights @ self.objects).astype(np.float64)  # (draws,)
        drawn = weights[:, self.owners].astype(np.float64)  # (draws, D)
        areas = [
            _area_under_curve(drawn[:, self.found[threshold]], seen[:, self.found[threshold]], objects)
            for threshold, seen in enumerate(self._seen(drawn))
        ]
        return np.where(objects > 0, 100 * np.mean(areas, axis=0), np.nan)

    def _seen(self, drawn: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """For each threshold, how many detections that count have been seen down to each, (draws, D)."""
        before = None
        for counted in self.counted:
            if before is None or (counted != before).any():  # thresholds differ only around crowds
                seen = np.cumsum(drawn * counted, axis=1)
            before = counted
            yield seen


def ap_delta(truth: TrueBoxes, baseline: FoundBoxes, method: FoundBoxes) -> Delta:
    """The gain in AP for :func:`gramloop.metrics.bootstrap.image_bootstrap`, images in ``truth.images``' order."""
    ordinary, changed = (ap_score(truth, each) for each in (baseline, method))
    return lambda weights: changed(weights) - ordinary(weights)


def ap_score(truth: TrueBoxes, detections: FoundBoxes) -> Score:
    """The AP of one method, of any draw of the images in ``truth.images``' order."""
    return Matched.of(truth, detections).average_precision


def weighted_ap(
    truth: TrueBoxes, detections: FoundBoxes, weights: Weights
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """AP in percent where image k of ``truth.images`` counts ``weights[row, k]`` times: subsets, with 0 and 1.

    Returns the mean over categories, (rows,), and each category's own in sorted order, (rows, categories); NaN
    where there is no object to be found.
    """
    by_category = Matched.of(truth, detections).by_category(weights, len(truth.categories))
    return mean_of_known(by_category), by_category


@dataclass(frozen=True)
class Matched:
    """The detections of a set, matched to its objects, category by category."""

    order: NDArray[np.int64]  # (images,) the sorted ids' places in truth.images
    categories: tuple[MatchedCategory, ...]
    numbers: tuple[int, ...]  # of the categories, from 1, in their sorted order

    @classmethod
    def of(cls, truth: TrueBoxes, detections: FoundBoxes) -> Matched:
        found = match_boxes(truth, detections)
        cuts = np.searchsorted(found.categories, np.arange(1, len(truth.categories) + 2))
        parts, numbers = [], []
        for number, (start, stop) in enumerate(pairwise(cuts), start=1):
            own = found.true_categories == number
            if start < stop or own.any():
                objects = np.bincount(found.true_places[own & found.to_find], minlength=found.images)
                rows = slice(start, stop)
                columns = found.places[rows], found.found[:, rows], found.counted[:, rows]
                parts.append(MatchedCategory(*columns, objects))
                numbers.append(number)
        return cls(np.argsort(np.asarray(truth.images)), tuple(parts), tuple(numbers))

    def average_precision(self, weights: Weights) -> NDArray[np.float64]:
        """Percent, (draws,): the mean over categories of which an object was drawn."""
        return mean_of_known(self.by_category(weights, max(self.numbers, default=0)))

    def by_category(self, weights: Weights, many: int) -> NDArray[np.float64]:
        """Percent, (draws, many), in the categories' sorted order; NaN where there is no object to be found."""
        scores = np.full((len(weights), many), np.nan)
        columns = np.array(self.numbers, dtype=np.int64) - 1
        if self._is_much(weights):
            scores[:, columns] = average_precision(self._lists, weights)
            return scores
        ordered = weights[:, self.order]
        for column, category in zip(columns, self.categories, strict=True):
            scores[:, column] = category.average_precision(ordered)
        return scores

    def _is_much(self, weights: Weights) -> bool:
        """Whether compiled code pays, and can count so far."""
        detections = sum(each.found.size for each in self.categories)
        if len(weights) < MANY or len(weights) * detections < MUCH:
            return False
        most = max(max(len(each.owners), int(each.objects.sum())) for each in self.categories)
        heaviest = int(weights.max())
        return heaviest <= HEAVIEST and heaviest * most < EXACT and can_compile()

    @cached_property
    def _lists(self) -> Lists:
        return listed(
            [
                Ranked(self.order[one.owners], one.found, one.counted, np.repeat(self.order, one.objects))
                for one in self.categories
            ]
        )


def _area_under_curve(
    found: NDArray[np.float64], seen: NDArray[np.float64], objects: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Precision at COCO's recalls, averaged, (draws,).

    Only detections that found something, (draws, hits), matter: between them precision falls and recall stands.
    """
    if not found.shape[1]:
        return np.zeros(len(found))
    true = np.cumsum(found, axis=1)
    precision = true / (seen + np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = true / np.maximum(objects, 1)[:, np.newaxis]
    reached = np.searchsorted(RECALLS, recall, side="right")  # how many recalls lie below
    area: NDArray[np.float64] = (precision * np.diff(reached, axis=1, prepend=0)).sum(axis=1) / len(RECALLS)
    return area
