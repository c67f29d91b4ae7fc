"""Joint intervals hold together, whichever comparison one looks at; the winner's luck is what a closed form says."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, studentized_range, t

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Interval, joint_intervals, selection_bias, widened

RNG = np.random.default_rng(3)


def resampled(effects: np.ndarray, replicates: int = 1000, rng: np.random.Generator = RNG) -> np.ndarray:
    """(units, methods) → (methods, 1 + replicates): means of all units, then of drawn ones."""
    picks = rng.integers(0, len(effects), (replicates, len(effects)))
    return np.concatenate([effects.mean(axis=0)[None], effects[picks].mean(axis=1)]).T


def pairs(scores: np.ndarray) -> np.ndarray:
    first, second = np.triu_indices(len(scores), 1)
    return scores[first] - scores[second]


def test_one_comparison_of_many_units_is_the_interval_of_a_normal() -> None:
    draws = np.concatenate([[2.0], 2 + 0.5 * norm.ppf((np.arange(4000) + 0.5) / 4000)])[None]
    (found,) = joint_intervals(draws, 10**6)
    assert (found.low, found.high) == pytest.approx((2 - 0.98, 2 + 0.98), abs=0.003)
    alone = widened(Interval(2.0, *np.quantile(draws[0, 1:], [0.025, 0.975]), units=12))
    (few,) = joint_intervals(draws, 12)
    assert (few.low, few.high) == pytest.approx((alone.low, alone.high), abs=0.003)


def test_all_pairs_of_many_units_reach_as_far_as_tukeys() -> None:
    """Draws of ten independent methods with one variance: the exact answer is the studentised range."""
    scores = RNG.normal(size=(10, 20_001))
    scores[:, 0] = 0
    found = joint_intervals(pairs(scores), 10**6)
    exact = studentized_range.ppf(0.95, 10, np.inf)  # of the mean's standard deviation, which is 1
    # the quantile of 20,000 draws has a standard error of 0.015; spreads of 45 pairs differ by 0.5%
    assert np.median([each.high for each in found]) == pytest.approx(exact, abs=0.05)


def test_below_fifty_units_it_is_bonferroni_with_students_t() -> None:
    draws = pairs(resampled(RNG.normal(size=(6, 5))))
    found = joint_intervals(draws, 6)
    spread = draws[:, 1:].std(axis=1) * np.sqrt(6 / 5)
    expected = t.ppf(1 - 0.025 / 10, 5) * spread
    assert [each.high - each.estimate for each in found] == pytest.approx(expected.tolist())


@pytest.mark.slow
@pytest.mark.parametrize(("units", "methods"), [(6, 4), (6, 15), (15, 15), (50, 15)])
def test_nothing_is_told_apart_where_nothing_differs(units: int, methods: int) -> None:
    rng = np.random.default_rng(units)
    wrong = 0
    for _ in range(400):
        effects = rng.normal(size=(units, methods)) + rng.normal(size=(units, 1))
        found = joint_intervals(pairs(resampled(effects, rng=rng)), units)
        wrong += any(each.low > 0 or each.high < 0 for each in found)
    assert wrong / 400 < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)  # three standard errors of 400 trials


def test_methods_that_are_the_same_have_no_width_and_stay_untold() -> None:
    one = resampled(RNG.normal(size=(30, 2)))
    found = joint_intervals(pairs(np.concatenate([one, one[:1]])), 60)
    assert (found[1].estimate, found[1].low, found[1].high) == (0, 0, 0)
    assert found[0].low < found[0].high
    assert all(each.low == each.high == 0 for each in joint_intervals(np.zeros((3, 11)), 30))


def test_an_interval_needs_units() -> None:
    with pytest.raises(GramLoopError, match="at least 2 units"):
        joint_intervals(np.zeros((1, 5)), 1)


def test_the_winner_of_equals_is_flattered_by_the_expected_maximum() -> None:
    """Equal methods with independent unit-variance draws: E max of five normals is 1.16296."""
    draws = RNG.normal(size=(5, 40_001))
    draws[:, 0] = 0
    assert selection_bias(draws) == pytest.approx(1.16296, abs=0.02)  # standard error 0.67 / 200
    clear = draws + np.array([[0], [0], [50], [0], [0]])
    assert selection_bias(clear) == pytest.approx(0, abs=0.02)
