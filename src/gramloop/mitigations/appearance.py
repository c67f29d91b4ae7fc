"""How an image looks in three numbers, and between which of them ordinary images lie.

Brightness is the mean grey level. Contrast is the mean standard deviation of grey levels within soft windows of a
sixteenth of the short side, on an image shrunk to 64 pixels, so that neither its size nor noise matters much, nor a
veil that changes slowly. Sharpness is the mean response to a Laplacian of the lightly smoothed image, relative to
the contrast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from gramloop.tasks.images import RGB

Look = Mapping[str, float]  # "brightness", "contrast" and "sharpness" of one image
OUTER = 0.01  # of ordinary images may lie outside, at either end
_SHRUNK, _WINDOW = 64, 4.0  # pixels of the short side, and of the windows' standard deviation
_ROUNDING = 1e-3  # grey levels, which a flat image may show


def appearance(pixels: RGB) -> dict[str, float]:
    """Brightness, contrast and sharpness."""
    grey = _grey(pixels)
    shades = contrast(pixels)
    edges = np.abs(cv2.Laplacian(cv2.GaussianBlur(grey, (0, 0), 1.0), cv2.CV_32F)).mean(dtype=np.float64)
    return {
        "brightness": brightness(pixels),
        "contrast": shades,
        "sharpness": float(edges) / shades if shades else 0.0,
    }


def brightness(pixels: RGB) -> float:
    """The mean grey level, 0 to 255."""
    return float(_grey(pixels).mean(dtype=np.float64))


def contrast(pixels: RGB) -> float:
    """The standard deviation of grey levels nearby, mean over the image."""
    grey = _grey(pixels)
    scale = min(1.0, _SHRUNK / min(grey.shape))
    size = [max(1, round(side * scale)) for side in reversed(grey.shape)]
    small = cv2.resize(grey, size, interpolation=cv2.INTER_AREA)
    small -= np.float32(small.mean(dtype=np.float64))  # squares of small numbers lose less to rounding
    mean, square = (cv2.GaussianBlur(each, (0, 0), _WINDOW) for each in (small, small * small))
    found = float(np.sqrt(np.clip(square - mean * mean, 0, None)).mean(dtype=np.float64))
    return found if found > _ROUNDING else 0.0


def ordinary(looks: Sequence[Look]) -> dict[str, float]:
    """The ends of each number over ordinary images, as ``brightness.low``, ``.usual`` and ``.high``."""
    ends = {"low": OUTER, "usual": 0.5, "high": 1 - OUTER}
    return {
        f"{name}.{end}": float(np.quantile([look[name] for look in looks], share))
        for name in (looks[0] if looks else ())
        for end, share in ends.items()
    }


def _grey(pixels: RGB) -> NDArray[np.float32]:
    grey: NDArray[np.float32] = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY).astype(
        np.float32
    )
    return grey
