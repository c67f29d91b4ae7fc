from __future__ import annotations

import numpy as np
import pytest

from gramloop.data.suites import Condition, find_suite
from gramloop.errors import GramLoopError
from gramloop.metrics.scores import (
    effective_robustness,
    mean_corruption_error,
    mean_performance,
    relative_performance,
)

SUITE = find_suite("ade20k-c").conditions


def scores(seed: int) -> dict[Condition, float]:
    rng = np.random.default_rng(seed)
    return {condition: float(rng.uniform(20, 70)) for condition in (Condition("clean"), *SUITE)}


def test_mean_performance_is_the_plain_mean_over_all_75_shifted_conditions() -> None:
    results = scores(0)
    shifted = [results[condition] for condition in SUITE]
    assert len(shifted) == 75
    assert mean_performance(results, SUITE) == pytest.approx(sum(shifted) / 75, rel=1e-14)
    assert mean_performance(results, results) == mean_performance(results, SUITE)  # clean counts for nothing


def test_conditions_beyond_those_expected_do_not_enter() -> None:
    results = scores(0)
    with_more = {**results, Condition("fog", 8): 0.0}
    assert mean_performance(with_more, SUITE) == mean_performance(results, SUITE)


@pytest.mark.parametrize("value", [None, np.nan, np.inf])
def test_a_missing_condition_is_named_not_skipped(value: float | None) -> None:
    results = scores(1)
    if value is None:
        del results[Condition("fog", 3)]
    else:
        results[Condition("fog", 3)] = value
    with pytest.raises(GramLoopError, match=r"the results have no finite score for fog/3; a mean over"):
        mean_performance(results, SUITE)
    with pytest.raises(GramLoopError, match=r"and 70 more"):
        mean_performance({}, SUITE)


def test_clean_images_alone_have_no_mean_over_shifts() -> None:
    with pytest.raises(GramLoopError, match="not clean"):
        mean_performance({Condition("clean"): 60.0}, [Condition("clean")])


def test_effective_robustness_is_zero_for_a_detector_that_keeps_45_percent() -> None:
    assert effective_robustness(0.45 * 60, 60) == 0
    assert effective_robustness(30, 60) == pytest.approx(3)


FOG_1, FOG_3, SNOW_1, SNOW_3 = (
    Condition("fog", 1),
    Condition("fog", 3),
    Condition("snow", 1),
    Condition("snow", 3),
)
WORKED = {FOG_1: 80.0, FOG_3: 60.0, SNOW_1: 50.0, SNOW_3: 30.0}
REFERENCE = {FOG_1: 60.0, FOG_3: 40.0, SNOW_1: 40.0, SNOW_3: 0.0}


def test_corruption_error_worked_by_hand() -> None:
    # fog: (20 + 40) / (40 + 60) = 0.6; snow: (50 + 70) / (60 + 100) = 0.75; their mean is 0.675
    assert mean_corruption_error(WORKED, REFERENCE, WORKED) == pytest.approx(67.5, rel=1e-15)
    assert mean_corruption_error(REFERENCE, REFERENCE, WORKED) == 100
    clean = {**WORKED, Condition("clean"): 99.0}
    assert mean_corruption_error(clean, REFERENCE, clean) == mean_corruption_error(WORKED, REFERENCE, WORKED)


def test_corruption_error_of_errors_in_one_ratio_is_that_ratio() -> None:
    """A closed form: where every error is r times the reference's, mCE is 100 r, whatever the severities."""
    rng = np.random.default_rng(3)
    errors = {condition: float(rng.uniform(10, 60)) for condition in SUITE}
    reference = {condition: 100 - error for condition, error in errors.items()}
    for ratio in (0.5, 0.9, 1.5):
        results = {condition: 100 - ratio * error for condition, error in errors.items()}
        assert mean_corruption_error(results, reference, SUITE) == pytest.approx(100 * ratio, rel=1e-13)


def test_relative_performance_worked_by_hand() -> None:
    assert mean_performance(WORKED, WORKED) == 55
    assert relative_performance(55, 88) == 62.5


def test_what_has_no_relative_measure_is_told() -> None:
    for clean in (0.0, -1.0, np.nan):
        with pytest.raises(GramLoopError, match="rPC needs a score on clean images above zero"):
            relative_performance(55, clean)
    perfect = {**REFERENCE, FOG_1: 100.0, FOG_3: 100.0}
    with pytest.raises(GramLoopError, match="the reference makes no error under fog, so there is no mCE"):
        mean_corruption_error(WORKED, perfect, WORKED)
    with pytest.raises(GramLoopError, match="the reference's results have no finite score for fog/1"):
        mean_corruption_error(WORKED, {}, WORKED)
