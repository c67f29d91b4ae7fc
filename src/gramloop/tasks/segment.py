"""Semantic segmentation: an image in, a label per pixel out, ordinary or replayed or both.

The image is resized to a short side of 896 and seen through windows of 896 pixels, 596 apart, whose scores
are averaged, as released. PMT's heads see squares of the short side, 512, at even distances along the long one.
Nothing is flipped or rescaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.backbone import TappedViT
from gramloop.models.dinov2 import load_any_backbone
from gramloop.models.linear import LinearHead, LinearSegmentor
from gramloop.models.mask2former import SegmentationModel, load_segmentor
from gramloop.models.pmt import load_pmt, trained_side
from gramloop.models.released_names import HEAD_NAMES, head_kind
from gramloop.replay.attach import Loop
from gramloop.tasks.class_names import ADE20K, COCO, COCO_PANOPTIC
from gramloop.tasks.images import (
    RGB,
    WEB,
    Normalisation,
    normalisation_of,
    resize_short_side,
    short_side_size,
    to_tensor,
)
from gramloop.tasks.prediction import ReplayMaps
from gramloop.tasks.predictor import ViTPredictor
from gramloop.tasks.semantic import Segmentation
from gramloop.tasks.sliding import Canvas, Crop, CropMaps, crop_grid, even_windows, whole_maps

_SCORES_AT_ONCE = 1 << 26  # numbers; all classes of a photograph in full size would need gigabytes


@dataclass(frozen=True)
class SegmentConfig:
    """How an image is shown to the model.

    ``slide`` looks through overlapping crops, ``even`` through squares of the short side, as few as cover the long one,
    ``whole`` at the image at once, its long side rounded to what the model can take. ``batch`` crops are run together. ``scores`` asks for the softmax over classes beside the labels.
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


class Segmenter(ViTPredictor[Segmentation]):
    """A segmentation model ready for images."""

    task = "semantic"
    batches = True

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

    def _look(self, pixels: RGB, loop: Loop | None, paired: bool) -> list[Segmentation]:
        means, maps, blocks = self._run(self._prepare(pixels), loop, paired)
        size = (pixels.shape[0], pixels.shape[1])
        depth = self.backbone.shape.depth
        ordinary = [self._finish(mean, size, depth) for mean in means[:-1]]
        return [*ordinary, self._finish(means[-1], size, blocks, maps)]

    def check_batch(self) -> None:
        """Refuse several images at once where each is seen through windows: those of one image run together already."""
        if self.config.mode != "whole":
            raise GramLoopError(
                "images that are seen through windows are predicted one at a time; segment them whole (--whole) to show "
                "several at once, or leave out the batch"
            )

    def _look_at(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Segmentation]]:
        """Whole images of one size; windows go another way."""
        size, depth = (pixels[0].shape[0], pixels[0].shape[1]), self.backbone.shape.depth
        shown = torch.cat([self._prepare(each) for each in pixels]).to(self.backbone.device)
        versions = [each.to("cpu", torch.float32) for each in self._scores(shown, loop, paired)]
        maps = whole_maps(loop, shown.shape[-2:], self.backbone.shape.patch, len(pixels))
        blocks = depth if loop is None else loop.blocks_executed
        ordinary = [[self._finish(mean, size, depth) for mean in each] for each in versions[:-1]]
        pairs = zip(versions[-1], maps, strict=True)
        return [*ordinary, [self._finish(mean, size, blocks, trace) for mean, trace in pairs]]

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

    def _run(
        self, pixels: Tensor, loop: Loop | None, paired: bool
    ) -> tuple[list[Tensor], ReplayMaps | None, int]:
        """Mean scores (classes, H, W) per version, the replay's maps, and the blocks of a crop."""
        height, width = pixels.shape[-2:]
        canvases = [Canvas(height, width) for _ in range(1 + paired)]
        maps = CropMaps(height, width)
        blocks = []
        for crops in self._batches(height, width):
            batch = torch.cat([crop.of(pixels) for crop in crops]).to(self.backbone.device)
            for canvas, scores in zip(canvases, self._scores(batch, loop, paired), strict=True):
                for crop, each in zip(crops, scores, strict=True):
                    canvas.add(crop, each)
            if loop is not None:
                blocks.append(loop.blocks_executed)
                maps.add(crops, loop.trace)
        trace = maps.finish(self.backbone.shape.patch)
        mean = round(sum(blocks) / len(blocks)) if blocks else self.backbone.shape.depth
        return [canvas.mean() for canvas in canvases], trace, mean

    def _batches(self, height: int, width: int) -> list[list[Crop]]:
        config = self.config
        if config.mode == "whole":
            return [[Crop(0, 0, height, width)]]
        if config.mode == "even":
            crops = even_windows(height, width)
        else:
            crops = crop_grid(height, width, config.crop, config.stride)
        return [crops[i : i + config.batch] for i in range(0, len(crops), config.batch)]

    def _scores(self, batch: Tensor, loop: Loop | None, paired: bool) -> Iterator[Tensor]:
        """Scores (B, classes, h, w) of the ordinary version, if paired, and of the last one."""
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


def load_segmenter(
    backbone: str | Path | TappedViT | None,
    head: str | Path,
    *,
    config: SegmentConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> Segmenter:
    """A segmenter from files: a backbone with a head of Mask2Former, of PMT, or a linear one, as its names tell.

    ``dtype`` is that of the backbone's weights.
    """
    kind = head_kind(head)
    if kind not in ("mask2former", "pmt", "linear"):
        raise GramLoopError(f"{head} is {HEAD_NAMES[kind]}, which does not segment")
    if kind == "pmt":
        return _pmt_segmenter(backbone, head, config, dtype, device, verify)
    normalisation = WEB
    if isinstance(backbone, str | Path):
        normalisation = normalisation_of(backbone)
        backbone = load_any_backbone(backbone, dtype=dtype, device=device, verify=verify)
    if kind == "mask2former":
        model = load_segmentor(head, backbone, dtype=dtype, device=device, verify=verify)
        return Segmenter(model, config, normalisation)
    if backbone is None:
        raise GramLoopError(f"{head} is a head alone; its backbone must be given too")
    linear = LinearSegmentor(backbone, LinearHead.load(head, device=device))
    return Segmenter(linear, config, normalisation)


def _pmt_segmenter(
    backbone: str | Path | TappedViT | None,
    head: str | Path,
    config: SegmentConfig | None,
    dtype: torch.dtype,
    device: torch.device | str,
    verify: bool,
) -> Segmenter:
    if backbone is None:
        raise GramLoopError(f"{head} is a head alone; its backbone must be given too")
    model = load_pmt(head, backbone, dtype=dtype, device=device, verify=verify)
    known = {len(COCO_PANOPTIC): COCO_PANOPTIC, len(COCO): COCO}.get(model.classes, {})
    names = dict(enumerate(known.values())) or None
    return Segmenter(model, config or pmt_windows(head), names=names)


def pmt_windows(head: str | Path) -> SegmentConfig:
    """How a PMT head sees images: in squares of the side that its name tells, otherwise of 512."""
    return SegmentConfig("even", short_side=trained_side(head) or 512)


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
