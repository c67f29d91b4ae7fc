"""Depth by Meta's released head: short side 768, resized in floating point.

The long side is rounded to the nearest multiple of 32, which is what the head gives back pixel by pixel. Meta's own
evaluation truncates it and pads to whole patches; ``padded`` does the same, and then depth of an image whose sides are
no multiples of 32 is stretched over its padding, as there. Images of NYU, 480 x 640, are 768 x 1024 either way.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.models.backbone import TappedViT
from gramloop.models.depther import DEPTH_STRIDE, FAR, NEAR, Depther, load_depther, pad_around
from gramloop.tasks.depth_estimator import DepthConfig, DepthEstimator
from gramloop.tasks.images import RGB, WEB, Normalisation, normalisation_of, short_side_size, to_tensor


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
