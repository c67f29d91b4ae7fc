"""Average precision on many draws of images at once, compiled by numba; imported only where there is much to compute.

A draw gives every image a weight. Down the list of predictions, best first, the weights of those seen and of those that
found an object are added up. The curve of precision can only have a peak where a run of hits ends, so nothing else is
evaluated, and from its end only the highest point so far is needed. Draws lie next to each other in memory, and every
innermost loop runs over them, so that the processor works on several at once. Weights and their sums are whole numbers,
and a score depends on its own draw alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gramloop.metrics.ap import RankedCategory

AT_ONCE = 128  # draws that are computed together
FOUND, IGNORED, WRONG = range(3)
_LIKE_NUMPY = {"error_model": "numpy"}  # without a branch for every division


def weighted_precision(
    categories: Sequence[RankedCategory], weights: NDArray[np.int64]
) -> NDArray[np.float64]:  # → (draws, categories)
    """Percent, of weights (draws, images); NaN where no object of a category was drawn."""
    scores = np.empty((len(weights), len(categories)))
    lists = [_list(one) for one in categories]
    for start in range(0, len(weights), AT_ONCE):
        some = weights[start : start + AT_ONCE].astype(np.uint8)
        together = np.zeros((weights.shape[1], AT_ONCE), dtype=np.uint8)
        together[:, : len(some)] = some.T
        for column, one in enumerate(lists):
            total, areas = np.zeros(AT_ONCE, np.int32), np.zeros((len(categories[0].found), AT_ONCE))
            _follow(together, *one, total, areas)
            values = np.where(total > 0, 100 * areas.sum(axis=0) / (101 * len(areas)), np.nan)
            scores[start : start + AT_ONCE, column] = values[: len(some)]
    return scores


def _list(one: RankedCategory) -> tuple[NDArray[Any], ...]:
    """What `_follow` needs of a category; predictions after the last hit make no difference."""
    used = slice(int(np.flatnonzero(one.found.any(axis=0)).max(initial=-1)) + 1)
    kinds = np.where(one.found, FOUND, np.where(one.counted, WRONG, IGNORED)).astype(np.int8).T[used].copy()
    objects = np.repeat(np.arange(len(one.objects)), one.objects)
    return one.images[used], kinds, (kinds == WRONG).all(axis=1), objects


@numba.njit(**_LIKE_NUMPY)  # type: ignore[untyped-decorator]
def recalls_reached(found: float, objects: float, share: float) -> float:
    """How many of COCO's recalls, k x 0.01, so many hits reach, by the division that its evaluator does.

    ``share`` is 1 / objects. Half a hundredth of an object keeps the product off the whole numbers that it is rounded
    down to; only where the recall is a hundredth exactly can k x 0.01 lie above it.
    """
    whole: float = min(np.floor((100.0 * found + 0.5) * share), 100.0)
    return whole + 1.0 if whole * 0.01 <= found / objects else whole


@numba.njit(**_LIKE_NUMPY)  # type: ignore[untyped-decorator]
def _end_run(seen: Any, ignored: Any, true: Any, objects: Any, peaks: Any, areas: Any) -> None:
    """Where the end of a run is the highest peak so far, all recalls up to it gain the height above the last peak."""
    for draw in range(AT_ONCE):
        found = np.float64(true[draw])
        peak = peaks[draw]
        # where nothing was seen, nothing was found: 0 / 1
        highest = max(peak, found / max(np.float64(seen[draw] - ignored[draw]), 1.0))
        areas[draw] += recalls_reached(found, objects[draw], 1.0 / objects[draw]) * (highest - peak)
        peaks[draw] = highest


@numba.njit(**_LIKE_NUMPY)  # type: ignore[untyped-decorator]
def _add(sums: Any, weights: Any) -> None:
    for draw in range(AT_ONCE):
        sums[draw] += weights[draw]


@numba.njit(**_LIKE_NUMPY)  # type: ignore[untyped-decorator]
def _subtract(sums: Any, weights: Any) -> None:
    for draw in range(AT_ONCE):
        sums[draw] -= weights[draw]


@numba.njit(**_LIKE_NUMPY)  # type: ignore[untyped-decorator]
def _follow(
    weights: Any, images: Any, kinds: Any, mistakes: Any, true_images: Any, objects: Any, areas: Any
) -> None:
    """Down one list to count everything, and up again past the ends of runs."""
    levels = len(areas)
    seen, drawn = np.zeros(AT_ONCE, np.int32), np.zeros(AT_ONCE)
    counts, peaks = np.zeros((2, levels, AT_ONCE), np.int32), np.zeros((levels, AT_ONCE))  # found, ignored
    for image in true_images:
        _add(objects, weights[image])
    for draw in range(AT_ONCE):
        drawn[draw] = max(objects[draw], 1)
    for place in range(len(images)):
        own = weights[images[place]]
        _add(seen, own)
        if not mistakes[place]:
            for level in range(levels):
                if kinds[place, level] != WRONG:
                    _add(counts[kinds[place, level], level], own)
    ends = np.ones(levels, np.bool_)  # whether the next hit upwards ends a run
    for place in range(len(images) - 1, -1, -1):
        own = weights[images[place]]
        if mistakes[place]:
            ends[:] = True
        for level in range(0 if mistakes[place] else levels):
            kind = kinds[place, level]
            if kind == FOUND and ends[level]:
                _end_run(
                    seen, counts[IGNORED, level], counts[FOUND, level], drawn, peaks[level], areas[level]
                )
            if kind != WRONG:
                _subtract(counts[kind, level], own)
            if kind != IGNORED:
                ends[level] = kind == WRONG
        _subtract(seen, own)
