"""Panoptic truth: which segment every pixel belongs to, and what each segment is.

In files a segment's id is a colour: red + 256 green + 65536 blue, as COCO writes it; 0 means no segment.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.shifts.geometry import Matrix, warp_labels

VOID = 0  # the id of pixels without a segment
_MOST = 256**3  # ids that a colour can be
_TABLE = 1 << 16  # ids below this are looked up in a table


@dataclass(frozen=True)
class SegmentMap:
    """The segments of one image; row k of every column belongs to segment k."""

    ids: NDArray[np.int32]  # (H, W), 0 where there is no segment
    numbers: NDArray[np.int64]  # (n,) the ids that occur in the map, rising
    categories: NDArray[np.int64]  # (n,) category ids
    crowd: NDArray[np.bool_]  # (n,) regions of several things that were not told apart

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or not np.issubdtype(self.ids.dtype, np.integer):
            raise GramLoopError(
                f"segments are one whole number per pixel, (H, W), not {self.ids.dtype} {self.ids.shape}"
            )
        if (np.diff(self.numbers) <= 0).any() or (len(self.numbers) and self.numbers[0] <= VOID):
            raise GramLoopError(f"the ids of segments rise from 1 on, unlike {self.numbers[:8].tolist()}")
        if not len(self.numbers) == len(self.categories) == len(self.crowd):
            raise GramLoopError("segments need one category and one crowd flag for each id")

    def places(self) -> NDArray[np.int32]:  # (H, W)
        """The row of each pixel's segment counted from 1; 0 where there is none."""
        last = int(self.numbers[-1]) if len(self.numbers) else VOID
        if last < _TABLE:  # small ids are looked up many times faster than they are searched
            table = np.zeros(last + 2, dtype=np.int32)
            table[self.numbers] = np.arange(1, len(self.numbers) + 1)
            places: NDArray[np.int32] = table[np.clip(self.ids, VOID, last + 1)]
        else:
            found = np.searchsorted(self.numbers, self.ids)
            places = np.where(np.append(self.numbers, -1)[found] == self.ids, found + 1, 0).astype(np.int32)
        if (strange := (places == 0) & (self.ids != VOID)).any():
            raise GramLoopError(f"a pixel belongs to segment {self.ids[strange][0]}, which is not listed")
        return places

    def moved(self, affine: Matrix) -> SegmentMap:
        """The map after a move of the image; segments that left it are gone."""
        ids = warp_labels(self.ids.astype(np.int32), affine, VOID)
        left = np.isin(self.numbers, ids)
        return SegmentMap(ids, self.numbers[left], self.categories[left], self.crowd[left])


def read_segments(path: Path, infos: Sequence[Any]) -> SegmentMap:
    """The segments of a PNG file, whose entries of the JSON file are ``infos``; both must list the same ones."""
    ids = read_ids(path)
    listed = sorted(infos, key=lambda info: int(info["id"]))
    numbers = np.array([info["id"] for info in listed], dtype=np.int64)
    shown = np.unique(ids)
    shown = shown[shown != VOID]
    if strangers := sorted(set(shown.tolist()) ^ set(numbers.tolist())):
        held, told = ("holds", "does not list") if strangers[0] in shown else ("lacks", "lists")
        raise GramLoopError(f"{path} {held} segment {strangers[0]}, which the annotation file {told}")
    return SegmentMap(
        ids,
        numbers,
        np.array([info["category_id"] for info in listed], dtype=np.int64),
        np.array([info.get("iscrowd", 0) for info in listed], dtype=np.bool_),
    )


def read_ids(path: Path) -> NDArray[np.int32]:  # (H, W)
    """The ids of a file of colours."""
    try:
        with Image.open(path) as picture:
            if picture.mode not in ("RGB", "RGBA"):
                raise GramLoopError(f"{path} is a {picture.mode} picture; segments are colours, RGB")
            colours = np.array(picture.convert("RGB"), dtype=np.int32)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, GramLoopError):
            raise
        raise GramLoopError(f"cannot decode the segments {path}: {error}") from error
    ids: NDArray[np.int32] = colours @ np.array([1, 256, 65536], dtype=np.int32)
    return ids


def segments_png(ids: NDArray[Any]) -> bytes:  # of (H, W)
    """Ids as the bytes of a PNG file of colours."""
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= _MOST:
        raise GramLoopError(f"the ids of segments lie in 0..{_MOST - 1}, unlike {ids.min()}..{ids.max()}")
    colours = np.stack([ids, ids >> 8, ids >> 16], axis=-1) & 255
    buffer = io.BytesIO()
    Image.fromarray(colours.astype(np.uint8)).save(buffer, format="png")
    return buffer.getvalue()
