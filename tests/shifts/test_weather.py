import cv2
import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.shifts import weather
from gramloop.shifts.common import generator
from gramloop.shifts.recipes import corrupt

TEXTURES = range(6)


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


@pytest.mark.parametrize("index", TEXTURES)
def test_a_texture_has_the_range_of_photographed_frost(index):
    """Photographs of frost in published use have means from 95 to 206 and fine structure of 10 to 29 levels."""
    grey = cv2.cvtColor(weather.frost_texture(index), cv2.COLOR_RGB2GRAY).astype(float)
    fine = (grey - cv2.GaussianBlur(grey, (0, 0), 8)).std()
    assert 95 < grey.mean() < 210
    assert 10 < fine < 30


@pytest.mark.parametrize("index", TEXTURES)
def test_ice_is_blue_rather_than_red(index):
    red, _, blue = weather.frost_texture(index).reshape(-1, 3).mean(axis=0)
    assert blue > red


def test_a_texture_is_painted_alike_again():
    assert np.array_equal(weather.frost_texture.__wrapped__(3), weather.frost_texture(3))


def test_a_piece_is_the_one_of_the_enlarged_whole(tmp_path, photo):
    texture = photo(0, 60, 90)
    cv2.imwrite(str(tmp_path / "ice.png"), texture[..., ::-1])
    piece = weather.frost_layer((130, 150), np.random.default_rng(5), tmp_path)
    rng = np.random.default_rng(5)
    rng.integers(1)
    rows, columns = int(np.ceil(60 * 130 / 60 * 1.1)), int(np.ceil(90 * 130 / 60 * 1.1))
    top, left = rng.integers(rows - 130), rng.integers(columns - 150)
    whole = cv2.resize(texture, (columns, rows), interpolation=cv2.INTER_CUBIC)
    difference = np.abs(piece.astype(int) - whole[top : top + 130, left : left + 150])
    assert (difference <= 2).mean() > 0.99  # OpenCV warps on a grid of 1/32 pixel


def test_the_users_textures_are_used_in_the_order_of_their_names(tmp_path):
    for name, level in (("b.png", 200), ("a.jpg", 100), ("c.PNG", 50)):
        cv2.imwrite(str(tmp_path / name), np.full((50, 50, 3), level, np.uint8))
    (tmp_path / "readme.txt").write_text("no texture")
    assert [file.name for file in weather.texture_files(tmp_path)] == ["a.jpg", "b.png", "c.PNG"]
    black = np.zeros((40, 40, 3), np.uint8)
    levels = {
        int(corrupt(black, "frost", 2, generator("t", "frost", 2, i), frost_textures=tmp_path)[0, 0, 0])
        for i in range(40)
    }
    assert levels == {60, 120, 30}


def test_a_folder_that_cannot_serve_is_named(tmp_path):
    image, rng = np.zeros((40, 40), np.uint8), np.random.default_rng(0)
    with pytest.raises(GramLoopError, match="nowhere: no such folder"):
        corrupt(image, "frost", 1, rng, frost_textures=tmp_path / "nowhere")
    with pytest.raises(GramLoopError, match="holds no frost texture"):
        corrupt(image, "frost", 1, rng, frost_textures=tmp_path)
    (tmp_path / "ice.png").write_bytes(b"not an image")
    with pytest.raises(GramLoopError, match=r"ice\.png: is no image"):
        corrupt(image, "frost", 1, rng, frost_textures=tmp_path)
