"""Intervals over families and images, joint intervals, and selection bias, against closed forms and simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.stats import norm, studentized_range, t

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import (
    Interval,
    cluster_bootstrap,
    coverage,
    image_bootstrap,
    joint_intervals,
    mean_score,
    miou_score,
    paired_delta,
    selection_bias,
    spanning,
    verdict,
    widened,
)
from gramloop.metrics.segmentation import mean_iou
from random_boxes import FoundBoxes, TrueBoxes, average_precision
from resampling import picked_delta, resample


def named(values: np.ndarray) -> dict[str, np.ndarray]:
    """Gains (families, severities) under names."""
    return {f"family {number:03d}": row for number, row in enumerate(values)}


def test_the_interval_has_the_width_of_the_normal_approximation() -> None:
    gains = np.random.default_rng(0).normal(0.05, 0.2, (400, 5))
    interval = cluster_bootstrap(named(gains))
    means = gains.mean(axis=1)
    half = stats.norm.ppf(0.975) * means.std() / np.sqrt(400)
    assert interval.estimate == pytest.approx(gains.mean())
    # a bound drawn 10,000 times has a standard error of about 0.027 standard deviations
    assert interval.low == pytest.approx(gains.mean() - half, abs=0.1 * half)
    assert interval.high == pytest.approx(gains.mean() + half, abs=0.1 * half)
    assert (interval.units, interval.replicates, interval.level) == (400, 10_000, 0.95)


def test_severities_of_a_family_stay_together() -> None:
    """Gains that cancel within each family leave nothing to vary; drawn one by one they would."""
    interval = cluster_bootstrap({name: [-3, -1, 0, 1, 3] for name in "abcdef"})
    assert (interval.low, interval.high) == (0, 0)


def test_the_documented_stream_and_order() -> None:
    table = np.random.default_rng(2).normal(size=(7, 5))
    gains = dict(zip(["zoom", "fog", "snow", "rotate", "jpeg", "shear", "impulse"], table, strict=True))
    draws = np.random.Generator(np.random.PCG64(20260724)).integers(0, 7, size=(10_000, 7))
    in_order = np.array([gains[name].mean() for name in sorted(gains)])
    expected = np.percentile(in_order[draws].mean(axis=1), [2.5, 97.5])
    interval = cluster_bootstrap(gains)
    assert [interval.low, interval.high] == pytest.approx(expected, rel=1e-12)
    assert interval == cluster_bootstrap(dict(reversed(gains.items())))  # whatever order they come in
    assert interval != cluster_bootstrap(gains, seed=1)


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0.01, 0.2, "helps"),
        (-0.2, -0.01, "hurts"),
        (-0.1, 0.1, "not significantly different"),
        (0.0, 0.2, "not significantly different"),
        (-0.2, 0.0, "not significantly different"),
    ],
)
def test_verdicts(low: float, high: float, words: str) -> None:
    assert verdict(Interval((low + high) / 2, low, high)) == words


def test_one_interval_spans_several_so_that_zero_is_left_out_by_all_or_by_none() -> None:
    above, below, around = (Interval(0.0, *ends, units=9) for ends in ((0.1, 0.5), (-0.5, -0.1), (-0.1, 0.2)))
    assert spanning([]) is None
    assert spanning([above]) == above
    for first, second in ((above, around), (above, below), (below, around)):
        assert verdict(spanning([first, second])) == "not significantly different"  # type: ignore[arg-type]
    wide = spanning([above, Interval(0.2, 0.05, 0.3, units=5)])
    assert (wide.low, wide.high, wide.units) == (0.05, 0.5, 5)  # type: ignore[union-attr]


def test_families_that_cannot_be_resampled_are_refused() -> None:
    with pytest.raises(GramLoopError, match="at least 2, not 1: one family"):
        cluster_bootstrap({"fog": [0.1, 0.2]})
    with pytest.raises(GramLoopError, match="fog 2, snow 1"):
        cluster_bootstrap({"snow": [0.1], "fog": [0.1, 0.2]})
    with pytest.raises(GramLoopError, match="gains of fog are not all finite"):
        cluster_bootstrap({"snow": [0.1], "fog": [np.nan]})
    with pytest.raises(GramLoopError, match=r"not 1\.5"):
        cluster_bootstrap({"snow": [0.1], "fog": [0.2]}, level=1.5)


def random_counts(seed: int, shape: tuple[int, ...], classes: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Paired counts (..., 3, K) over one truth."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 900, (*shape, classes))
    pair = []
    for hit in (0.7, 0.75):
        intersection = rng.binomial(label, hit)
        pair.append(
            np.stack([intersection, intersection + rng.integers(0, 200, label.shape), label], axis=-2)
        )
    return pair[0], pair[1]


def test_miou_of_resampled_images_equals_summing_the_images_drawn() -> None:
    baseline, method = random_counts(0, (30,))
    rng = np.random.default_rng(1)
    picks = rng.integers(0, 30, (5, 30))
    weights = np.stack([np.bincount(row, minlength=30) for row in picks])
    expected = [mean_iou(method[row].sum(axis=0)) - mean_iou(baseline[row].sum(axis=0)) for row in picks]
    np.testing.assert_allclose(
        paired_delta(miou_score(baseline), miou_score(method))(weights), expected, rtol=0, atol=1e-12
    )


def test_miou_over_conditions_resamples_the_same_images_in_each() -> None:
    baseline, method = random_counts(2, (3, 40))
    weights = np.random.default_rng(3).multinomial(40, np.full(40, 1 / 40), size=4)
    together = paired_delta(miou_score(baseline), miou_score(method))(weights)
    apart = [paired_delta(miou_score(baseline[k]), miou_score(method[k]))(weights) for k in range(3)]
    np.testing.assert_allclose(together, np.mean(apart, axis=0), rtol=0, atol=1e-12)


def test_an_image_bootstrap_does_not_depend_on_how_many_rows_are_held_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    baseline, method = random_counts(4, (25,))
    delta = paired_delta(miou_score(baseline), miou_score(method))
    interval = image_bootstrap(delta, 25, replicates=400)
    assert interval.estimate == pytest.approx(
        mean_iou(method.sum(axis=0)) - mean_iou(baseline.sum(axis=0)), abs=1e-12
    )
    assert interval.low < interval.estimate < interval.high
    monkeypatch.setattr("gramloop.metrics.bootstrap.ROWS_AT_ONCE", 7)
    again = image_bootstrap(delta, 25, replicates=400)
    assert [again.low, again.high] == pytest.approx([interval.low, interval.high], abs=1e-12)


def test_means_of_images_have_the_width_of_the_normal_approximation() -> None:
    rng = np.random.default_rng(6)
    baseline = rng.normal(50, 10, 500)
    method = baseline + rng.normal(0.5, 2, 500)
    interval = image_bootstrap(mean_score(method - baseline), 500)
    half = stats.norm.ppf(0.975) * (method - baseline).std() / np.sqrt(500)
    assert interval.low == pytest.approx(interval.estimate - half, abs=0.1 * half)
    assert interval.high == pytest.approx(interval.estimate + half, abs=0.1 * half)
    unpaired = stats.norm.ppf(0.975) * np.sqrt((baseline.var() + method.var()) / 500)
    assert half < unpaired / 4  # what pairing is for


def test_any_statistic_through_the_images_drawn() -> None:
    rng = np.random.default_rng(7)
    baseline, method = rng.normal(size=(2, 60))
    vectorised = image_bootstrap(mean_score(method - baseline), 60, replicates=200)
    one_by_one = image_bootstrap(
        picked_delta(lambda picks: float((method - baseline)[picks].mean())), 60, replicates=200
    )
    assert [one_by_one.low, one_by_one.high] == pytest.approx([vectorised.low, vectorised.high], abs=1e-12)


def test_average_precision_through_the_images_drawn() -> None:
    """One object per image, found by one method always and by the other in every second image."""
    images = np.arange(24)
    boxes, labels = np.tile([0.0, 0, 20, 20], (24, 1)), np.ones(24, int)
    truth = TrueBoxes(images.tolist(), [1], images, boxes, labels, np.full(24, 400.0), np.zeros(24, bool))
    method = FoundBoxes(images, boxes, np.full(24, 0.5), labels)
    baseline = replace(method, boxes=np.where((images % 2 == 0)[:, None], boxes, boxes + 500))

    def difference(picks: np.ndarray) -> float:
        first, second = (
            average_precision(*resample(truth, each, picks))["AP"] for each in (baseline, method)
        )
        return second - first

    interval = image_bootstrap(picked_delta(difference), 24, replicates=120)
    assert verdict(interval) == "helps"
    assert 0 < interval.low < interval.estimate < interval.high <= 100


def test_images_that_cannot_be_resampled_are_refused() -> None:
    baseline, method = random_counts(0, (3,))
    with pytest.raises(GramLoopError, match="too large"):
        miou_score(np.full_like(method, 2**52))
    with pytest.raises(GramLoopError, match="at least 2, not 1"):
        image_bootstrap(paired_delta(miou_score(baseline[:1]), miou_score(method[:1])), 1)
    nothing_in_one = np.stack([np.zeros_like(baseline[0]), baseline[0]])
    with pytest.raises(GramLoopError, match="too few images"):
        image_bootstrap(
            paired_delta(miou_score(nothing_in_one), miou_score(nothing_in_one)), 2, replicates=50
        )


TRUTH = 0.3


def simulated(experiments: int, families: int, replicates: int) -> tuple[float, float]:
    """Shares of suites of normal families with three severities whose interval, plain and widened, holds the truth."""
    rng = np.random.default_rng(11)
    held = np.zeros(2)
    for experiment in range(experiments):
        gains = TRUTH + rng.normal(0, 1, (families, 1)) + rng.normal(0, 0.5, (families, 3))
        plain = cluster_bootstrap(named(gains), replicates=replicates, seed=experiment)
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
