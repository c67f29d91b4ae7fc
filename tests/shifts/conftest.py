"""Images to shift, and the published package made to run and to draw from a generator of ours."""

import warnings
from types import ModuleType

import cv2
import numpy as np
import pytest

from reference_packages import import_reference


def make_photo(index: int, height: int, width: int) -> np.ndarray:
    """Coloured noise with the spectrum of photographs, hard-edged shapes on it, true black, white and grey."""
    rng = np.random.default_rng([7, index])
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = np.inf
    shared, own = rng.standard_normal((1, height, width)), rng.standard_normal((3, height, width))
    layers = np.fft.irfft2(np.fft.rfft2(shared + 0.5 * own) / frequency, s=(height, width))
    layers = layers / layers.std() * 45 + rng.uniform(80, 150)
    image = np.ascontiguousarray(np.clip(layers.transpose(1, 2, 0), 0, 255).astype(np.uint8))
    for _ in range(6):
        x, y = (int(v) for v in rng.integers(0, (width, height)))
        colour = [int(c) for c in rng.integers(0, 256, 3)]
        cv2.circle(image, (x, y), max(3, min(height, width) // 9), colour, -1, cv2.LINE_AA)
    image[: height // 8, : width // 8] = 0
    image[: height // 8, -width // 8 :] = 255
    image[-height // 8 :, : width // 8] = 128
    return image


@pytest.fixture(scope="session")
def photo():
    return make_photo


@pytest.fixture
def published(monkeypatch) -> ModuleType:
    """imagecorruptions, with what newer packages removed given back to it for the length of a test."""
    pytest.importorskip("skimage")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = import_reference("imagecorruptions")
    from skimage.filters import gaussian

    def with_channels(image, sigma=1, multichannel=False, **options):
        return gaussian(image, sigma=sigma, channel_axis=-1 if multichannel else None, **options)

    monkeypatch.setattr(np, "float_", np.float64, raising=False)
    monkeypatch.setattr(package.corruptions, "gaussian", with_channels)
    return package
