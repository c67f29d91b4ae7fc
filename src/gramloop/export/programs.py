"""What is exported: for each kind of model a program from pixels to tensors, made of a predictor's own parts.

An image comes as uint8 RGB, (B, H, W, 3), in the size in which the model sees it; normalising is part of the program.
A transformers model or a custom module takes normalised pixels (B, 3, H, W).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, refuse_many_tokens
from gramloop.models.detector import WindowedDetector
from gramloop.models.plain_detr import best_detections
from gramloop.models.tiny import TINY_SHORT_SIDE
from gramloop.tasks.class_names import Classes
from gramloop.tasks.custom import ModulePredictor
from gramloop.tasks.depth import DepthEstimator
from gramloop.tasks.images import RGB, WEB, Normalisation, resize
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import ViTPredictor, name_of
from gramloop.tasks.released import DenseDetector, Detector
from gramloop.tasks.semantic import Segmenter

FEATURES = "features"  # the task of a backbone alone
_BACKBONE_SIDE = 224  # of images, by default
IMAGE, PIXELS = "image", "pixels"  # the names of the inputs
_SIZES = ((480, 640), (640, 480), (375, 500))  # of photographs
_Size = tuple[int | None, int | None]  # height and width
BOXES = {
    "boxes": "(B, n, 4) float32: left, top, right and bottom in pixels of the input, best first",
    "scores": "(B, n) float32, 0 where there is no box",
    "classes": "(B, n) int64: keys of classes, -1 where there is no box",
}
BOX_RECIPE = {"read": "boxes", "outputs": {"labels": "classes"}, "box_unit": "input"}


Read = Callable[[Tensor], tuple[Tensor, ...]]  # normalised pixels (B, 3, H, W) → the outputs


class Program(nn.Module):
    """Images in, the tensors of ``outputs`` in their order out.

    Args:
        model: the module whose parameters are exported.
        read: calls it with normalised pixels (B, 3, H, W).
        outputs: shape, type and meaning by name.
        recipe: how `gramloop.tasks.graphs` reads them; empty where nothing that can be evaluated comes out.
        normalisation: where the images are uint8 (B, H, W, 3); None where they are normalised pixels.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        read: Read,
        outputs: Mapping[str, str],
        recipe: Mapping[str, object] = MappingProxyType({}),
        normalisation: Normalisation | None = WEB,
    ) -> None:
        super().__init__()
        self.model, self.read, self.outputs, self.recipe = model, read, outputs, recipe
        self.normalisation = normalisation
        if normalisation is not None:
            self.register_buffer("mean", 255 * torch.tensor(normalisation.mean)[:, None, None])
            self.register_buffer("std", 255 * torch.tensor(normalisation.std)[:, None, None])
        self.eval()

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """The tensors of ``outputs``, of pixels as `gramloop.tasks.images.to_tensor` normalises them."""
        return self.read(
            image
            if self.normalisation is None
            else (image.permute(0, 3, 1, 2).float() - self.mean) / self.std
        )


def _segment(model: Any, normalisation: Normalisation) -> Program:
    def read(pixels: Tensor) -> tuple[Tensor, ...]:
        size = (pixels.shape[-2], pixels.shape[-1])
        taps = model.backbone(pixels, model.taps)
        logits = model.scores(model.prior(pixels), taps, size, exact=True)
        return logits.argmax(1).int(), logits

    outputs = {
        "labels": "(B, H, W) int32: the class of every pixel",
        "logits": "(B, classes, H, W) float32: the scores whose largest is the class",
    }
    return Program(model, read, outputs, {"read": "logits"}, normalisation)


def _depth(predictor: DepthEstimator, normalisation: Normalisation) -> Program:
    backbone, head = predictor.backbone, predictor.head

    def depth(pixels: Tensor) -> Tensor:
        maps = [tap.map for tap in backbone(pixels, head.taps)]
        return head.depth(maps, (pixels.shape[-2], pixels.shape[-1]))

    def read(pixels: Tensor) -> tuple[Tensor, ...]:
        if not predictor.config.flip:
            return (depth(pixels),)
        return ((depth(pixels) + depth(pixels.flip(-1)).flip(-1)) / 2,)

    parts = nn.ModuleList([backbone, cast(nn.Module, head)])
    return Program(parts, read, {"depth": "(B, H, W) float32, in metres"}, {"read": "depth"}, normalisation)


def _dense_detect(predictor: DenseDetector, normalisation: Normalisation) -> Program:
    """Boxes of a one-stage head: as many as it keeps at most, empty ones last."""
    backbone, head, tap = predictor.backbone, predictor.head, predictor.taps[0]
    numbers = list(predictor.classes)

    def read(pixels: Tensor) -> tuple[Tensor, ...]:
        boxes, scores, classes = head.detect(backbone(pixels, [tap])[0].map)
        named = torch.tensor(numbers, device=classes.device)[classes.clamp(min=0)]
        return boxes, scores, torch.where(classes < 0, classes, named)

    return Program(nn.ModuleList([backbone, head]), read, BOXES, BOX_RECIPE, normalisation)


def _windowed_detect(model: WindowedDetector, keep: int, normalisation: Normalisation) -> Program:
    """Boxes of the released detector, without suppression or threshold."""

    def read(pixels: Tensor) -> tuple[Tensor, ...]:
        size = (pixels.shape[-2], pixels.shape[-1])
        found = [
            best_detections(logits, boxes, size, size, keep)
            for logits, boxes in zip(*model(pixels), strict=True)
        ]
        return tuple(torch.stack(each) for each in zip(*found, strict=True))

    return Program(model, read, BOXES, BOX_RECIPE, normalisation)


def _features(backbone: Backbone) -> Program:
    """A backbone alone: the last block as heads read it."""

    def read(pixels: Tensor) -> tuple[Tensor, ...]:
        (tap,) = backbone(pixels, [backbone.shape.depth - 1])
        return tap.map, tap.cls

    outputs = {
        "features": "(B, C, h, w) float32: the patches of the last block after the final norm",
        "cls": "(B, C) float32: the class token",
    }
    return Program(backbone, read, outputs)


def tensors_in(found: Any) -> dict[str, Tensor]:
    """The tensors that a model returned, by name: one, several, or fields that have names."""
    if isinstance(found, Tensor):
        return {"output": found}
    named = found if isinstance(found, Mapping) else {}
    if isinstance(found, tuple):
        named = {f"output_{number}": value for number, value in enumerate(found)}
    return {str(name): value for name, value in named.items() if isinstance(value, Tensor)}


@dataclass(frozen=True)
class ExportSubject:
    """A program with what is known of it.

    root: the module that a replay is attached to.
    size: height and width of the input.
    preprocess: how a custom model prepares an image, (1, 3, H, W); None for resizing.
    """

    program: Program
    root: nn.Module
    task: str
    classes: Classes
    name: str
    size: tuple[int, int]
    note: str = ""
    input_name: str = IMAGE
    preprocess: Callable[[RGB], Tensor] | None = None

    def example(self, batch: int, kind: int = 0) -> Tensor:
        """Images to try the program on: something smooth (kind 0) or noise (kind 1), the same in every process."""
        high, wide = self.size
        noise = torch.randint(0, 256, (batch, high, wide, 3), generator=torch.Generator().manual_seed(kind))
        rows = torch.linspace(0, 1, high)[:, None, None] * torch.tensor([180.0, 90.0, 240.0])
        columns = torch.linspace(1, 0, wide)[None, :, None] * torch.tensor([60.0, 150.0, 10.0])
        shares = torch.linspace(0.04, 0.1, batch)[:, None, None, None] if kind == 0 else torch.ones(())
        bytes_ = (shares * noise + (1 - shares) * (rows + columns)).round().clamp(0, 255).to(torch.uint8)
        if self.program.normalisation is not None:
            return bytes_
        return _normalised(bytes_).contiguous()

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
            made = made if self.program.normalisation is not None else _normalised(made)
        return made.repeat(batch, 1, 1, 1)


def _normalised(images: Tensor) -> Tensor:
    return Program(nn.Identity(), lambda pixels: (pixels,), {})(images)[0]  # type: ignore[no-any-return]


def subject_of(predictor: object, size: _Size = (None, None), name: str | None = None) -> ExportSubject:
    """The subject of a predictor, a backbone or a module."""
    named = name or name_of(predictor)
    if isinstance(predictor, ViTPredictor):
        return _of_predictor(predictor, size, named)
    if isinstance(predictor, Backbone):
        input_size = _size(size, _BACKBONE_SIDE, predictor.shape.patch, predictor)
        return ExportSubject(_features(predictor), predictor.model, FEATURES, {}, named, input_size)
    if isinstance(predictor, ModulePredictor):
        return _of_module_predictor(predictor, size, named)
    if isinstance(predictor, nn.Module):
        return _of_module(predictor, FEATURES, {}, size, named)
    raise _unknown(predictor)


def _unknown(predictor: object) -> GramLoopError:
    return GramLoopError(
        f"a {type(predictor).__name__} cannot be exported; the embedded model, heads on a backbone, hf:FOLDER, backbones and "
        "torch modules can"
    )


def _of_predictor(predictor: ViTPredictor[Prediction], size: _Size, name: str) -> ExportSubject:
    norm, backbone = predictor.normalisation, predictor.backbone
    side, multiple, note = TINY_SHORT_SIDE, backbone.shape.patch, ""
    if isinstance(predictor, Segmenter):
        config, multiple = predictor.config, predictor.model.granularity
        side = config.crop if config.mode == "slide" else config.short_side
        if config.mode != "whole":
            note = "one window: larger images are seen through several, whose logits are averaged"
        program = _segment(predictor.model, norm)
    elif isinstance(predictor, DepthEstimator):
        side, multiple = predictor.config.short_side, max(predictor.multiple, multiple)
        program = _depth(predictor, norm)
    elif isinstance(predictor, DenseDetector):
        program = _dense_detect(predictor, norm)
    elif isinstance(predictor, Detector):
        side = predictor.config.short_side
        program = _windowed_detect(predictor.model, predictor.config.keep, norm)
    else:
        raise _unknown(predictor)
    input_size = _size(size, side, multiple, backbone)
    return ExportSubject(program, backbone.model, predictor.task, predictor.classes, name, input_size, note)


def _of_module_predictor(predictor: ModulePredictor, size: _Size, name: str) -> ExportSubject:
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


def _of_module(model: nn.Module, task: str, classes: Classes, size: _Size, name: str) -> ExportSubject:
    if None in size:
        raise GramLoopError(f"{name} does not say how large its input is; give height and width")
    high, wide = _size(size, 1, 1, None)
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    with torch.no_grad():
        found = tensors_in(model(torch.zeros(1, 3, high, wide, device=device)))
    outputs = {
        key: f"{tuple(value.shape)} {value.dtype}".replace("torch.", "") for key, value in found.items()
    }
    outputs = {
        key: words for key, words in outputs.items() if "hidden_state" not in key and key != "loss"
    } or outputs
    if not outputs:
        raise GramLoopError(f"{name} returns no tensors; a model that is exported returns one, or several")

    def read(pixels: Tensor) -> tuple[Tensor, ...]:
        made = tensors_in(model(pixels))
        return tuple(made[key] for key in outputs)

    program = Program(model, read, outputs, normalisation=None)
    note = "as the model itself returns it"
    return ExportSubject(program, model, task, classes, name, (high, wide), note, PIXELS)


def _size(given: _Size, side: int, multiple: int, backbone: Backbone | None) -> tuple[int, int]:
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
