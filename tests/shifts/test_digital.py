import colorsys

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.shifts import appearance

byte = st.integers(0, 255)


def one_pixel(shift, colour, *setting):
    return shift(np.full((32, 32, 3), colour, np.uint8), *setting)[0, 0].astype(int)


@given(byte, byte, byte, st.sampled_from([0.1, 0.2, 0.3, 0.4, 0.5, 0.9]))
def test_brightness_raises_the_value_of_hsv(r, g, b, amount):
    hue, saturation, value = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
    expected = 255 * np.array(colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1)))
    assert np.all(np.abs(one_pixel(appearance.brightness, (r, g, b), amount) - np.floor(expected)) <= 1)


@given(byte, byte, byte, st.sampled_from([(0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)]))
def test_saturate_scales_the_saturation_of_hsv(r, g, b, setting):
    hue, saturation, value = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
    expected = 255 * np.array(colorsys.hsv_to_rgb(hue, min(saturation * setting[0] + setting[1], 1), value))
    assert np.all(np.abs(one_pixel(appearance.saturate, (r, g, b), *setting) - np.floor(expected)) <= 1)


def test_a_grey_image_has_no_saturation_to_change(photo):
    grey = photo(0, 64, 64)[..., 0]
    assert np.array_equal(appearance.saturate(grey, 20, 0.2), grey)


@pytest.mark.parametrize("grey", [False, True])
def test_contrast_keeps_the_mean_and_shrinks_the_rest(grey, photo):
    image = photo(1, 90, 110)[..., 0] if grey else photo(1, 90, 110)
    flat = appearance.contrast(image, 0.2)
    axes = (0, 1)
    assert flat.mean(axis=axes) == pytest.approx(image.mean(axis=axes) - 0.5, abs=0.5)
    assert flat.std(axis=axes) == pytest.approx(0.2 * image.std(axis=axes), rel=0.05)


def test_pixelated_boxes_are_the_means_of_their_pixels(photo):
    image = photo(0, 64, 96)
    boxes = image.reshape(16, 4, 24, 4, 3).mean(axis=(1, 3))
    small = appearance.pixelate(image, 0.25)
    assert np.array_equal(small, np.repeat(np.repeat(small[::4, ::4], 4, axis=0), 4, axis=1))
    assert np.abs(small[::4, ::4] - boxes).max() <= 1  # Pillow rounds after each direction


def test_jpeg_equals_another_decoder(photo):
    """OpenCV reads the same file; libjpeg versions may differ in the last step of the inverse transform."""
    import io

    import PIL.Image

    image = photo(0, 64, 96)
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, "JPEG", quality=10)
    other = cv2.imdecode(np.frombuffer(file.getvalue(), np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    ours = appearance.jpeg_compression(image, 10).astype(int)
    assert (np.abs(ours - other) <= 2).mean() > 0.99


def test_a_rubber_sheet_moves_pixels_by_a_smooth_field():
    """An image of its own coordinates shows the field: as large as computed from the noise, and smooth."""
    height, width = 200, 240
    ramp = np.tile((np.arange(width) % 256).astype(np.uint8), (height, 1))
    moved = appearance.elastic_transform(ramp, 30, np.random.default_rng(0)).astype(float)
    field = (moved - ramp)[12:-12, 12:-12]
    # White noise of uniform height h under a Gaussian of sigmas (a, b) has variance h²/3 / (4 pi a b).
    expected = 30 * np.sqrt((0.005 * height) ** 2 / 3 / (4 * np.pi * 0.01 * height * 0.01 * width))
    assert field.std() == pytest.approx(expected, rel=0.1)
    assert np.abs(np.diff(field, axis=0)).mean() < 0.8 * expected


def test_pillow_contrast_and_darkness_on_a_known_image():
    image = np.array([[100, 200]], np.uint8).repeat(32, 0).repeat(16, 1)
    assert np.unique(appearance.more_contrast(image, 1.4)).tolist() == [80, 220]  # about the mean 150
    assert np.unique(appearance.darkness(image, 0.5)).tolist() == [50, 100]
