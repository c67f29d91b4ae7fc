"""Recentring: the mean of an image's patches, at the taps a head reads, moved back towards that of ordinary images.

With d the difference of the two means, patches become z - w d. Or, with c, only what lies beyond c standard
deviations of ordinary images' own means is taken back, channel by channel: z - w sign(d) max(|d| - c s, 0), which
leaves ordinary images nearly alone. No block is executed for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from gramloop.core.fields import Field, shown
from gramloop.errors import GramLoopError
from gramloop.util.table import Shown, ShownTable, settings_table

WEIGHT = Field("a number from 0 to 1", kind=float, high=1)
BEYOND = Field("a number of standard deviations from 0 to 1000", kind=float, high=1000, optional=True)


@dataclass(frozen=True)
class Recentring(Shown):
    """A share ``weight`` of the way back; with ``beyond`` (c), only what exceeds so many standard deviations."""

    weight: float = 1.0
    beyond: float | None = None

    def __post_init__(self) -> None:
        """Refuse what is no share and no number of standard deviations."""
        WEIGHT.check("recentre's weight", self.weight)
        BEYOND.check("recentre's c", self.beyond)

    @staticmethod
    def of(given: object) -> Recentring:
        """What ``attach(recentre=…)`` may be given: a weight, a text such as ``c=1``, or a recentring."""
        if isinstance(given, Recentring):
            return given
        if isinstance(given, str):
            return Recentring.parse(given)
        if isinstance(given, bool) or WEIGHT.keep(given) is None:
            raise GramLoopError(
                f'recentre is {shown(given)}; it is a weight from 0 to 1, or a text such as "c=1" or "0.5,c=1"'
            )
        return Recentring(float(str(given)))

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """``0.3``, ``c=1`` or both, ``0.5,c=1``."""
        parts = [part.strip() for part in arguments.split(",")] if arguments else []
        limits = [part.removeprefix("c=") for part in parts if part.startswith("c=")]
        weights = [part for part in parts if not part.startswith("c=")]
        if not parts or len(limits) > 1 or len(weights) > 1:
            raise GramLoopError(
                f"recentre takes a weight, such as recentre:0.3, or c, such as recentre:c=1, not {arguments!r}"
            )
        weight = WEIGHT.parse("recentre's weight", weights[0]) if weights else 1.0
        beyond = BEYOND.parse("recentre's c", limits[0]) if limits else None
        assert isinstance(weight, int | float)
        assert isinstance(beyond, int | float | None)
        return cls(weight, beyond)

    @property
    def arguments(self) -> str:
        """Weight and c, each where it says something; `parse` reads it back."""
        limit = [] if self.beyond is None else [f"c={self.beyond:g}"]
        weight = [f"{self.weight:g}"] if not limit or self.weight != 1 else []
        return ",".join([*weight, *limit])

    def _shown(self) -> ShownTable:
        return settings_table(f"recentre:{self.arguments}", self)

    def moved(self, patches: Tensor, away: Tensor, spread: Tensor | None = None) -> Tensor:
        """Patches (B, N, C) whose mean lies ``away`` (B, 1, C) from the ordinary one, recentred."""
        if self.beyond is not None and spread is not None:
            limit = self.beyond * spread.to(patches.device)
            away = away.sign() * (away.abs() - limit).clamp(min=0)
        return patches - (self.weight * away).to(patches.dtype)


def patch_mean(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """The mean of an image's valid patches in float32, (B, N, C) -> (B, 1, C)."""
    if valid is None:
        return patches.float().mean(1, keepdim=True)
    counted = torch.where(valid[..., None], patches.float(), 0.0)
    return counted.sum(1, keepdim=True) / valid.sum(1)[:, None, None].clamp(min=1)
