import numpy as np
import pytest

from gramloop.shifts import weather
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.seeds import generator


@pytest.mark.parametrize("size", [32, 256])
@pytest.mark.parametrize("decay", [1.4, 2])
def test_plasma_fills_zero_to_one_and_wraps(size, decay):
    heights = weather.plasma(size, decay, np.random.default_rng(1))
    assert (heights.shape, heights.min(), heights.max()) == ((size, size), 0, 1)
    inner = np.abs(np.diff(heights, axis=0)).mean()
    assert np.abs(heights[0] - heights[-1]).mean() < 3 * inner


def test_slower_decay_makes_rougher_fog():
    rough, smooth = (weather.plasma(256, decay, np.random.default_rng(2)) for decay in (1.4, 2))
    assert np.abs(np.diff(rough, axis=1)).mean() > 2 * np.abs(np.diff(smooth, axis=1)).mean()


def test_fog_never_exceeds_the_brightest_value(photo):
    image = photo(0, 80, 100) // 2
    for severity in range(1, 6):
        assert corrupt(image, "fog", severity, generator("t", "fog", severity, 0)).max() <= image.max()


def test_snow_only_brightens(photo):
    image = photo(0, 80, 100)
    for severity in range(1, 6):
        snowy = corrupt(image, "snow", severity, generator("t", "snow", severity, 0))
        assert np.all(snowy.astype(int) >= image.astype(int) - 1)  # fractions are cut off


def test_snow_is_symmetric_under_half_a_turn():
    image = np.full((90, 120, 3), 60, np.uint8)
    snowy = corrupt(image, "snow", 3, generator("t", "snow", 3, 0))
    assert np.array_equal(snowy, snowy[::-1, ::-1])


def test_water_brightens_and_mud_is_brown(photo):
    image = np.full((200, 200, 3), 120, np.uint8)
    water = corrupt(image, "spatter", 2, generator("t", "spatter", 2, 0)).astype(int)
    assert np.all(water >= 120)
    assert (water > 125).any()
    mud = corrupt(image, "spatter", 5, generator("t", "spatter", 5, 0)).astype(int)
    covered = mud[..., 0] < 70
    assert 0.005 < covered.mean() < 0.5
    assert np.all(mud[covered][:, 0] > mud[covered][:, 2])


@pytest.mark.parametrize("name", ["snow", "frost", "fog", "spatter"])
def test_grey_weather_is_near_the_luminance_of_coloured_weather(name):
    """The same draws on the same grey picture, once in one channel and once in three."""
    grey = np.full((100, 120), 90, np.uint8)
    one = corrupt(grey, name, 5, generator("t", name, 5, 0)).astype(float)
    three = corrupt(np.dstack([grey] * 3), name, 5, generator("t", name, 5, 0)).astype(float)
    assert np.abs(one - three @ [0.2989, 0.5870, 0.1140]).max() <= 3
