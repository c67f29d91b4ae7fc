"""The compiled part of `gramloop.metrics.ap_draws`; needs numba, so it is imported where there is much to compute.

Draws stand side by side, and every innermost loop goes over them, so that the processor works on several at once.
Weights are whole numbers, and so are their sums; no draw looks at another, so a score depends on its own draw alone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

DRAWS = 128  # side by side; with fewer, what is done once for all of them counts for more
_AS_IN_NUMPY = {"error_model": "numpy"}  # without a branch for every division

Function = TypeVar("Function", bound=Callable[..., Any])
Scores = Callable[[NDArray[np.uint8], "Lists"], NDArray[np.float64]]


class Lists(NamedTuple):
    """The detections of all categories, best first, one list after the other, and what is to be known of each.

    A mark says that a detection is a find at threshold t (t), or passed over at it (T + t).
    """

    thresholds: int
    owners: NDArray[np.int32]  # (detections,) images
    starts: NDArray[np.int64]  # (categories + 1,) where each list starts
    marks: NDArray[np.int16]  # detection by detection
    ends: NDArray[np.bool_]  # (marks,) a find that ends a run
    first_marks: NDArray[np.int64]  # (detections + 1,) where the marks of each detection start
    holders: NDArray[np.int32]  # the image of each object to be found, category by category
    first_holders: NDArray[np.int64]  # (categories + 1,)


def _compiled(function: Function) -> Function:
    return cast(Function, numba.njit(**_AS_IN_NUMPY)(function))


@_compiled
def recalls_reached(found: float, objects: float, share: float) -> float:
    """How many of COCO's recalls, k x 0.01, so many finds reach, by the division that its evaluator does.

    ``share`` is 1 / objects. Half a hundredth of an object keeps the product off the whole numbers that it is rounded
    down to; only where the recall is a hundredth exactly can k x 0.01 lie above it.
    """
    whole: float = min(np.floor((100.0 * found + 0.5) * share), 100.0)
    return whole + 1.0 if whole * 0.01 <= found / objects else whole


@_compiled
def _add(sums: Any, weights: Any) -> None:
    for draw in range(DRAWS):
        sums[draw] += weights[draw]


@_compiled
def _take(sums: Any, weights: Any) -> None:
    for draw in range(DRAWS):
        sums[draw] -= weights[draw]


@_compiled
def _look(seen: Any, passed: Any, true: Any, objects: Any, shares: Any, peaks: Any, areas: Any) -> None:
    """The end of a run: where it is the highest so far, all recalls up to it gain what it lies above the last peak."""
    for draw in range(DRAWS):
        found = np.float64(true[draw])
        peak = peaks[draw]
        # where nothing was seen, nothing was found: 0 / 1
        highest = max(peak, found / max(np.float64(seen[draw] - passed[draw]), 1.0))
        areas[draw] += recalls_reached(found, objects[draw], shares[draw]) * (highest - peak)
        peaks[draw] = highest


@_compiled
def _follow(
    weights: Any, lists: Any, category: int, counts: Any, objects: Any, peaks: Any, areas: Any
) -> None:
    """Down one list to count everything, and up again past the ends of runs."""
    seen, thresholds = counts[-1], lists.thresholds
    start, stop = lists.starts[category], lists.starts[category + 1]
    shares = 1.0 / objects
    for place in range(start, stop):
        own = weights[lists.owners[place]]
        _add(seen, own)
        for mark in range(lists.first_marks[place], lists.first_marks[place + 1]):
            _add(counts[lists.marks[mark]], own)
    for place in range(stop - 1, start - 1, -1):
        own = weights[lists.owners[place]]
        for mark in range(lists.first_marks[place], lists.first_marks[place + 1]):
            row = lists.marks[mark]
            if lists.ends[mark]:
                _look(seen, counts[thresholds + row], counts[row], objects, shares, peaks[row], areas[row])
            _take(counts[row], own)
        _take(seen, own)


def _scores(weights: NDArray[np.uint8], lists: Lists) -> NDArray[np.float64]:  # → (categories, DRAWS)
    """Percent, of weights (images, DRAWS); NaN where no object was drawn."""
    thresholds, categories = lists.thresholds, len(lists.starts) - 1
    counts = np.empty((2 * thresholds + 1, DRAWS), np.int32)  # finds, passed over, and all that were seen
    objects = np.empty(DRAWS, np.int32)
    peaks, areas = np.empty((thresholds, DRAWS)), np.empty((thresholds, DRAWS))
    scores = np.empty((categories, DRAWS))
    for category in range(categories):
        counts[:], objects[:], peaks[:], areas[:] = 0, 0, 0.0, 0.0
        for holder in range(lists.first_holders[category], lists.first_holders[category + 1]):
            _add(objects, weights[lists.holders[holder]])
        _follow(weights, lists, category, counts, np.maximum(objects, 1).astype(np.float64), peaks, areas)
        for draw in range(DRAWS):
            total = 0.0
            for threshold in range(thresholds):
                total += areas[threshold, draw]
            scores[category, draw] = 100.0 * total / (101 * thresholds) if objects[draw] else np.nan
    return scores


@cache
def compiled_scores() -> Scores:
    """The function above, from where numba keeps compiled ones for the next process, if it can."""
    nothing = Lists(
        1,
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
        np.zeros(0, np.int16),
        np.zeros(0, np.bool_),
        np.zeros(1, np.int64),
        np.zeros(0, np.int32),
        np.zeros(1, np.int64),
    )
    try:
        kept = cast(Scores, numba.njit(cache=True, **_AS_IN_NUMPY)(_scores))
        kept(np.zeros((1, DRAWS), np.uint8), nothing)
    except Exception:  # no folder to write to, a full disk, a damaged file: then for this process alone
        return cast(Scores, numba.njit(**_AS_IN_NUMPY)(_scores))
    return kept
