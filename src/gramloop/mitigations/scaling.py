"""Predictors that show images in another size than usual, and predictions brought back from it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.tasks.dense_detect import DenseDetector
from gramloop.tasks.images import RGB, resize
from gramloop.tasks.prediction import Detection, Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor


def check_scaling(predictor: Predictor[Prediction], wanting: str, factors: Sequence[float]) -> None:
    """Refuse a predictor whose size cannot be set, or is too coarse for a factor."""
    if all(factor == 1 for factor in factors) or isinstance(predictor, DenseDetector):
        return
    if not isinstance(predictor, ViTPredictor) or "short_side" not in _settings(predictor):
        raise GramLoopError(
            f"{wanting} shows images in other sizes, and {type(predictor).__name__} has no size to set"
        )
    for factor in factors:
        if factor != 1 and _short_side(predictor, factor) == predictor_config(predictor).short_side:
            raise GramLoopError(
                f"{wanting} changes nothing: {factor:g} times the short side of "
                f"{predictor_config(predictor).short_side} is the same after rounding to {_multiple(predictor)}"
            )


def scaled(predictor: Predictor[Prediction], factor: float) -> Predictor[Prediction]:
    """The predictor with its short side so many times as long, rounded to what its model can take."""
    if factor == 1 or not isinstance(predictor, ViTPredictor) or isinstance(predictor, DenseDetector):
        return predictor
    short = _short_side(predictor, factor)
    settings: dict[str, int] = {"short_side": short}
    if {"crop", "stride"} <= _settings(predictor):
        config = predictor_config(predictor)
        settings["crop"] = min(config.crop, short)
        settings["stride"] = min(config.stride, settings["crop"])
    return with_config(predictor, **settings)


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
    if not isinstance(predictor, ViTPredictor) or "scores" not in _settings(predictor):
        return predictor
    return with_config(predictor, scores=True)


def with_config(predictor: ViTPredictor[Prediction], **settings: int | bool) -> ViTPredictor[Prediction]:
    """A copy with other settings; the model is shared."""
    changed = copy.copy(predictor)
    vars(changed)["config"] = replace(predictor_config(predictor), **settings)
    return changed


def predictor_config(predictor: ViTPredictor[Prediction]) -> Any:
    """How a task shows images to its model: a dataclass of the task's own, or None."""
    return getattr(predictor, "config", None)


def _settings(predictor: ViTPredictor[Prediction]) -> set[str]:
    config = predictor_config(predictor)
    return {field.name for field in fields(config)} if is_dataclass(config) else set()


def _short_side(predictor: ViTPredictor[Prediction], factor: float) -> int:
    multiple = _multiple(predictor)
    return max(1, int(predictor_config(predictor).short_side * factor / multiple + 0.5)) * multiple


def _multiple(predictor: ViTPredictor[Prediction]) -> int:
    return int(getattr(getattr(predictor, "model", None), "granularity", predictor.backbone.shape.patch))
