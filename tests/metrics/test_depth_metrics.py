"""Depth metrics against a second implementation and closed forms, and what cannot be scored."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from gramloop.data.truth import DepthMap
from gramloop.errors import GramLoopError
from gramloop.metrics.scores import NoScoreError, aligned_depth, depth_scores

SIZE = (37, 53)


def _truth(seed: int, near: float = 0.5, far: float = 10.0) -> DepthMap:
    rng = np.random.default_rng(seed)
    metres = rng.uniform(0.3, 12, SIZE).astype(np.float32)
    metres[rng.random(SIZE) < 0.2] = 0
    metres[0, :3] = (np.nan, np.inf, -1)
    return DepthMap(metres, near, far)


@pytest.mark.parametrize("seed", range(5))
def test_every_number_is_that_of_a_second_implementation(seed: int) -> None:
    """Pixel by pixel with math and statistics of the standard library."""
    truth = _truth(seed)
    predicted = np.random.default_rng(100 + seed).uniform(0.5, 10, SIZE)
    pairs = [
        (float(p), float(t))
        for p, t in zip(predicted.ravel(), truth.metres.ravel(), strict=True)
        if 0.5 <= t <= 10
    ]
    ratios = [max(p / t, t / p) for p, t in pairs]
    wanted = [
        *(100 * sum(ratio < limit for ratio in ratios) / len(ratios) for limit in (1.25, 1.5625, 1.953125)),
        statistics.fmean(abs(p - t) / t for p, t in pairs),
        math.dist(*zip(*pairs, strict=True)) / math.sqrt(len(pairs)),
        statistics.fmean(abs(math.log10(p) - math.log10(t)) for p, t in pairs),
        100 * statistics.pstdev(math.log(p / t) for p, t in pairs),
    ]
    np.testing.assert_allclose(depth_scores(predicted, truth), wanted, rtol=1e-6)


@pytest.mark.parametrize("disparity", [False, True], ids=["depth", "disparity"])
def test_scale_and_shift_are_those_of_a_linear_regression(disparity: bool) -> None:

    from scipy.stats import linregress

    truth = _truth(7)
    predicted = np.random.default_rng(8).normal(3, 1, SIZE).astype(np.float32)
    mask = truth.known
    target = truth.metres[mask].astype(np.float64)
    line = linregress(predicted[mask].astype(np.float64), 1 / target if disparity else target)
    wanted = line.slope * predicted.astype(np.float64) + line.intercept
    wanted = np.clip(1 / np.clip(wanted, 0.1, 2) if disparity else wanted, 0.5, 10)
    found = aligned_depth(predicted, truth, "scale-shift", disparity=disparity)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


@pytest.mark.parametrize("disparity", [False, True], ids=["depth", "disparity"])
def test_a_line_through_the_truth_is_undone(disparity: bool) -> None:
    truth = _truth(1)
    own = np.where(truth.known, truth.metres, 1).astype(np.float64)
    own = 1 / own if disparity else own
    exact = depth_scores(aligned_depth(3 * own + 0.7, truth, "scale-shift", disparity=disparity), truth)
    np.testing.assert_allclose(exact, [100, 100, 100, 0, 0, 0, 0], atol=1e-6)
    scaled = depth_scores(aligned_depth(3 * own, truth, "median", disparity=disparity), truth)
    np.testing.assert_allclose(scaled, [100, 100, 100, 0, 0, 0, 0], atol=1e-6)


def test_auto_aligns_disparity_alone() -> None:
    truth = _truth(2)
    predicted = np.random.default_rng(3).uniform(0.6, 9, SIZE)
    assert (aligned_depth(predicted, truth) == aligned_depth(predicted, truth, "none")).all()
    fitted = aligned_depth(predicted, truth, "scale-shift", disparity=True)
    assert (aligned_depth(predicted, truth, disparity=True) == fitted).all()


def test_a_factor_everywhere_has_closed_forms() -> None:
    truth = DepthMap(np.full((4, 4), 2, np.float32))
    found = depth_scores(np.full((4, 4), 2.6), truth)
    np.testing.assert_allclose(found, [0, 100, 100, 0.3, 0.6, np.log10(1.3), 0], atol=1e-12)


def test_a_disparity_of_nothing_is_as_far_as_it_gets() -> None:
    truth = DepthMap(np.full((2, 2), 2, np.float32), 0.1, 80)
    np.testing.assert_allclose(
        aligned_depth(np.array([[0.0, -1], [0.5, 99]]), truth, "none", disparity=True), [[80, 80], [2, 0.1]]
    )


@pytest.mark.parametrize(
    ("predicted", "alignment", "words"),
    [
        (np.full(SIZE, 0.1), "scale-shift", r"is 0\.1 at every pixel of known depth"),
        (np.full(SIZE, 0.0), "median", "the median of the prediction is 0;"),
        (np.full(SIZE, np.nan), "none", "holds nan, which is no number"),
    ],
    ids=["constant", "median of nothing", "not a number"],
)
def test_what_cannot_be_compared_is_said(predicted: np.ndarray, alignment: str, words: str) -> None:
    with pytest.raises(NoScoreError, match=words):
        aligned_depth(predicted, _truth(1), alignment)  # type: ignore[arg-type]


def test_a_truth_without_a_known_pixel_is_said() -> None:
    empty = DepthMap(np.zeros(SIZE, np.float32), 0.001, 80)
    with pytest.raises(NoScoreError, match=r"no pixel between 0\.001 and 80 m"):
        aligned_depth(np.ones(SIZE), empty, "median")
    with pytest.raises(NoScoreError, match=r"no pixel between 0\.001 and 80 m"):
        depth_scores(np.ones(SIZE), empty)


def test_misuse_is_refused() -> None:
    with pytest.raises(GramLoopError, match=r"shape \(2, 2\), but that of its truth is \(37, 53\)"):
        depth_scores(np.ones((2, 2)), _truth(1))
    with pytest.raises(GramLoopError, match="not 'mean'"):
        aligned_depth(np.ones(SIZE), _truth(1), "mean")  # type: ignore[arg-type]
    with pytest.raises(GramLoopError, match="0 < near < far"):
        DepthMap(np.ones((1, 1), np.float32), 5, 2)
    with pytest.raises(GramLoopError, match="above 0 m, not -1"):
        depth_scores(np.full(SIZE, -1.0), _truth(1))
