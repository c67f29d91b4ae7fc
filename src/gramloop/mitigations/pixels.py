"""Mitigations on pixels: filters, and corrections of images that lie outside the in-distribution range."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, number
from gramloop.mitigations.filters import blurred, denoised, levelled, median, non_local_means, sharpened

if TYPE_CHECKING:
    from gramloop.mitigations.calibration import CalibrationStats
    from gramloop.tasks.images import RGB
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

    Filter = Callable[[RGB, Any], RGB]

USUAL_NOISE = 10.96  # grey levels; above street photographs, and replaced by calibration statistics


class PixelMitigation(Mitigation):
    """Turns an image into an image; it works with every predictor and executes no block."""

    stage = "pixels"

    def call(self, stats: CalibrationStats | None) -> tuple[Filter, Any]:
        """The function of `gramloop.mitigations.filters`, and its argument after the pixels."""
        raise NotImplementedError

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The filtered image; the same array where there is nothing to do."""
        function, argument = self.call(stats)
        return function(pixels, argument)


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

    def call(self, stats: CalibrationStats | None) -> tuple[Filter, Any]:
        """`median`."""
        return median, self.side


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

    def call(self, stats: CalibrationStats | None) -> tuple[Filter, Any]:
        """`blurred`."""
        return blurred, self.sigma


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

    def call(self, stats: CalibrationStats | None) -> tuple[Filter, Any]:
        """`non_local_means`."""
        return non_local_means, self.strength


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

    def call(self, stats: CalibrationStats | None) -> tuple[Filter, Any]:
        """`denoised`, with the threshold that is known."""
        usual = USUAL_NOISE if stats is None or stats.noise is None else stats.noise
        return denoised, usual if self.level is None else self.level


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

    def call(self, stats: CalibrationStats | None) -> tuple[Filter, Any]:
        """`levelled`."""
        return levelled, self.usual(stats)


@dataclass(frozen=True)
class Sharpen(CalibratedPixels):
    """Adds detail to images that are less sharp than in-distribution ones."""

    name = "sharpen"

    def call(self, stats: CalibrationStats | None) -> tuple[Filter, Any]:
        """`sharpened`."""
        return sharpened, self.usual(stats)
