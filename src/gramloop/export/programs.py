"""What is exported: a module from pixels to tensors for each task, made of a predictor's own parts.

An image comes as uint8 RGB, (B, H, W, 3), in the size in which the model sees it; normalising is part of the module.
A model of transformers or of one's own takes what it always takes, normalised (B, 3, H, W).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gramloop.models.backbone import TappedViT
from gramloop.models.detector import WindowedDetector, all_valid, join_taps
from gramloop.models.dinov3 import Backbone
from gramloop.models.mask2former import SegmentationModel
from gramloop.models.plain_detr import best_detections
from gramloop.models.pmt import PMT
from gramloop.models.tiny_heads import DenseDetectHead, boxes_from_sides, pairwise_iou
from gramloop.tasks.depth import DepthHead
from gramloop.tasks.images import Normalisation

BOXES = {
    "boxes": "(B, n, 4) float32: left, top, right and bottom in pixels of the input, best first",
    "scores": "(B, n) float32, 0 where there is no box",
    "classes": "(B, n) int64: keys of classes, -1 where there is no box",
}
BOX_RECIPE = {"read": "boxes", "outputs": {"labels": "classes"}, "box_unit": "input"}


class Program(nn.Module):
    """Images (B, H, W, 3) uint8 in, the tensors of ``outputs`` in their order out."""

    outputs: ClassVar[Mapping[str, str]]  # name: shape, type and meaning
    recipe: ClassVar[Mapping[str, object]] = {}  # how `gramloop.tasks.graphs` reads them
    mean: Tensor
    std: Tensor

    def __init__(self, normalisation: Normalisation) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(normalisation.mean)[:, None, None])
        self.register_buffer("std", 255 * torch.tensor(normalisation.std)[:, None, None])

    def pixels(self, image: Tensor) -> Tensor:
        """Normalised float32 (B, 3, H, W), as `gramloop.tasks.images.to_tensor` has it."""
        return (image.permute(0, 3, 1, 2).float() - self.mean) / self.std


class SegmentProgram(Program):
    """A class for every pixel, and the scores behind it."""

    outputs: ClassVar[Mapping[str, str]] = {
        "labels": "(B, H, W) int32: the class of every pixel",
        "logits": "(B, classes, H, W) float32: the scores whose largest is the class",
    }
    recipe: ClassVar[Mapping[str, object]] = {"read": "logits"}

    def __init__(self, model: SegmentationModel, normalisation: Normalisation) -> None:
        super().__init__(normalisation)
        self.model: Any = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Labels and logits."""
        pixels = self.pixels(image)
        taps = self.model.backbone(pixels, self.model.taps)
        size = (pixels.shape[-2], pixels.shape[-1])
        logits = self.model.scores(self.model.prior(pixels), taps, size, exact=True)
        return logits.argmax(1).int(), logits


class DepthProgram(Program):
    """The distance of every pixel."""

    outputs: ClassVar[Mapping[str, str]] = {"depth": "(B, H, W) float32, in metres"}
    recipe: ClassVar[Mapping[str, object]] = {"read": "depth"}

    def __init__(
        self, backbone: TappedViT, head: DepthHead, flip: bool, normalisation: Normalisation
    ) -> None:
        super().__init__(normalisation)
        self.backbone, self.head, self.flip = backbone, head, flip

    def forward(self, image: Tensor) -> tuple[Tensor]:
        """Depth; with ``flip`` the mean with that of the mirror image."""
        pixels = self.pixels(image)
        depth = self._depth(pixels)
        return ((depth + self._depth(pixels.flip(-1)).flip(-1)) / 2 if self.flip else depth,)

    def _depth(self, pixels: Tensor) -> Tensor:
        maps = [tap.map for tap in self.backbone(pixels, self.head.taps)]
        return self.head.depth(maps, (pixels.shape[-2], pixels.shape[-1]))


class DenseDetectProgram(Program):
    """Boxes of a one-stage head, doubles suppressed."""

    outputs: ClassVar[Mapping[str, str]] = BOXES
    recipe: ClassVar[Mapping[str, object]] = BOX_RECIPE
    numbers: Tensor

    def __init__(
        self,
        backbone: Backbone,
        head: DenseDetectHead,
        tap: int,
        numbers: list[int],
        normalisation: Normalisation,
    ) -> None:
        super().__init__(normalisation)
        self.backbone, self.head, self.tap = backbone, head, tap
        self.register_buffer("numbers", torch.tensor(numbers))

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """As many boxes as the head keeps at most, empty ones last."""
        config = self.head.config
        logits, sides = self.head(self.backbone(self.pixels(image), [self.tap])[0].map)
        boxes = boxes_from_sides(sides, config.stride).flatten(2).transpose(1, 2)  # (B, cells, 4)
        scores = logits.flatten(1).sigmoid()  # (B, classes x cells)
        best, where = scores.topk(min(config.candidates, scores.shape[1]))
        cells = boxes.shape[1]
        chosen = boxes.gather(1, (where % cells)[..., None].expand(-1, -1, 4))
        classes = where // cells
        alive = suppressed(chosen, classes, best > config.least_score, config.overlap)
        count = alive.shape[1]
        # those alive in their order: every rank differs, so that no runtime sorts ties its own way
        rank = torch.where(alive, 2 * count, count) - torch.arange(count, device=best.device)
        kept = rank.topk(min(config.keep, count)).indices
        there = alive.gather(1, kept)
        return (
            torch.where(there[..., None], chosen.gather(1, kept[..., None].expand(-1, -1, 4)), 0.0),
            torch.where(there, best.gather(1, kept), 0.0),
            torch.where(there, self.numbers[classes.gather(1, kept)], -1),
        )


def suppressed(boxes: Tensor, classes: Tensor, alive: Tensor, overlap: float) -> Tensor:
    """Which of the boxes (B, n, 4), best first, stay alive (B, n) when worse doubles of one class are dropped.

    One step for each box, laid out in the graph: whether a box drops others depends on those before it.
    """
    count = boxes.shape[1]
    later = torch.ones(count, count, dtype=torch.bool, device=boxes.device).triu(1)
    doubles = (pairwise_iou(boxes, boxes) > overlap) & (classes[:, :, None] == classes[:, None, :]) & later
    for row in range(count - 1):
        alive = alive & ~(doubles[:, row] & alive[:, row : row + 1])
    return alive


class WindowedDetectProgram(Program):
    """Boxes of the released detector, without suppression or threshold."""

    outputs: ClassVar[Mapping[str, str]] = BOXES
    recipe: ClassVar[Mapping[str, object]] = BOX_RECIPE

    def __init__(self, model: WindowedDetector, keep: int, normalisation: Normalisation) -> None:
        super().__init__(normalisation)
        self.model, self.keep = model, keep

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """The best pairs of box and class of every image."""
        pixels = self.pixels(image)
        valid = all_valid(pixels, self.model.backbone.shape.patch)
        (features,) = self.model.features(pixels, valid, self._look)
        size = (pixels.shape[-2], pixels.shape[-1])
        found = [
            best_detections(*each, size, size, self.keep)
            for each in zip(*self.model.detect(features, valid), strict=True)
        ]
        return tuple(torch.stack(each) for each in zip(*found, strict=True))

    def _look(self, images: Tensor, valid: Tensor) -> list[Tensor]:
        return [join_taps(self.model.backbone(images, self.model.taps))]


class QueryProgram(Program):
    """Queries of a panoptic or instance head: what each is, and its mask."""

    outputs: ClassVar[Mapping[str, str]] = {
        "class_logits": "(B, queries, classes + 1) float32; the last is for no object",
        "mask_logits": "(B, queries, h, w) float32; a pixel belongs to a mask above 0",
    }

    def __init__(self, model: PMT, normalisation: Normalisation) -> None:
        super().__init__(normalisation)
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """The head's logits."""
        logits, masks = self.model.predict(self.model.backbone(self.pixels(image), self.model.taps))
        return logits, masks


class FeatureProgram(Program):
    """A backbone alone: what heads read of its last block."""

    outputs: ClassVar[Mapping[str, str]] = {
        "features": "(B, C, h, w) float32: the patches of the last block after the final norm",
        "cls": "(B, C) float32: the class token",
    }

    def __init__(self, backbone: TappedViT, normalisation: Normalisation) -> None:
        super().__init__(normalisation)
        self.backbone = backbone

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Patches as a map, and the class token."""
        (tap,) = self.backbone(self.pixels(image), [self.backbone.shape.depth - 1])
        return tap.map, tap.cls


class ModuleProgram(nn.Module):
    """A model of transformers or of one's own, called with normalised pixels (B, 3, H, W)."""

    def __init__(self, model: nn.Module, outputs: Mapping[str, str]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """The tensors of ``outputs``, of what the model returns."""
        found = tensors_in(self.model(pixels))
        return tuple(found[name] for name in self.outputs)


def tensors_in(found: Any) -> dict[str, Tensor]:
    """The tensors that a model returned, by name: one, several, or fields that have names."""
    if isinstance(found, Tensor):
        return {"output": found}
    named = (
        found.items() if isinstance(found, Mapping) else enumerate(found if isinstance(found, tuple) else ())
    )
    return {
        name if isinstance(name, str) else f"output_{name}": value
        for name, value in named
        if isinstance(value, Tensor)
    }
