"""What one image needs on a device, for predictors of the released heads: their own code, run without values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from fake_forward import Needs, needs_of
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone
from gramloop.models.detector import WindowLayout, all_valid
from gramloop.models.plain_detr import best_detections
from gramloop.replay.attach import Loop, attached
from gramloop.tasks.depth import DepthEstimator
from gramloop.tasks.images import short_side_size
from gramloop.tasks.predictor import MaybeReplay, ViTPredictor, wants_trace
from gramloop.tasks.released import DenseDetector, Detector, QuerySegmenter, input_size
from gramloop.tasks.semantic import Segmenter

Size = tuple[int, int]  # height and width of an image


def footprint(
    predictor: object,
    size: Size,
    replay: MaybeReplay = None,
    paired: bool = False,
    *,
    trace: bool = False,
    autocast: bool = True,
    batch: int = 1,
) -> Needs:
    """What predicting an image of this size needs beside the weights; these may be on the meta device.

    Args:
        predictor: of a released head, or of the embedded model.
        size: height and width of the image.
        replay, paired: as `gramloop.tasks.Predictor.predict` takes them.
        trace: keep drift and gate.
        autocast: blocks in bfloat16, as on a GPU, unless the weights are that already.
        batch: images of this size that are shown at once.
    """
    if not isinstance(predictor, ViTPredictor):
        name = getattr(predictor, "name", type(predictor).__name__)
        raise GramLoopError(f"what {name} needs is known for released heads and the embedded model alone")
    modules = [value for value in vars(predictor).values() if isinstance(value, nn.Module)]

    def run() -> None:
        if replay is None:
            return _look(predictor, size, batch, None, paired)
        keep, wanted = predictor._kept(replay, paired), wants_trace(replay, trace)
        with attached(predictor.backbone.model, replay, keep=keep, trace=wanted) as loop:
            return _look(predictor, size, batch, loop, paired)

    with _autocast(predictor.backbone, autocast):
        return needs_of(modules, run, predictor.blocks)


def views_of(predictor: object, size: Size) -> int:
    """Into how many views an image of this size is cut, each of which passes all blocks."""
    if isinstance(predictor, Segmenter):
        config = predictor.config
        multiple = predictor.model.granularity if config.mode == "whole" else 1
        rounded = round if config.mode == "even" else None
        shown = short_side_size(*size, config.short_side, multiple=multiple, rounded=rounded)
        return len(predictor._crops(*shown))
    if isinstance(predictor, Detector):
        patch = predictor.backbone.shape.patch
        layout = WindowLayout.of(*input_size(*size, predictor.config, patch), patch)
        return 1 + len(layout.rows) * len(layout.columns)
    return 2 if isinstance(predictor, DepthEstimator) and predictor.config.flip else 1


def pixels_at_once(predictor: object, size: Size) -> int:
    """Of an image as it is shown, those that are on the device at once; which image needs most follows from it."""
    if isinstance(predictor, Detector):
        height, width = input_size(*size, predictor.config, predictor.backbone.shape.patch)
    elif isinstance(predictor, ViTPredictor):
        height, width = predictor._largest_view(*size)
    else:
        height, width = size
    return height * width


def _look(predictor: Any, size: Size, batch: int, loop: Loop | None, paired: bool) -> None:
    """What a predictor does on its device, from the pixels that arrive there to what leaves it."""
    if isinstance(predictor, Segmenter):
        _segment(predictor, size, batch, loop, paired)
    elif isinstance(predictor, Detector):
        _detect(predictor, size, batch, loop, paired)
    elif isinstance(predictor, DepthEstimator | QuerySegmenter | DenseDetector):
        _look_once(predictor, size, batch, loop, paired)
    else:
        raise GramLoopError(f"what a {type(predictor).__name__} needs is not known")


def _segment(predictor: Segmenter, size: Size, batch: int, loop: Loop | None, paired: bool) -> None:
    """One batch of crops, which is the most that there is at a time."""
    crops = torch.empty(batch, 3, *predictor._largest_view(*size))
    for _scores in predictor._scores(crops, loop, paired):
        pass  # it leaves for the CPU while the next is made


def _detect(predictor: Detector, size: Size, batch: int, loop: Loop | None, paired: bool) -> None:
    shown = input_size(*size, predictor.config, predictor.backbone.shape.patch)
    images = torch.empty(batch, 3, *shown)
    valid = all_valid(images, predictor.backbone.shape.patch)
    see, model = partial(predictor._see, loop, paired, []), predictor.model
    for logits, boxes in model.detect_each(model.features(images, valid, see), valid):
        best_detections(logits[0], boxes[0], shown, size, predictor.config.keep)


def _look_once(
    predictor: DepthEstimator | QuerySegmenter | DenseDetector,
    size: Size,
    batch: int,
    loop: Loop | None,
    paired: bool,
) -> None:
    """One view and the head's own output; what is made of that on the way to the CPU is small beside them."""
    images = torch.empty(batch * views_of(predictor, size), 3, *predictor._largest_view(*size))
    taps = predictor.backbone(images, predictor.taps)
    versions = [taps] if not paired or loop is None else [taps, predictor._baseline(loop, taps)]
    for version in versions:
        if isinstance(predictor, DepthEstimator):
            predictor.head.depth([tap.map for tap in version], size)
        elif isinstance(predictor, QuerySegmenter):
            predictor.model.predict(version)
        else:
            predictor.head(version[-1].map)


@contextmanager
def _autocast(backbone: nn.Module, wanted: bool) -> Iterator[None]:
    """The fake tensors say that they are on the CPU, where a backbone would compute in float32."""
    if not isinstance(backbone, Backbone):
        yield
        return
    before, backbone.autocast_on = backbone.autocast_on, ("cpu",) if wanted else ()
    try:
        yield
    finally:
        backbone.autocast_on = before
