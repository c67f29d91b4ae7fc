"""Semantic segmentation: an image in, a label per pixel out.

The image is resized to a short side of 896 and seen through windows of 896 pixels, 596 apart, whose scores
are averaged, as released. PMT's heads see squares of the short side, 512, at even distances along the long one.
Nothing is flipped or rescaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.mask2former import SegmentationModel
from gramloop.replay.attach import Loop
from gramloop.tasks.class_names import ADE20K
from gramloop.tasks.images import (
    RGB,
    WEB,
    Normalisation,
    resize_short_side,
    short_side_size,
    to_tensor,
)
from gramloop.tasks.prediction import ReplayMaps
from gramloop.tasks.predictor import ViTPredictor, maps_by_kind, replay_maps, trace_kinds
from gramloop.tasks.semantic import Segmentation

_SCORES_AT_ONCE = 1 << 26  # numbers; all classes of a photograph in full size would need gigabytes


@dataclass(frozen=True)
class SegmentConfig:
    """How an image is given to the model.

    mode: ``slide`` through overlapping crops, ``even`` through squares of the short side, as few as cover the long one,
        ``whole`` at once, the long side rounded to what the model can take.
    batch: crops that are run together.
    scores: return the softmax over classes in addition to the labels.
    """

    mode: Literal["slide", "even", "whole"] = "slide"
    short_side: int = 896
    crop: int = 896
    stride: int = 596
    batch: int = 1
    scores: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("slide", "even", "whole"):
            raise GramLoopError(f"mode is 'slide', 'even' or 'whole', not {self.mode!r}")
        if min(self.short_side, self.crop, self.stride, self.batch) < 1:
            raise GramLoopError(f"sides, stride and batch must be positive, not {self}")
        if self.mode == "slide" and not self.stride <= self.crop <= self.short_side:
            raise GramLoopError(
                f"sliding needs stride <= crop <= short_side, not {self.stride}, {self.crop}, {self.short_side}"
            )


@dataclass(frozen=True)
class Crop:
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: Tensor) -> Tensor:  # (..., H, W)
        """The part of an image inside the rectangle."""
        rows, columns = slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)
        return pixels[..., rows, columns]


def crop_grid(height: int, width: int, crop: int, stride: int) -> list[Crop]:
    """Crops that cover an image, row by row; the last of each row and column is shifted back inside."""
    tall, wide = min(crop, height), min(crop, width)
    return [
        Crop(top, left, tall, wide)
        for top in _starts(height, tall, stride)
        for left in _starts(width, wide, stride)
    ]


def even_windows(height: int, width: int) -> list[Crop]:
    """Squares of the short side, as few as cover the long one, at even distances."""
    side, long = min(height, width), max(height, width)
    count = -(-long // side)
    shared = (
        (count * side - long) / (count - 1) if count > 1 else 0.0
    )  # pixels that two neighbours have in common
    # the last one ends with the image, where rounding could leave a row of pixels out
    starts = [int(index * (side - shared)) for index in range(count - 1)] + [long - side]
    return [Crop(0, start, side, side) if width > height else Crop(start, 0, side, side) for start in starts]


def _starts(side: int, crop: int, stride: int) -> list[int]:
    count = max(side - crop + stride - 1, 0) // stride + 1
    return [min(index * stride, side - crop) for index in range(count)]


class Canvas:
    """The mean, pixel by pixel, of maps (C, h, w) that cover parts of an image; kept on the CPU."""

    def __init__(self, height: int, width: int) -> None:
        self._size = (height, width)
        self._sum: Tensor | None = None
        self._count = torch.zeros(height, width)

    def add(self, crop: Crop, values: Tensor) -> None:
        """Lay one map on the canvas, which may keep it."""
        if self._sum is None and values.shape[1:] == self._size:
            self._sum = values.to("cpu", torch.float32)
        else:
            if self._sum is None:
                self._sum = torch.zeros(values.shape[0], *self._size)
            crop.of(self._sum).add_(values.cpu())
        crop.of(self._count).add_(1)

    def mean(self) -> Tensor:
        """The mean (C, H, W). The canvas is used up."""
        if self._sum is None:
            raise ValueError("nothing was laid on the canvas")
        total, self._sum = self._sum, None
        return total if self._count.max() == 1 else total.div_(self._count)


class Segmenter(ViTPredictor[Segmentation]):
    """A segmentation model ready for images."""

    task = "semantic"
    config: SegmentConfig

    def __init__(
        self,
        model: SegmentationModel,
        config: SegmentConfig | None = None,
        normalisation: Normalisation = WEB,
        names: Mapping[int, str] | None = None,
    ) -> None:
        """``names`` of the classes are those of ADE20K where there are as many."""
        known = names or (ADE20K if model.classes == len(ADE20K) else {})
        classes = {number: known.get(number) for number in range(model.classes)}
        super().__init__(model.backbone, model.taps, classes, normalisation)
        self.model, self.config = model, config or SegmentConfig()
        side = self.config.crop if self.config.mode == "slide" else self.config.short_side
        if side % model.granularity:
            raise GramLoopError(
                f"this model needs sides that are multiples of {model.granularity}, not {side}"
            )

    def with_scores(self) -> Self:
        """The same model with scores of all classes in its predictions."""
        return self._configured(scores=True)

    def _resized(self, side: int) -> dict[str, Any]:
        crop = min(self.config.crop, side)
        return {"short_side": side, "crop": crop, "stride": min(self.config.stride, crop)}

    def check_batch(self) -> None:
        """Refuse several images at once where each is seen through windows: those of one image run together already."""
        if self.config.mode != "whole":
            raise GramLoopError(
                "images that are seen through windows are predicted one at a time; segment them whole (--whole) to predict "
                "several at once, or leave out --batch"
            )

    def _forward(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Segmentation]]:
        size, depth = (pixels[0].shape[0], pixels[0].shape[1]), self.backbone.shape.depth
        shown = torch.cat([self._prepare(each) for each in pixels])
        if self.config.mode == "whole":
            batch = shown.to(self.backbone.device)
            versions = [list(each.to("cpu", torch.float32)) for each in self._scores(batch, loop, paired)]
            blocks = depth if loop is None else loop.blocks_executed
            maps = replay_maps(loop, len(pixels), shown.shape[-2:], self.backbone.shape.patch)
        else:
            means, trace, blocks = self._through_windows(shown, loop, paired)
            versions, maps = [[mean] for mean in means], [trace]
        baseline = [[self._finish(mean, size, depth) for mean in each] for each in versions[:-1]]
        pairs = zip(versions[-1], maps, strict=True)
        return [*baseline, [self._finish(mean, size, blocks, trace) for mean, trace in pairs]]

    def _prepare(self, pixels: RGB) -> Tensor:  # → (1, 3, H, W)
        multiple = self.model.granularity if self.config.mode == "whole" else 1
        rounded = round if self.config.mode == "even" else None  # halves to even, as PMT does
        resized = resize_short_side(pixels, self.config.short_side, multiple=multiple, rounded=rounded)
        return to_tensor(resized, self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        config = self.config
        if config.mode == "slide":
            return config.crop, config.crop
        if config.mode == "even":
            return config.short_side, config.short_side
        return short_side_size(height, width, config.short_side, multiple=self.model.granularity)

    def _through_windows(
        self, pixels: Tensor, loop: Loop | None, paired: bool
    ) -> tuple[list[Tensor], ReplayMaps | None, int]:
        """Of one image: mean scores (classes, H, W) per version, the replay's maps, and the blocks of a window."""
        height, width = pixels.shape[-2:]
        canvases = [Canvas(height, width) for _ in range(1 + paired)]
        maps: dict[str, Canvas] = {}
        blocks = []
        for crops in self._batches(height, width):
            batch = torch.cat([crop.of(pixels) for crop in crops]).to(self.backbone.device)
            for canvas, scores in zip(canvases, self._scores(batch, loop, paired), strict=True):
                for crop, each in zip(crops, scores, strict=True):
                    canvas.add(crop, each)
            if loop is None:
                continue
            blocks.append(loop.blocks_executed)
            measured = trace_kinds(loop.trace) if loop.trace is not None and loop.trace.drift else {}
            for kind, values in measured.items():
                canvas = maps.setdefault(kind, Canvas(height, width))
                for crop, each in zip(crops, values, strict=True):
                    canvas.add(crop, F.interpolate(each[None], (crop.height, crop.width))[0])
        means = {kind: canvas.mean().numpy() for kind, canvas in maps.items()}
        trace = maps_by_kind(means, self.backbone.shape.patch) if means else None
        mean = round(sum(blocks) / len(blocks)) if blocks else self.backbone.shape.depth
        return [canvas.mean() for canvas in canvases], trace, mean

    def _batches(self, height: int, width: int) -> list[list[Crop]]:
        config = self.config
        if config.mode == "even":
            crops = even_windows(height, width)
        else:
            crops = crop_grid(height, width, config.crop, config.stride)
        return [crops[i : i + config.batch] for i in range(0, len(crops), config.batch)]

    def _scores(self, batch: Tensor, loop: Loop | None, paired: bool) -> Iterator[Tensor]:
        """Scores (B, classes, h, w) of the baseline version, if paired, and of the last one."""
        model = self.model
        exact = self.config.mode == "whole"
        size = (batch.shape[-2], batch.shape[-1])
        prior = model.prior(batch)
        taps = model.backbone(batch, model.taps)
        if paired and loop is not None:
            yield model.scores(prior, self._baseline(loop, taps), size, exact)
        yield model.scores(prior, taps, size, exact)

    def _finish(
        self, mean: Tensor, size: tuple[int, int], blocks: int, maps: ReplayMaps | None = None
    ) -> Segmentation:
        scores = _resize(mean, size).softmax(0).numpy() if self.config.scores else None
        return Segmentation(_labels(mean, size), scores, blocks=blocks, trace=maps)


def _resize(mean: Tensor, size: tuple[int, int]) -> Tensor:  # (classes, H, W)
    if mean.shape[1:] == size:
        return mean
    return F.interpolate(mean[None], size, mode="bilinear", align_corners=False)[0]


def _labels(mean: Tensor, size: tuple[int, int]) -> NDArray[np.int32]:
    """The best class of each pixel of the resized scores, a few classes at a time."""
    best = torch.full(size, float("-inf"))
    labels = torch.zeros(size, dtype=torch.int32)
    step = max(1, _SCORES_AT_ONCE // (size[0] * size[1]))
    for first in range(0, mean.shape[0], step):
        high, index = _resize(mean[first : first + step], size).max(0)
        better = high > best
        best = torch.where(better, high, best)
        labels = torch.where(better, (index + first).int(), labels)
    return labels.numpy()
