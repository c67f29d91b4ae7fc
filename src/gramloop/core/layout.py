"""Where an image's patches stand in the state that blocks hand on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gramloop.core.trace import Grid


@dataclass(frozen=True)
class Layout:
    """Tokens (B, T, C), or a map of the patches, which is worked on as its flattened tokens (B, H * W, C).

    prefix, suffix: how many class, register and detection tokens stand before and after the patches.
    map: the order of dimensions where blocks carry a map; such blocks may form windows inside themselves.
    """

    prefix: int = 0
    suffix: int = 0
    map: Literal["", "BHWC", "BCHW"] = ""

    def tokens(self, state: Tensor) -> Tensor:
        """A block's state as (B, T, C)."""
        if self.map == "BHWC":
            return state.flatten(1, 2)
        return state.flatten(2).transpose(1, 2) if self.map == "BCHW" else state

    def state(self, tokens: Tensor, grid: Grid | None) -> Tensor:
        """Tokens as blocks hand them on; ``grid`` is that of the map."""
        if grid is None:
            return tokens
        batch, _, channels = tokens.shape
        if self.map == "BHWC":
            return tokens.reshape(batch, *grid, channels)
        return tokens.transpose(1, 2).reshape(batch, channels, *grid)

    def grid(self, state: Tensor) -> Grid | None:
        """The patch grid of a map; None for tokens, which do not show it."""
        if not self.map:
            return None
        rows = 1 if self.map == "BHWC" else 2
        return state.shape[rows], state.shape[rows + 1]

    def patches(self, tokens: Tensor) -> Tensor:
        """The patches among an image's tokens, (B, T, C) -> (B, N, C)."""
        return tokens[:, self.prefix : -self.suffix or None]

    @property
    def others(self) -> int:
        """How many tokens are no patches."""
        return self.prefix + self.suffix
