"""Mitigations outside the model: filters on its image, and one prediction from several views of the image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import CalibrationNeed, Mitigation, Stats, ViewFunction, number, setting
from gramloop.mitigations.filters import blurred, denoised, levelled, median, non_local_means, sharpened
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.base import AnyTask, get_task
from gramloop.tasks.images import RGB, resize
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import AnyPredictor, name_of, predict_each

USUAL_NOISE = 10.96  # grey levels; above street photographs, and replaced by calibration statistics


class PixelMitigation(Mitigation):
    """Turns an image into an image; it works with every predictor and executes no block.

    function: of `gramloop.mitigations.filters`.
    """

    stage = "pixels"
    function: ClassVar[staticmethod[[RGB, Any], RGB]]

    def argument(self, stats: Stats) -> Any:
        """What the function takes after the pixels."""
        return self.learnt(stats) if self.learns else next(iter(vars(self).values()))

    def filtered(self, pixels: RGB, stats: Stats) -> RGB:
        return type(self).function(pixels, self.argument(stats))


@dataclass(frozen=True)
class Median(PixelMitigation):
    """The median of a square around each pixel, channel by channel; a side of 1 changes nothing."""

    side: int = setting(1, 7, 3)

    name = "median"
    function = staticmethod(median)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.side not in (1, 3, 5, 7):
            raise GramLoopError(f"median takes a side of 1, 3, 5 or 7 pixels, not {self.side:g}")
        object.__setattr__(self, "side", int(self.side))


@dataclass(frozen=True)
class Gaussian(PixelMitigation):
    """A Gaussian blur; a standard deviation of 0 pixels changes nothing."""

    sigma: float = setting(0, 20, 1.0)

    name = "gaussian"
    function = staticmethod(blurred)


@dataclass(frozen=True)
class Nlm(PixelMitigation):
    """Non-local means: pixels are averaged with those in similar surroundings; a strength of 0 changes nothing."""

    strength: float = setting(0, 255, 10.0)

    name = "nlm"
    function = staticmethod(non_local_means)


@dataclass(frozen=True)
class Denoise(PixelMitigation):
    """A median against impulse noise, non-local means against other noise, both above a noise level only.

    level: the threshold in grey levels; None for that of the calibration images, or of street photographs.
    """

    level: float | None = setting(0, 255, None)

    name = "denoise"
    function = staticmethod(denoised)

    def calibration(self, predictor: AnyPredictor) -> CalibrationNeed:
        return "optional" if self.level is None else ""

    def argument(self, stats: Stats) -> float:
        usual = USUAL_NOISE if stats is None or stats.noise is None else stats.noise
        return usual if self.level is None else self.level


@dataclass(frozen=True)
class Levels(PixelMitigation):
    """Stretches contrast around each channel's mean and shifts brightness, all channels alike."""

    name = "levels"
    learns = "pixels"
    function = staticmethod(levelled)


@dataclass(frozen=True)
class Sharpen(PixelMitigation):
    """Adds detail to images that are less sharp than in-distribution ones."""

    name = "sharpen"
    learns = "pixels"
    function = staticmethod(sharpened)


class OutputMitigation(Mitigation):
    """Makes one prediction of several."""

    stage = "outputs"

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        if predictor.task in ("panoptic", "instance") and (len(self.scales) > 1 or self.name == "pair"):
            raise GramLoopError(
                f"{self.text} merges several predictions, which is not possible with {predictor.task} masks"
            )


@dataclass(frozen=True)
class Flip(OutputMitigation):
    """The image and its mirror image, merged."""

    name = "flip"

    @property
    def scales(self) -> tuple[float, ...]:
        return (1.0, 1.0)

    def merged(
        self, view: ViewFunction, task: AnyTask, images: Sequence[RGB], scale: float
    ) -> list[list[Prediction]]:
        width = images[0].shape[1]
        mirrored = view([np.ascontiguousarray(pixels[:, ::-1]) for pixels in images], scale)
        back = [[task.flip(each, width) for each in versions] for versions in mirrored]
        return _merged([view(images, scale), back], task)


@dataclass(frozen=True)
class Scales(OutputMitigation):
    """The image in several sizes, merged."""

    factors: tuple[float, ...]

    name = "scales"

    usage = "the sizes, such as scales:0.75,1,1.25"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        if not arguments:
            raise GramLoopError(f"scales takes {cls.usage}")
        return cls(tuple(number("each of scales", part, 0.1, 10) for part in arguments.split(",")))

    @property
    def arguments(self) -> str:
        return ",".join(f"{factor:g}" for factor in self.factors)

    @property
    def scales(self) -> tuple[float, ...]:
        return self.factors

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        super().check(predictor, stack, stats)
        for factor in self.factors:
            if factor != 1 and has_size(predictor) and scaled(predictor, factor) is predictor:
                raise GramLoopError(
                    f"{self.text} changes nothing: {factor:g} times the input size of this model is the same after "
                    "rounding to whole patches"
                )

    def merged(
        self, view: ViewFunction, task: AnyTask, images: Sequence[RGB], scale: float
    ) -> list[list[Prediction]]:
        return _merged([view(images, scale * factor) for factor in self.factors], task)


@dataclass(frozen=True)
class Resize(Scales):
    """The image in one other size."""

    name = "resize"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        return cls((number("resize", arguments, 0.1, 10),))


@dataclass(frozen=True)
class PairMean(OutputMitigation):
    """The baseline and the replayed prediction, merged; the replay's own baseline pass gives both."""

    name = "pair"

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        super().check(predictor, stack, stats)
        if not any(each.stage == "backbone" for each in stack):
            raise GramLoopError(
                "pair averages the baseline and the replayed prediction, so it needs a replay, such as gramloop+pair"
            )

    def merged(
        self, view: ViewFunction, task: AnyTask, images: Sequence[RGB], scale: float
    ) -> list[list[Prediction]]:
        found = view(images, scale)
        return [[replace(task.merge(versions), blocks=versions[-1].blocks)] for versions in found]


def _merged(views: Sequence[list[list[Prediction]]], task: AnyTask) -> list[list[Prediction]]:
    """One version of several views, image by image."""
    if len(views) == 1:
        return views[0]
    return [[task.merge(each) for each in zip(*image, strict=True)] for image in zip(*views, strict=True)]


def predict_scaled(
    predictor: AnyPredictor,
    images: Sequence[RGB],
    scale: float,
    replay: ReplayConfig | None = None,
    paired: bool = False,
    trace: bool | None = None,
) -> list[list[Prediction]]:
    """Predict images of one size at another scale: in an input of that size if it can be set, else resized before.

    Returns:
        For each image the baseline version, if paired, and the last one, in the size of the image.
    """
    changed, resized = scaled(predictor, scale), images
    height, width = images[0].shape[:2]
    if scale != 1 and not has_size(predictor):
        size = max(2, round(height * scale)), max(2, round(width * scale))
        resized = [resize(pixels, size) for pixels in images]
    try:
        found = predict_each(changed, resized, replay, paired, trace)
    except GramLoopError:
        raise
    except (RuntimeError, ValueError) as error:
        if scale == 1:
            raise
        raise GramLoopError(
            f"{name_of(predictor)} fails at {scale:g} times its usual input size: {error}"
        ) from error
    before = (resized[0].shape[0], resized[0].shape[1])
    if before == (height, width):
        return found
    task = get_task(predictor.task)
    return [[task.rescale(each, before, (height, width)) for each in versions] for versions in found]


def scaled(predictor: AnyPredictor, factor: float) -> AnyPredictor:
    """The predictor with an input ``factor`` times as large; itself if the size of its input cannot be set."""
    found: AnyPredictor = predictor.scaled(factor) if factor != 1 and has_size(predictor) else predictor  # type: ignore[attr-defined]
    return found


def has_size(predictor: AnyPredictor) -> bool:
    """Whether the size of a predictor's input can be set; otherwise images are resized before it sees them."""
    return bool(getattr(predictor, "has_size", False))
