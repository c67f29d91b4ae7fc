"""Average precision on many draws of images at once, compiled by numba; imported only where there is much to compute.

A draw gives every image a weight. Down the list of predictions, best first, the weights of those seen and of those that
found an object are added up. The curve of precision can only have a peak where a run of hits ends, so nothing else is
evaluated, and from its end only the highest point so far is needed. Draws lie next to each other in memory, and every
innermost loop runs over them, so that the processor works on several at once. Weights and their sums are whole numbers,
and a score depends on its own draw alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gramloop.metrics.ap import RankedCategory

AT_ONCE = 128  # draws that are computed together
_LIKE_NUMPY = {"error_model": "numpy"}  # without a branch for every division

_F = TypeVar("_F", bound=Callable[..., Any])
ScoreDraws = Callable[[NDArray[np.uint8], "Lists"], NDArray[np.float64]]


class Lists(NamedTuple):
    """The predictions of all categories, best first, one category after the other.

    A mark says that a prediction is a hit at threshold t (t), or ignored at it (T + t).
    """

    thresholds: int
    images: NDArray[np.int32]  # (predictions,)
    starts: NDArray[np.int64]  # (categories + 1,) where each category starts
    marks: NDArray[np.int16]  # prediction by prediction
    ends: NDArray[np.bool_]  # (marks,) a hit that ends a run
    mark_starts: NDArray[np.int64]  # (predictions + 1,)
    objects: NDArray[np.int32]  # the image of each object to be found, category by category
    object_starts: NDArray[np.int64]  # (categories + 1,)


def make_lists(categories: Sequence[RankedCategory]) -> Lists:
    """Prepare categories for all draws; what comes after the last hit of a category is left out."""
    images, marks, ends, per_prediction = [], [], [], []
    for one in categories:
        hits = np.flatnonzero(one.found.any(axis=0))
        used = slice(hits[-1] + 1 if len(hits) else 0)
        marked = np.concatenate([one.found, ~one.counted])[:, used].T  # (D, 2 T)
        last = np.zeros_like(marked)
        for level, (found, counted) in enumerate(zip(one.found, one.counted, strict=True)):
            last[_run_ends(found, counted), level] = True
        images.append(one.images[used])
        marks.append(np.nonzero(marked)[1])
        ends.append(last[marked])
        per_prediction.append(marked.sum(axis=1))
    objects = [np.repeat(np.arange(len(one.objects)), one.objects) for one in categories]
    return Lists(
        len(categories[0].found),
        np.concatenate(images).astype(np.int32),
        _starts([len(each) for each in images]),
        np.concatenate(marks).astype(np.int16),
        np.concatenate(ends),
        _starts(np.concatenate(per_prediction)),
        np.concatenate(objects).astype(np.int32),
        _starts([len(each) for each in objects]),
    )


def weighted_precision(lists: Lists, weights: NDArray[np.int64]) -> NDArray[np.float64]:
    """Percent, (draws, categories), of weights (draws, images); NaN where no object of a category was drawn."""
    score = compiled_scores()
    scores = np.empty((len(weights), len(lists.starts) - 1))
    for start in range(0, len(weights), AT_ONCE):
        some = weights[start : start + AT_ONCE].astype(np.uint8)
        together = np.zeros((weights.shape[1], AT_ONCE), dtype=np.uint8)
        together[:, : len(some)] = some.T
        scores[start : start + AT_ONCE] = score(together, lists).T[: len(some)]
    return scores


def _starts(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _run_ends(found: NDArray[np.bool_], counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The last hit before each mistake that counts, and the very last one."""
    hits = np.flatnonzero(found)
    mistakes = np.cumsum(counted & ~found)[hits]
    return hits[np.append(np.diff(mistakes) > 0, True)] if len(hits) else hits


def _compiled(function: _F) -> _F:
    return cast(_F, numba.njit(**_LIKE_NUMPY)(function))


@_compiled
def recalls_reached(found: float, objects: float, share: float) -> float:
    """How many of COCO's recalls, k x 0.01, so many hits reach, by the division that its evaluator does.

    ``share`` is 1 / objects. Half a hundredth of an object keeps the product off the whole numbers that it is rounded
    down to; only where the recall is a hundredth exactly can k x 0.01 lie above it.
    """
    whole: float = min(np.floor((100.0 * found + 0.5) * share), 100.0)
    return whole + 1.0 if whole * 0.01 <= found / objects else whole


@_compiled
def _add(sums: Any, weights: Any) -> None:
    for draw in range(AT_ONCE):
        sums[draw] += weights[draw]


@_compiled
def _subtract(sums: Any, weights: Any) -> None:
    for draw in range(AT_ONCE):
        sums[draw] -= weights[draw]


@_compiled
def _end_run(seen: Any, ignored: Any, true: Any, objects: Any, shares: Any, peaks: Any, areas: Any) -> None:
    """Where the end of a run is the highest peak so far, all recalls up to it gain the height above the last peak."""
    for draw in range(AT_ONCE):
        found = np.float64(true[draw])
        peak = peaks[draw]
        # where nothing was seen, nothing was found: 0 / 1
        highest = max(peak, found / max(np.float64(seen[draw] - ignored[draw]), 1.0))
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
        own = weights[lists.images[place]]
        _add(seen, own)
        for mark in range(lists.mark_starts[place], lists.mark_starts[place + 1]):
            _add(counts[lists.marks[mark]], own)
    for place in range(stop - 1, start - 1, -1):
        own = weights[lists.images[place]]
        for mark in range(lists.mark_starts[place], lists.mark_starts[place + 1]):
            row = lists.marks[mark]
            if lists.ends[mark]:
                _end_run(seen, counts[thresholds + row], counts[row], objects, shares, peaks[row], areas[row])
            _subtract(counts[row], own)
        _subtract(seen, own)


def _scores(weights: NDArray[np.uint8], lists: Lists) -> NDArray[np.float64]:  # → (categories, AT_ONCE)
    """Percent, of weights (images, AT_ONCE); NaN where no object was drawn."""
    thresholds, categories = lists.thresholds, len(lists.starts) - 1
    counts = np.empty((2 * thresholds + 1, AT_ONCE), np.int32)  # hits, ignored, and all that were seen
    objects = np.empty(AT_ONCE, np.int32)
    peaks, areas = np.empty((thresholds, AT_ONCE)), np.empty((thresholds, AT_ONCE))
    scores = np.empty((categories, AT_ONCE))
    for category in range(categories):
        counts[:], objects[:], peaks[:], areas[:] = 0, 0, 0.0, 0.0
        for index in range(lists.object_starts[category], lists.object_starts[category + 1]):
            _add(objects, weights[lists.objects[index]])
        _follow(weights, lists, category, counts, np.maximum(objects, 1).astype(np.float64), peaks, areas)
        for draw in range(AT_ONCE):
            total = 0.0
            for threshold in range(thresholds):
                total += areas[threshold, draw]
            scores[category, draw] = 100.0 * total / (101 * thresholds) if objects[draw] else np.nan
    return scores


_NO_LISTS = Lists(
    1,
    np.zeros(0, np.int32),
    np.zeros(1, np.int64),
    np.zeros(0, np.int16),
    np.zeros(0, np.bool_),
    np.zeros(1, np.int64),
    np.zeros(0, np.int32),
    np.zeros(1, np.int64),
)


@cache
def compiled_scores() -> ScoreDraws:
    """The function above, from numba's cache on disk where that works."""
    try:
        kept = cast(ScoreDraws, numba.njit(cache=True, **_LIKE_NUMPY)(_scores))
        kept(np.zeros((1, AT_ONCE), np.uint8), _NO_LISTS)
    except Exception:  # no folder to write to, a full disk, a damaged file: compile for this process alone
        return cast(ScoreDraws, numba.njit(**_LIKE_NUMPY)(_scores))
    return kept
