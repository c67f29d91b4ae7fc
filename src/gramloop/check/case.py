"""One thing that was checked: to how many digits it agrees, and how many it should."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

EXACT = 16.0  # digits of what is equal to the bit


@dataclass(frozen=True)
class Case:
    """What was compared with what, and how it came out.

    ``digits`` and ``needed`` are decimal digits of agreement; both are None for what either holds or does not.
    """

    group: str
    name: str
    passed: bool
    words: str
    digits: float | None = None
    needed: float | None = None


def compared(group: str, name: str, found: Tensor, expected: Tensor, needed: float, against: str) -> Case:
    """A case of two tensors; digits count the largest difference, relative to the largest expected value."""
    have = agreement(found, expected)
    return Case(group, name, have >= needed, against, have, needed)


def agreement(found: Tensor, expected: Tensor) -> float:
    """Decimal digits to which two tensors agree; below 0 where one of them is not finite, or of another shape."""
    if found.shape != expected.shape or not torch.isfinite(found).all():
        return -1.0
    wide = found.detach().cpu().double(), expected.detach().cpu().double()
    scale = float(wide[1].abs().max()) if wide[1].numel() else 0.0
    difference = float((wide[0] - wide[1]).abs().max()) if wide[0].numel() else 0.0
    if difference == 0:
        return EXACT
    return min(EXACT, -math.log10(difference / scale)) if scale else -1.0
