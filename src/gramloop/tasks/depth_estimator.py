"""Depth estimation: an image in, the distance of every pixel out, ordinary or replayed or both.

The image is resized to a short side that the model knows, its long side rounded to what the model takes, and seen at
once; depth comes back in the size of the original. With ``flip`` its mirror image is seen too, and both are averaged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.backbone import TappedViT
from gramloop.models.depther import DEPTH_STRIDE, FAR, NEAR, Depther, load_depther, pad_around
from gramloop.replay.attach import Loop
from gramloop.tasks.depth import Depth
from gramloop.tasks.images import (
    RGB,
    WEB,
    Normalisation,
    normalisation_of,
    resize_short_side,
    short_side_size,
    to_tensor,
)
from gramloop.tasks.predictor import ViTPredictor
from gramloop.tasks.sliding import whole_maps


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

    def _show(self, pixels: RGB) -> Tensor:  # (H, W, 3) → (1, 3, h, w)
        """The image as the model takes it."""
        shown = resize_short_side(pixels, self.config.short_side, multiple=self.multiple)
        return to_tensor(shown, self.normalisation)

    def _look_at(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Depth]]:
        size = (pixels[0].shape[0], pixels[0].shape[1])
        shown = torch.cat([self._show(each) for each in pixels]).to(self.backbone.device)
        if self.config.flip:
            shown = torch.cat([shown, shown.flip(-1)])
        versions = []
        for taps, blocks, measured in self._runs(shown, loop, paired):
            found = self.head.depth([tap.map for tap in taps], size)
            if self.config.flip:  # mirror images come after all others
                found = (found[: len(pixels)] + found[len(pixels) :].flip(-1)) / 2
            maps = whole_maps(measured, shown.shape[-2:], self.backbone.shape.patch, len(pixels))
            pairs = zip(found, maps, strict=True)
            versions.append([Depth(each.cpu().numpy(), blocks=blocks, trace=trace) for each, trace in pairs])
        return versions


@dataclass(frozen=True)
class DptDepthConfig(DepthConfig):
    """How an image is shown to Meta's depth model."""

    short_side: int = 768
    padded: bool = False  # truncate the long side and pad, as Meta's evaluation does


class DptDepthEstimator(DepthEstimator):
    """Meta's depth model ready for images."""

    config: DptDepthConfig

    def __init__(
        self, model: Depther, config: DptDepthConfig | None = None, normalisation: Normalisation = WEB
    ) -> None:
        super().__init__(model.backbone, model.head, config or DptDepthConfig(), normalisation)

    @property
    def multiple(self) -> int:
        """Sides that are multiples of it come back as they are; padding makes up for others."""
        return 1 if self.config.padded else DEPTH_STRIDE

    def shown(self, pixels: RGB) -> Tensor:  # (H, W, 3) → (1, 3, h, w)
        """The image in the model's size, normalised, before any padding."""
        truncated = int if self.config.padded else None
        height, width = pixels.shape[:2]
        short = self.config.short_side
        size = short_side_size(height, width, short, multiple=self.multiple, rounded=truncated)
        unit = to_tensor(pixels, Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
        resized = F.interpolate(unit, size, mode="bilinear", antialias=True, align_corners=False)
        mean, std = (
            torch.tensor(each)[:, None, None] for each in (self.normalisation.mean, self.normalisation.std)
        )
        return (resized - mean) / std

    def _show(self, pixels: RGB) -> Tensor:
        # at most 8 pixels on a side: no patch is padding alone, so a replay has nothing to be told
        return pad_around(self.shown(pixels), self.backbone.shape.patch)


def load_depth_estimator(
    backbone: str | Path | TappedViT,
    head: str | Path,
    *,
    config: DptDepthConfig | None = None,
    depth_range: tuple[float, float] = (NEAR, FAR),
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> DptDepthEstimator:
    """A depth estimator from Meta's two files; ``dtype`` is that of the backbone's weights."""
    model = load_depther(backbone, head, depth_range=depth_range, dtype=dtype, device=device, verify=verify)
    normalisation = normalisation_of(backbone) if isinstance(backbone, str | Path) else WEB
    return DptDepthEstimator(model, config, normalisation)
