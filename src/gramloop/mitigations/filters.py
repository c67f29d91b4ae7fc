"""Filters on pixels, as functions of numpy and OpenCV alone: `gramloop.export` writes this file next to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi, sqrt

import cv2
import numpy as np
from numpy.typing import NDArray

_RGB = NDArray[np.uint8]  # (H, W, 3)
IMPULSE_RATIO = 0.35  # median over mean of what a median filter removes; 0.85 for Gaussian noise
NLM_STRENGTH = 0.8  # of non-local means in `denoised`, per unit of the noise level
MAX_GAIN = 20.0  # of contrast; fainter images hold little but rounding
MAX_SHARPENING, SHARPENING_RADIUS = 1.5, 1.5  # share of the detail added, and the deviation that defines it
OUTLIERS = 0.01  # share of in-distribution images outside the range, at either end
_IMMERKAER = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=np.float32)
_CONTRAST_SIDE, _CONTRAST_WINDOW = 64, 4.0  # pixels: short side, and standard deviation of the windows
_ROUNDING = 1e-3  # grey levels of contrast that a flat image may have


def blurred(pixels: _RGB, sigma: float) -> _RGB:
    """A Gaussian blur; a standard deviation of 0 pixels changes nothing."""
    if sigma == 0:
        return pixels
    found: _RGB = cv2.GaussianBlur(pixels, (0, 0), sigma, borderType=cv2.BORDER_REFLECT_101)
    return found


def denoised(pixels: _RGB, threshold: float) -> _RGB:
    """A median against impulse noise, non-local means against other noise; the same array up to the threshold."""
    level = noise_level(pixels)
    if level <= threshold:
        return pixels
    return median(pixels) if is_impulse_noise(pixels) else non_local_means(pixels, NLM_STRENGTH * level)


def levelled(pixels: _RGB, usual: Mapping[str, float]) -> _RGB:
    """Contrast and brightness brought towards their usual range; the same array within it."""
    now = appearance(pixels)
    gain = correction(now["contrast"], usual["contrast.low"], usual["contrast.usual"])
    bright = now["brightness"]
    shift = min(max(bright, usual["brightness.low"]), usual["brightness.high"]) - bright
    if gain == 1 and shift == 0:
        return pixels
    means = pixels.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
    moved = (pixels - means) * np.float32(min(gain, MAX_GAIN)) + (means + np.float32(shift))
    whole: _RGB = moved.round().clip(0, 255).astype(np.uint8)
    return whole


def sharpened(pixels: _RGB, usual: Mapping[str, float]) -> _RGB:
    """Detail added to an image that is less sharp than usual; the same array where it is sharp enough."""
    now = appearance(pixels)
    gain = correction(now["sharpness"], usual["sharpness.low"], usual["sharpness.usual"])
    if gain == 1:
        return pixels
    share, smooth = min(gain - 1, MAX_SHARPENING), cv2.GaussianBlur(pixels, (0, 0), SHARPENING_RADIUS)
    sharper: _RGB = cv2.addWeighted(pixels, 1 + share, smooth, -share, 0)
    return sharper


def correction(value: float, low: float, usual: float) -> float:
    """The factor for a value below ``low``: it grows with the square of low / value, at most up to ``usual``.

    There is no jump at the edge of the range, and a value far outside becomes the usual one.
    """
    if value >= low or value <= 0:
        return 1.0
    return max(1.0, min(usual / value, (low / value) ** 2))


def median(pixels: _RGB, side: int = 3) -> _RGB:
    """The median of ``side`` x ``side`` pixels around each, channel by channel."""
    if side == 1:
        return pixels
    filtered: _RGB = cv2.medianBlur(np.ascontiguousarray(pixels), side)
    return filtered


def non_local_means(pixels: _RGB, strength: float) -> _RGB:
    """OpenCV's, squares of 7 pixels compared among 21 x 21; the strength is on the scale of pixels."""
    if strength == 0:
        return pixels
    bgr = np.ascontiguousarray(pixels[:, :, ::-1])  # it works in Lab, which depends on the order of channels
    filtered = cv2.fastNlMeansDenoisingColored(bgr, None, strength, strength, 7, 21)
    return np.ascontiguousarray(filtered[:, :, ::-1])


def noise_level(pixels: _RGB) -> float:
    """Immerkær's estimate (1996) of the noise's standard deviation in grey levels; edges hardly enter it."""
    if min(pixels.shape[:2]) < 3:
        return 0.0
    response = cv2.filter2D(_grey(pixels), cv2.CV_32F, _IMMERKAER)[1:-1, 1:-1]
    return float(np.abs(response).mean(dtype=np.float64) * sqrt(pi / 2) / 6)


def is_impulse_noise(pixels: _RGB) -> bool:
    """Whether a median filter changes few pixels by much: the median change is far below the mean change."""
    removed = cv2.absdiff(np.ascontiguousarray(pixels), median(pixels))
    return bool(np.median(removed) < IMPULSE_RATIO * removed.mean(dtype=np.float64))


def appearance(pixels: _RGB) -> dict[str, float]:
    """Brightness, contrast, and sharpness: the mean response to a Laplacian of the smoothed image over contrast."""
    shades = local_contrast(pixels)
    smooth = cv2.GaussianBlur(_grey(pixels), (0, 0), 1.0)
    edges = np.abs(cv2.Laplacian(smooth, cv2.CV_32F)).mean(dtype=np.float64)
    return {
        "brightness": mean_brightness(pixels),
        "contrast": shades,
        "sharpness": float(edges) / shades if shades else 0.0,
    }


def mean_brightness(pixels: _RGB) -> float:
    """The mean grey level, 0 to 255."""
    return float(_grey(pixels).mean(dtype=np.float64))


def local_contrast(pixels: _RGB) -> float:
    """The standard deviation of grey levels within soft windows, mean over the image shrunk to a short side of 64.

    So neither the image's size nor noise matters much, nor a veil that changes slowly.
    """
    grey = _grey(pixels)
    scale = min(1.0, _CONTRAST_SIDE / min(grey.shape))
    size = [max(1, round(side * scale)) for side in reversed(grey.shape)]
    small = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
    small -= np.float32(small.mean(dtype=np.float64))  # squares of small numbers lose less to rounding
    mean, square = (cv2.GaussianBlur(each, (0, 0), _CONTRAST_WINDOW) for each in (small, small * small))
    value = float(np.sqrt(np.clip(square - mean * mean, 0, None)).mean(dtype=np.float64))
    return value if value > _ROUNDING else 0.0


def appearance_range(images: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The range of each number of `appearance` over images, as ``brightness.low``, ``.usual`` and ``.high``."""
    ends = {"low": OUTLIERS, "usual": 0.5, "high": 1 - OUTLIERS}
    return {
        f"{name}.{end}": float(np.quantile([each[name] for each in images], share))
        for name in (images[0] if images else ())
        for end, share in ends.items()
    }


def _grey(pixels: _RGB) -> NDArray[np.float32]:
    grey: NDArray[np.float32] = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY).astype(
        np.float32
    )
    return grey
