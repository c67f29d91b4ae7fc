"""From what a user has, a predictor or a module, to what can be exported: a program, its input and its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.export.programs import (
    DenseDetectProgram,
    DepthProgram,
    FeatureProgram,
    ModuleProgram,
    Program,
    QueryProgram,
    SegmentProgram,
    WindowedDetectProgram,
    tensors_in,
)
from gramloop.models.backbone import TappedViT, refuse_many_tokens
from gramloop.models.dinov3 import Backbone
from gramloop.models.tiny import TINY_SHORT_SIDE
from gramloop.tasks.class_names import Classes
from gramloop.tasks.dense_detect import DenseDetector
from gramloop.tasks.depth_estimator import DepthEstimator
from gramloop.tasks.detect import Detector
from gramloop.tasks.images import WEB, Normalisation
from gramloop.tasks.module_predictor import ModulePredictor
from gramloop.tasks.padded import PaddedSegmenter
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import ViTPredictor
from gramloop.tasks.segment import Segmenter

FEATURES = "features"  # the task of a backbone alone
_BACKBONE_SIDE = 224  # of images, where nothing is said
IMAGE, PIXELS = "image", "pixels"  # the names of the inputs


@dataclass(frozen=True)
class Subject:
    """A program with what is known of it.

    root: the module that a replay is attached to.
    size: height and width of the input; ``multiple`` is what both are multiples of.
    normalisation: what is inside the program; None where the input is normalised already.
    """

    program: nn.Module
    root: nn.Module
    task: str
    classes: Classes
    name: str
    size: tuple[int, int]
    normalisation: Normalisation | None
    note: str = ""

    @property
    def outputs(self) -> Mapping[str, str]:
        """The names of what comes out, with their words."""
        found: Mapping[str, str] = self.program.outputs  # type: ignore[assignment]
        return found

    @property
    def input_name(self) -> str:
        """``image`` for bytes, ``pixels`` for what is normalised."""
        return PIXELS if self.normalisation is None else IMAGE

    def example(self, batch: int, kind: int = 0) -> Tensor:
        """Images to try the program on: something smooth (kind 0) or noise (kind 1), the same in every process."""
        high, wide = self.size
        noise = torch.randint(0, 256, (batch, high, wide, 3), generator=torch.Generator().manual_seed(kind))
        rows = torch.linspace(0, 1, high)[:, None, None] * torch.tensor([180.0, 90.0, 240.0])
        columns = torch.linspace(1, 0, wide)[None, :, None] * torch.tensor([60.0, 150.0, 10.0])
        shares = torch.linspace(0.04, 0.1, batch)[:, None, None, None] if kind == 0 else torch.ones(())
        bytes_ = (shares * noise + (1 - shares) * (rows + columns)).round().clamp(0, 255).to(torch.uint8)
        if self.normalisation is not None:
            return bytes_
        return Program(WEB).pixels(bytes_).contiguous()


def subject_of(
    predictor: object, size: tuple[int | None, int | None] = (None, None), name: str | None = None
) -> Subject:
    """The subject of a predictor, a backbone or a module."""
    if isinstance(predictor, ViTPredictor):
        return _of_predictor(predictor, size, name)
    if isinstance(predictor, TappedViT):
        made = FeatureProgram(predictor, WEB)
        shown = _size(size, _BACKBONE_SIDE, predictor.shape.patch, predictor)
        return Subject(
            made.eval(), predictor.model, FEATURES, {}, name or type(predictor).__name__, shown, WEB
        )
    if isinstance(predictor, ModulePredictor):
        return _of_module(predictor.model, predictor.task, predictor.classes, size, name or predictor.name)
    if isinstance(predictor, nn.Module):
        return _of_module(predictor, FEATURES, {}, size, name or type(predictor).__name__)
    raise GramLoopError(
        f"{name or type(predictor).__name__} is a {type(predictor).__name__}, which shows no torch module to export; there "
        "are the embedded model, heads on a backbone, hf:FOLDER, backbones and torch modules"
    )


def _of_predictor(
    predictor: ViTPredictor[Prediction], size: tuple[int | None, int | None], name: str | None
) -> Subject:
    norm, backbone = predictor.normalisation, predictor.backbone
    side, multiple, note = TINY_SHORT_SIDE, backbone.shape.patch, ""
    program: Program
    if isinstance(predictor, Segmenter):
        config, multiple = predictor.config, predictor.model.granularity
        side = config.crop if config.mode == "slide" else config.short_side
        if config.mode != "whole":
            note = "one window: larger images are seen through several, whose logits are averaged"
        program = SegmentProgram(predictor.model, norm)
    elif isinstance(predictor, DepthEstimator):
        side, multiple = predictor.config.short_side, max(predictor.multiple, multiple)
        program = DepthProgram(backbone, predictor.head, predictor.config.flip, norm)
    elif isinstance(predictor, DenseDetector):
        assert isinstance(backbone, Backbone)
        numbers = list(predictor.classes)
        program = DenseDetectProgram(
            backbone,
            predictor.head,
            predictor.taps[0],
            numbers,
            norm,
        )
    elif isinstance(predictor, Detector):
        side = predictor.config.short_side
        program = WindowedDetectProgram(predictor.model, predictor.config.keep, norm)
    elif isinstance(predictor, PaddedSegmenter):
        side, multiple = predictor.side, predictor.model.granularity
        note = "the image lies in the upper left corner of a square, and the rest of it is black"
        program = QueryProgram(predictor.model, norm)
    else:
        raise GramLoopError(f"there is no way to export a {type(predictor).__name__}")
    shown = _size(size, side, multiple, backbone)
    named = name or type(predictor).__name__
    return Subject(
        program.eval(), backbone.model, predictor.task, predictor.classes, named, shown, norm, note
    )


def _of_module(
    model: nn.Module, task: str, classes: Classes, size: tuple[int | None, int | None], name: str
) -> Subject:
    if None in size:
        raise GramLoopError(f"{name} does not say how large its input is; give height and width")
    shown = _size(size, 1, 1, None)
    made = partial(Subject, root=model, task=task, classes=classes, name=name, size=shown, normalisation=None)
    example = made(program=model).example(1).to(_device(model))
    with torch.no_grad():
        found = tensors_in(model(example))
    told = {key: f"{tuple(value.shape)} {value.dtype}".replace("torch.", "") for key, value in found.items()}
    chosen = {
        key: words for key, words in told.items() if "hidden_state" not in key and key != "loss"
    } or told
    if not chosen:
        raise GramLoopError(f"{name} returns no tensors; a model that is exported returns one, or several")
    return made(program=ModuleProgram(model, chosen).eval(), note="as the model itself returns it")


def _device(model: nn.Module) -> torch.device:
    return next((each.device for each in model.parameters()), torch.device("cpu"))


def _size(
    given: tuple[int | None, int | None], side: int, multiple: int, backbone: TappedViT | None
) -> tuple[int, int]:
    high, wide = (side if each is None else each for each in given)
    for name, length in (("height", high), ("width", wide)):
        if length < 1 or length % multiple:
            near = max(1, round(length / multiple)) * multiple
            raise GramLoopError(
                f"the {name} is {length}; this model takes positive multiples of {multiple}, such as {near}"
            )
    if backbone is not None:
        patch = backbone.shape.patch
        refuse_many_tokens(high // patch, wide // patch, f"an input of {wide} x {high}")
    return high, wide
