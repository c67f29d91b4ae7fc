"""How often intervals hold a truth that is known: percentiles, and widened for few families."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Interval, cluster_bootstrap, coverage, widened

TRUTH = 0.3


def simulated(experiments: int, families: int, replicates: int) -> tuple[float, float]:
    """Shares of suites of normal families with three severities whose interval, plain and widened, holds the truth."""
    rng = np.random.default_rng(11)
    held = np.zeros(2)
    for experiment in range(experiments):
        gains = TRUTH + rng.normal(0, 1, (families, 1)) + rng.normal(0, 0.5, (families, 3))
        named = {f"{number:03d}": row for number, row in enumerate(gains)}
        plain = cluster_bootstrap(named, replicates=replicates, seed=experiment)
        held += [each.low <= TRUTH <= each.high for each in (plain, widened(plain))]
    return float(held[0] / experiments), float(held[1] / experiments)


@pytest.mark.parametrize("families", [3, 6, 15, 17])
def test_widened_intervals_cover_what_they_claim(families: int) -> None:
    """1,000 experiments leave a standard error of 0.007, or 0.014 for three families' plain 75%: three of them."""
    plain, wide = simulated(1000, families, 500)
    assert plain == pytest.approx(coverage(families), abs=0.042 if families == 3 else 0.03)
    assert wide == pytest.approx(0.95, abs=0.021)


@pytest.mark.slow
@pytest.mark.parametrize("families", [15, 17])
def test_widened_intervals_of_the_suites_cover_95_percent_to_one_percent(families: int) -> None:
    """6,000 experiments leave a standard error of 0.0028."""
    plain, wide = simulated(6000, families, 2000)
    assert wide == pytest.approx(0.95, abs=0.01)
    assert plain == pytest.approx(coverage(families), abs=0.01)
    assert plain < 0.935  # what the plain one is short of


@pytest.mark.parametrize("units", [2, 3, 15, 200])
def test_the_formula_of_coverage(units: int) -> None:
    reach = stats.norm.ppf(0.975) * np.sqrt((units - 1) / units)
    assert coverage(units) == pytest.approx(1 - 2 * stats.t.sf(reach, units - 1), abs=1e-12)


def test_coverage_approaches_the_level() -> None:
    values = [coverage(units) for units in (2, 5, 15, 50, 200, 5000)]
    assert values == sorted(values)
    assert values[-1] == pytest.approx(0.95, abs=0.001)
    assert coverage(5000, 0.8) == pytest.approx(0.8, abs=0.001)


def test_widening_is_that_of_students_t_for_a_normal_interval() -> None:
    """The interval mean ± z s / sqrt(n), s with divisor n, becomes Student's, with divisor n - 1."""
    sample = np.random.default_rng(0).normal(2, 3, 15)
    half = stats.norm.ppf(0.975) * sample.std() / np.sqrt(15)
    found = widened(Interval(sample.mean(), sample.mean() - half, sample.mean() + half, units=15))
    expected = stats.t.interval(0.95, 14, sample.mean(), stats.sem(sample))
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9)
    assert (
        widened(Interval(0.0, -1.0, 2.0, units=15)).high
        == -2 * widened(Interval(0.0, -1.0, 2.0, units=15)).low
    )


def test_one_unit_has_no_coverage() -> None:
    with pytest.raises(GramLoopError, match="at least 2 units, not 1"):
        coverage(1)
    with pytest.raises(GramLoopError, match="at least 2 units, not 0"):
        widened(Interval(0, -1, 1))
