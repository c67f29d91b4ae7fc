"""Average precision on many draws of images at once: what an image bootstrap spends its time on.

A draw gives every image a weight. Down the list of detections, best first, the weights of those seen and of those that
found something are added up; only where a run of finds ends can the curve of precision have a peak, so nothing else is
looked at. Each curve is followed from its end, where all that is needed of it so far is its highest point. Lists are
made ready here, once for all draws; `gramloop.metrics.ap_kernel` follows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gramloop.metrics.ap_kernel import Lists

EXACT = 2**31  # whole numbers of 32 bits count to here
HEAVIEST = 255  # the highest weight that fits into a byte


class Ranked(NamedTuple):
    """The detections of one category, best first, at T thresholds, and its objects."""

    owners: NDArray[np.int64]  # (D,) images
    found: NDArray[np.bool_]  # (T, D)
    counted: NDArray[np.bool_]  # (T, D)
    holders: NDArray[np.int64]  # the image of each object to be found


@cache
def can_compile() -> bool:
    """Whether numba is there and fits the numpy that is."""
    if find_spec("numba") is None:
        return False
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def listed(categories: Sequence[Ranked]) -> Lists:
    """Categories made ready; what comes after the last find of a category is left out."""
    from gramloop.metrics.ap_kernel import Lists

    owners, marks, ends, per_detection = [], [], [], []
    for one in categories:
        finds = np.flatnonzero(one.found.any(axis=0))
        used = slice(finds[-1] + 1 if len(finds) else 0)
        marked = np.concatenate([one.found, ~one.counted])[:, used].T  # (D, 2 T)
        last = np.zeros_like(marked)
        for level, (found, counted) in enumerate(zip(one.found, one.counted, strict=True)):
            last[_run_ends(found, counted), level] = True
        owners.append(one.owners[used])
        marks.append(np.nonzero(marked)[1])
        ends.append(last[marked])
        per_detection.append(marked.sum(axis=1))
    return Lists(
        len(categories[0].found),
        np.concatenate(owners).astype(np.int32),
        _starts([len(each) for each in owners]),
        np.concatenate(marks).astype(np.int16),
        np.concatenate(ends),
        _starts(np.concatenate(per_detection)),
        np.concatenate([one.holders for one in categories]).astype(np.int32),
        _starts([len(one.holders) for one in categories]),
    )


def average_precision(
    lists: Lists, weights: NDArray[np.int64]
) -> NDArray[np.float64]:  # → (draws, categories)
    """Percent, of draws (draws, images); NaN where no object of a category was drawn."""
    from gramloop.metrics.ap_kernel import DRAWS, compiled_scores

    score = compiled_scores()
    scores = np.empty((len(weights), len(lists.starts) - 1))
    for start in range(0, len(weights), DRAWS):
        some = weights[start : start + DRAWS].astype(np.uint8)
        side_by_side = np.zeros((weights.shape[1], DRAWS), dtype=np.uint8)
        side_by_side[:, : len(some)] = some.T
        scores[start : start + DRAWS] = score(side_by_side, lists).T[: len(some)]
    return scores


def _starts(lengths: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _run_ends(found: NDArray[np.bool_], counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The last find before each mistake that counts, and the very last one."""
    finds = np.flatnonzero(found)
    mistakes = np.cumsum(counted & ~found)[finds]
    return finds[np.append(np.diff(mistakes) > 0, True)] if len(finds) else finds
