"""One thing that was checked: to how many digits it agrees, and how many it should."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from gramloop.errors import GramLoopError

EXACT = 16.0  # digits of what is equal to the bit
_WORDS = 160  # of an error, in characters


@dataclass(frozen=True)
class Case:
    """What was compared with what, and how it came out.

    ``passed`` is None for what is told, or could not be tried here. ``digits`` and ``needed`` are decimal digits of
    agreement; both are None for what either holds or does not.
    """

    group: str
    name: str
    passed: bool | None
    words: str
    digits: float | None = None
    needed: float | None = None


def compared(group: str, name: str, found: Tensor, expected: Tensor, needed: float, against: str) -> Case:
    """A case of two tensors; digits count the largest difference, relative to the largest expected value."""
    have = agreement(found, expected)
    return Case(group, name, have >= needed, against, have, needed)


def attempted(group: str, name: str, run: Callable[[], Case]) -> Case:
    """A case; one that fails, with the first line of the error, where the device cannot do it."""
    try:
        return run()
    except Exception as error:  # whatever a kernel, a driver or a compiler says
        return failed(group, name, error)


def failed(group: str, name: str, error: Exception) -> Case:
    """The case of an error: its sentence, or its kind and first line."""
    if isinstance(error, GramLoopError):
        return Case(group, name, False, str(error))
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    return Case(group, name, False, f"{type(error).__name__}: {first.strip()}"[:_WORDS])


def agreement(found: Tensor, expected: Tensor) -> float:
    """Decimal digits to which two tensors agree; below 0 where one of them is not finite, or of another shape."""
    if found.shape != expected.shape:
        return -1.0
    ours, theirs = (each.detach().cpu().double() for each in (found, expected))
    if not ours.isfinite().all():
        return -1.0
    scale = float(theirs.abs().max()) if theirs.numel() else 0.0
    difference = float((ours - theirs).abs().max()) if ours.numel() else 0.0
    if difference == 0:
        return EXACT
    return min(EXACT, -math.log10(difference / scale)) if scale else -1.0
