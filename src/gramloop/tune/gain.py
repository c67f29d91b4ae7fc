"""What a candidate gains on the images it was measured on: the mean, its standard error, and the change on clean images.

The gain is that of the mean over shift families of the task's main metric, on all images measured. Its standard error
adds two variances: that of the mean over families, and that of a jackknife which leaves out one fold of images at a
time. Both contain the noise of single images, so the sum is on the careful side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.bootstrap import Delta
from gramloop.replay.config import SIGNALS, Adaptive
from gramloop.tasks.base import AnyTask, Categories, Row, Rows
from gramloop.tune.split import CLEAN, Sample, family

MAX_FOLDS = 8  # of the jackknife over images
QUANTILES = 11  # thresholds tried per signal and direction
_EDGE = 1e-4  # relative width of a switch that is on below its threshold


@dataclass(frozen=True)
class PairedRow:
    """Statistics of the baseline and of a candidate on one image."""

    sample: Sample
    baseline: Row
    candidate: Row
    signals: Mapping[str, Sequence[float]] | None = None  # of the baseline pass, by name and block


Measured = Mapping[str, Sequence[PairedRow]]  # by condition


@dataclass(frozen=True)
class Scoring:
    """How statistics become scores."""

    task: AnyTask
    categories: Categories

    def score(self, rows: Sequence[Row]) -> float:
        """The main metric of some images."""
        return self.task.score(Rows.of(rows), self.categories)[self.task.metrics[0]]

    def delta(self, measured: Sequence[PairedRow]) -> Delta:
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


def estimate_gain(scoring: Scoring, measured: Measured) -> GainEstimate:
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
    scoring: Scoring, rows: Sequence[PairedRow], folds: int
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


def best_rule(
    scoring: Scoring, measured: Measured, block: int, tolerance: float, caution: float
) -> tuple[Adaptive, GainEstimate] | None:
    """The rule for single images with the largest cautious gain that does clean images no harm.

    A rule replays only images whose signal at a block of the baseline pass is above or below a threshold. With every
    image's signals stored, any rule is judged without predicting again. None where signals are unknown, or nothing gains.
    """
    best: tuple[Adaptive, GainEstimate] | None = None
    for rule in _rules(measured, block):
        value = estimate_gain(scoring, with_rule(measured, rule, block))
        if value.harmless(tolerance) and value.cautious(caution) > (best[1].cautious(caution) if best else 0):
            best = rule, value
    return best


def with_rule(measured: Measured, rule: Adaptive, block: int) -> dict[str, list[PairedRow]]:
    """What a rule makes of measurements: images that it leaves out keep the baseline's prediction."""
    return {
        key: [
            one if replays(rule, _signal(one, rule.signal, block)) else replace(one, candidate=one.baseline)
            for one in each
        ]
        for key, each in measured.items()
    }


def replays(rule: Adaptive, signal: float) -> bool:
    """Whether a switch replays an image with this signal."""
    return signal > rule.off if rule.full >= rule.off else signal < rule.off


def _rules(measured: Measured, block: int) -> list[Adaptive]:
    """Switches at quantiles of every signal, in both directions."""
    rules = []
    for signal in SIGNALS:
        values = [_signal(one, signal, block) for each in measured.values() for one in each]
        if not values or not np.isfinite(values).all():
            continue
        levels = np.unique(np.quantile(values, np.linspace(0, 1, QUANTILES + 2)[1:-1]))
        for level in map(float, levels):
            rules += [Adaptive(signal, level, level), Adaptive(signal, level, level * (1 - _EDGE))]
    return rules


def _signal(one: PairedRow, signal: str, block: int) -> float:
    known = (one.signals or {}).get(signal)
    return known[block] if known else math.nan


def replayed_share(measured: Measured, rule: Adaptive, block: int) -> float:
    """The share of images that a rule replays; NaN where there is none."""
    found = [replays(rule, _signal(one, rule.signal, block)) for each in measured.values() for one in each]
    return sum(found) / len(found) if found else math.nan
