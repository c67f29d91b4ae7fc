"""Filters on pixels, and the estimate that says whether to filter."""

import numpy as np
import pytest

from gramloop.mitigations.pixels import (
    USUAL_NOISE,
    Denoise,
    Gaussian,
    Median,
    Nlm,
    is_impulse_noise,
    noise_level,
)
from gramloop.shifts import corrupt


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
