"""Plain-DETR's two-stage proposals: one box per cell of four maps, at strides 8, 16, 32 and 64."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STRIDES = (8, 16, 32, 64)


class MapNorm(nn.Module):
    """Layer norm over the channels of a (B, C, h, w) map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, h, w) → (B, C, h, w)."""
        return self.ln(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def stride_projections(width: int) -> nn.ModuleList:
    """From the encoder's stride 16 to each of STRIDES."""

    def halve() -> nn.Conv2d:
        return nn.Conv2d(width, width, kernel_size=2, stride=2)

    return nn.ModuleList(
        [
            nn.Sequential(nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)),
            nn.Identity(),
            nn.Sequential(halve()),
            nn.Sequential(halve(), MapNorm(width), nn.GELU(), halve()),
        ]
    )


@dataclass(frozen=True)
class Proposals:
    """Candidate boxes of all strides with the memory behind each."""

    memory: Tensor  # (B, n, C), zero where the candidate is unusable
    boxes: Tensor  # (B, n, 4) cxcywh in pixels
    valid_size: Tensor  # (B, 2) width and height of the unpadded image


def propose(memory: Tensor, padding: Tensor, projections: nn.ModuleList, smallest: float) -> Proposals:
    """Spread ``memory`` (B, C, h, w) over all strides; squares of ``smallest`` pixels and its doublings.

    A candidate counts when it lies on valid ground and its centre and size are within 1 to 99 % of the image.
    """
    reach = 16 * min(memory.shape[-2:])  # a side shorter than a stride has no cell of it
    levels = [level for level, stride in enumerate(STRIDES) if stride <= reach]
    maps = [projections[level](memory) for level in levels]
    ground = [F.interpolate(padding[:, None].float(), size=each.shape[-2:])[:, 0].bool() for each in maps]
    squares = [
        _squares(each, STRIDES[level], smallest * 2**level) for level, each in zip(levels, maps, strict=True)
    ]
    boxes = torch.cat(squares)  # (n, 4)
    finest = ground[0]
    valid_size = torch.stack(((~finest[:, 0]).sum(1), (~finest[:, :, 0]).sum(1)), dim=1) * STRIDES[0]
    limit = valid_size.repeat(1, 2)[:, None]  # (B, 1, 4)
    usable = ((boxes > 0.01 * limit) & (boxes < 0.99 * limit)).all(-1, keepdim=True)
    usable &= ~torch.cat([each.flatten(1) for each in ground], dim=1)[..., None]  # (B, n, 1)
    flat = torch.cat([each.flatten(2) for each in maps], dim=2).transpose(1, 2)
    far = float(max(finest.shape[-2:]) * STRIDES[0])
    return Proposals(
        memory=flat.masked_fill(~usable, 0.0),
        boxes=torch.where(usable, boxes, torch.full_like(boxes, far)),
        valid_size=valid_size.to(memory.dtype),
    )


def _squares(maps: Tensor, stride: int, side: float) -> Tensor:
    """One square of ``side`` pixels at the centre of every cell, (h * w, 4) cxcywh."""
    height, width = maps.shape[-2:]
    y = (torch.arange(height, device=maps.device, dtype=torch.float32) + 0.5) * stride
    x = (torch.arange(width, device=maps.device, dtype=torch.float32) + 0.5) * stride
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    sides = torch.full_like(grid_x, side)
    return torch.stack((grid_x, grid_y, sides, sides), dim=-1).flatten(0, 1)
