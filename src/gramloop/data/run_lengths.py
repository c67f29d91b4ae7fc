"""COCO's run lengths: a mask as the lengths of its runs of equal pixels, down the columns, the first run outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError


class RunLengths(TypedDict):
    """A mask as a JSON file holds it."""

    size: list[int]  # height, width
    counts: str  # the lengths in COCO's compressed letters


def run_length_mask(run_lengths: Mapping[str, Any] | RunLengths) -> NDArray[np.uint8]:
    """Decode {size: [H, W], counts: list, or COCO's compressed string}; 1 inside."""
    height, width = run_lengths["size"]
    runs = _runs(run_lengths["counts"])
    if runs.sum() != height * width:
        raise GramLoopError(f"run lengths add up to {runs.sum()}, not to {height} x {width} pixels")
    values = (np.arange(len(runs)) & 1).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(values, runs).reshape(width, height).T)


def mask_area(run_lengths: Mapping[str, Any] | RunLengths) -> int:
    """The number of pixels inside."""
    return int(_runs(run_lengths["counts"])[1::2].sum())


def run_lengths_of(mask: NDArray[Any]) -> RunLengths:  # (H, W)
    """Encode a mask; every pixel that is not 0 lies inside."""
    down = (mask.T != 0).reshape(-1)
    turns = np.flatnonzero(down[1:] != down[:-1]) + 1
    begins = [0, 0] if down.size and down[0] else [0]  # the first run is always one outside, here of length 0
    runs = np.diff(np.concatenate([begins, turns, [down.size]]))
    return {"size": [int(side) for side in mask.shape], "counts": _compressed(runs.tolist())}


def _runs(counts: Any) -> NDArray[np.int64]:
    if isinstance(counts, bytes):
        counts = counts.decode("ascii")
    return np.asarray(_uncompressed(counts) if isinstance(counts, str) else counts, dtype=np.int64)


def _uncompressed(text: str) -> list[int]:
    """Five bits a character, low bits first, sign-extended; from the fourth on, differences by two back."""
    runs: list[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        value |= (code & 0x1F) << shift
        shift += 5
        if code & 0x20:
            continue
        if code & 0x10:
            value |= -1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    return runs


def _compressed(runs: list[int]) -> str:
    letters: list[str] = []
    for index, run in enumerate(runs):
        value = run - runs[index - 2] if index > 2 else run
        more = True
        while more:
            bits = value & 0x1F
            value >>= 5
            more = value != (-1 if bits & 0x10 else 0)
            letters.append(chr(48 + bits + (0x20 if more else 0)))
    return "".join(letters)
