"""COCO's average precision of boxes and masks, on all images and on any weighting of them.

Predictions are matched image by image (`gramloop.metrics.matching`). A match does not change when an image is drawn twice or
not at all, only its weight does; so the scores of subsets and of thousands of bootstrap draws follow from the same
matches, as if COCO's evaluator were run on sets with the images repeated. Pass every prediction: COCO's limit of 100
holds for one image and one category, so a list cut to the 100 best of an image scores lower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.bootstrap import Weights
from gramloop.metrics.matching import (
    ALL,
    AREAS,
    BITS,
    EVERY_THRESHOLD,
    LARGE,
    MEDIUM,
    SMALL,
    THRESHOLDS,
    Matches,
)
from gramloop.metrics.segmentation import mean_of_known

if TYPE_CHECKING:
    from gramloop.metrics.ap_kernel import Lists

AP_METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")
RECALLS = np.linspace(0, 1, 101)  # at which COCO reads the curve of precision
AT_50, AT_75 = 0, 5  # indices of these thresholds
NUMBERS_AT_ONCE = 4_000_000  # of one array: draws x predictions
COMPILED_DRAWS = 64  # from so many draws and
COMPILED_WORK = 20_000_000  # draws x predictions x thresholds on, compiling pays; with fewer draws
COMPILED_ALONE = 100_000_000  # from so many
DRAWS_AT_ONCE = 2000  # that a bootstrap passes together
MAX_COUNT, MAX_WEIGHT = 2**31, 255  # what the compiled code counts exactly
_NO_ROWS = np.zeros(0, dtype=np.int64)


def box_average_precision(matches: Matches, categories: Sequence[int]) -> dict[str, float]:
    """COCO's six numbers of boxes in percent; NaN where the ground truth holds no object to be found."""
    tables = _precisions(matches, sorted(categories))
    every = tables[ALL]
    values = every, every[AT_50], every[AT_75], tables[SMALL], tables[MEDIUM], tables[LARGE]
    return dict(zip(AP_METRICS, map(_mean, values), strict=True))


def mask_average_precision(matches: Matches, categories: Sequence[int], images: int) -> dict[str, float]:
    """COCO's six numbers of so many images together, from the matches of their masks."""
    once = np.ones((1, images), dtype=np.int64)
    at_50, at_75 = slice(AT_50, AT_50 + 1), slice(AT_75, AT_75 + 1)
    wanted = (ALL,), (ALL, at_50), (ALL, at_75), (SMALL,), (MEDIUM,), (LARGE,)
    values = (rank_matches(matches, categories, images, *each).average_precision(once)[0] for each in wanted)
    return dict(zip(AP_METRICS, map(float, values), strict=True))


@dataclass(frozen=True)
class RankedCategory:
    """The predictions of one category, best first, and how they were matched at each of T thresholds."""

    images: NDArray[np.int64]  # (D,) the index of each prediction's image
    found: NDArray[np.bool_]  # (T, D) matched to an object that counts
    counted: NDArray[np.bool_]  # (T, D) right or wrong, rather than ignored
    objects: NDArray[np.int64]  # (images,) objects to be found

    def average_precision(self, weights: Weights) -> NDArray[np.float64]:
        """Percent, (draws,); NaN where no object was drawn."""
        rows = max(1, NUMBERS_AT_ONCE // max(len(self.images), 1))
        return np.concatenate(
            [self._some(weights[start : start + rows]) for start in range(0, len(weights), rows)]
        )

    def _some(self, weights: Weights) -> NDArray[np.float64]:
        objects = (weights @ self.objects).astype(np.float64)  # (draws,)
        drawn = weights[:, self.images].astype(np.float64)  # (draws, D)
        areas = [
            _area_under_curve(drawn[:, found], seen[:, found], objects)
            for found, seen in zip(self.found, self._seen(drawn), strict=True)
        ]
        return np.where(objects > 0, 100 * np.mean(areas, axis=0), np.nan)

    def _seen(self, drawn: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
        """For each threshold, how many predictions that count stand at or above each, (draws, D)."""
        before = None
        for counted in self.counted:
            if before is None or (counted != before).any():  # thresholds differ only around crowds
                seen = np.cumsum(drawn * counted, axis=1)
            before = counted
            yield seen


@dataclass(frozen=True)
class RankedMatches:
    """The predictions of a set, ranked category by category, at some thresholds and in one range of areas."""

    categories: tuple[RankedCategory, ...]
    columns: tuple[int, ...]  # the place of each among all categories in sorted order

    def average_precision(self, weights: Weights) -> NDArray[np.float64]:
        """Percent, (draws,): the mean over categories of which an object was drawn."""
        return mean_of_known(self.by_category(weights, max(self.columns, default=-1) + 1))

    def by_category(self, weights: Weights, many: int) -> NDArray[np.float64]:
        """Percent, (draws, many), in the categories' sorted order; NaN where there is no object to be found."""
        scores = np.full((len(weights), many), np.nan)
        if self.uses_kernel(weights):
            from gramloop.metrics.ap_kernel import weighted_precision

            scores[:, list(self.columns)] = weighted_precision(self._lists, weights)
            return scores
        for column, category in zip(self.columns, self.categories, strict=True):
            scores[:, column] = category.average_precision(weights)
        return scores

    def uses_kernel(self, weights: Weights) -> bool:
        """Whether compiled code pays, and counts exactly."""
        work = len(weights) * sum(each.found.size for each in self.categories)
        if work < (COMPILED_WORK if len(weights) >= COMPILED_DRAWS else COMPILED_ALONE):
            return False
        most = max(max(len(each.images), int(each.objects.sum())) for each in self.categories)
        heaviest = int(weights.max())
        exact = heaviest <= MAX_WEIGHT and heaviest * most < MAX_COUNT
        return exact and _kernel() is not None

    @cached_property
    def _lists(self) -> Lists:
        from gramloop.metrics.ap_kernel import make_lists

        return make_lists(self.categories)


@cache
def _kernel() -> ModuleType | None:
    """The compiled part, where numba is installed and fits the installed numpy."""
    try:
        from gramloop.metrics import ap_kernel
    except ImportError:
        return None
    return ap_kernel


def rank_matches(
    matches: Matches, categories: Sequence[int], images: int, area: int = ALL, at: slice = slice(None)
) -> RankedMatches:
    """Rank the matches of so many images, in a range of areas and at some thresholds."""
    to_find = matches.to_find & (1 << area) > 0
    parts, columns = [], []
    for column, category in enumerate(sorted(categories)):
        own = matches.ranking.get(category, _NO_ROWS)
        true = to_find & (matches.true_labels == category)
        objects = np.bincount(matches.true_images[true], minlength=images)
        if len(own) or objects.any():
            found, counted = (
                bits[own, area][None] & BITS[at, None] > 0 for bits in (matches.found, matches.counted)
            )
            parts.append(RankedCategory(matches.images[own], found, counted, objects))
            columns.append(column)
    return RankedMatches(tuple(parts), tuple(columns))


def _precisions(matches: Matches, categories: Sequence[int]) -> NDArray[np.float64]:
    """Precision, (areas, thresholds, recalls, categories); -1 for a category without objects to be found."""
    tables = np.full((len(AREAS), len(THRESHOLDS), len(RECALLS), len(categories)), -1.0)
    for column, category in enumerate(categories):
        own = matches.ranking.get(category, _NO_ROWS)
        found, counted = (bits.take(own, axis=0) for bits in (matches.found, matches.counted))
        to_find = matches.to_find[matches.true_labels == category]
        for area in range(len(AREAS)):
            if objects := int((to_find & (1 << area) > 0).sum()):
                tables[area, ..., column] = _curves(found[:, area], counted[:, area], objects)
    return tables


def _curves(
    found: NDArray[np.uint16], counted: NDArray[np.uint16], objects: int
) -> NDArray[np.float64]:  # → (thresholds, recalls)
    """The precision of one category, whose predictions are ranked best first, as COCO's evaluator reads it."""
    table = np.zeros((len(THRESHOLDS), len(RECALLS)))
    hits = np.flatnonzero(found)  # precision has its peaks there
    same = not np.any((counted > 0) & (counted < EVERY_THRESHOLD))  # thresholds differ only around crowds
    seen = np.cumsum(counted > 0)[hits]
    for level, bit in enumerate(BITS):
        own = found[hits] & bit > 0
        down = seen[own] if same else np.cumsum(counted & bit > 0)[hits[own]]
        true = np.arange(1, len(down) + 1)
        precision = np.maximum.accumulate((true / (down + np.spacing(1)))[::-1])[::-1]
        first = np.searchsorted(true / objects, RECALLS)  # the first that reaches each recall
        reached = first < len(true)
        table[level, reached] = precision[first[reached]]
    return table


def _mean(precision: NDArray[np.float64]) -> float:
    present = precision[precision > -1]
    return float(100 * present.mean()) if present.size else float("nan")


def _area_under_curve(
    found: NDArray[np.float64], seen: NDArray[np.float64], objects: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Precision at COCO's recalls, averaged, (draws,), from the weights of what was found, (draws, hits)."""
    if not found.shape[1]:
        return np.zeros(len(found))
    true = np.cumsum(found, axis=1)
    precision = true / (seen + np.spacing(1))
    precision = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    recall = true / np.maximum(objects, 1)[:, np.newaxis]
    reached = np.searchsorted(RECALLS, recall, side="right")  # how many recalls lie below
    area: NDArray[np.float64] = (precision * np.diff(reached, axis=1, prepend=0)).sum(axis=1) / len(RECALLS)
    return area
