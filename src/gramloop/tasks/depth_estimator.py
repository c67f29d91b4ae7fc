"""Depth estimation: an image in, the distance of every pixel out, ordinary or replayed or both.

The image is resized to a short side that the model knows, its long side rounded to what the model takes, and seen at
once; depth comes back in the size of the original. With ``flip`` its mirror image is seen too, and both are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap, TappedViT
from gramloop.replay.attach import Loop
from gramloop.tasks.depth import Depth
from gramloop.tasks.images import RGB, WEB, Normalisation, resize_short_side, short_side_size, to_tensor
from gramloop.tasks.maps import CropMaps
from gramloop.tasks.prediction import ReplayMaps
from gramloop.tasks.predictor import ViTPredictor, smaller_view
from gramloop.tasks.sliding import Crop


@dataclass(frozen=True)
class DepthConfig:
    """How an image is shown to the model."""

    short_side: int = 192
    flip: bool = False  # the mean with the mirror image, mirrored back

    def __post_init__(self) -> None:
        if self.short_side < 1:
            raise GramLoopError(f"the short side must be positive, not {self.short_side}")


class DepthHead(Protocol):
    """What a task needs of a depth head."""

    taps: tuple[int, ...]  # blocks that it reads

    @property
    def channels(self) -> int:
        """The width of the backbone that it was made for."""

    def depth(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:  # each (B, C, h, w) → (B, H, W)
        """Depth in metres in the size (H, W)."""


class DepthEstimator(ViTPredictor[Depth]):
    """A backbone and a depth head ready for images."""

    task = "depth"
    batches = True

    def __init__(
        self,
        backbone: TappedViT,
        head: DepthHead,
        config: DepthConfig | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        backbone.check_taps(head.taps)
        if head.channels != backbone.shape.width:
            raise GramLoopError(
                f"the depth head was made for a backbone of width {head.channels}, this one has {backbone.shape.width}"
            )
        super().__init__(backbone, head.taps, {}, normalisation)
        self.head, self.config = head, config or DepthConfig()
        if self.config.short_side % self.multiple:
            raise GramLoopError(
                f"this model needs sides that are multiples of {self.multiple}, not {self.config.short_side}"
            )

    @property
    def multiple(self) -> int:
        """What the short side is a multiple of."""
        return self.backbone.shape.patch

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        return short_side_size(height, width, self.config.short_side, multiple=self.multiple)

    def _shown(self, height: int, width: int) -> tuple[str, str]:
        return smaller_view(height, width, self.config.short_side, self.multiple, self.backbone.shape.patch)

    def _show(self, pixels: RGB) -> Tensor:  # (H, W, 3) → (1, 3, h, w)
        """The image as the model takes it."""
        shown = resize_short_side(pixels, self.config.short_side, multiple=self.multiple)
        return to_tensor(shown, self.normalisation)

    def _look_at(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Depth]]:
        depth, unmeasured = self.backbone.shape.depth, [None] * len(pixels)
        size = (pixels[0].shape[0], pixels[0].shape[1])
        tensor = torch.cat([self._show(each) for each in pixels]).to(self.backbone.device)
        if self.config.flip:
            tensor = torch.cat([tensor, tensor.flip(-1)])
        taps = self.backbone(tensor, self.taps)
        if loop is None:
            return [self._depths(taps, size, depth, unmeasured)]
        maps = [self._maps(loop, tensor, number) for number in range(len(pixels))]
        replayed = self._depths(taps, size, loop.blocks_executed, maps)
        ordinary = self._ordinary(loop, taps) if paired else None
        return [*([self._depths(ordinary, size, depth, unmeasured)] if ordinary else []), replayed]

    def _maps(self, loop: Loop, shown: Tensor, number: int) -> ReplayMaps | None:  # (B, 3, h, w)
        """What the replay measured in one image of the batch."""
        high, wide = shown.shape[-2:]
        maps = CropMaps(high, wide)
        maps.add([Crop(0, 0, high, wide)], loop.trace, number)
        return maps.finish(self.backbone.shape.patch)

    def _depths(
        self, taps: Sequence[Tap], size: tuple[int, int], blocks: int, maps: Sequence[ReplayMaps | None]
    ) -> list[Depth]:
        found = self.head.depth([tap.map for tap in taps], size)
        if self.config.flip:  # mirror images come after all others
            found = (found[: len(maps)] + found[len(maps) :].flip(-1)) / 2
        return [
            Depth(each.cpu().numpy(), blocks=blocks, trace=trace)
            for each, trace in zip(found, maps, strict=True)
        ]
