"""Filters on pixels before the model sees them: median, Gaussian, non-local means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import cv2
import numpy as np

from gramloop.errors import GramLoopError
from gramloop.mitigations.mitigation import Look, Mitigation, number
from gramloop.mitigations.source import Source
from gramloop.tasks.images import RGB


class PixelMitigation(Mitigation):
    """Anything that turns an image into an image; it works for every predictor and executes no block."""

    stage = "pixels"

    def filtered(self, pixels: RGB, source: Source | None) -> RGB:
        """The image after the filter."""
        raise NotImplementedError

    def around(self, look: Look, source: Source | None) -> Look:
        """Filter, then look."""
        return lambda pixels, size: look(self.filtered(pixels, source), size)


@dataclass(frozen=True)
class Median(PixelMitigation):
    """The median of a square around each pixel, channel by channel."""

    side: int = 3

    name = "median"

    def __post_init__(self) -> None:
        if self.side not in (1, 3, 5, 7):
            raise GramLoopError(f"median takes a side of 1, 3, 5 or 7 pixels, not {self.side}")

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``median`` or ``median:5``."""
        if arguments and not arguments.isdecimal():
            raise GramLoopError(f"median takes a side of 1, 3, 5 or 7 pixels, not {arguments!r}")
        return cls(int(arguments or 3))

    @property
    def arguments(self) -> str:
        """The side, where it is not 3."""
        return "" if self.side == 3 else str(self.side)

    def filtered(self, pixels: RGB, source: Source | None) -> RGB:
        """The image after the filter; a side of 1 leaves it as it is."""
        return median(pixels, self.side)


@dataclass(frozen=True)
class Gaussian(PixelMitigation):
    """A Gaussian blur, its standard deviation in pixels."""

    sigma: float = 1.0

    name = "gaussian"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``gaussian`` or ``gaussian:0.7``."""
        return cls(number("gaussian", arguments or "1", 0, 20))

    @property
    def arguments(self) -> str:
        """The standard deviation, where it is not 1."""
        return "" if self.sigma == 1 else f"{self.sigma:g}"

    def filtered(self, pixels: RGB, source: Source | None) -> RGB:
        """The image after the filter; 0 leaves it as it is."""
        if self.sigma == 0:
            return pixels
        blurred: RGB = cv2.GaussianBlur(pixels, (0, 0), self.sigma, borderType=cv2.BORDER_REFLECT_101)
        return blurred


@dataclass(frozen=True)
class Nlm(PixelMitigation):
    """Non-local means: pixels are averaged with those whose surroundings look alike."""

    strength: float = 10.0

    name = "nlm"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``nlm`` or ``nlm:6``."""
        return cls(number("nlm", arguments or "10", 0, 255))

    @property
    def arguments(self) -> str:
        """The strength, where it is not 10."""
        return "" if self.strength == 10 else f"{self.strength:g}"

    def filtered(self, pixels: RGB, source: Source | None) -> RGB:
        """The image after the filter; 0 leaves it as it is."""
        return non_local_means(pixels, self.strength)


def median(pixels: RGB, side: int = 3) -> RGB:
    """The median of ``side`` x ``side`` pixels around each, channel by channel."""
    if side == 1:
        return pixels
    found: RGB = cv2.medianBlur(np.ascontiguousarray(pixels), side)
    return found


def non_local_means(pixels: RGB, strength: float) -> RGB:
    """OpenCV's, squares of 7 pixels compared among 21 x 21; the strength is on the scale of pixels."""
    if strength == 0:
        return pixels
    blue_first = np.ascontiguousarray(
        pixels[:, :, ::-1]
    )  # OpenCV goes through Lab, which tells channels apart
    found = cv2.fastNlMeansDenoisingColored(blue_first, None, strength, strength, 7, 21)
    return np.ascontiguousarray(found[:, :, ::-1])
