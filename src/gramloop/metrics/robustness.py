"""Scores under shift: mPC, rPC, mCE and effective robustness.

A mean never skips a condition: one without a result is an error that names it. Nothing here rounds, so a difference is
that of the full numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import DOMAINS, Condition
from gramloop.errors import GramLoopError

EXPECTED_SHARE = 0.45  # of its COCO AP, which a detector is expected to keep on COCO-O
ByCondition = Mapping[Condition, float]


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


def coco_o_map(ap: Mapping[str, float], domains: Iterable[str] = DOMAINS) -> float:
    """COCO-O's mAP: the unweighted mean of the domains' AP, however many images each has."""
    names = sorted(domains)  # so that the sum is the same in any order
    _refuse_missing([name for name in names if not np.isfinite(ap.get(name, np.nan))], "the results")
    return float(np.mean([ap[name] for name in names]))


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
    _refuse_missing([str(conditions[k]) for k in np.flatnonzero(~np.isfinite(values))], owner)
    return values


def _refuse_missing(names: list[str], owner: str) -> None:
    if names:
        listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise GramLoopError(f"{owner} have no finite score for {listed}; a mean over the rest would mislead")
