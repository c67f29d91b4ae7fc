"""Our corruptions beside the published package: the same pixels, or the same statistics where draws differ."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gramloop.shifts.common import zoom_grid
from gramloop.shifts.recipes import corrupt

SHAPES = ((120, 160), (97, 131))
SNOW_ZOOM = (3, 2, 4, 4.5, 2.5)


class Twin:
    """numpy.random as the package uses it, on a generator that is the twin of the one ours is given."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, size, loc=0.0, scale=1.0):
        return loc + scale * self.rng.standard_normal(size, dtype=np.float32)

    def uniform(self, low, high, size=None):
        if size is None:
            return self.rng.uniform(low, high)
        return low + (high - low) * self.rng.random(size, dtype=np.float32)

    def randint(self, low, high=None):
        return int(self.rng.integers(low) if high is None else self.rng.integers(low, high))

    def patch(self, monkeypatch) -> None:
        for name in ("normal", "uniform", "randint"):
            monkeypatch.setattr(np.random, name, getattr(self, name))


class SnowTwin(Twin):
    """The package draws a full layer and uses its middle; ours draws the middle alone."""

    def __init__(self, seed: int, zoom: float) -> None:
        super().__init__(seed)
        self.zoom = zoom

    def normal(self, size, loc=0.0, scale=1.0):
        (top, rows, _), (left, columns, _) = (zoom_grid(side, self.zoom) for side in size)
        layer = np.zeros(size)
        layer[top : top + rows, left : left + columns] = super().normal((rows, columns), loc, scale)
        return layer


@pytest.fixture
def five_textures(published, tmp_path) -> Path:
    """The five of its six textures that the package uses."""
    textures = sorted((Path(published.__file__).parent / "frost").iterdir())[:5]
    for file in textures:
        shutil.copy(file, tmp_path)
    return tmp_path


def within_one_level(ours, theirs) -> float:
    return float((np.abs(ours.astype(int) - theirs) <= 1).mean())


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize(
    "name",
    [
        "defocus_blur",
        "zoom_blur",
        "brightness",
        "contrast",
        "pixelate",
        "jpeg_compression",
        "gaussian_blur",
        "saturate",
    ],
)
def test_without_randomness_the_pixels_are_the_published_ones(name, severity, published, photo):
    for index, shape in enumerate(SHAPES):
        image = photo(index, *shape)
        ours = corrupt(image, name, severity, np.random.default_rng(0))
        theirs = published.corrupt(image, severity, name)
        assert within_one_level(ours, theirs) >= 0.99
        if name in ("pixelate", "jpeg_compression"):
            assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise",
        "speckle_noise",
        "motion_blur",
        "snow",
        "frost",
        "fog",
        "elastic_transform",
        "spatter",
    ],
)
def test_the_same_draws_give_the_published_pixels(
    name, severity, published, photo, monkeypatch, five_textures
):
    for index, shape in enumerate(SHAPES):
        image = photo(index, *shape)
        ours = corrupt(image, name, severity, np.random.default_rng(index), frost_textures=five_textures)
        twin = SnowTwin(index, SNOW_ZOOM[severity - 1]) if name == "snow" else Twin(index)
        with monkeypatch.context() as patched:
            twin.patch(patched)
            theirs = published.corrupt(image, severity, name)
        # Thresholds turn the last bit of a float into whole flakes and drops, hence not all values.
        assert within_one_level(ours, theirs) >= 0.99


def statistics(image: np.ndarray) -> np.ndarray:
    """Mean, variance, and the logarithm of the power in six rings of the spectrum."""
    values = image.astype(float)
    power = np.abs(np.fft.fft2(values.mean(axis=2))) ** 2
    frequency = np.hypot(*np.meshgrid(*(np.fft.fftfreq(side) for side in image.shape[:2]), indexing="ij"))
    rings = np.digitize(frequency, (0.02, 0.05, 0.1, 0.2, 0.35))
    rings[0, 0] = 6  # the mean, which is counted already
    return np.array([values.mean(), values.var(), *(np.log(power[rings == r].mean()) for r in range(6))])


SEEDS = 48


@pytest.mark.parametrize("severity", [1, 5])
@pytest.mark.parametrize(
    "name",
    [
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        pytest.param("glass_blur", marks=pytest.mark.slow),  # the package walks over the pixels
        "motion_blur",
        "snow",
        "frost",
        "fog",
        "elastic_transform",
        "speckle_noise",
        "spatter",
    ],
)
def test_statistics_lie_within_the_spread_over_seeds(
    name, severity, published, photo, monkeypatch, five_textures
):
    """Means over 48 seeds differ by less than one standard deviation of a single seed, five standard errors."""
    import skimage

    image = photo(2, 64, 80)
    ours, theirs = [], []
    random_noise = skimage.util.random_noise
    for seed in range(SEEDS):
        rng = np.random.default_rng([severity, seed])
        ours.append(statistics(corrupt(image, name, severity, rng, frost_textures=five_textures)))
        np.random.seed(seed)  # noqa: NPY002
        # Left alone, the package's impulse noise would ignore that seed.
        monkeypatch.setattr(
            skimage.util, "random_noise", lambda *a, seed=seed, **k: random_noise(*a, rng=seed, **k)
        )
        theirs.append(statistics(published.corrupt(image, severity, name)))
    spread = np.sqrt((np.var(ours, axis=0) + np.var(theirs, axis=0)) / 2)
    difference = np.abs(np.mean(ours, axis=0) - np.mean(theirs, axis=0))
    assert np.all(difference < spread), np.round(difference / spread, 2)
