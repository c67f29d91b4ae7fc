"""Mitigations on pixels: filters, and corrections of images that lie outside the in-distribution range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import pi, sqrt
from typing import TYPE_CHECKING, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, number

if TYPE_CHECKING:
    from gramloop.mitigations.calibration import CalibrationStats
    from gramloop.tasks.images import RGB
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

USUAL_NOISE = 10.96  # grey levels; above street photographs, and replaced by calibration statistics
IMPULSE_RATIO = 0.35  # median over mean of what a median filter removes; 0.85 for Gaussian noise
NLM_STRENGTH = 0.8  # of non-local means in `denoise`, per unit of the noise level
MAX_GAIN = 20.0  # of contrast; fainter images hold little but rounding
MAX_SHARPENING, SHARPENING_RADIUS = 1.5, 1.5  # share of the detail added, and the deviation that defines it
OUTLIERS = 0.01  # share of in-distribution images outside the range, at either end
_IMMERKAER = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=np.float32)
_CONTRAST_SIDE, _CONTRAST_WINDOW = 64, 4.0  # pixels: short side, and standard deviation of the windows
_ROUNDING = 1e-3  # grey levels of contrast that a flat image may have


class PixelMitigation(Mitigation):
    """Turns an image into an image; it works with every predictor and executes no block."""

    stage = "pixels"


@dataclass(frozen=True)
class Median(PixelMitigation):
    """The median of a square around each pixel, channel by channel; a side of 1 changes nothing."""

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
        """The side, if not 3."""
        return "" if self.side == 3 else str(self.side)

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The filtered image."""
        return median(pixels, self.side)


@dataclass(frozen=True)
class Gaussian(PixelMitigation):
    """A Gaussian blur; a standard deviation of 0 pixels changes nothing."""

    sigma: float = 1.0

    name = "gaussian"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``gaussian`` or ``gaussian:0.7``."""
        return cls(number("gaussian", arguments or "1", 0, 20))

    @property
    def arguments(self) -> str:
        """The standard deviation, if not 1."""
        return "" if self.sigma == 1 else f"{self.sigma:g}"

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The blurred image."""
        if self.sigma == 0:
            return pixels
        blurred: RGB = cv2.GaussianBlur(pixels, (0, 0), self.sigma, borderType=cv2.BORDER_REFLECT_101)
        return blurred


@dataclass(frozen=True)
class Nlm(PixelMitigation):
    """Non-local means: pixels are averaged with those in similar surroundings; a strength of 0 changes nothing."""

    strength: float = 10.0

    name = "nlm"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``nlm`` or ``nlm:6``."""
        return cls(number("nlm", arguments or "10", 0, 255))

    @property
    def arguments(self) -> str:
        """The strength, if not 10."""
        return "" if self.strength == 10 else f"{self.strength:g}"

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The filtered image."""
        return non_local_means(pixels, self.strength)


@dataclass(frozen=True)
class Denoise(PixelMitigation):
    """A median against impulse noise, non-local means against other noise, both above a noise level only.

    level: the threshold in grey levels; None for that of the calibration images, or of street photographs.
    """

    level: float | None = None

    name = "denoise"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``denoise`` or ``denoise:8``."""
        return cls(number("denoise", arguments, 0, 255) if arguments else None)

    @property
    def arguments(self) -> str:
        """The level, if given."""
        return "" if self.level is None else f"{self.level:g}"

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The filtered image; the same array below the threshold."""
        threshold = self.level
        if threshold is None:
            threshold = USUAL_NOISE if stats is None or stats.noise is None else stats.noise
        level = noise_level(pixels)
        if level <= threshold:
            return pixels
        return median(pixels) if is_impulse_noise(pixels) else non_local_means(pixels, NLM_STRENGTH * level)


class CalibratedPixels(PixelMitigation):
    """Acts on images whose appearance lies outside the in-distribution range, more the farther they lie."""

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], stats: CalibrationStats | None
    ) -> None:
        """It needs the appearance of in-distribution images."""
        self.usual(stats)

    def usual(self, stats: CalibrationStats | None) -> Mapping[str, float]:
        """The range of each number of `appearance` over in-distribution images."""
        if stats is None or not stats.pixels:
            raise GramLoopError(
                f"{self.name} needs the appearance of in-distribution images; calibrate on a few dozen of them "
                "(gramloop calibrate) and give the statistics"
            )
        return stats.pixels


@dataclass(frozen=True)
class Levels(CalibratedPixels):
    """Stretches contrast around each channel's mean and shifts brightness, all channels alike."""

    name = "levels"

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The corrected image; the same array within the in-distribution range."""
        usual, now = self.usual(stats), appearance(pixels)
        gain = correction(now["contrast"], usual["contrast.low"], usual["contrast.usual"])
        bright = now["brightness"]
        shift = min(max(bright, usual["brightness.low"]), usual["brightness.high"]) - bright
        if gain == 1 and shift == 0:
            return pixels
        means = pixels.mean(axis=(0, 1), dtype=np.float64).astype(np.float32)
        moved = (pixels - means) * np.float32(min(gain, MAX_GAIN)) + (means + np.float32(shift))
        whole: RGB = moved.round().clip(0, 255).astype(np.uint8)
        return whole


@dataclass(frozen=True)
class Sharpen(CalibratedPixels):
    """Adds detail to images that are less sharp than in-distribution ones."""

    name = "sharpen"

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The sharpened image; the same array where it is sharp enough."""
        usual, now = self.usual(stats), appearance(pixels)
        gain = correction(now["sharpness"], usual["sharpness.low"], usual["sharpness.usual"])
        if gain == 1:
            return pixels
        share, smooth = min(gain - 1, MAX_SHARPENING), cv2.GaussianBlur(pixels, (0, 0), SHARPENING_RADIUS)
        sharper: RGB = cv2.addWeighted(pixels, 1 + share, smooth, -share, 0)
        return sharper


def correction(value: float, low: float, usual: float) -> float:
    """The factor for a value below ``low``: it grows with the square of low / value, at most up to ``usual``.

    There is no jump at the edge of the range, and a value far outside becomes the usual one.
    """
    if value >= low or value <= 0:
        return 1.0
    return max(1.0, min(usual / value, (low / value) ** 2))


def median(pixels: RGB, side: int = 3) -> RGB:
    """The median of ``side`` x ``side`` pixels around each, channel by channel."""
    if side == 1:
        return pixels
    filtered: RGB = cv2.medianBlur(np.ascontiguousarray(pixels), side)
    return filtered


def non_local_means(pixels: RGB, strength: float) -> RGB:
    """OpenCV's, squares of 7 pixels compared among 21 x 21; the strength is on the scale of pixels."""
    if strength == 0:
        return pixels
    bgr = np.ascontiguousarray(pixels[:, :, ::-1])  # it works in Lab, which depends on the order of channels
    filtered = cv2.fastNlMeansDenoisingColored(bgr, None, strength, strength, 7, 21)
    return np.ascontiguousarray(filtered[:, :, ::-1])


def noise_level(pixels: RGB) -> float:
    """Immerkær's estimate (1996) of the noise's standard deviation in grey levels; edges hardly enter it."""
    if min(pixels.shape[:2]) < 3:
        return 0.0
    response = cv2.filter2D(_grey(pixels), cv2.CV_32F, _IMMERKAER)[1:-1, 1:-1]
    return float(np.abs(response).mean(dtype=np.float64) * sqrt(pi / 2) / 6)


def is_impulse_noise(pixels: RGB) -> bool:
    """Whether a median filter changes few pixels by much: the median change is far below the mean change."""
    removed = cv2.absdiff(np.ascontiguousarray(pixels), median(pixels))
    return bool(np.median(removed) < IMPULSE_RATIO * removed.mean(dtype=np.float64))


def appearance(pixels: RGB) -> dict[str, float]:
    """Brightness, contrast, and sharpness: the mean response to a Laplacian of the smoothed image over contrast."""
    shades = contrast(pixels)
    smooth = cv2.GaussianBlur(_grey(pixels), (0, 0), 1.0)
    edges = np.abs(cv2.Laplacian(smooth, cv2.CV_32F)).mean(dtype=np.float64)
    return {
        "brightness": brightness(pixels),
        "contrast": shades,
        "sharpness": float(edges) / shades if shades else 0.0,
    }


def brightness(pixels: RGB) -> float:
    """The mean grey level, 0 to 255."""
    return float(_grey(pixels).mean(dtype=np.float64))


def contrast(pixels: RGB) -> float:
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


def _grey(pixels: RGB) -> NDArray[np.float32]:
    grey: NDArray[np.float32] = cv2.cvtColor(np.ascontiguousarray(pixels), cv2.COLOR_RGB2GRAY).astype(
        np.float32
    )
    return grey
