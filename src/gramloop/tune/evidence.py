"""What a candidate gains on the images it was measured on, whether finalists beat nothing, and the verdict on the best.

The gain is that of the mean over shift families of the task's main metric, on all images measured. Its standard error
adds two variances: that of the mean over families, and that of a jackknife which leaves out one fold of images at a
time. Both contain the noise of single images, so the sum is on the careful side.

Finalists are decided on by randomisation tests over images and over families, for all of them jointly. If a candidate is
pure noise, its prediction of an image and the baseline's can be swapped, under all conditions at once, and nothing
changes. So the gain is compared with the gains after random swaps. Likewise, a candidate that helps some families and
hurts others, and none on average, has gains whose signs can be flipped family by family. A finalist beats nothing if
both tests say so. Every swap is applied to all finalists, and each is compared with the largest of their standardised
gains, so that the best of several looks no better than it is (max-T of Westfall and Young).

The verdict is given on images that nothing was chosen on: under the families searched, under others, and on clean ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import (
    UNDECIDED,
    Delta,
    Interval,
    Weights,
    cluster_bootstrap,
    image_bootstrap,
    spanning,
    verdict,
    widened,
)
from gramloop.tasks.base import AnyTask, Categories, Rows
from gramloop.tune.schedule import CLEAN, Sample, Split, family

MAX_FOLDS = 8  # of the jackknife over images
HOLDOUT_REPLICATES = 2000  # of the bootstrap over images
SWAPS = 1024  # random ones where there are too many to try all
_SEED = 20260724


@dataclass(frozen=True)
class Measured:
    """Statistics of the baseline and of a candidate on some images of one condition."""

    samples: Sequence[Sample]
    baseline: Rows
    candidate: Rows

    @property
    def units(self) -> list[int]:
        """What each image is left out or resampled with."""
        return [sample.unit for sample in self.samples]

    def take(self, places: Sequence[int]) -> Measured:
        """Some of the images, in this order."""
        samples = [self.samples[place] for place in places]
        return Measured(samples, self.baseline.take(places), self.candidate.take(places))


Measurement = Mapping[str, Measured]  # by condition; every one has images
HoldoutResult = Mapping[str, Any]  # of one part of the held-out data, in plain values


@dataclass(frozen=True)
class Scoring:
    """How statistics become scores."""

    task: AnyTask
    categories: Categories

    def score(self, rows: Rows) -> float:
        """The main metric of some images."""
        return self.task.score(rows, self.categories)[self.task.metrics[0]]

    def delta(self, measured: Measured) -> Delta:
        """The candidate's gain under one condition, for any weights of its images."""
        baseline, candidate = (
            self.task.scorer(rows, self.categories) for rows in (measured.baseline, measured.candidate)
        )
        return lambda weights: candidate(weights) - baseline(weights)


@dataclass(frozen=True)
class GainEstimate:
    """A candidate's gain, in points of the main metric."""

    gain: float  # over shifted conditions
    error: float  # standard error of the gain
    clean: float  # gain on clean images, NaN if none was measured
    clean_error: float

    @property
    def cautious(self) -> float:
        """What candidates are ranked by: the gain less a standard error; an unknown error counts as none."""
        cautious = self.gain - (self.error if math.isfinite(self.error) else 0.0)
        return cautious if math.isfinite(cautious) else -math.inf

    def harmless(self, tolerance: float) -> bool:
        """Whether clean images keep their score up to a tolerance; unknown counts as kept."""
        return not self.clean < -tolerance

    def not_clearly_harmful(self, tolerance: float) -> bool:
        """The same within a standard error, for rungs that saw few clean images."""
        doubt = self.clean_error if math.isfinite(self.clean_error) else math.inf
        return not self.clean + doubt < -tolerance


def estimate_gain(scoring: Scoring, measured: Measurement) -> GainEstimate:
    """The gain of one candidate on everything it was measured on."""
    folds = min(MAX_FOLDS, 1 + max((unit for each in measured.values() for unit in each.units), default=0))
    gains: dict[str, list[NDArray[np.float64]]] = {}
    for key, each in measured.items():
        gains.setdefault(family(key), []).append(_jackknifed(scoring, each, folds))
    clean, clean_variance = _estimate(_mean(gains.pop(CLEAN, []), folds))
    families = [_mean(each, folds) for each in gains.values()]
    gain, over_images = _estimate(_mean(families, folds))
    known = np.array([each[0] for each in families if math.isfinite(each[0])])
    over_families = float(known.var(ddof=1)) / len(known) if len(known) > 1 else math.nan
    variances = [each for each in (over_families, over_images) if math.isfinite(each)]
    error = math.sqrt(sum(variances)) if variances else math.nan
    return GainEstimate(gain, error, clean, math.sqrt(clean_variance))


def _jackknifed(scoring: Scoring, measured: Measured, folds: int) -> NDArray[np.float64]:  # → (1 + folds,)
    """The gain on all images, then with each fold left out; NaN where nothing is left."""
    fold = np.array(measured.units) % folds
    weights = np.ones((1 + folds, len(fold)), dtype=np.int64)
    weights[1:][np.arange(folds)[:, np.newaxis] == fold] = 0
    some = weights.any(axis=1)
    gains = np.full(1 + folds, np.nan)
    gains[some] = scoring.delta(measured)(weights[some])
    return gains


def _mean(rows: Sequence[NDArray[np.float64]], folds: int) -> NDArray[np.float64]:  # → (1 + folds,)
    """The mean over rows that have a value."""
    table = np.array(rows).reshape(-1, 1 + folds)
    known = np.isfinite(table)
    number, total = known.sum(axis=0), np.where(known, table, 0.0).sum(axis=0)
    mean: NDArray[np.float64] = np.divide(total, number, out=np.full(1 + folds, np.nan), where=number > 0)
    return mean


def _estimate(values: NDArray[np.float64]) -> tuple[float, float]:
    """The estimate on everything, and the jackknife's variance; NaN with fewer than two folds."""
    left = values[1:][np.isfinite(values[1:])]
    variance = float((len(left) - 1) * left.var()) if len(left) > 1 else math.nan
    return float(values[0]), variance


@dataclass(frozen=True)
class DecisionTest:
    """p-values of one finalist, adjusted for all of them."""

    images: float
    families: float
    least_families: float  # that so many families could give

    def beats_nothing(self, confidence: float) -> bool:
        """Whether both tests say so; too few families to reach the level have to agree all."""
        level = 1 - confidence + 1e-12
        return self.images <= level and self.families <= max(level, self.least_families + 1e-12)


def weigh_finalists(scoring: Scoring, finalists: Sequence[Measurement]) -> list[DecisionTest]:
    """How much speaks for each finalist, on the same images of the decision."""
    units = sorted({unit for each in finalists for measured in each.values() for unit in measured.units})
    swaps = _signs(len(units)) < 0
    gains = np.array([_swapped_gains(scoring, each, units, swaps) for each in finalists])
    flips = _signs(gains.shape[1])  # gains: (finalists, families, 1 + swaps)
    over_images = _max_t(np.nanmean(gains, axis=1))
    over_families = _max_t(np.nan_to_num(gains[:, :, 0]) @ flips.T)
    pairs = zip(over_images, over_families, strict=True)
    return [DecisionTest(float(one), float(two), 0.5 ** gains.shape[1]) for one, two in pairs]


def _signs(number: int) -> NDArray[np.int64]:  # → (1 + others, number)
    """Signs to flip by, all that there are or random ones; the first flip nothing."""
    if 2**number <= SWAPS:
        return np.array(list(itertools.product((1, -1), repeat=number)))
    random = np.random.Generator(np.random.PCG64(_SEED)).choice((1, -1), (SWAPS - 1, number))
    return np.concatenate([np.ones((1, number), dtype=np.int64), random])


def _swapped_gains(
    scoring: Scoring, measured: Measurement, units: Sequence[int], swaps: NDArray[np.bool_]
) -> NDArray[np.float64]:  # → (families, swaps)
    """The gain of every family after each swap of images between baseline and candidate."""
    gains: dict[str, list[NDArray[np.float64]]] = {}
    for key, each in measured.items():
        if family(key) != CLEAN:
            own = np.searchsorted(units, each.units)
            gains.setdefault(family(key), []).append(_condition_gains(scoring, each, swaps[:, own]))
    return np.array([np.mean(each, axis=0) for each in gains.values()])


def _condition_gains(
    scoring: Scoring, measured: Measured, swapped: NDArray[np.bool_]
) -> NDArray[np.float64]:  # → (swaps,)
    both = Rows.joined([measured.baseline, measured.candidate])
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


def judge(
    scoring: Scoring, split: Split, measured: Measurement, label_free: bool = False
) -> dict[str, HoldoutResult]:
    """The verdict on one candidate: searched families, other families and clean images, where there are any."""
    found = {}
    parts = {"searched families": split.seen, "other families": split.unseen, CLEAN: (CLEAN,)}
    for name, families in parts.items():
        judged = {key: each for key, each in measured.items() if family(key) in families}
        if judged:
            found[name] = _judge(scoring, judged, name == CLEAN, label_free)
    return found


def _judge(scoring: Scoring, measured: Measurement, clean: bool, label_free: bool) -> HoldoutResult:
    shared = _shared_images(measured)
    kept = shared or measured
    images = min(len(each.samples) for each in kept.values())
    baseline = float(np.mean([scoring.score(each.baseline) for each in kept.values()]))
    mitigated = float(np.mean([scoring.score(each.candidate) for each in kept.values()]))
    if clean and label_free:  # how far predictions change is no gain and no loss
        return {"images": images, "families": 0, "agreement": finite(mitigated)}
    deltas = {key: scoring.delta(each) for key, each in kept.items()}
    gains: dict[str, list[float]] = {}
    for key, delta in deltas.items():
        every = np.ones((1, len(kept[key].samples)), dtype=np.int64)
        gains.setdefault(family(key), []).append(float(delta(every)[0]))
    over_families = cluster_bootstrap(gains) if len(gains) > 1 else None
    over_images = _over_images(deltas, next(iter(shared.values())).units) if shared else None
    families = 0 if clean else len(gains)
    return holdout_result(images, families, baseline, mitigated, over_families, over_images)


def holdout_result(
    images: int,
    families: int,
    baseline: float,
    mitigated: float,
    over_families: Interval | None,
    over_images: Interval | None,
) -> HoldoutResult:
    """Scores and the verdict, by the interval that spans both of these, each corrected for few units.

    There is none over fewer than two families, nor over images where conditions have different ones.
    """
    interval = spanning(widened(each) for each in (over_families, over_images) if each is not None)
    return {
        "images": images,
        "families": families,
        "baseline score": finite(baseline),
        "mitigated score": finite(mitigated),
        "gain": finite(mitigated - baseline),
        "over families": _interval_json(over_families),
        "over images": _interval_json(over_images),
        "95% interval": None if interval is None else [interval.low, interval.high],
        "verdict": UNDECIDED if interval is None else verdict(interval),
    }


def _shared_images(measured: Measurement) -> dict[str, Measured]:
    """The images that every condition has, in the order of their ids; nothing if there are fewer than two."""
    places = {
        key: {sample.image_id: place for place, sample in enumerate(each.samples)}
        for key, each in measured.items()
    }
    common = sorted(set.intersection(*map(set, places.values())))
    if len(common) < 2:
        return {}
    return {key: each.take([places[key][name] for name in common]) for key, each in measured.items()}


def _over_images(deltas: Mapping[str, Delta], owners: Sequence[int]) -> Interval | None:
    """Resampled by image, or by block where neighbours belong together."""
    units, owner = np.unique(owners, return_inverse=True)

    def delta(weights: Weights) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = np.mean([each(weights[:, owner]) for each in deltas.values()], axis=0)
        return mean

    try:
        return image_bootstrap(delta, len(units), replicates=HOLDOUT_REPLICATES)
    except GramLoopError:  # too few images: some draws hold nothing that can be scored
        return None


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"low": interval.low, "high": interval.high, "level": interval.level, "drawn from": interval.units}


def finite(value: float) -> float | None:
    """The value, or None where there is none."""
    return value if math.isfinite(value) else None
