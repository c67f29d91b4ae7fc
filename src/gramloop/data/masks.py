"""Masks as pixels and as COCO's run lengths; polygons are filled as COCO fills them, to the pixel.

Run lengths are the lengths of runs of equal pixels, down the columns, the first run outside the mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import hotcoco.mask
import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError, short_repr

_LONGEST = 12  # letters of a number, which then has 60 bits


class RunLengths(TypedDict):
    """A mask as a JSON file holds it."""

    size: list[int]  # height, width
    counts: str  # the lengths in COCO's compressed letters


def encode_mask(mask: NDArray[Any]) -> RunLengths:  # (H, W)
    """A mask as run lengths; every pixel that is not 0 lies inside."""
    found = hotcoco.mask.encode(np.asarray(mask != 0))
    return {"size": [int(side) for side in mask.shape], "counts": found["counts"].decode()}


def decode_mask(run_lengths: Mapping[str, Any] | RunLengths) -> NDArray[np.uint8]:
    """Run lengths {size: [H, W], counts: list, or COCO's compressed string} as pixels; 1 inside."""
    return np.ascontiguousarray(hotcoco.mask.decode(dict(run_lengths)))


def mask_area(run_lengths: Mapping[str, Any] | RunLengths) -> int:
    """The number of pixels inside."""
    return int(hotcoco.mask.area(dict(run_lengths)))


def parse_runs(counts: Sequence[int] | str | bytes) -> NDArray[np.int64]:
    """The lengths of the runs, from a list or from COCO's compressed letters; decoding does not check their sum."""
    if not isinstance(counts, str | bytes):
        return np.asarray(counts, dtype=np.int64)
    letters = counts.encode("utf-8", "replace") if isinstance(counts, str) else counts
    codes = np.frombuffer(letters, dtype=np.uint8).astype(np.int64) - 48
    last = np.flatnonzero(codes & 0x20 == 0)  # a number's last letter lacks this bit
    whole = not codes.size or (
        codes.min() >= 0 and codes.max() < 64 and last.size and last[-1] == len(codes) - 1
    )
    first = np.append(0, last[:-1] + 1)[: last.size]
    lengths = last - first + 1
    if not whole or lengths.max(initial=0) > _LONGEST:
        raise GramLoopError(f"{short_repr(counts)} are not compressed run lengths")
    # five bits a letter, low bits first, sign-extended
    place = 5 * (np.arange(len(codes)) - np.repeat(first, lengths))
    values = np.add.reduceat((codes & 0x1F) << place, first) if last.size else np.zeros(0, np.int64)
    values -= np.where(codes[last] & 0x10, np.int64(1) << (5 * lengths), 0)
    for begin in (1, 2):  # from the fourth on, numbers are differences by two back
        values[begin::2] = np.cumsum(values[begin::2])
    return values


def annotation_mask(annotation: Mapping[str, Any], height: int, width: int) -> NDArray[np.uint8]:
    """The pixels (H, W) of one COCO annotation; its box where it has no segmentation."""
    segmentation = annotation.get("segmentation")
    if not segmentation:
        return box_mask(annotation["bbox"], height, width)
    if isinstance(segmentation, dict):
        return decode_mask(segmentation)
    polygons = [[float(value) for value in polygon] for polygon in segmentation]
    filled = hotcoco.mask.merge(hotcoco.mask.frPyObjects(polygons, height, width))
    return np.ascontiguousarray(hotcoco.mask.decode(filled))


def box_mask(box: Sequence[float], height: int, width: int) -> NDArray[np.uint8]:
    """A filled box (H, W); a pixel belongs to it when its centre does."""
    x, y, w, h = box
    mask = np.zeros((height, width), dtype=np.uint8)
    top, bottom = (max(0, int(np.ceil(edge - 0.5))) for edge in (y, y + h))
    left, right = (max(0, int(np.ceil(edge - 0.5))) for edge in (x, x + w))
    mask[top:bottom, left:right] = 1
    return mask
