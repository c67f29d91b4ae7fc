import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.shifts import appearance


def walked(height, width, reach, offsets):
    """Glass blur's copying as it is published: pixel after pixel, from the last to the first."""
    places = np.arange(height * width).reshape(height, width)
    for dy, dx in offsets:
        for h in range(height - reach, reach, -1):
            for w in range(width - reach, reach, -1):
                row, column = h - reach - 1, w - reach - 1
                places[h, w] = places[h + dy[row, column], w + dx[row, column]]
    return places.reshape(-1)


@settings(max_examples=60, deadline=None)
@given(st.integers(10, 24), st.integers(10, 24), st.integers(1, 4), st.integers(1, 3), st.integers(0, 10**6))
def test_chains_of_copies_end_where_walking_ends(height, width, reach, rounds, seed):
    shape = (rounds, 2, height - 2 * reach, width - 2 * reach)
    offsets = np.random.default_rng(seed).integers(-reach, reach, shape, dtype=np.int8)
    assert np.array_equal(
        appearance.scatter(height, width, reach, offsets), walked(height, width, reach, offsets)
    )


def test_the_longest_chain_is_followed():
    """Every pixel copies its right neighbour, so a row takes the colour of its end."""
    offsets = np.zeros((1, 2, 36, 96), np.int8)
    offsets[:, 1] = 1
    came_from = appearance.scatter(40, 100, 2, offsets).reshape(40, 100)
    assert np.array_equal(came_from[3:39, 3:99], np.tile(np.arange(3, 39)[:, None] * 100 + 99, 96))


def test_sources_stay_within_reach_of_one_round():
    height, width, reach = 50, 70, 3
    offsets = np.random.default_rng(0).integers(-reach, reach, (1, 2, 44, 64), dtype=np.int8)
    source = appearance.scatter(height, width, reach, offsets)
    assert source.min() >= 0
    assert source.max() < height * width


BLURS = {
    "gaussian": lambda image: appearance.gaussian_blur(image, 3),
    "defocus": lambda image: appearance.defocus_blur(image, 6),
    "glass": lambda image: appearance.glass_blur(image, 1.5, 4, 2, np.random.default_rng(0)),
    "motion": lambda image: appearance.motion_blur(image, 15, 8, np.random.default_rng(0)),
    "line": lambda image: appearance.line_blur(image, 25, 77, 0.3),
    "zoom": lambda image: appearance.zoom_blur(image, 1, 1.31, 0.03),
}


@pytest.mark.parametrize("name", BLURS)
@pytest.mark.parametrize("level", [0, 1, 77, 200, 255])
def test_a_blur_leaves_a_flat_image_as_it_is(name, level):
    """To the level: fractions are cut off, so a sum of weights a hair below one would show."""
    image = np.full((64, 90, 3), level, np.uint8)
    assert np.array_equal(BLURS[name](image), image)


@pytest.mark.parametrize("name", BLURS)
def test_a_blur_lowers_the_differences_between_neighbours(name, photo):
    image = photo(0, 120, 160).astype(float)
    blurred = BLURS[name](image.astype(np.uint8)).astype(float)
    assert np.abs(np.diff(blurred, axis=1)).mean() < 0.9 * np.abs(np.diff(image, axis=1)).mean()


def test_a_defocused_point_is_a_disc():
    image = np.zeros((65, 65), np.uint8)
    image[32, 32] = 255
    spread = appearance.defocus_blur(image, 3).astype(float)
    y, x = np.mgrid[-32:33, -32:33]
    disc = x * x + y * y <= 9
    assert np.all(spread[disc] == 255 // disc.sum())
    assert not spread[x * x + y * y > 25].any()


@pytest.mark.parametrize(("radius", "gain"), [(8, 1.013), (10, 1.0108)])
def test_the_two_largest_discs_brighten_as_published(radius, gain):
    """Their softening is reflected at the border of a kernel that is just as large, which adds weight."""
    image = np.full((64, 64), 200, np.uint8)
    assert np.all(appearance.defocus_blur(image, radius) == int(200 * gain))


@pytest.mark.parametrize(("angle", "step"), [(0, (0, -1)), (90, (-1, 0)), (-90, (1, 0)), (180, (0, 1))])
def test_a_moving_point_leaves_a_fading_trail(angle, step):
    image = np.zeros((101, 101), np.float32)
    image[50, 50] = 1
    trail = appearance.trail(image, 10, 4, angle)
    weights = np.exp(-(np.arange(21) ** 2) / 32)
    along = [trail[50 + i * step[0], 50 + i * step[1]] for i in range(21)]
    assert along == pytest.approx(weights / weights.sum(), abs=1e-5)
    assert trail.sum() == pytest.approx(1, abs=1e-4)


def test_a_trail_longer_than_the_image_ends_at_its_border():
    bright = np.full((32, 32), 200, np.uint8)
    weights = np.exp(-(np.arange(41) ** 2) / (2 * 15**2))
    trail = appearance.trail(bright.astype(np.float32), 20, 15, 0)
    assert appearance.to_bytes(trail)[0, 0] == int(200 * weights[:32].sum() / weights.sum())


def test_a_line_blur_is_as_long_as_its_kernel():
    image = np.zeros((61, 61), np.uint8)
    image[30, 30] = 255
    upright = appearance.line_blur(image, 13, 0, 0)
    assert np.flatnonzero(upright.any(axis=0)).tolist() == [30]
    assert np.flatnonzero(upright.any(axis=1)).tolist() == list(range(24, 37))
    fading = appearance.line_blur(image, 13, 0, 1)[:, 30].astype(int)
    assert abs(int(fading[25]) - int(fading[35])) > 15


def test_a_zoom_keeps_the_middle_and_smears_the_border():
    y, x = np.mgrid[:129, :129]
    rings = (127 + 120 * np.sin(np.hypot(y - 64, x - 64))).astype(np.uint8)
    change = np.abs(appearance.zoom_blur(rings, 1, 1.11, 0.01).astype(int) - rings)
    assert change[60:69, 60:69].mean() < 0.5 * change[:, :20].mean()
