"""Semantic segmentation: an image in, a label per pixel out, ordinary or replayed or both.

The image is resized to a short side of 896 and seen through windows of 896 pixels, 596 apart, whose scores
are averaged, as released. Nothing is flipped or rescaled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.core.config import ReplayConfig, route
from gramloop.core.loop import Loop, attached
from gramloop.errors import GramLoopError
from gramloop.models.dinov2 import load_any_backbone
from gramloop.models.linear import LinearSegmentor, load_linear_head
from gramloop.models.segmentor import SegmentationModel, load_segmentor
from gramloop.models.taps import Tap, TappedViT
from gramloop.tasks.images import (
    SATELLITE,
    WEB,
    ImageLike,
    Normalisation,
    read_image,
    resize_short_side,
    to_tensor,
)
from gramloop.tasks.maps import CropMaps, ReplayMaps
from gramloop.tasks.sliding import Canvas, Crop, crop_grid

_SCORES_AT_ONCE = 1 << 26  # numbers; all classes of a photograph in full size would need gigabytes


@dataclass(frozen=True)
class SegmentConfig:
    """How an image is shown to the model.

    ``slide`` looks through overlapping crops, ``whole`` at the image at once, its long side rounded to what the
    model can take. ``batch`` crops are run together.
    """

    mode: Literal["slide", "whole"] = "slide"
    short_side: int = 896
    crop: int = 896
    stride: int = 596
    batch: int = 1

    def __post_init__(self) -> None:
        if self.mode not in ("slide", "whole"):
            raise GramLoopError(f"mode is 'slide' or 'whole', not {self.mode!r}")
        if min(self.short_side, self.crop, self.stride, self.batch) < 1:
            raise GramLoopError(f"sides, stride and batch must be positive, not {self}")
        if self.mode == "slide" and not self.stride <= self.crop <= self.short_side:
            raise GramLoopError(
                f"sliding needs stride <= crop <= short_side, not {self.stride}, {self.crop}, {self.short_side}"
            )


@dataclass(frozen=True)
class Segmentation:
    """One prediction, in the size of the original image."""

    labels: NDArray[np.int32]  # (H, W)
    scores: NDArray[np.float32] | None  # (classes, H, W), a softmax; only when asked for
    trace: ReplayMaps | None  # only of a replayed prediction
    blocks: int  # transformer blocks executed per crop; the mean where an adaptive replay passes over some


@dataclass(frozen=True)
class PairedSegmentation:
    """The ordinary and the replayed prediction of one image, which share the ordinary pass."""

    ordinary: Segmentation
    replayed: Segmentation

    @property
    def blocks(self) -> int:
        """Transformer blocks executed per crop, for both together."""
        return self.replayed.blocks


class Segmenter:
    """A segmentation model ready for images.

    ``predict`` takes one image; with a replay it replays, and with ``paired`` it returns both predictions
    at the price of the replayed one.
    """

    def __init__(
        self,
        model: SegmentationModel,
        config: SegmentConfig | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        self.model, self.config, self.normalisation = model, config or SegmentConfig(), normalisation
        side = self.config.crop if self.config.mode == "slide" else self.config.short_side
        if side % model.granularity:
            raise GramLoopError(
                f"this model needs sides that are multiples of {model.granularity}, not {side}"
            )

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        paired: Literal[False] = ...,
        *,
        scores: bool = ...,
        trace: bool | None = ...,
    ) -> Segmentation: ...

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        *,
        paired: Literal[True],
        scores: bool = ...,
        trace: bool | None = ...,
    ) -> PairedSegmentation: ...

    @torch.no_grad()
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = None,
        paired: bool = False,
        *,
        scores: bool = False,
        trace: bool | None = None,
    ) -> Segmentation | PairedSegmentation:
        """Segment an image given as a path, a PIL image or an array.

        ``scores`` also returns the softmax over classes. ``trace`` returns drift and gate, and is answered
        whatever the gate; by default they come whenever the replay measures them anyway.
        """
        if paired and replay is None:
            raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")
        pixels = read_image(image)
        with self._attached(replay, paired, trace) as loop:
            versions, maps, blocks = self._run(self._prepare(pixels), loop, paired)
        results = [self._finish(mean, (pixels.shape[0], pixels.shape[1]), scores) for mean in versions]
        last = Segmentation(*results[-1], maps, blocks)
        if not paired:
            return last
        return PairedSegmentation(Segmentation(*results[0], None, self.model.backbone.shape.depth), last)

    @torch.no_grad()
    def mean_scores(self, pixels: Tensor) -> Tensor:  # (1, 3, H, W)
        """The ordinary scores (classes, H, W) of an image that is resized and normalised already."""
        return self._run(pixels, None, paired=False)[0][0]

    @contextmanager
    def _attached(
        self, replay: ReplayConfig | None, paired: bool, trace: bool | None
    ) -> Iterator[Loop | None]:
        if replay is None:
            yield None
            return
        wanted = replay.measures_drift and replay.replays > 0 if trace is None else trace
        end = route(replay, self.model.backbone.shape.depth).end
        keep = [tap for tap in self.model.taps if tap >= end] if paired else []
        with attached(self.model.backbone.model, replay, keep=keep, trace=wanted) as loop:
            yield loop

    def _prepare(self, pixels: NDArray[np.uint8]) -> Tensor:  # → (1, 3, H, W)
        multiple = self.model.granularity if self.config.mode == "whole" else 1
        resized = resize_short_side(pixels, self.config.short_side, multiple=multiple)
        return to_tensor(resized, self.normalisation)

    def _run(
        self, pixels: Tensor, loop: Loop | None, paired: bool
    ) -> tuple[list[Tensor], ReplayMaps | None, int]:
        """Mean scores (classes, H, W) per version, the replay's maps, and the blocks of a crop."""
        height, width = pixels.shape[-2:]
        canvases = [Canvas(height, width) for _ in range(1 + paired)]
        maps = CropMaps(height, width)
        blocks = []
        for crops in self._batches(height, width):
            batch = torch.cat([crop.of(pixels) for crop in crops]).to(self.model.backbone.device)
            for canvas, scores in zip(canvases, self._scores(batch, loop, paired), strict=True):
                for crop, each in zip(crops, scores, strict=True):
                    canvas.add(crop, each)
            if loop is not None:
                blocks.append(loop.blocks_executed)
                maps.add(crops, loop.trace)
        trace = maps.finish(self.model.backbone.shape.patch)
        mean = round(sum(blocks) / len(blocks)) if blocks else self.model.backbone.shape.depth
        return [canvas.mean() for canvas in canvases], trace, mean

    def _batches(self, height: int, width: int) -> list[list[Crop]]:
        config = self.config
        if config.mode == "whole":
            return [[Crop(0, 0, height, width)]]
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
            yield model.scores(prior, _ordinary_taps(model, loop, taps), size, exact)
        yield model.scores(prior, taps, size, exact)

    def _finish(
        self, mean: Tensor, size: tuple[int, int], scores: bool
    ) -> tuple[NDArray[np.int32], NDArray[np.float32] | None]:
        soft = _resize(mean, size).softmax(0).numpy() if scores else None
        return _labels(mean, size), soft


def load_segmenter(
    backbone: str | Path | TappedViT | None,
    head: str | Path,
    *,
    config: SegmentConfig | None = None,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> Segmenter:
    """A segmenter from files: a backbone with the released head, or with a linear head (``.safetensors``).

    The normalisation follows from the name of the backbone's file: satellite models have ``sat493m`` in it.
    """
    normalisation = WEB
    if isinstance(backbone, str | Path):
        normalisation = SATELLITE if "sat493m" in str(backbone) else WEB
        backbone = load_any_backbone(backbone, device=device, verify=verify)
    if Path(head).suffix != ".safetensors":
        return Segmenter(load_segmentor(head, backbone, device=device, verify=verify), config, normalisation)
    if backbone is None:
        raise GramLoopError(f"{head} is a head alone; its backbone must be given too")
    linear = LinearSegmentor(backbone, load_linear_head(head, device=device))
    return Segmenter(linear, config, normalisation)


def _ordinary_taps(model: SegmentationModel, loop: Loop, taps: Sequence[Tap]) -> list[Tap]:
    """The taps without the replay: those before the window's end are ordinary anyway."""
    return [
        model.backbone.tap(loop.ordinary[index], tap.grid) if index in loop.ordinary else tap
        for index, tap in zip(model.taps, taps, strict=True)
    ]


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
