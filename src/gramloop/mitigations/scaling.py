"""Predictors that show images in another size than usual, and predictions brought back from it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.tasks.dense_detect import DenseDetector
from gramloop.tasks.depth_estimator import DepthConfig, DepthEstimator
from gramloop.tasks.detect import DetectConfig
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import RGB, resize
from gramloop.tasks.padded import PaddedConfig
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor
from gramloop.tasks.segment import SegmentConfig

Config = SegmentConfig | DetectConfig | DepthConfig | PaddedConfig


def check_scaling(predictor: Predictor[Prediction], wanting: str, factors: Sequence[float]) -> None:
    """Refuse a predictor whose size cannot be set, or is too coarse for a factor."""
    if all(factor == 1 for factor in factors) or isinstance(predictor, DenseDetector):
        return
    config = _config(predictor)
    if config is None or not isinstance(predictor, ViTPredictor):
        raise GramLoopError(
            f"{wanting} shows images in other sizes, and {type(predictor).__name__} has no size to set"
        )
    multiple = _multiple(predictor)
    for factor in factors:
        if factor != 1 and _scaled_side(config, factor, multiple) == _side(config):
            raise GramLoopError(
                f"{wanting} changes nothing: {factor:g} times the side of {_side(config)} is the same "
                f"after rounding to a multiple of {multiple}"
            )


def scaled(predictor: Predictor[Prediction], factor: float) -> Predictor[Prediction]:
    """The predictor with its side so many times as long, rounded to what its model can take."""
    config = _config(predictor)
    if factor == 1 or config is None or not isinstance(predictor, ViTPredictor):
        return predictor
    short = _scaled_side(config, factor, _multiple(predictor))
    if isinstance(config, PaddedConfig):
        return _with_config(predictor, replace(config, side=short))
    if not isinstance(config, SegmentConfig):
        return _with_config(predictor, replace(config, short_side=short))
    crop = min(config.crop, short)
    return _with_config(
        predictor, replace(config, short_side=short, crop=crop, stride=min(config.stride, crop))
    )


def shown(predictor: Predictor[Prediction], pixels: RGB, factor: float) -> RGB:
    """The image that the predictor of `scaled` is to be given: one that sees images as they are needs it resized."""
    if factor == 1 or not isinstance(predictor, DenseDetector):
        return pixels
    height, width = (max(2, round(side * factor)) for side in pixels.shape[:2])
    return resize(pixels, (height, width))


def brought_back(found: Prediction, seen: RGB, pixels: RGB) -> Prediction:
    """Boxes in pixels of the image, from those in pixels of what was shown."""
    if seen.shape == pixels.shape or not isinstance(found, Detection):
        return found
    (height, width), (rows, columns) = pixels.shape[:2], seen.shape[:2]
    scale = np.array([width / columns, height / rows] * 2, dtype=np.float32)
    return replace(found, boxes=found.boxes * scale)


def with_scores(predictor: Predictor[Prediction]) -> Predictor[Prediction]:
    """The predictor that gives scores beside labels, where it can be asked to."""
    config = _config(predictor)
    if not isinstance(config, SegmentConfig) or not isinstance(predictor, ViTPredictor):
        return predictor
    return _with_config(predictor, replace(config, scores=True))


def _config(predictor: Predictor[Prediction]) -> Config | None:
    config = getattr(predictor, "config", None)
    return config if isinstance(config, Config) else None


def _with_config(predictor: ViTPredictor[Prediction], config: Config) -> ViTPredictor[Prediction]:
    """A copy with other settings; the model is shared."""
    changed = copy.copy(predictor)
    vars(changed)["config"] = config
    return changed


def _side(config: Config) -> int:
    """The side that says how large images are shown: of a square, or the short one."""
    return config.side if isinstance(config, PaddedConfig) else config.short_side


def _scaled_side(config: Config, factor: float, multiple: int) -> int:
    return max(1, int(_side(config) * factor / multiple + 0.5)) * multiple


def _multiple(predictor: ViTPredictor[Prediction]) -> int:
    if isinstance(predictor, DepthEstimator):
        return predictor.multiple
    return int(getattr(getattr(predictor, "model", None), "granularity", predictor.backbone.shape.patch))
