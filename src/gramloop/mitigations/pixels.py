"""Mitigations on pixels: filters, and corrections of images that lie outside the in-distribution range."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, NumberMitigation, Stats
from gramloop.mitigations.filters import blurred, denoised, levelled, median, non_local_means, sharpened

if TYPE_CHECKING:
    from gramloop.tasks.images import RGB
    from gramloop.tasks.predictor import AnyPredictor

    Filter = Callable[[RGB, Any], RGB]

USUAL_NOISE = 10.96  # grey levels; above street photographs, and replaced by calibration statistics


class PixelMitigation(Mitigation):
    """Turns an image into an image; it works with every predictor and executes no block."""

    stage = "pixels"

    def call(self, stats: Stats) -> tuple[Filter, Any]:
        """The function of `gramloop.mitigations.filters`, and its argument after the pixels."""
        raise NotImplementedError

    def filtered(self, pixels: RGB, stats: Stats) -> RGB:
        function, argument = self.call(stats)
        return function(pixels, argument)


@dataclass(frozen=True)
class Median(PixelMitigation, NumberMitigation):
    """The median of a square around each pixel, channel by channel; a side of 1 changes nothing."""

    side: int = 3

    name = "median"
    limits = (1, 7)

    def __post_init__(self) -> None:
        if self.side not in (1, 3, 5, 7):
            raise GramLoopError(f"median takes a side of 1, 3, 5 or 7 pixels, not {self.side:g}")

    def call(self, stats: Stats) -> tuple[Filter, Any]:
        return median, int(self.side)


@dataclass(frozen=True)
class Gaussian(PixelMitigation, NumberMitigation):
    """A Gaussian blur; a standard deviation of 0 pixels changes nothing."""

    sigma: float = 1.0

    name = "gaussian"
    limits = (0, 20)

    def call(self, stats: Stats) -> tuple[Filter, Any]:
        return blurred, self.sigma


@dataclass(frozen=True)
class Nlm(PixelMitigation, NumberMitigation):
    """Non-local means: pixels are averaged with those in similar surroundings; a strength of 0 changes nothing."""

    strength: float = 10.0

    name = "nlm"
    limits = (0, 255)

    def call(self, stats: Stats) -> tuple[Filter, Any]:
        return non_local_means, self.strength


@dataclass(frozen=True)
class Denoise(PixelMitigation, NumberMitigation):
    """A median against impulse noise, non-local means against other noise, both above a noise level only.

    level: the threshold in grey levels; None for that of the calibration images, or of street photographs.
    """

    level: float | None = None

    name = "denoise"
    limits = (0, 255)

    def call(self, stats: Stats) -> tuple[Filter, Any]:
        usual = USUAL_NOISE if stats is None or stats.noise is None else stats.noise
        return denoised, usual if self.level is None else self.level


@dataclass(frozen=True)
class Levels(PixelMitigation):
    """Stretches contrast around each channel's mean and shifts brightness, all channels alike."""

    name = "levels"
    function = staticmethod(levelled)

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        self.call(stats)

    def call(self, stats: Stats) -> tuple[Filter, Any]:
        if stats is None or not stats.pixels:
            raise GramLoopError(
                f"{self.name} needs the appearance of in-distribution images; calibrate on a few dozen of them "
                "(gramloop calibrate) and give the statistics"
            )
        return self.function, stats.pixels


@dataclass(frozen=True)
class Sharpen(Levels):
    """Adds detail to images that are less sharp than in-distribution ones."""

    name = "sharpen"
    function = staticmethod(sharpened)
