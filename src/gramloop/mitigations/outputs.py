"""Mitigations on outputs: one prediction from several views of an image, mirrored, in other sizes, or of a pair."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, View, number
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.tasks.base import get_task
from gramloop.tasks.depth_estimator import DepthConfig, DepthEstimator
from gramloop.tasks.detect import DenseDetector, DetectConfig
from gramloop.tasks.images import RGB, resize
from gramloop.tasks.module_predictor import ModulePredictor
from gramloop.tasks.padded import PaddedConfig
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor
from gramloop.tasks.segment import SegmentConfig

Config = SegmentConfig | DetectConfig | DepthConfig | PaddedConfig


class OutputMitigation(Mitigation):
    """Makes one prediction of several."""

    stage = "outputs"

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], stats: CalibrationStats | None
    ) -> None:
        """Refuse predictions that cannot be merged."""
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
        """Two forward passes."""
        return (1.0, 1.0)

    def around(self, view: View, predictor: Predictor[Prediction]) -> View:
        """Predict the image and its mirror image."""
        task = get_task(predictor.task)

        def both(pixels: RGB, scale: float) -> list[Prediction]:
            mirrored = view(np.ascontiguousarray(pixels[:, ::-1]), scale)
            back = [task.flip(each, pixels.shape[1]) for each in mirrored]
            return [task.merge(pair) for pair in zip(view(pixels, scale), back, strict=True)]

        return both


@dataclass(frozen=True)
class Scales(OutputMitigation):
    """The image in several sizes, merged."""

    factors: tuple[float, ...]

    name = "scales"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``scales:0.75,1,1.25``, relative to the usual input size."""
        if not arguments:
            raise GramLoopError("scales takes the sizes, such as scales:0.75,1,1.25")
        return cls(tuple(number("each of scales", part, 0.1, 10) for part in arguments.split(",")))

    @property
    def arguments(self) -> str:
        """The sizes."""
        return ",".join(f"{factor:g}" for factor in self.factors)

    @property
    def scales(self) -> tuple[float, ...]:
        """One forward pass per size."""
        return self.factors

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], stats: CalibrationStats | None
    ) -> None:
        """Refuse a size that rounding turns into the usual one."""
        super().check(predictor, stack, stats)
        for factor in self.factors:
            if factor != 1 and scaled(predictor, factor) is predictor and not _takes_any_size(predictor):
                raise GramLoopError(
                    f"{self.text} changes nothing: {factor:g} times the input size of this model is the same after "
                    "rounding to whole patches"
                )

    def around(self, view: View, predictor: Predictor[Prediction]) -> View:
        """Predict the image in every size."""
        task = get_task(predictor.task)

        def each_size(pixels: RGB, scale: float) -> list[Prediction]:
            views = [view(pixels, scale * factor) for factor in self.factors]
            return [
                task.merge(versions) if len(views) > 1 else versions[0]
                for versions in zip(*views, strict=True)
            ]

        return each_size


@dataclass(frozen=True)
class Resize(Scales):
    """The image in one other size."""

    name = "resize"

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``resize:1.1``."""
        return cls((number("resize", arguments, 0.1, 10),))


@dataclass(frozen=True)
class PairMean(OutputMitigation):
    """The baseline and the replayed prediction, merged; the replay's own baseline pass gives both."""

    name = "pair"

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], stats: CalibrationStats | None
    ) -> None:
        """It needs a replay in the same stack."""
        super().check(predictor, stack, stats)
        if not any(each.stage == "backbone" for each in stack):
            raise GramLoopError(
                "pair averages the baseline and the replayed prediction, so it needs a replay, such as gramloop+pair"
            )

    def around(self, view: View, predictor: Predictor[Prediction]) -> View:
        """Merge both versions, for the blocks of the replay."""
        task = get_task(predictor.task)

        def mean(pixels: RGB, scale: float) -> list[Prediction]:
            versions = view(pixels, scale)
            return [replace(task.merge(versions), blocks=versions[-1].blocks)]

        return mean


def predict_scaled(
    predictor: Predictor[Prediction], pixels: RGB, scale: float, *args: object, **options: object
) -> list[Prediction]:
    """Predict an image at another scale: in an input of that size if it can be set, else resized before.

    Returns:
        The baseline prediction, if paired, and the last one, both in the size of ``pixels``.
    """
    changed, shown = scaled(predictor, scale), pixels
    if scale != 1 and _takes_any_size(predictor):
        height, width = (max(2, round(side * scale)) for side in pixels.shape[:2])
        shown = resize(pixels, (height, width))
    try:
        found = changed.predict(shown, *args, **options)  # type: ignore[call-overload]
    except GramLoopError:
        raise
    except (RuntimeError, ValueError) as error:
        if scale == 1:
            raise
        name = getattr(predictor, "name", type(predictor).__name__)
        raise GramLoopError(f"{name} fails at {scale:g} times its usual input size: {error}") from error
    versions = [found.ordinary, found.replayed] if options.get("paired") else [found]
    sizes = (shown.shape[0], shown.shape[1]), (pixels.shape[0], pixels.shape[1])
    return [get_task(predictor.task).rescale(each, *sizes) for each in versions]


def scaled(predictor: Predictor[Prediction], factor: float) -> Predictor[Prediction]:
    """The predictor with an input ``factor`` times as large, rounded to whole patches; itself if that is not set."""
    if factor == 1:
        return predictor
    if isinstance(predictor, ModulePredictor):
        return predictor.scaled(factor)
    config = getattr(predictor, "config", None)
    if not isinstance(config, Config) or not isinstance(predictor, ViTPredictor):
        return predictor
    multiple = _multiple(predictor)
    usual = config.side if isinstance(config, PaddedConfig) else config.short_side
    side = max(1, int(usual * factor / multiple + 0.5)) * multiple
    if side == usual:
        return predictor
    if isinstance(config, PaddedConfig):
        return _with_config(predictor, replace(config, side=side))
    if not isinstance(config, SegmentConfig):
        return _with_config(predictor, replace(config, short_side=side))
    crop = min(config.crop, side)
    return _with_config(
        predictor, replace(config, short_side=side, crop=crop, stride=min(config.stride, crop))
    )


def with_scores(predictor: Predictor[Prediction]) -> Predictor[Prediction]:
    """The predictor that returns scores along with labels, if it can be asked to."""
    if isinstance(predictor, ModulePredictor):
        return predictor.with_scores()
    config = getattr(predictor, "config", None)
    if not isinstance(config, SegmentConfig) or not isinstance(predictor, ViTPredictor):
        return predictor
    return _with_config(predictor, replace(config, scores=True))


def _takes_any_size(predictor: Predictor[Prediction]) -> bool:
    """Whether images are resized before the predictor sees them, since it has no input size to set."""
    if isinstance(predictor, ModulePredictor):
        return not predictor.has_size
    return isinstance(predictor, DenseDetector) or not isinstance(predictor, ViTPredictor)


def _with_config(predictor: ViTPredictor[Prediction], config: Config) -> ViTPredictor[Prediction]:
    """A copy with other settings; the model is shared."""
    changed = copy.copy(predictor)
    vars(changed)["config"] = config
    return changed


def _multiple(predictor: ViTPredictor[Prediction]) -> int:
    if isinstance(predictor, DepthEstimator):
        return predictor.multiple
    return int(getattr(getattr(predictor, "model", None), "granularity", predictor.backbone.shape.patch))
