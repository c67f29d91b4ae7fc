"""Scores under shift (mPC, rPC, mCE, effective robustness), and how near a predicted distance comes to the true one.

A mean over conditions never skips one: a condition without a result is an error that names it. Nothing here rounds, so a
difference is that of the full numbers.

A number of depth is of one image, over its pixels of known depth, and a set's score is the mean over its images. With p
the prediction and t the truth, both in metres:

delta1..3   the share of pixels with max(p/t, t/p) below 1.25, 1.25² and 1.25³, in percent; higher is better
AbsRel      the mean of |p - t| / t; lower is better, as all that follow
RMSE        the root of the mean of (p - t)², in metres
log10       the mean of |log10 p - log10 t|
SILog       100 times the standard deviation of ln p - ln t, which no common factor changes

A prediction may be aligned with the truth before it is compared. A model of disparity (inverse depth) is aligned in
disparity, which is what it is linear in, and every other in depth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition
from gramloop.data.truth import DepthMap
from gramloop.errors import GramLoopError

EXPECTED_SHARE = 0.45  # of its COCO AP, which a detector is expected to keep on COCO-O
ByCondition = Mapping[Condition, float]
Alignment = Literal["auto", "none", "median", "scale-shift"]
ALIGNMENTS: tuple[Alignment, ...] = get_args(Alignment)


def mean_performance(results: ByCondition, expected: Iterable[Condition]) -> float:
    """Mean performance under corruption (mPC): the unweighted mean over all shifted conditions expected.

    Clean images are left out, even where they are among the conditions.
    """
    conditions = _shifted(expected)
    return float(_values(results, conditions, "the results").mean())


def relative_performance(mean: float, clean: float) -> float:
    """Relative performance under corruption (rPC): mPC in percent of the score on clean images.

    After Michaelis et al., Benchmarking Robustness in Object Detection (2019).
    """
    if not (np.isfinite(mean) and np.isfinite(clean)) or clean <= 0:
        raise GramLoopError(f"rPC needs a score on clean images above zero, not {clean:g}")
    return 100 * mean / clean


def mean_corruption_error(
    results: ByCondition, reference: ByCondition, expected: Iterable[Condition]
) -> float:
    """Mean corruption error (mCE) in percent: 100 is as many errors as the reference makes, lower is better.

    After Hendrycks and Dietterich (2019): the errors of a shift, 100 less the score, summed over its severities and divided
    by those of the reference; the mean over shifts. Their reference is AlexNet; here it is any results on the same
    conditions.
    """
    conditions = _shifted(expected)
    errors = 100 - _values(results, conditions, "the results")
    others = 100 - _values(reference, conditions, "the reference's results")
    ratios = []
    for family in dict.fromkeys(condition.family for condition in conditions):
        rows = [place for place, condition in enumerate(conditions) if condition.family == family]
        if not others[rows].sum() > 0:
            raise GramLoopError(f"the reference makes no error under {family}, so there is no mCE")
        ratios.append(errors[rows].sum() / others[rows].sum())
    return 100 * float(np.mean(ratios))


def effective_robustness(ap_o: float, ap_coco: float) -> float:
    """AP on COCO-O beyond what AP on COCO predicts: ``ap_o - 0.45 * ap_coco``, all in percent."""
    return ap_o - EXPECTED_SHARE * ap_coco


def _shifted(expected: Iterable[Condition]) -> tuple[Condition, ...]:
    conditions = tuple(dict.fromkeys(condition for condition in expected if condition.name != "clean"))
    if not conditions:
        raise GramLoopError("a mean over shifts needs at least one condition that is not clean")
    return conditions


def _values(results: ByCondition, conditions: tuple[Condition, ...], owner: str) -> NDArray[np.float64]:
    values = np.array([results.get(condition, np.nan) for condition in conditions], dtype=np.float64)
    if missing := [str(conditions[k]) for k in np.flatnonzero(~np.isfinite(values))]:
        listed = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise GramLoopError(f"{owner} have no finite score for {listed}; a mean over the rest would mislead")
    return values


class NoScoreError(GramLoopError):
    """A prediction that cannot be compared with its truth; the image counts for no method."""


class DepthScores(NamedTuple):
    """The numbers of one image, the main one first."""

    delta1: float
    delta2: float
    delta3: float
    abs_rel: float
    rmse: float
    log10: float
    silog: float


def aligned_depth(
    prediction: NDArray[Any], truth: DepthMap, alignment: Alignment = "auto", *, disparity: bool = False
) -> NDArray[np.float64]:  # (H, W)
    """The prediction in metres, aligned with the truth and clipped to the range that is scored.

    Args:
        prediction: depth, or disparity in inverse metres or any unit that the alignment makes up for, (H, W).
        truth: what to align with, at its known pixels.
        alignment: ``none``; ``median`` multiplies by the ratio of the medians; ``scale-shift`` is the line of least
            squares from prediction to truth; ``auto`` is scale-shift for disparity and none for depth.
        disparity: whether the prediction is inverse depth; then it is aligned as such.
    """
    if alignment not in ALIGNMENTS:
        raise GramLoopError(f"the alignment is one of {', '.join(ALIGNMENTS)}, not {alignment!r}")
    if alignment == "auto":
        alignment = "scale-shift" if disparity else "none"
    known = _known(prediction, truth)
    values = prediction.astype(np.float64)
    if not np.isfinite(values).all():
        raise NoScoreError(f"the predicted depth holds {values[~np.isfinite(values)][0]}, which is no number")
    wanted = truth.metres[known].astype(np.float64)
    scale, shift = _line(values[known], 1 / wanted if disparity else wanted, alignment)
    moved = scale * values + shift
    if disparity:
        moved = 1 / np.clip(moved, 1 / truth.far, 1 / truth.near)
    return np.clip(moved, truth.near, truth.far)


def depth_scores(prediction: NDArray[Any], truth: DepthMap) -> DepthScores:
    """The numbers of one image; the prediction (H, W) is in metres, as `aligned_depth` returns it."""
    known = _known(prediction, truth)
    p, t = prediction[known].astype(np.float64), truth.metres[known].astype(np.float64)
    if wrong := [value for value in (p.min(), p.max()) if not 0 < value < np.inf]:
        raise NoScoreError(f"a predicted distance is a number above 0 m, not {wrong[0]:g}")
    ratio = np.maximum(p / t, t / p)
    logs = np.log(p) - np.log(t)
    first, second, third = (100 * float(np.mean(ratio < 1.25**power)) for power in (1, 2, 3))
    return DepthScores(
        first,
        second,
        third,
        abs_rel=float(np.mean(np.abs(p - t) / t)),
        rmse=float(np.sqrt(np.mean((p - t) ** 2))),
        log10=float(np.mean(np.abs(logs)) / np.log(10)),
        silog=100 * float(np.std(logs)),
    )


def _line(
    values: NDArray[np.float64], wanted: NDArray[np.float64], alignment: Alignment
) -> tuple[float, float]:
    """The scale and the shift that take the predicted values of known pixels to the true ones."""
    if alignment == "none":
        return 1.0, 0.0
    if alignment == "median":
        middle = float(np.median(values))
        if middle <= 0:
            raise NoScoreError(
                f"the median of the prediction is {middle:g}; only one above 0 can be scaled to the true median"
            )
        return float(np.median(wanted)) / middle, 0.0
    mean, target = values.mean(), wanted.mean()
    away = values - mean
    spread = float(away @ away)
    if spread <= len(values) * (1e-9 * float(np.abs(values).max())) ** 2:  # what rounding alone may leave
        raise NoScoreError(
            f"the prediction is {mean:g} at every pixel of known depth, so no scale and shift can be fitted; "
            "the alignment none or median needs no such fit"
        )
    scale = float(away @ (wanted - target)) / spread
    return scale, float(target - scale * mean)


def _known(prediction: NDArray[Any], truth: DepthMap) -> NDArray[np.bool_]:
    if prediction.ndim != 2 or prediction.shape != truth.metres.shape:
        raise GramLoopError(
            f"the predicted depth has the shape {prediction.shape}, but that of its truth is {truth.metres.shape}"
        )
    known = truth.known
    if not known.any():
        raise NoScoreError(
            f"the true depth holds no pixel between {truth.near:g} and {truth.far:g} m, "
            "so nothing can be compared with it"
        )
    return known
