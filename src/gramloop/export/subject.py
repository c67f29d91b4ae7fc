"""From what a user has, a predictor or a module, to what can be exported: a program, its input and its words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
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
from gramloop.tasks.custom import ModulePredictor
from gramloop.tasks.depth import DepthEstimator
from gramloop.tasks.detect import DenseDetector, Detector
from gramloop.tasks.images import RGB, WEB, Normalisation, resize
from gramloop.tasks.padded import PaddedSegmenter
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import ViTPredictor
from gramloop.tasks.semantic import Segmenter

FEATURES = "features"  # the task of a backbone alone
_BACKBONE_SIDE = 224  # of images, where nothing is said
IMAGE, PIXELS = "image", "pixels"  # the names of the inputs
_SIZES = ((480, 640), (640, 480), (375, 500))  # of photographs
Size = tuple[int | None, int | None]  # height and width


@dataclass(frozen=True)
class Subject:
    """A program with what is known of it.

    root: the module that a replay is attached to.
    size: height and width of the input.
    normalisation: what is inside the program; None where the input is normalised already.
    preprocess: how a model of its own prepares an image, (1, 3, H, W); None for resizing.
    """

    program: nn.Module
    root: nn.Module
    task: str
    classes: Classes
    name: str
    size: tuple[int, int]
    normalisation: Normalisation | None
    note: str = ""
    input_name: str = IMAGE
    preprocess: Callable[[RGB], Tensor] | None = None

    @property
    def outputs(self) -> Mapping[str, str]:
        """The names of what comes out, with their words."""
        found: Mapping[str, str] = self.program.outputs  # type: ignore[assignment]
        return found

    @property
    def recipe(self) -> Mapping[str, object]:
        """How a reader of the file prepares images and reads outputs; empty where it predicts nothing."""
        found: Mapping[str, object] = getattr(self.program, "recipe", {})
        return found

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

    def prepare(self, pixels: RGB, batch: int) -> Tensor:
        """A photograph as the program takes it, repeated to a batch."""
        if self.preprocess is not None:
            made = self.preprocess(pixels)
            if made.shape[2:] != self.size:
                raise GramLoopError(
                    f"{self.name} prepares an image of {pixels.shape[1]} x {pixels.shape[0]} as {made.shape[3]} x "
                    f"{made.shape[2]}, and the file takes {self.size[1]} x {self.size[0]}"
                )
        else:
            made = torch.from_numpy(np.ascontiguousarray(resize(pixels, self.size)))[None]
            made = made if self.normalisation is not None else Program(WEB).pixels(made)
        return made.repeat(batch, 1, 1, 1)


def subject_of(predictor: object, size: Size = (None, None), name: str | None = None) -> Subject:
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
        return _of_module_predictor(predictor, size, name or predictor.name)
    if isinstance(predictor, nn.Module):
        return _of_module(predictor, FEATURES, {}, size, name or type(predictor).__name__)
    raise GramLoopError(
        f"{name or type(predictor).__name__} is a {type(predictor).__name__}, which shows no torch module to export; there "
        "are the embedded model, heads on a backbone, hf:FOLDER, backbones and torch modules"
    )


def _of_predictor(predictor: ViTPredictor[Prediction], size: Size, name: str | None) -> Subject:
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


def _of_module_predictor(predictor: ModulePredictor, size: Size, name: str) -> Subject:
    """With the input's name and size that its own preprocessing makes."""
    prepare = predictor.preprocess
    assert callable(prepare)

    def preprocess(pixels: RGB) -> Tensor:
        return _pixels_in(prepare(pixels.copy()), name)[1]

    made = [_pixels_in(prepare(np.zeros((*each, 3), np.uint8)), name) for each in _SIZES]
    found = {(values.shape[2], values.shape[3]) for _, values in made}
    if None in size and len(found) > 1:
        many = ", ".join(f"{wide} x {high}" for high, wide in sorted(found))
        raise GramLoopError(
            f"{name} prepares images of different sizes as {many}; give the height and width that the file takes"
        )
    high, wide = next(iter(found)) if len(found) == 1 else (None, None)
    chosen = (size[0] or high, size[1] or wide)
    subject = _of_module(predictor.model, predictor.task, predictor.classes, chosen, name)
    own = found == {subject.size}
    return replace(subject, input_name=made[0][0], preprocess=preprocess if own else None)


def _pixels_in(given: object, name: str) -> tuple[str, Tensor]:
    """The images among what a model is called with, and their name."""
    named = given if isinstance(given, Mapping) else {PIXELS: given[0] if isinstance(given, tuple) else given}
    for key, value in named.items():
        if isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] == 3:
            return str(key), value
    raise GramLoopError(f"{name} is not called with images (B, 3, H, W), so it cannot be exported")


def _of_module(model: nn.Module, task: str, classes: Classes, size: Size, name: str) -> Subject:
    if None in size:
        raise GramLoopError(f"{name} does not say how large its input is; give height and width")
    shown = _size(size, 1, 1, None)
    made = partial(
        Subject,
        root=model,
        task=task,
        classes=classes,
        name=name,
        size=shown,
        normalisation=None,
        input_name=PIXELS,
    )
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


def _size(given: Size, side: int, multiple: int, backbone: TappedViT | None) -> tuple[int, int]:
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
