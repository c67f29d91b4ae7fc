"""Filtering only where the pixels say noise: a median for impulse noise, non-local means for any other.

The level is Immerkær's estimate (1996): the mean of |image * [[1, -2, 1], [-2, 4, -2], [1, -2, 1]]| in units of
Gaussian noise's standard deviation; edges and flat areas hardly enter it. Whether it is impulse noise is seen in
what a 3 x 3 median removes: if most pixels are hardly touched and few by much, half of the removals are far below
their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi, sqrt
from typing import Self

import cv2
import numpy as np

from gramloop.mitigations.filters import PixelMitigation, median, non_local_means
from gramloop.mitigations.mitigation import number
from gramloop.mitigations.source import Source
from gramloop.tasks.images import RGB

ORDINARY_LEVEL = (
    10.96  # above ordinary street photographs; a calibrated source puts its own images' level here
)
IMPULSE_RATIO = 0.35  # median removal over mean removal, which is 0.85 for Gaussian noise
STRENGTH = 0.8  # of non-local means, per unit of the noise's level

_KERNEL = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=np.float32)


def noise_level(pixels: RGB) -> float:
    """Immerkær's estimate of the noise's standard deviation, in grey levels of 0 to 255."""
    if min(pixels.shape[:2]) < 3:
        return 0.0
    grey = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY).astype(np.float32)
    response = cv2.filter2D(grey, cv2.CV_32F, _KERNEL)[1:-1, 1:-1]
    return float(np.abs(response).mean(dtype=np.float64) * sqrt(pi / 2) / 6)


def is_impulse_noise(pixels: RGB) -> bool:
    """Whether what a median removes is concentrated in few pixels."""
    removed = cv2.absdiff(np.ascontiguousarray(pixels), median(pixels))
    return bool(np.median(removed) < IMPULSE_RATIO * removed.mean(dtype=np.float64))


@dataclass(frozen=True)
class Denoise(PixelMitigation):
    """A filter by the kind of noise, where its level is above that of ordinary images."""

    level: float | None = None  # None: that of the calibrated images, or of ordinary street frames

    name = "denoise"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``denoise``, or ``denoise:8`` with the level above which an image is filtered."""
        return cls(number("denoise", arguments, 0, 255) if arguments else None)

    @property
    def arguments(self) -> str:
        """The level, where it was given."""
        return "" if self.level is None else f"{self.level:g}"

    def filtered(self, pixels: RGB, source: Source | None) -> RGB:
        """The filtered image; the same one where there is no more noise than usual."""
        threshold = self.level
        if threshold is None:
            threshold = ORDINARY_LEVEL if source is None or source.noise is None else source.noise
        found = noise_level(pixels)
        if found <= threshold:
            return pixels
        return median(pixels) if is_impulse_noise(pixels) else non_local_means(pixels, STRENGTH * found)
