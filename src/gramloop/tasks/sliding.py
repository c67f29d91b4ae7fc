"""A large image seen through windows: where they lie, and the average of what they say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
