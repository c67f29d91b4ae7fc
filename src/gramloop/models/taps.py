"""What a dense head sees of a frozen ViT: the tokens of some blocks, after the final norm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import refuse_many_tokens
from gramloop.models.released_names import BackboneShape


@dataclass(frozen=True)
class Tap:
    """All tokens of one block after the encoder's final norm, in the order cls, registers, patches."""

    tokens: Tensor  # (B, T, C)
    grid: tuple[int, int]  # rows and columns of patches

    @property
    def prefix(self) -> int:
        """How many tokens precede the patches."""
        return self.tokens.shape[1] - self.grid[0] * self.grid[1]

    @property
    def cls(self) -> Tensor:  # (B, C)
        """The class token."""
        return self.tokens[:, 0]

    @property
    def registers(self) -> Tensor:  # (B, R, C)
        """The register tokens."""
        return self.tokens[:, 1 : self.prefix]

    @property
    def patches(self) -> Tensor:  # (B, N, C)
        """The patches, row by row."""
        return self.tokens[:, self.prefix :]

    @property
    def map(self) -> Tensor:  # (B, C, h, w)
        """The patches as an image."""
        batch, _, channels = self.patches.shape
        return self.patches.transpose(1, 2).reshape(batch, channels, *self.grid)


class TapPoint(nn.Module):
    """Returns the tap of a block as it is: a forward hook here sees, and may change, what heads read."""

    def forward(self, tap: Tap, block: int) -> Tap:
        """The tap."""
        return tap


class TappedViT(nn.Module):
    """A ViT whose blocks run in order, so that a hook on one of them takes effect in all later taps.

    ``model`` is the library's own model: attach a replay to it, or use it in any other way.
    """

    model: Any

    def __init__(self, shape: BackboneShape) -> None:
        super().__init__()
        self.shape = shape
        self.tap_point = TapPoint()

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks, first to last."""
        raise NotImplementedError

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        raise NotImplementedError

    def features(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:  # (B, 3, H, W)
        """The outputs of the blocks ``taps``, each after the final norm, in the order asked for."""
        raise NotImplementedError

    def forward(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:  # (B, 3, H, W)
        """The features of :meth:`features`, so that a backbone can be called."""
        return self.features(pixels, taps)

    def tap(self, state: Tensor, grid: tuple[int, int], block: int) -> Tap:
        """A block's output, given as all tokens (B, T, C) before the final norm, as a feature."""
        weight = next(self.norm.parameters())
        wide = torch.promote_types(
            state.dtype, weight.dtype
        )  # weights may be bfloat16, and the norm's float32
        tap: Tap = self.tap_point(Tap(self.norm(state.to(wide)), grid), block)
        return tap

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        """Rows and columns of patches in a batch of images; each side must be a multiple of the patch."""
        height, width = pixels.shape[-2:]
        if height % self.shape.patch or width % self.shape.patch or not height or not width:
            raise GramLoopError(
                f"an image of {height} x {width} cannot be cut into patches: "
                f"both sides must be positive multiples of {self.shape.patch}"
            )
        rows, columns = height // self.shape.patch, width // self.shape.patch
        refuse_many_tokens(rows, columns, f"an image shown in {width} x {height} pixels")
        return rows, columns

    def check_taps(self, taps: Sequence[int]) -> set[int]:
        """The taps as a set, after making sure that the blocks exist."""
        if not taps or len(set(taps)) != len(taps) or not all(0 <= tap < self.shape.depth for tap in taps):
            raise GramLoopError(
                f"taps must be different blocks between 0 and {self.shape.depth - 1}, not {list(taps)}"
            )
        return set(taps)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.norm.parameters()).device


def quarter_ends(depth: int) -> tuple[int, ...]:
    """The last block of each quarter, which the released detector and PMT's heads read."""
    if depth < 4:
        raise GramLoopError(f"four taps need at least four blocks, not {depth}")
    return tuple(quarter * depth // 4 - 1 for quarter in range(1, 5))
