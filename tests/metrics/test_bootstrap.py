from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from gramloop.errors import GramLoopError
from gramloop.metrics.ap import average_precision
from gramloop.metrics.bootstrap import (
    Interval,
    cluster_bootstrap,
    image_bootstrap,
    mean_delta,
    miou_delta,
    verdict,
)
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from gramloop.metrics.miou import mean_iou
from resampling import picked_delta, resample


def named(values: np.ndarray) -> dict[str, np.ndarray]:
    """Gains (families, severities) under names."""
    return {f"family {number:03d}": row for number, row in enumerate(values)}


def coverage(experiments: int, families: int, replicates: int) -> float:
    """Share of experiments whose interval holds the true mean of families that vary, and severities too."""
    rng = np.random.default_rng(5)
    inside = 0
    for experiment in range(experiments):
        effects = 0.3 + rng.normal(0, 1, (families, 1)) + rng.normal(0, 0.5, (families, 3))
        interval = cluster_bootstrap(named(effects), replicates=replicates, seed=experiment)
        inside += interval.low <= 0.3 <= interval.high
    return inside / experiments


def test_intervals_cover_a_known_mean() -> None:
    """Of 1,000 experiments 95% should cover: 0.02 is three standard errors."""
    assert coverage(1000, 120, 400) == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
def test_intervals_cover_a_known_mean_to_one_percent() -> None:
    assert coverage(6000, 200, 1000) == pytest.approx(0.95, abs=0.01)


def test_few_families_make_intervals_as_narrow_as_theory_says() -> None:
    """Percentile intervals use the normal quantile and divide by n, where Student's would be right."""
    families = 15
    expected = 1 - 2 * stats.t.sf(stats.norm.ppf(0.975) * np.sqrt((families - 1) / families), families - 1)
    assert 0.90 < expected < 0.93
    assert coverage(1000, families, 400) == pytest.approx(expected, abs=0.025)  # three standard errors


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
        (-0.1, 0.1, "inconclusive"),
        (0.0, 0.2, "inconclusive"),
        (-0.2, 0.0, "inconclusive"),
    ],
)
def test_verdicts(low: float, high: float, words: str) -> None:
    assert verdict(Interval((low + high) / 2, low, high)) == words


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
    np.testing.assert_allclose(miou_delta(baseline, method)(weights), expected, rtol=0, atol=1e-12)


def test_miou_over_conditions_resamples_the_same_images_in_each() -> None:
    baseline, method = random_counts(2, (3, 40))
    weights = np.random.default_rng(3).multinomial(40, np.full(40, 1 / 40), size=4)
    together = miou_delta(baseline, method)(weights)
    apart = [miou_delta(baseline[k], method[k])(weights) for k in range(3)]
    np.testing.assert_allclose(together, np.mean(apart, axis=0), rtol=0, atol=1e-12)


def test_an_image_bootstrap_does_not_depend_on_how_many_rows_are_held_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    baseline, method = random_counts(4, (25,))
    delta = miou_delta(baseline, method)
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
    interval = image_bootstrap(mean_delta(baseline, method), 500)
    half = stats.norm.ppf(0.975) * (method - baseline).std() / np.sqrt(500)
    assert interval.low == pytest.approx(interval.estimate - half, abs=0.1 * half)
    assert interval.high == pytest.approx(interval.estimate + half, abs=0.1 * half)
    unpaired = stats.norm.ppf(0.975) * np.sqrt((baseline.var() + method.var()) / 500)
    assert half < unpaired / 4  # what pairing is for


def test_any_statistic_through_the_images_drawn() -> None:
    rng = np.random.default_rng(7)
    baseline, method = rng.normal(size=(2, 60))
    vectorised = image_bootstrap(mean_delta(baseline, method), 60, replicates=200)
    one_by_one = image_bootstrap(
        picked_delta(lambda picks: float((method - baseline)[picks].mean())), 60, replicates=200
    )
    assert [one_by_one.low, one_by_one.high] == pytest.approx([vectorised.low, vectorised.high], abs=1e-12)


def test_average_precision_through_the_images_drawn() -> None:
    """One object per image, found by one method always and by the other in every second image."""
    images = np.arange(24)
    boxes, labels = np.tile([0.0, 0, 20, 20], (24, 1)), np.ones(24, int)
    truth = GroundTruthBoxes(images.tolist(), [1], images, boxes, labels, np.full(24, 400.0), np.zeros(24, bool))
    method = BoxPredictions(images, boxes, np.full(24, 0.5), labels)
    baseline = replace(method, boxes=np.where((images % 2 == 0)[:, None], boxes, boxes + 500))

    def difference(picks: np.ndarray) -> float:
        first, second = (average_precision(*resample(truth, each, picks)).ap for each in (baseline, method))
        return second - first

    interval = image_bootstrap(picked_delta(difference), 24, replicates=120)
    assert verdict(interval) == "helps"
    assert 0 < interval.low < interval.estimate < interval.high <= 100


def test_images_that_cannot_be_resampled_are_refused() -> None:
    baseline, method = random_counts(0, (3,))
    with pytest.raises(GramLoopError, match="one shape"):
        miou_delta(baseline, method[:2])
    with pytest.raises(GramLoopError, match="too large"):
        miou_delta(baseline, np.full_like(method, 2**52))
    with pytest.raises(GramLoopError, match="one number per image"):
        mean_delta(np.zeros(3), np.zeros(4))
    with pytest.raises(GramLoopError, match="image 1 has no finite difference"):
        mean_delta(np.zeros(3), np.array([0, np.nan, 0]))
    with pytest.raises(GramLoopError, match="at least 2, not 1"):
        image_bootstrap(miou_delta(baseline[:1], method[:1]), 1)
    nothing_in_one = np.stack([np.zeros_like(baseline[0]), baseline[0]])
    with pytest.raises(GramLoopError, match="too few images"):
        image_bootstrap(miou_delta(nothing_in_one, nothing_in_one), 2, replicates=50)
