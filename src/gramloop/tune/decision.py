"""Whether finalists beat nothing: randomisation tests over images and over families, for all finalists jointly.

If a candidate is pure noise, its prediction of an image and the baseline's can be swapped, under all conditions at once,
and nothing changes. So the gain is compared with the gains after random swaps. Likewise, a candidate that helps some
families and hurts others, and none on average, has gains whose signs can be flipped family by family. A finalist beats
nothing if both tests say so. Every swap is applied to all finalists, and each is compared with the largest of their
standardised gains, so that the best of several looks no better than it is (max-T of Westfall and Young).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gramloop.tasks.base import Rows
from gramloop.tune.gain import PairedRow, PairedRows, Scoring
from gramloop.tune.split import CLEAN, family

SWAPS = 1024  # random ones where there are too many to try all
_SEED = 20260724


@dataclass(frozen=True)
class DecisionTest:
    """p-values of one finalist, adjusted for all of them."""

    images: float
    families: float
    least_images: float  # that so many images, or blocks of them, could give
    least_families: float

    def beats_nothing(self, confidence: float) -> bool:
        """Whether both tests say so; too few families to reach the level have to agree all."""
        level = 1 - confidence + 1e-12
        return self.images <= level and self.families <= max(level, self.least_families + 1e-12)

    def can_decide(self, confidence: float) -> bool:
        """Whether there are enough images for the level to be reached."""
        return self.least_images <= 1 - confidence + 1e-12


def weigh_finalists(scoring: Scoring, finalists: Sequence[PairedRows]) -> list[DecisionTest]:
    """How much speaks for each finalist, on the images of the decision.

    Args:
        scoring: how statistics become scores.
        finalists: what each of them did, on the same images.
    """
    units = sorted({one.sample.unit for each in finalists for rows in each.values() for one in rows})
    swaps = _signs(len(units)) < 0
    gains = np.array([_swapped_gains(scoring, each, units, swaps) for each in finalists])
    flips = _signs(gains.shape[1])  # gains: (finalists, families, 1 + swaps)
    over_images = _max_t(np.nanmean(gains, axis=1))
    over_families = _max_t(np.nan_to_num(gains[:, :, 0]) @ flips.T)
    least = 0.5 ** len(units), 0.5 ** gains.shape[1]
    pairs = zip(over_images, over_families, strict=True)
    return [DecisionTest(float(one), float(two), *least) for one, two in pairs]


def _signs(number: int) -> NDArray[np.int64]:  # → (1 + others, number)
    """Signs to flip by, all that there are or random ones; the first flip nothing."""
    if 2**number <= SWAPS:
        return np.array(list(itertools.product((1, -1), repeat=number)))
    random = np.random.Generator(np.random.PCG64(_SEED)).choice((1, -1), (SWAPS - 1, number))
    return np.concatenate([np.ones((1, number), dtype=np.int64), random])


def _swapped_gains(
    scoring: Scoring, measured: PairedRows, units: Sequence[int], swaps: NDArray[np.bool_]
) -> NDArray[np.float64]:  # → (families, swaps)
    """The gain of every family after each swap of images between baseline and candidate."""
    gains: dict[str, list[NDArray[np.float64]]] = {}
    for key, rows in measured.items():
        if rows and family(key) != CLEAN:
            own = np.searchsorted(units, [one.sample.unit for one in rows])
            gains.setdefault(family(key), []).append(_condition_gains(scoring, rows, swaps[:, own]))
    return np.array([np.mean(each, axis=0) for each in gains.values()])


def _condition_gains(
    scoring: Scoring, rows: Sequence[PairedRow], swapped: NDArray[np.bool_]
) -> NDArray[np.float64]:  # → (swaps,)
    both = Rows.of([*(one.baseline for one in rows), *(one.candidate for one in rows)])
    score = scoring.task.scorer(both, scoring.categories)
    found = []
    for start in range(0, len(swapped), scoring.task.draws_at_once):
        other = swapped[start : start + scoring.task.draws_at_once].astype(np.int64)
        kept = 1 - other
        found.append(score(np.hstack([other, kept])) - score(np.hstack([kept, other])))
    return np.concatenate(found)


def _max_t(statistics: NDArray[np.float64]) -> NDArray[np.float64]:  # (finalists, swaps) → (finalists,)
    """How often the largest standardised statistic reaches that of each finalist without swaps."""
    spread = np.sqrt((statistics**2).mean(axis=1, keepdims=True))
    standard = np.divide(statistics, spread, out=np.zeros_like(statistics), where=spread > 0)
    largest = standard.max(axis=0)
    p: NDArray[np.float64] = (largest >= standard[:, :1] - 1e-9).mean(axis=1)
    return p
