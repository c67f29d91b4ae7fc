"""A large image seen through windows: where they lie, the average of what they say, and the maps of their replays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.replay.attach import Loop
from gramloop.replay.trace import Trace
from gramloop.tasks.prediction import ReplayMaps


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


class CropMaps:
    """The traces of all crops, laid over the image."""

    def __init__(self, height: int, width: int) -> None:
        self._size = (height, width)
        self._canvases: dict[str, Canvas] = {}

    def add(self, crops: Sequence[Crop], trace: Trace | None, first: int = 0) -> None:
        """Lay the trace of some crops, from the ``first`` of its batch on, on the image; nothing if nothing was measured."""
        if trace is None or not trace.drift:
            return
        for kind, values in trace_kinds(trace).items():
            canvas = self._canvases.setdefault(kind, Canvas(*self._size))
            for index, crop in enumerate(crops, first):
                canvas.add(crop, F.interpolate(values[index : index + 1], (crop.height, crop.width))[0])

    def finish(self, patch: int) -> ReplayMaps | None:
        """The maps of the image, seen by a model with patches of this side."""
        if not self._canvases:
            return None
        means = {kind: canvas.mean().numpy() for kind, canvas in self._canvases.items()}
        return maps_of(means, patch)


def per_patch(
    maps: NDArray[np.float32], cell: int, longest: int | None = None
) -> NDArray[np.float32]:  # (n, H, W) → (n, h, w)
    """Means over patches of ``cell`` entries a side, or over larger cells where a side has more than ``longest``."""
    patches = [max(1, round(side / cell)) for side in maps.shape[1:]]
    share = 1.0 if longest is None else min(1.0, longest / max(patches))
    rows, columns = (max(1, round(count * share)) for count in patches)
    pooled = F.adaptive_avg_pool2d(torch.from_numpy(maps).double(), (rows, columns))
    means: NDArray[np.float32] = pooled.float().numpy()
    return means


def trace_kinds(trace: Trace) -> dict[str, Tensor]:
    """The maps (B, K, h, w) of one view by kind; post_drift, where it was measured, has K = 1."""
    kinds = {"drift": trace.drift, "gate": trace.gate}
    if trace.post_drift is not None:
        kinds["post_drift"] = [trace.post_drift]
    return {kind: torch.stack(maps, dim=1).float().cpu() for kind, maps in kinds.items()}


def whole_maps(
    loop: Loop | None, shown: Sequence[int], patch: int, images: int = 1
) -> list[ReplayMaps | None]:
    """The maps of every image of a batch that was seen whole, in the size (height, width) that was shown."""
    found: list[ReplayMaps | None] = []
    for number in range(images):
        maps = CropMaps(shown[0], shown[1])
        maps.add([Crop(0, 0, shown[0], shown[1])], None if loop is None else loop.trace, number)
        found.append(maps.finish(patch))
    return found


def patch_maps(loop: Loop | None, images: int = 1) -> list[ReplayMaps | None]:
    """The same with one entry per patch."""
    if loop is None or loop.trace is None or not loop.trace.drift:
        return [None] * images
    kinds = trace_kinds(loop.trace)
    return [maps_of({kind: maps[number].numpy() for kind, maps in kinds.items()}) for number in range(images)]


def maps_of(kinds: Mapping[str, NDArray[np.float32]], cell: int = 1) -> ReplayMaps:
    """From maps (K, h, w) by kind: drift, gate and, where it was measured, post_drift (1, h, w)."""
    post = kinds["post_drift"][0] if "post_drift" in kinds else None
    return ReplayMaps(kinds["drift"], kinds["gate"], post, cell)
