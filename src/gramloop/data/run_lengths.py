"""COCO's run lengths: a mask as the lengths of its runs of equal pixels, down the columns, the first run outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError, short_repr

_LONGEST = 12  # letters of a number, which then has 60 bits


class RunLengths(TypedDict):
    """A mask as a JSON file holds it."""

    size: list[int]  # height, width
    counts: str  # the lengths in COCO's compressed letters


def run_length_mask(run_lengths: Mapping[str, Any] | RunLengths) -> NDArray[np.uint8]:
    """Decode {size: [H, W], counts: list, or COCO's compressed string}; 1 inside."""
    height, width = run_lengths["size"]
    runs = runs_of(run_lengths["counts"])
    if runs.sum() != height * width or runs.min(initial=0) < 0:
        raise GramLoopError(f"run lengths add up to {runs.sum()}, not to {height} x {width} pixels")
    values = (np.arange(len(runs)) & 1).astype(np.uint8)
    return np.ascontiguousarray(np.repeat(values, runs).reshape(width, height).T)


def mask_area(run_lengths: Mapping[str, Any] | RunLengths) -> int:
    """The number of pixels inside."""
    return int(runs_of(run_lengths["counts"])[1::2].sum())


def run_lengths_of(mask: NDArray[Any]) -> RunLengths:  # (H, W)
    """Encode a mask; every pixel that is not 0 lies inside."""
    down = (mask.T != 0).reshape(-1)
    turns = np.flatnonzero(down[1:] != down[:-1]) + 1
    begins = [0, 0] if down.size and down[0] else [0]  # the first run is always one outside, here of length 0
    runs = np.diff(np.concatenate([begins, turns, [down.size]]))
    return {"size": [int(side) for side in mask.shape], "counts": _compressed(runs.tolist())}


def runs_of(counts: Sequence[int] | str | bytes) -> NDArray[np.int64]:
    """The lengths of the runs, from a list or from COCO's compressed letters."""
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
        raise GramLoopError(f"{short_repr(counts)} are no compressed run lengths")
    # five bits a letter, low bits first, sign-extended
    place = 5 * (np.arange(len(codes)) - np.repeat(first, lengths))
    values = np.add.reduceat((codes & 0x1F) << place, first) if last.size else np.zeros(0, np.int64)
    values -= np.where(codes[last] & 0x10, np.int64(1) << (5 * lengths), 0)
    for begin in (1, 2):  # from the fourth on, numbers are differences by two back
        values[begin::2] = np.cumsum(values[begin::2])
    return values


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
