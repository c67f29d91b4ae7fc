import numpy as np
import pytest
from scipy import stats

from gramloop.shifts.appearance import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from gramloop.shifts.common import generator

COUNT = 400_000


def flat(level: int) -> np.ndarray:
    return np.full((COUNT // 500, 500), level, np.uint8)


@pytest.mark.parametrize("rate", [60, 12, 3, 250, 1.8])
@pytest.mark.parametrize("level", [1, 40, 128, 255])
def test_shot_noise_is_poisson(rate, level):
    """A chi-square test of the counts against scipy's distribution; counts of `rate` and more are all white."""
    noisy = shot_noise(flat(level), rate, generator("t", "shot", int(rate), level))
    white = int(np.ceil(rate))
    levels = (np.minimum(np.arange(white + 1) / rate, 1) * 255).astype(np.uint8)
    observed = np.bincount(noisy.reshape(-1), minlength=256)
    assert set(np.flatnonzero(observed)) <= set(levels.tolist())
    expected = stats.poisson.pmf(np.arange(white + 1), level * rate / 255) * COUNT
    expected[-1] += COUNT - expected.sum()
    by_level = np.zeros(256)
    np.add.at(by_level, levels, expected)
    common = by_level >= 5  # below that the test does not hold; the rest is one class
    seen = np.append(observed[common], observed[~common].sum())
    due = np.append(by_level[common], max(by_level[~common].sum(), 1e-9))
    keep = due >= 5
    assert seen[~keep].sum() <= 30
    seen, due = seen[keep], due[keep]
    assert stats.chisquare(seen, due * seen.sum() / due.sum()).pvalue > 1e-4


def test_shot_noise_leaves_black_black():
    assert not shot_noise(flat(0), 5, generator("t", "shot", 1, 0)).any()


def test_neighbouring_values_of_shot_noise_are_independent():
    noisy = shot_noise(flat(128), 12, generator("t", "shot", 1, 1)).astype(float)
    for one, other in ((noisy[:, 1:], noisy[:, :-1]), (noisy[1:], noisy[:-1])):
        assert abs(np.corrcoef(one.reshape(-1), other.reshape(-1))[0, 1]) < 5 / np.sqrt(COUNT)


def test_gaussian_noise_has_its_deviation():
    values = gaussian_noise(flat(128), 0.08, generator("t", "gaussian", 1, 0)).astype(float) - 128
    # Cutting off the fraction lowers the mean by half a level and adds the variance of a uniform one.
    assert values.mean() == pytest.approx(-0.5, abs=5 * 20.4 / np.sqrt(COUNT))
    assert values.std() == pytest.approx(np.sqrt(20.4**2 + 1 / 12), rel=5 / np.sqrt(2 * COUNT))
    assert (
        stats.kstest((values.reshape(-1) + 0.5) / 20.4, "norm").statistic < 0.02
    )  # steps of one level in 20.4


def test_speckle_noise_grows_with_the_value():
    deviations = [speckle_noise(flat(v), 0.15, generator("t", "speckle", 1, v)).std() for v in (40, 120)]
    assert deviations == pytest.approx([6, 18], rel=0.01)


def test_impulse_noise_replaces_by_black_and_white_alike():
    noisy = impulse_noise(flat(100), 0.27, generator("t", "impulse", 5, 0))
    black, white, kept = ((noisy == v).mean() for v in (0, 255, 100))
    error = 5 * np.sqrt(0.135 * 0.865 / COUNT)
    assert (black, white) == (pytest.approx(0.135, abs=error), pytest.approx(0.135, abs=error))
    assert black + white + kept == pytest.approx(1, abs=1e-12)
