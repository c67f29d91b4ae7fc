"""What a candidate is worth on what it was measured on: mean gain, standard error over folds, loss on clean images.

The gain is that of the mean over conditions of the task's score (mIoU, AP, delta1 or PQ) on all images measured. Its standard
error adds two variances: that of the mean over shift families, and that of a jackknife which leaves out one fold
of images at a time. Both contain the noise of single images, so the sum is on the careful side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import Task
from gramloop.metrics.ap import ap_score
from gramloop.metrics.bootstrap import Delta, mean_delta, miou_delta, paired_delta
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from gramloop.tune.search.segments import SEGMENTS, segment_score
from gramloop.tune.search.split import FOLDS, Sample, family

CLEAN = "clean"


@dataclass(frozen=True)
class PairedStatistics:
    """One candidate on one image under one condition, beside the ordinary prediction."""

    sample: Sample
    ordinary: Mapping[str, Any]
    mitigated: Mapping[str, Any]
    truth: Mapping[str, Any] | None
    blocks: int
    signals: Mapping[str, Sequence[float]] | None = None  # of the ordinary pass, by name and block


@dataclass(frozen=True)
class Worth:
    """A candidate's standing, in points."""

    gain: float  # over shifted conditions
    error: float  # standard error of the gain
    freedom: float  # degrees of freedom behind the error
    clean: float  # gain on clean images, NaN where none was measured
    clean_error: float

    def cautious(self, caution: float) -> float:
        """The gain less so many standard errors; an unknown error counts as none."""
        return self.gain - caution * (self.error if math.isfinite(self.error) else 0.0)

    def harmless(self, tolerance: float) -> bool:
        """Whether clean images keep their score up to a tolerance; not known counts as kept."""
        return not self.clean < -tolerance

    def not_clearly_harmful(self, tolerance: float) -> bool:
        """The same with a standard error of doubt, for rungs that saw few clean images."""
        doubt = self.clean_error if math.isfinite(self.clean_error) else math.inf
        return not self.clean + doubt < -tolerance

    def beats_nothing(self, confidence: float) -> bool:
        """Whether the gain is above zero with this one-sided confidence (Student's t)."""
        if not (math.isfinite(self.gain) and self.gain > 0):
            return False
        if not math.isfinite(self.error) or self.freedom < 1:
            return False
        from scipy.stats import t

        return bool(self.gain > float(t.ppf(confidence, self.freedom)) * self.error)


def worth(task: Task, categories: Sequence[int], cells: Mapping[str, Sequence[PairedStatistics]]) -> Worth:
    """The worth of one candidate on the cells of every condition measured."""
    folds = min(FOLDS, 1 + max((one.sample.unit for each in cells.values() for one in each), default=0))
    gains: dict[str, list[NDArray[np.float64]]] = {}
    for key, measured in cells.items():
        if measured:
            gains.setdefault(family(key), []).append(_left_out(task, categories, measured, folds))
    clean = gains.pop(CLEAN, None)
    shifted = np.array([_mean(np.array(each)) for each in gains.values()])  # (families, 1 + folds)
    gain, over_images = _jackknife(_mean(shifted)) if len(shifted) else (math.nan, math.nan)
    known = shifted[np.isfinite(shifted[:, 0]), 0] if len(shifted) else np.zeros(0)
    over_families = float(known.var(ddof=1)) / len(known) if len(known) > 1 else math.nan
    error, freedom = _combined(over_families, len(known) - 1, over_images, folds - 1)
    kept, kept_error = _jackknife(_mean(np.array(clean))) if clean else (math.nan, math.nan)
    return Worth(gain, error, freedom, kept, math.sqrt(kept_error))


def depth_of(measured: Sequence[PairedStatistics], version: str) -> NDArray[np.float64]:  # → (images,)
    """delta1 of every image."""
    return np.array([getattr(one, version)["delta1"] for one in measured], dtype=np.float64)


def condition_delta(task: Task, categories: Sequence[int], measured: Sequence[PairedStatistics]) -> Delta:
    """The gain of a candidate under one condition, for any weights of its images."""
    if task == "semantic":
        stacks = [
            np.array([getattr(one, version)["counts"] for one in measured], dtype=np.int64)
            for version in ("ordinary", "mitigated")
        ]
        return miou_delta(*stacks)
    if task == "depth":
        return mean_delta(*(depth_of(measured, version) for version in ("ordinary", "mitigated")))
    if task in SEGMENTS:
        return paired_delta(
            *(
                segment_score(task, categories, [getattr(one, version) for one in measured])
                for version in ("ordinary", "mitigated")
            )
        )
    truth = truth_of(measured, categories)
    return paired_delta(
        *(ap_score(truth, detections_of(measured, version)) for version in ("ordinary", "mitigated"))
    )


def _left_out(
    task: Task, categories: Sequence[int], measured: Sequence[PairedStatistics], folds: int
) -> NDArray[np.float64]:  # → (1 + folds,)
    """The gain on all images, then with each fold left out; NaN where nothing is left."""
    fold = np.array([one.sample.unit % folds for one in measured])
    weights = np.ones((1 + folds, len(measured)), dtype=np.int64)
    weights[1:][np.arange(folds)[:, np.newaxis] == fold] = 0
    some = weights.any(axis=1)
    gains = np.full(1 + folds, np.nan)
    gains[some] = condition_delta(task, categories, measured)(weights[some])
    return gains


def _mean(rows: NDArray[np.float64]) -> NDArray[np.float64]:  # (n, 1 + folds) → (1 + folds,)
    """The mean over rows that have a value."""
    known = np.isfinite(rows)
    number = known.sum(axis=0)
    total = np.where(known, rows, 0.0).sum(axis=0)
    mean: NDArray[np.float64] = np.divide(total, number, out=np.full(rows.shape[1], np.nan), where=number > 0)
    return mean


def _jackknife(values: NDArray[np.float64]) -> tuple[float, float]:
    """The estimate on everything, and the jackknife's variance; NaN with fewer than two folds."""
    left = values[1:][np.isfinite(values[1:])]
    if len(left) < 2:
        return float(values[0]), math.nan
    return float(values[0]), float((len(left) - 1) * left.var())


def _combined(first: float, first_freedom: int, second: float, second_freedom: int) -> tuple[float, float]:
    """The standard error of two variances together, and its degrees of freedom after Satterthwaite."""
    parts = [
        (value, freedom)
        for value, freedom in ((first, first_freedom), (second, second_freedom))
        if math.isfinite(value) and freedom > 0
    ]
    if not parts:
        return math.nan, 0.0
    total = sum(value for value, _ in parts)
    below = sum(value**2 / freedom for value, freedom in parts)
    return math.sqrt(total), total**2 / below if below > 0 else float(min(freedom for _, freedom in parts))


def truth_of(measured: Sequence[PairedStatistics], categories: Sequence[int]) -> GroundTruthBoxes:
    """The objects of some images, numbered by place."""
    each = [one.truth or {} for one in measured]
    owners = np.repeat(np.arange(len(each)), [len(one["labels"]) for one in each])
    return GroundTruthBoxes(
        images=range(len(each)),
        categories=sorted(categories),
        image_ids=owners,
        boxes=np.array([box for one in each for box in one["boxes"]], dtype=np.float64).reshape(-1, 4),
        labels=np.array([label for one in each for label in one["labels"]], dtype=np.int64),
        areas=np.array([area for one in each for area in one["areas"]], dtype=np.float64),
        crowd=np.array([crowd for one in each for crowd in one["crowd"]], dtype=np.bool_),
    )


def detections_of(measured: Sequence[PairedStatistics], version: str) -> BoxPredictions:
    """The boxes found by the ordinary or the mitigated version, images numbered by place."""
    each = [getattr(one, version) for one in measured]
    owners = np.repeat(np.arange(len(each)), [len(one["scores"]) for one in each])
    return BoxPredictions.from_corners(
        owners,
        np.array([box for one in each for box in one["boxes"]], dtype=np.float64).reshape(-1, 4),
        np.array([score for one in each for score in one["scores"]], dtype=np.float64),
        np.array([label for one in each for label in one["labels"]], dtype=np.int64),
    )
