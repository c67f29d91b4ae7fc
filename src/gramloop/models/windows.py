"""Cutting a large image into windows plus one view of the whole, and putting their feature maps together.

The released detector looks at an image ten times: at 3 x 3 windows side by side, and at the whole image
shrunk to the size of the first window. A window is a third of a side, rounded up to whole patches, and the
last one takes what is left. Where that would leave nothing (sides of 1, 2 or 4 patches) there are fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.errors import GramLoopError


def window_spans(side: int, count: int = 3, patch: int = 16) -> tuple[tuple[int, int], ...]:
    """Where the windows along one side begin and end, in pixels."""
    if side < patch or side % patch:
        raise GramLoopError(f"a side of {side} pixels has no whole patches: it must be a multiple of {patch}")
    for parts in range(count, 1, -1):
        length = -(-(side // parts) // patch) * patch
        starts = [part * length for part in range(parts)]
        if starts[-1] < side:
            return tuple((start, min(start + length, side)) for start in starts)
    return ((0, side),)


@dataclass(frozen=True)
class Layout:
    """The windows of one image size, row by row."""

    rows: tuple[tuple[int, int], ...]  # pixels
    columns: tuple[tuple[int, int], ...]
    patch: int = 16

    @classmethod
    def of(cls, height: int, width: int, count: int = 3, patch: int = 16) -> Layout:
        """The layout of an image; ``count`` windows along each side where they fit."""
        return cls(window_spans(height, count, patch), window_spans(width, count, patch), patch)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches in the whole image."""
        return self.rows[-1][1] // self.patch, self.columns[-1][1] // self.patch

    def crops(self, maps: Tensor, stride: int = 1) -> list[Tensor]:
        """The windows of (..., H, W) pixels, or of a map whose cells are ``stride`` pixels wide."""
        return [
            maps[..., top // stride : bottom // stride, left // stride : right // stride]
            for top, bottom in self.rows
            for left, right in self.columns
        ]

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Maps of the windows, in the order of :meth:`crops`, as one map (..., h, w)."""
        across = len(self.columns)
        lines = [torch.cat(list(pieces[at : at + across]), dim=-1) for at in range(0, len(pieces), across)]
        return torch.cat(lines, dim=-2)

    def overview(self, images: Tensor) -> Tensor:
        """The whole image (B, 3, H, W) at the size of the first window."""
        return _resize(images, (self.rows[0][1], self.columns[0][1]))

    def overview_mask(self, valid: Tensor) -> Tensor:
        """The valid patches (B, h, w) as the overview's patches see them: the nearest one decides."""
        size = self.rows[0][1] // self.patch, self.columns[0][1] // self.patch
        return F.interpolate(valid[:, None].float(), size=size)[:, 0].bool()

    def enlarge(self, maps: Tensor) -> Tensor:
        """A map (B, C, h', w') of the overview at the size of the whole image's map."""
        return _resize(maps, self.grid)


def _resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False, antialias=True)
