"""Average precision on many draws of images at once: what an image bootstrap spends its time on.

A draw gives every image a weight. Down the list of detections, best first, the weights of those seen and of those that
found something are added up; only where a run of finds ends can the curve of precision have a peak, so nothing else is
looked at. Weights are whole numbers, so their sums are exact in whatever order they are added. The curves of all
thresholds and of several categories are followed together from their ends, where all that is needed of a curve so far is
its highest point, and draws stand side by side in memory: what is at work fits into a processor's own memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

RECALLS = np.linspace(0, 1, 101)  # where COCO reads the curve of precision
EXACT = 2**24  # float32 counts to here
_AT_WORK = 12_000  # numbers of one array, curves x draws, at a typical step
_TOGETHER = (
    64  # draws whose weights are added in one go; rows of other lengths are added several times slower
)
_MOST = 8  # times so many draws at once
_WHOLE = 2.0**52  # added to a whole number, it leaves that number in the last bits
_BITS = int(np.float64(_WHOLE).view(np.int64))

Rows = NDArray[np.float32]  # (places, draws)
Numbers = NDArray[np.float64]


class Ranked(NamedTuple):
    """The detections of one category, best first, at T thresholds."""

    owners: NDArray[np.int64]  # (D,) images
    found: NDArray[np.bool_]  # (T, D)
    counted: NDArray[np.bool_]  # (T, D)


class _Steps:
    """Lists of several lengths side by side: all first entries, then all second ones, …; the longest list first."""

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        order = np.argsort(-lengths, kind="stable")
        self.position = np.empty_like(order)  # of each list within a step
        self.position[order] = np.arange(len(order))
        there = len(lengths) - np.searchsorted(lengths[order][::-1], np.arange(lengths.max()), side="right")
        self.starts = np.concatenate([[0], np.cumsum(there)])
        number = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        self.rows = self.starts[number] + np.repeat(self.position, lengths)  # of each entry, list after list

    def add_down(self, rows: Rows) -> None:
        """Each entry with all before it in its list."""
        starts = self.starts.tolist()
        for above, start, stop in zip(starts, starts[1:], starts[2:], strict=False):
            np.add(rows[start:stop], rows[above : above + stop - start], out=rows[start:stop])


class _Bags:
    """Images whose weights are added up, bag by bag."""

    def __init__(
        self, images: NDArray[np.int64], sizes: NDArray[np.int64], rows: NDArray[np.int64] | None = None
    ) -> None:
        """``images`` are those of bag after bag; ``rows`` is where each bag goes."""
        import torch

        starts = np.cumsum(sizes) - sizes
        if rows is not None:
            order = np.argsort(rows)
            moved = np.repeat(starts[order], sizes[order])
            sizes = sizes[order]
            starts = np.cumsum(sizes) - sizes
            images = images[moved + np.arange(len(moved)) - np.repeat(starts, sizes)]
        self.images = torch.from_numpy(images.astype(np.int32))
        self.starts = torch.from_numpy(starts.astype(np.int32))

    def add(self, weights: Sequence[Any]) -> Rows:
        """The weight of every bag in every draw, (bags, draws), of parts (images, some draws)."""
        from torch.nn.functional import embedding_bag

        added: list[Rows] = [
            embedding_bag(self.images, part, self.starts, mode="sum").numpy() for part in weights
        ]
        return added[0] if len(added) == 1 else np.concatenate(added, axis=1)


class Curves:
    """Some categories made ready: the ends of runs of finds, of all their thresholds together."""

    def __init__(self, categories: Sequence[Ranked]) -> None:
        self.categories = len(categories)
        self.thresholds = len(categories[0].found)
        levels = [
            (place, ends, level)
            for place, one in enumerate(categories)
            for level in range(self.thresholds)
            if len(ends := _run_ends(one.found[level], one.counted[level]))
        ]
        self.steps = _Steps(np.array([len(ends) for _, ends, _ in levels]))
        self.owner = np.empty(
            len(levels), dtype=np.int64
        )  # the category of each curve, in the order of a step
        self.owner[self.steps.position] = [place for place, _, _ in levels]
        self.finds, self.all_finds = self._between(categories, levels, lambda one: one.found)
        self.passed = (
            None
            if all(one.counted.all() for one in categories)
            else self._between(categories, levels, lambda one: ~one.counted)
        )
        known = [
            np.unique(np.concatenate([ends for owner, ends, _ in levels if owner == place]))
            if place in self.owner
            else np.zeros(0, dtype=np.int64)
            for place in range(len(categories))
        ]
        self.seen_steps = _Steps(np.array([len(each) for each in known]))
        self.seen = _Bags(
            np.concatenate(
                [one.owners[: k[-1] + 1] for one, k in zip(categories, known, strict=True) if len(k)]
            ),
            np.concatenate([np.diff(each, prepend=-1) for each in known]),
            self.seen_steps.rows,
        )
        before = np.cumsum([0, *map(len, known)])
        entries = np.concatenate([before[place] + np.searchsorted(known[place], e) for place, e, _ in levels])
        self.places = np.empty_like(entries)  # the row of what was seen, for each end
        self.places[self.steps.rows] = self.seen_steps.rows[entries]
        typical = len(self.places) / (len(self.steps.starts) - 1)
        self.draws = _TOGETHER * int(min(max(_AT_WORK / typical / _TOGETHER, 1), _MOST))

    def _between(self, categories: Any, levels: Any, chosen: Any) -> tuple[_Bags, _Bags]:
        """The chosen detections since the end before, for each end; and all of them, for each curve."""
        images, sizes, totals = [], [], []
        rows = [chosen(one) for one in categories]
        for place, ends, level in levels:
            places = np.flatnonzero(rows[place][level, : ends[-1] + 1])
            sizes.append(np.diff(np.searchsorted(places, ends, side="right"), prepend=0))
            images.append(categories[place].owners[places])
            totals.append(len(places))
        every = np.concatenate(images)
        return (
            _Bags(every, np.concatenate(sizes), self.steps.rows),
            _Bags(every, np.array(totals), self.steps.position),
        )

    def average_precision(
        self, weights: NDArray[np.int64], objects: NDArray[np.int64]
    ) -> NDArray[np.float64]:  # → (draws, categories)
        """Percent, of draws (draws, images) with so many objects of each category; NaN where there are none."""
        parts = [
            self._some(weights[start : start + self.draws], objects[start : start + self.draws])
            for start in range(0, len(weights), self.draws)
        ]
        return np.concatenate(parts)

    def _some(self, weights: NDArray[np.int64], objects: NDArray[np.int64]) -> NDArray[np.float64]:
        table, base = _reached_by(objects.T)
        areas = self._areas(list(_laid_out(weights)), table, base[self.owner])
        total = np.zeros((self.categories, len(weights)))
        np.add.at(total, self.owner, areas)
        return np.where(objects > 0, 100 * total.T / (len(RECALLS) * self.thresholds), np.nan)

    def _areas(self, weights: Sequence[Any], table: NDArray[np.uint8], base: NDArray[np.int64]) -> Numbers:
        """101 times the area under each curve; ``table[base + finds]`` are the recalls reached."""
        finds, true = self.finds.add(weights), self.all_finds.add(weights).astype(np.float64)
        seen = self.seen.add(weights)
        self.seen_steps.add_down(seen)
        passed = skipped = None
        if self.passed is None:
            np.maximum(seen, 1, out=seen)  # where nothing was seen, nothing was found: 0 / 1
        else:
            passed, skipped = (each.add(weights) for each in self.passed)
        highest, areas, scratch, numbers = (np.zeros_like(true) for _ in range(4))
        offset = base + _WHOLE
        reached = table[(true + offset).view(np.int64) - _BITS]
        starts = self.steps.starts.tolist()
        for step in range(len(starts) - 2, -1, -1):
            rows = slice(starts[step], starts[step + 1])
            many = slice(rows.stop - rows.start)
            found, now, peak = true[many], scratch[many], highest[many]
            counted = seen.take(self.places[rows], 0)
            if passed is not None and skipped is not None:
                np.subtract(counted, skipped[many], out=counted)
                np.maximum(counted, 1, out=counted)
                np.subtract(skipped[many], passed[rows], out=skipped[many])
            np.divide(found, counted, out=now)
            np.maximum(peak, now, out=peak)
            np.subtract(found, finds[rows], out=found)
            gained = reached[many]
            if step:
                at = numbers[many]
                np.add(found, offset[many], out=at)
                earlier = table[np.subtract(at.view(np.int64), _BITS, out=at.view(np.int64))]
                np.multiply(gained - earlier, peak, out=now)
                gained[:] = earlier
            else:
                np.multiply(gained, peak, out=now)
            np.add(areas[many], now, out=areas[many])
        return areas


def curves_of(categories: Sequence[Ranked]) -> list[tuple[list[int], Curves]]:
    """Categories whose curves are about equally long together, each by its place; those without a find are left out."""
    lengths = [
        max(len(_run_ends(*each)) for each in zip(one.found, one.counted, strict=True)) for one in categories
    ]
    batches: list[list[int]] = []
    for place in sorted(range(len(categories)), key=lambda place: -lengths[place]):
        if not lengths[place]:
            break
        if not batches or 2 * lengths[place] < lengths[batches[-1][0]]:
            batches.append([])
        batches[-1].append(place)
    return [(batch, Curves([categories[place] for place in batch])) for batch in batches]


def _laid_out(weights: NDArray[np.int64]) -> Iterator[Any]:
    """Draws side by side, (images, draws), some at a time."""
    import torch

    for start in range(0, len(weights), _TOGETHER):
        part = weights[start : start + _TOGETHER]
        yield torch.from_numpy(np.ascontiguousarray(part.T, dtype=np.float32))


def _run_ends(found: NDArray[np.bool_], counted: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The last find before each mistake that counts, and the very last one."""
    finds = np.flatnonzero(found)
    mistakes = np.cumsum(counted & ~found)[finds]
    return finds[np.append(np.diff(mistakes) > 0, True)] if len(finds) else finds


def _reached_by(objects: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A table and where in it each number of objects starts: how many of COCO's recalls so many finds reach."""
    many, row_of = np.unique(objects, return_inverse=True)
    parts = [_reached(each) for each in many.tolist()]
    starts = np.cumsum([0, *map(len, parts)])[:-1]
    return np.concatenate(parts), starts[row_of.reshape(objects.shape)]


@lru_cache(1 << 14)
def _reached(objects: int) -> NDArray[np.uint8]:  # → (objects + 1,)
    """How many recalls 0, 1, 2, … finds of so many objects reach, by the division that COCO's evaluator does."""
    if not objects:
        return np.zeros(1, dtype=np.uint8)
    least = np.floor(RECALLS * objects).astype(np.int64)
    for _ in range(2):
        least += least / objects < RECALLS
    return np.cumsum(np.bincount(least, minlength=objects + 1)).astype(np.uint8)
