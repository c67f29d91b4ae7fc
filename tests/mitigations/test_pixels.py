"""Filters and corrections on pixels: what they change, and what they leave alone."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gramloop.errors import GramLoopError
from gramloop.mitigations import CalibrationStats
from gramloop.mitigations.filters import (
    appearance,
    appearance_range,
    correction,
    is_impulse_noise,
    local_contrast,
    mean_brightness,
    noise_level,
)
from gramloop.mitigations.views import USUAL_NOISE, Denoise, Gaussian, Levels, Median, Nlm, Sharpen
from gramloop.shifts import corrupt


@pytest.fixture(scope="module")
def stats(images):
    looks = appearance_range([appearance(image) for image in images])
    return CalibrationStats({0: torch.zeros(2)}, {0: torch.ones(2)}, 5.0, len(images), pixels=looks)


def test_numbers_of_images_that_can_be_reckoned():
    flat = np.full((90, 120, 3), 100, np.uint8)
    found = appearance(flat)
    assert found == {"brightness": 100.0, "contrast": 0.0, "sharpness": 0.0}
    columns = np.tile([60, 140], 32)  # as wide as what is measured on, half of either in every window
    board = np.broadcast_to(columns[None, :, None], (64, 64, 3)).astype(np.uint8)
    assert mean_brightness(board) == pytest.approx(100)
    assert local_contrast(board) == pytest.approx(40, rel=1e-3)


@pytest.mark.parametrize("mitigation", [Levels(), Sharpen()], ids=str)
def test_within_the_ordinary_an_image_is_the_same_object(mitigation, images, stats):
    low, high = ({**stats.pixels, f"{name}.{end}": value} for name, end, value in
                 (("brightness", "low", 0.0), ("brightness", "high", 255.0)))  # fmt: skip
    wide = {**low, **high, "contrast.low": 0.0, "sharpness.low": 0.0, "brightness.low": 0.0}
    for image in images:
        assert mitigation.filtered(image, replace(stats, pixels=wide)) is image


@pytest.mark.parametrize("mitigation", [Levels(), Sharpen()], ids=str)
def test_a_constant_image_stays_constant(mitigation, stats):
    flat = np.full((40, 60, 3), 128, np.uint8)
    assert np.ptp(mitigation.filtered(flat, stats), axis=(0, 1)).max() == 0


@pytest.mark.parametrize("severity", [2, 3, 4])
def test_contrast_lost_comes_back(images, stats, severity):
    for image in images[:3]:
        faint = corrupt(image, "contrast", severity, np.random.default_rng(0))
        restored = Levels().filtered(faint, stats)
        usual = stats.pixels["contrast.usual"]
        assert local_contrast(restored) == pytest.approx(
            usual, rel=0.05
        )  # far outside, so all the way; some pixels clip
        flat = [each.astype(float).ravel() for each in (image, restored)]
        assert (
            np.corrcoef(*flat)[0, 1] > 0.97
        )  # an affine change of each channel, but for rounding and clipping


def test_brightness_comes_back_to_the_edge_and_hues_stay(images, stats):
    image = (images[0].astype(float) * 0.2 + 200).round().astype(np.uint8)  # bright, and nothing clips
    wide = {**stats.pixels, "contrast.low": 0.0}
    moved = Levels().filtered(image, replace(stats, pixels=wide))
    assert mean_brightness(moved) == pytest.approx(wide["brightness.high"], abs=1)
    steps = moved.astype(int) - image
    assert np.ptp(steps) <= 1  # all channels and pixels alike, but for rounding


def test_a_blurred_image_becomes_sharper(images, stats):
    for image in images[:3]:
        blurred = cv2.GaussianBlur(image, (0, 0), 3.0)
        sharper = Sharpen().filtered(blurred, stats)
        found = [appearance(each)["sharpness"] for each in (blurred, sharper)]
        assert found[0] < found[1]


@given(low=st.floats(0.1, 50), above=st.floats(1, 5), found=st.floats(0.01, 100))
def test_the_way_back_begins_at_the_edge_and_ends_at_the_usual(low, above, found):
    usual = low * above
    gain = correction(found, low, usual)
    if found >= low:
        assert gain == 1
    else:
        assert 1 <= gain <= usual / found * (1 + 1e-9)
        assert correction(found * 0.9, low, usual) * 0.9 <= gain * 1.3  # no jump
    assert correction(low * (1 - 1e-6), low, usual) == pytest.approx(1, abs=1e-5)


def test_files_without_these_numbers_are_read_and_said_to_lack_them(tmp_path, stats):
    stats.save(tmp_path / "new.safetensors")
    assert CalibrationStats.read(tmp_path / "new.safetensors").pixels == stats.pixels
    replace(stats, pixels={}).save(tmp_path / "old.safetensors")
    old = CalibrationStats.read(tmp_path / "old.safetensors")
    assert old.pixels == {}
    for lacking in (old, None):
        with pytest.raises(
            GramLoopError, match="levels needs calibration statistics of in-distribution images, with pixels"
        ):
            Levels().filtered(np.zeros((40, 60, 3), np.uint8), lacking)


@pytest.mark.parametrize("mitigation", [Median(), Median(7), Gaussian(2.0), Nlm(), Denoise()], ids=str)
def test_a_constant_image_stays(mitigation):
    flat = np.full((40, 60, 3), (10, 200, 77), np.uint8)
    off = np.abs(mitigation.filtered(flat, None).astype(int) - flat).max()
    assert off <= (1 if isinstance(mitigation, Nlm) else 0)  # which goes through Lab and back, in bytes


@pytest.mark.parametrize("mitigation", [Median(1), Gaussian(0.0), Nlm(0.0), Denoise(255.0)], ids=str)
def test_at_nothing_the_image_is_the_same_object(mitigation, images):
    assert mitigation.filtered(images[0], None) is images[0]


@pytest.mark.parametrize("sigma", [10, 20, 40])
def test_the_level_is_the_standard_deviation_of_gaussian_noise(sigma):
    rng = np.random.default_rng(0)
    grey = np.full((200, 200, 1), 128) + rng.normal(0, sigma, (200, 200, 1))
    noisy = np.repeat(grey.clip(0, 255).round().astype(np.uint8), 3, axis=2)
    assert noise_level(noisy) == pytest.approx(sigma, rel=0.05)


def test_ordinary_images_lie_below_and_are_left_alone(images):
    for image in images:
        assert noise_level(image) < USUAL_NOISE
        assert Denoise().filtered(image, None) is image


@pytest.mark.parametrize("kind", ["gaussian_noise", "shot_noise", "impulse_noise"])
@pytest.mark.parametrize("severity", [2, 5])
def test_noise_is_seen_and_told_apart_and_falls(images, kind, severity):
    for image in images[:3]:
        noisy = corrupt(image, kind, severity, np.random.default_rng(1))
        assert noise_level(noisy) > USUAL_NOISE
        assert is_impulse_noise(noisy) == (kind == "impulse_noise")
        cleaned = Denoise().filtered(noisy, None)
        assert np.abs(cleaned.astype(int) - image).mean() < np.abs(noisy.astype(int) - image).mean()
