"""What a candidate gains on the images it was measured on, and whether finalists beat nothing.

The gain is that of the mean over shift families of the task's main metric, on all images measured. Its standard error
adds two variances: that of the mean over families, and that of a jackknife which leaves out one fold of images at a
time. Both contain the noise of single images, so the sum is on the careful side.

Finalists are decided on by randomisation tests over images and over families, for all of them jointly. If a candidate is
pure noise, its prediction of an image and the baseline's can be swapped, under all conditions at once, and nothing
changes. So the gain is compared with the gains after random swaps. Likewise, a candidate that helps some families and
hurts others, and none on average, has gains whose signs can be flipped family by family. A finalist beats nothing if
both tests say so. Every swap is applied to all finalists, and each is compared with the largest of their standardised
gains, so that the best of several looks no better than it is (max-T of Westfall and Young).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.bootstrap import Delta
from gramloop.tasks.base import AnyTask, Categories, Row, Rows
from gramloop.tune.schedule import CLEAN, Sample, family

MAX_FOLDS = 8  # of the jackknife over images
SWAPS = 1024  # random ones where there are too many to try all
_SEED = 20260724


@dataclass(frozen=True)
class CandidateRow:
    """Statistics of the baseline and of a candidate on one image."""

    sample: Sample
    baseline: Row
    candidate: Row


MeasuredRows = Mapping[str, Sequence[CandidateRow]]  # by condition


@dataclass(frozen=True)
class Scoring:
    """How statistics become scores."""

    task: AnyTask
    categories: Categories

    def score(self, rows: Sequence[Row]) -> float:
        """The main metric of some images."""
        return self.task.score(Rows.of(rows), self.categories)[self.task.metrics[0]]

    def delta(self, measured: Sequence[CandidateRow]) -> Delta:
        """The candidate's gain under one condition, for any weights of its images."""
        baseline, candidate = (
            self.task.scorer(Rows.of([getattr(one, version) for one in measured]), self.categories)
            for version in ("baseline", "candidate")
        )
        return lambda weights: candidate(weights) - baseline(weights)


@dataclass(frozen=True)
class GainEstimate:
    """A candidate's gain, in points of the main metric."""

    gain: float  # over shifted conditions
    error: float  # standard error of the gain
    freedom: float  # degrees of freedom of the error
    clean: float  # gain on clean images, NaN if none was measured
    clean_error: float

    def cautious(self, caution: float) -> float:
        """The gain less so many standard errors; an unknown error counts as none."""
        return self.gain - caution * (self.error if math.isfinite(self.error) else 0.0)

    def harmless(self, tolerance: float) -> bool:
        """Whether clean images keep their score up to a tolerance; unknown counts as kept."""
        return not self.clean < -tolerance

    def not_clearly_harmful(self, tolerance: float) -> bool:
        """The same within a standard error, for rungs that saw few clean images."""
        doubt = self.clean_error if math.isfinite(self.clean_error) else math.inf
        return not self.clean + doubt < -tolerance

    def beats_nothing(self, confidence: float) -> bool:
        """Whether the gain is above zero with this one-sided confidence (Student's t)."""
        known = math.isfinite(self.gain) and math.isfinite(self.error) and self.freedom >= 1
        if not known or self.gain <= 0:
            return False
        from scipy.stats import t

        return bool(self.gain > float(t.ppf(confidence, self.freedom)) * self.error)


def estimate_gain(scoring: Scoring, measured: MeasuredRows) -> GainEstimate:
    """The gain of one candidate on everything it was measured on."""
    folds = min(
        MAX_FOLDS, 1 + max((one.sample.unit for each in measured.values() for one in each), default=0)
    )
    gains: dict[str, list[NDArray[np.float64]]] = {}
    for key, rows in measured.items():
        if rows:
            gains.setdefault(family(key), []).append(_jackknifed(scoring, rows, folds))
    clean = gains.pop(CLEAN, None)
    shifted = np.array([_mean(np.array(each)) for each in gains.values()])  # (families, 1 + folds)
    gain, over_images = _estimate(_mean(shifted)) if len(shifted) else (math.nan, math.nan)
    known = shifted[np.isfinite(shifted[:, 0]), 0] if len(shifted) else np.zeros(0)
    over_families = float(known.var(ddof=1)) / len(known) if len(known) > 1 else math.nan
    error, freedom = _add_variances(over_families, len(known) - 1, over_images, folds - 1)
    kept, kept_variance = _estimate(_mean(np.array(clean))) if clean else (math.nan, math.nan)
    return GainEstimate(gain, error, freedom, kept, math.sqrt(kept_variance))


def _jackknifed(
    scoring: Scoring, rows: Sequence[CandidateRow], folds: int
) -> NDArray[np.float64]:  # → (1 + folds,)
    """The gain on all images, then with each fold left out; NaN where nothing is left."""
    fold = np.array([one.sample.unit % folds for one in rows])
    weights = np.ones((1 + folds, len(rows)), dtype=np.int64)
    weights[1:][np.arange(folds)[:, np.newaxis] == fold] = 0
    some = weights.any(axis=1)
    gains = np.full(1 + folds, np.nan)
    gains[some] = scoring.delta(rows)(weights[some])
    return gains


def _mean(rows: NDArray[np.float64]) -> NDArray[np.float64]:  # (n, 1 + folds) → (1 + folds,)
    """The mean over rows that have a value."""
    known = np.isfinite(rows)
    number, total = known.sum(axis=0), np.where(known, rows, 0.0).sum(axis=0)
    mean: NDArray[np.float64] = np.divide(total, number, out=np.full(rows.shape[1], np.nan), where=number > 0)
    return mean


def _estimate(values: NDArray[np.float64]) -> tuple[float, float]:
    """The estimate on everything, and the jackknife's variance; NaN with fewer than two folds."""
    left = values[1:][np.isfinite(values[1:])]
    variance = float((len(left) - 1) * left.var()) if len(left) > 1 else math.nan
    return float(values[0]), variance


def _add_variances(one: float, one_freedom: int, two: float, two_freedom: int) -> tuple[float, float]:
    """The standard error of two variances together, and its degrees of freedom after Satterthwaite."""
    pairs = ((one, one_freedom), (two, two_freedom))
    parts = [(value, freedom) for value, freedom in pairs if math.isfinite(value) and freedom > 0]
    if not parts:
        return math.nan, 0.0
    total = sum(value for value, _ in parts)
    below = sum(value**2 / freedom for value, freedom in parts)
    return math.sqrt(total), total**2 / below if below > 0 else float(min(freedom for _, freedom in parts))


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


def weigh_finalists(scoring: Scoring, finalists: Sequence[MeasuredRows]) -> list[DecisionTest]:
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
    scoring: Scoring, measured: MeasuredRows, units: Sequence[int], swaps: NDArray[np.bool_]
) -> NDArray[np.float64]:  # → (families, swaps)
    """The gain of every family after each swap of images between baseline and candidate."""
    gains: dict[str, list[NDArray[np.float64]]] = {}
    for key, rows in measured.items():
        if rows and family(key) != CLEAN:
            own = np.searchsorted(units, [one.sample.unit for one in rows])
            gains.setdefault(family(key), []).append(_condition_gains(scoring, rows, swaps[:, own]))
    return np.array([np.mean(each, axis=0) for each in gains.values()])


def _condition_gains(
    scoring: Scoring, rows: Sequence[CandidateRow], swapped: NDArray[np.bool_]
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
