"""Average precision of one category on many draws of images at once: what an image bootstrap spends its time on.

A draw gives every image a weight. Down the list of detections, best first, the weights of those seen and of those that
found something are added up; only where a run of finds ends can the curve of precision have a peak, so nothing else is
looked at. Weights are whole numbers, so their sums are exact in whatever order they are added. Draws stand side by side
in memory, and the curve is followed from its end, where all that is needed of it so far is its highest point.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

RECALLS = np.linspace(0, 1, 101)  # where COCO reads the curve of precision
EXACT = 2**24  # float32 counts to here
_TOGETHER = 256  # draws whose weights are added in one go

_WHOLE = 2.0**52  # added to a whole number, it leaves that number in the last bits
_BITS = int(np.float64(_WHOLE).view(np.int64))

Rows = NDArray[np.float32]  # (places, draws)
Numbers = NDArray[np.float64]


class DrawnWeights:
    """How often each image was drawn, (draws, images), laid out for adding."""

    def __init__(self, weights: NDArray[np.int64]) -> None:
        import torch

        self.parts = [
            torch.from_numpy(np.ascontiguousarray(weights[start : start + _TOGETHER].T, dtype=np.float32))
            for start in range(0, len(weights), _TOGETHER)
        ]
        self.draws = len(weights)
        self._weights = weights.astype(np.float32)
        self._room: dict[str, Rows] = {}

    def room(self, what: str, rows: int) -> Rows:
        """Memory for rows of all draws, which the next category uses again: new memory costs more than adding."""
        have = self._room.get(what)
        if have is None or len(have) < rows:
            have = self._room[what] = np.empty((rows, self.draws), dtype=np.float32)
        return have[:rows]

    def of_objects(self, objects: NDArray[np.int64]) -> NDArray[np.int64]:  # (images, n) → (draws, n)
        """How many objects were drawn."""
        return (self._weights @ objects.astype(np.float32)).astype(np.int64)


@dataclass(frozen=True)
class _Bags:
    """Images whose weights are added up: bag after bag, each from its start to the next one's."""

    images: Any  # torch.Tensor (n,) int32
    starts: Any  # torch.Tensor (bags,) int32

    @classmethod
    def of(cls, images: NDArray[np.int64], starts: NDArray[np.int64]) -> _Bags:
        import torch

        return cls(torch.from_numpy(images.astype(np.int32)), torch.from_numpy(starts.astype(np.int32)))

    def add(self, weights: DrawnWeights, what: str) -> Rows:
        """The weight of every bag in every draw, in the room for ``what``."""
        from torch.nn.functional import embedding_bag

        rows = weights.room(what, len(self.starts))
        for number, part in enumerate(weights.parts):
            added = embedding_bag(self.images, part, self.starts, mode="sum")
            rows[:, number * _TOGETHER : (number + 1) * _TOGETHER] = added.numpy()
        return rows


@dataclass(frozen=True)
class Curves:
    """One category, made ready: the ends of runs of finds, of all T thresholds together.

    Rows are ordered by their number within their threshold, all first ends first, and within that by the thresholds, those
    with most ends first: so the n-th ends of all thresholds are one block, and a prefix of the block before.
    """

    thresholds: int
    steps: NDArray[np.int64]  # (most ends + 1,) where the n-th ends start
    finds: _Bags  # what found something, since the end before
    passed_over: _Bags | None  # what does not count, since the end before
    seen: _Bags  # every detection, since the place before
    places: NDArray[np.int64]  # (ends,) the place of each end among these

    @classmethod
    def of(
        cls, owners: NDArray[np.int64], found: NDArray[np.bool_], counted: NDArray[np.bool_]
    ) -> Curves | None:
        """Of detections best first, (D,) and (T, D); None where nothing was found at any threshold."""
        ends = sorted(
            ((_run_ends(*each), level) for level, each in enumerate(zip(found, counted, strict=True))),
            key=lambda pair: (-len(pair[0]), pair[1]),
        )
        most = len(ends[0][0])
        if not most:
            return None
        lengths = np.array([len(each) for each, _ in ends])
        sizes = (lengths[:, None] > np.arange(most)).sum(axis=0)
        number = np.concatenate([np.arange(length) for length in lengths])
        order = np.argsort(number, kind="stable")
        where = np.concatenate([each for each, _ in ends])[order]
        known = np.unique(where)
        levels = [(each, level) for each, level in ends if len(each)]
        return cls(
            len(found),
            np.concatenate([[0], np.cumsum(sizes)]),
            _between(owners, found, levels, order),
            None if counted.all() else _between(owners, ~counted, levels, order),
            _Bags.of(owners[: known[-1] + 1], np.concatenate([[0], known[:-1] + 1])),
            np.searchsorted(known, where),
        )

    def average_precision(
        self, weights: DrawnWeights, objects: NDArray[np.int64]
    ) -> NDArray[np.float64]:  # → (draws,)
        """Percent, with so many objects in each draw; NaN where there are none."""
        finds, passed = self.finds.add(weights, "finds"), None
        seen = self.seen.add(weights, "seen")
        for place in range(1, len(seen)):
            np.add(seen[place], seen[place - 1], out=seen[place])
        if self.passed_over is None:
            np.maximum(seen, 1, out=seen)  # where nothing was seen, nothing was found: 0 / 1
        else:
            passed = self.passed_over.add(weights, "passed")
        areas = self._areas(finds, seen, passed, *_reached_by(objects))
        mean: NDArray[np.float64] = areas.sum(axis=0) / (len(RECALLS) * self.thresholds)
        return np.where(objects > 0, 100 * mean, np.nan)

    def _areas(
        self, finds: Rows, seen: Rows, passed: Rows | None, table: NDArray[np.uint8], base: NDArray[np.int64]
    ) -> Numbers:  # → (thresholds with finds, draws)
        """101 times the area under the curve of each threshold; ``table[base + finds]`` are the recalls reached."""
        true, skipped = self._added(finds), None if passed is None else self._added(passed)
        highest, areas, scratch, numbers = (np.zeros_like(true) for _ in range(4))
        offset = base + _WHOLE
        reached = table[(true + offset).view(np.int64) - _BITS]
        steps = self.steps.tolist()
        for step in range(len(steps) - 2, -1, -1):
            rows = slice(steps[step], steps[step + 1])
            many = slice(rows.stop - rows.start)
            found, now, peak = true[many], scratch[many], highest[many]
            counted = seen.take(self.places[rows], 0)
            if skipped is not None and passed is not None:
                counted -= skipped[many]
                np.maximum(counted, 1, out=counted)
                skipped[many] -= passed[rows]
            np.divide(found, counted, out=now)
            np.maximum(peak, now, out=peak)
            np.subtract(found, finds[rows], out=found)
            gained = reached[many]
            if step:
                at = numbers[many]
                np.add(found, offset, out=at)
                earlier = table[np.subtract(at.view(np.int64), _BITS, out=at.view(np.int64))]
                np.multiply(gained - earlier, peak, out=now)
                gained[:] = earlier
            else:
                np.multiply(gained, peak, out=now)
            areas[many] += now
        return areas

    def _added(self, rows: Rows) -> Numbers:
        """Of each threshold, all that is in its rows."""
        total = np.zeros((self.steps[1], rows.shape[1]))
        for start, stop in zip(self.steps[:-1].tolist(), self.steps[1:].tolist(), strict=True):
            total[: stop - start] += rows[start:stop]
        return total


def _run_ends(found: NDArray[np.bool_], counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The last find before each mistake that counts, and the very last one."""
    finds = np.flatnonzero(found)
    mistakes = np.cumsum(counted & ~found)[finds]
    return finds[np.append(np.diff(mistakes) > 0, True)] if len(finds) else finds


def _between(
    owners: NDArray[np.int64],
    chosen: NDArray[np.bool_],
    levels: Sequence[tuple[NDArray[np.int64], int]],
    order: NDArray[np.int64],
) -> _Bags:
    """The chosen detections of each threshold up to its ends, in the order of the rows."""
    images, sizes = [], []
    for ends, level in levels:
        places = np.flatnonzero(chosen[level, : ends[-1] + 1])
        sizes.append(np.diff(np.searchsorted(places, ends, side="right"), prepend=0))
        images.append(owners[places])
    many = np.concatenate(sizes)
    starts = (np.cumsum(many) - many)[order]
    many = many[order]
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    return _Bags.of(np.concatenate(images)[np.repeat(starts, many) + within], np.cumsum(many) - many)


def _reached_by(objects: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A table and where each draw's part of it starts: how many of COCO's recalls so many finds reach."""
    many, row_of = np.unique(objects, return_inverse=True)
    parts = [_reached(int(each)) for each in many]
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    return np.concatenate(parts), starts[row_of]


@lru_cache(1 << 14)
def _reached(objects: int) -> NDArray[np.uint8]:  # → (objects + 1,)
    """How many recalls 0, 1, 2, … finds of so many objects reach, by the division that COCO's evaluator does."""
    if not objects:
        return np.zeros(1, dtype=np.uint8)
    least = np.floor(RECALLS * objects).astype(np.int64)
    for _ in range(2):
        least += least / objects < RECALLS
    return np.cumsum(np.bincount(least, minlength=objects + 1)).astype(np.uint8)
