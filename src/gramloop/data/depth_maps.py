"""The true distance of every pixel: how files write it down, and what of it is scored."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.errors import GramLoopError

NEAREST, FARTHEST = 1e-3, 1e3  # metres between which a set that says nothing else is scored
Crop = Literal["none", "eigen"]
_DEPTH_MODES = ("I", "I;16", "I;16B", "I;16L", "L")


@dataclass(frozen=True)
class DepthMap:
    """The distance of every pixel of an image."""

    metres: NDArray[np.float32]  # (H, W); 0 where it is not known
    near: float = NEAREST  # what lies nearer or farther is not scored
    far: float = FARTHEST

    def __post_init__(self) -> None:
        if not 0 < self.near < self.far < np.inf:
            raise GramLoopError(
                f"depth is scored from near to far, 0 < near < far, not from {self.near} to {self.far} m"
            )

    @property
    def known(self) -> NDArray[np.bool_]:  # (H, W)
        """Which pixels are scored."""
        return np.isfinite(self.metres) & (self.metres >= self.near) & (self.metres <= self.far)


@dataclass(frozen=True)
class DepthFormat:
    """How a set writes depth: numbers per metre, the range that is scored, and the part of the image."""

    scale: float = 1000.0  # what the stored numbers are divided by
    near: float = NEAREST
    far: float = FARTHEST
    crop: Crop = "none"  # "eigen": of NYU, without the frame of its images

    def __post_init__(self) -> None:
        if not 0 < self.scale < np.inf:
            raise GramLoopError(f"the scale of stored depth is above 0, not {self.scale}")
        if self.crop not in get_args(Crop):
            raise GramLoopError(f"the crop is one of {', '.join(get_args(Crop))}, not {self.crop!r}")
        DepthMap(np.zeros((0, 0), np.float32), self.near, self.far)  # which checks the range

    def read(self, path: Path) -> DepthMap:
        """The depth of a file, a PNG or an array of numpy."""
        metres = read_depth_values(path).astype(np.float32) / np.float32(self.scale)
        metres[~np.isfinite(metres)] = 0
        if self.crop == "eigen":
            high, wide = metres.shape
            inside = np.zeros(metres.shape, dtype=np.bool_)
            inside[45 * high // 480 : 471 * high // 480, 41 * wide // 640 : 601 * wide // 640] = True
            metres[~inside] = 0
        return DepthMap(metres, self.near, self.far)


def read_depth_values(path: Path) -> NDArray[Any]:  # → (H, W)
    """The numbers of a depth file as they are stored."""
    with _opened(path) as found:
        return np.array(found)


def depth_shape(path: Path) -> tuple[int, int]:
    """Height and width of a depth file, without reading its numbers."""
    with _opened(path) as found:
        return (found.height, found.width) if isinstance(found, Image.Image) else found.shape


@contextmanager
def _opened(path: Path) -> Iterator[NDArray[Any] | Image.Image]:
    try:
        if path.suffix == ".npy":
            values: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
            if values.ndim != 2 or values.dtype.kind not in "uif":
                raise GramLoopError(
                    f"{path} holds {values.dtype} of shape {values.shape}; depth is one number per pixel, (H, W)"
                )
            yield values
            return
        with Image.open(path) as picture:
            if picture.mode not in _DEPTH_MODES:
                raise GramLoopError(
                    f"{path} is a {picture.mode} picture; depth has one channel of 16 bits, or is a .npy file"
                )
            yield picture
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        if isinstance(error, GramLoopError):
            raise
        raise GramLoopError(f"cannot decode the depth file {path}: {error}") from error
