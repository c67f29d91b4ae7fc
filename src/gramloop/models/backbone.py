"""What dense heads need of a frozen ViT: its sizes, and the tokens of some blocks after the final norm.

Precision: parameters and features are float32. On a GPU the blocks of a DINOv3 compute under bfloat16 autocast, as in the
paper; on a CPU everything is float32. Weights may be loaded in bfloat16: then so are the states, but the final norm is
not, so that heads and drift read float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError

ROPE_THETA = 100.0
MOST_TOKENS = 1 << 15  # 2048 x 4096 pixels in patches of 16; without a GPU more take minutes to hours


@dataclass(frozen=True)
class BackboneShape:
    """The sizes that distinguish one DINO ViT from another."""

    depth: int
    width: int
    head_dim: int = 64
    hidden: int = 0  # of the feed-forward part; 0 means four times the width
    gated: bool = False  # SwiGLU instead of an MLP with GELU
    qkv_bias: bool = True
    local_cls_norm: bool = False  # a norm that the file carries and inference never uses
    registers: int = 4
    patch: int = 16

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", self.hidden or 4 * self.width)
        if min(self.depth, self.width, self.head_dim, self.patch) < 1 or self.registers < 0:
            raise GramLoopError(f"a backbone needs positive sizes, not {self}")
        if self.head_dim % 4 or self.width % self.head_dim:
            raise GramLoopError(
                f"head_dim must be a multiple of 4 that divides the width {self.width}, not {self.head_dim}"
            )


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
    def patches(self) -> Tensor:  # (B, N, C)
        """The patches, row by row."""
        return self.tokens[:, self.prefix :]

    @property
    def map(self) -> Tensor:  # (B, C, h, w)
        """The patches as an image."""
        batch, _, channels = self.patches.shape
        return self.patches.transpose(1, 2).reshape(batch, channels, *self.grid)


class TapPoint(nn.Module):
    """Returns the tap of a block unchanged: a forward hook here sees, and may change, what heads read."""

    def forward(self, tap: Tap, block: int) -> Tap:
        """The tap."""
        return tap


class TappedViT(nn.Module):
    """A ViT whose blocks run in order, so that a hook on one of them takes effect in all later taps.

    ``model`` is the library's own model: attach a replay to it, or use it directly.
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

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.norm.parameters()).device

    def block_context(self, pixels: Tensor) -> tuple[AbstractContextManager[object], dict[str, Any]]:
        """The precision that the blocks compute in, and their arguments in addition to the tokens."""
        return nullcontext(), {}

    def forward(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:  # (B, 3, H, W)
        """The features of :meth:`features`, so that a backbone can be called."""
        return self.features(pixels, taps)

    def features(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:  # (B, 3, H, W)
        """The outputs of the blocks ``taps``, each after the final norm, in the given order."""
        self.check_taps(taps)
        grid, states = self.grid(pixels), {}
        precision, shared = self.block_context(pixels)
        with precision:
            state = self.model.embeddings(pixels)
            for index, block in enumerate(self.blocks):
                state = block(state, **shared)
                if index in taps:
                    states[index] = state
        return [self.tap(states[index], grid, index) for index in taps]

    def tap(self, state: Tensor, grid: tuple[int, int], block: int) -> Tap:
        """A block's output, given as all tokens (B, T, C) before the final norm, as a feature."""
        weight = next(self.norm.parameters())
        wide = torch.promote_types(state.dtype, weight.dtype)  # weights may be bfloat16, the norm float32
        tap: Tap = self.tap_point(Tap(self.norm(state.to(wide)), grid), block)
        return tap

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        """Rows and columns of patches in a batch of images; each side must be a multiple of the patch."""
        height, width = pixels.shape[-2:]
        rows, columns = height // self.shape.patch, width // self.shape.patch
        if (
            not rows
            or not columns
            or (height, width) != (rows * self.shape.patch, columns * self.shape.patch)
        ):
            raise GramLoopError(
                f"an image of {height} x {width} cannot be cut into patches: "
                f"both sides must be positive multiples of {self.shape.patch}"
            )
        refuse_many_tokens(rows, columns, f"an input of {width} x {height} pixels")
        return rows, columns

    def check_taps(self, taps: Sequence[int]) -> None:
        """Raise unless the taps are different blocks of this model."""
        if not taps or len(set(taps)) != len(taps) or not all(0 <= tap < self.shape.depth for tap in taps):
            raise GramLoopError(
                f"taps must be different blocks between 0 and {self.shape.depth - 1}, not {list(taps)}"
            )


class Backbone(TappedViT):
    """A DINOv3 ViT; ``model`` is transformers' DINOv3ViTModel."""

    autocast_on: tuple[str, ...] = ("cuda",)  # types of devices on which blocks compute in bfloat16

    def __init__(self, shape: BackboneShape, *, rope_theta: float = ROPE_THETA) -> None:
        from transformers import DINOv3ViTConfig, DINOv3ViTModel

        super().__init__(shape)
        config = DINOv3ViTConfig(
            patch_size=shape.patch,
            hidden_size=shape.width,
            intermediate_size=shape.hidden,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.width // shape.head_dim,
            hidden_act="silu" if shape.gated else "gelu",
            use_gated_mlp=shape.gated,
            query_bias=shape.qkv_bias,
            key_bias=False,
            value_bias=shape.qkv_bias,
            num_register_tokens=shape.registers,
            layer_norm_eps=1e-5,
            rope_theta=rope_theta,
        )
        self.model: Any = DINOv3ViTModel(config)
        self.model.rope_embeddings.__class__ = _exact_rope()
        self.eval()

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks, first to last."""
        return cast(nn.ModuleList, self.model.model.layer)

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        return cast(nn.Module, self.model.norm)

    def block_context(self, pixels: Tensor) -> tuple[AbstractContextManager[object], dict[str, Any]]:
        """bfloat16 autocast on a GPU, where weights are float32; and the rotary positions."""
        kind, weight = pixels.device.type, self.model.embeddings.patch_embeddings.weight
        rounded = kind in self.autocast_on and weight.dtype == torch.float32
        precision = torch.autocast(kind, torch.bfloat16) if rounded else without_autocast(kind)
        return precision, {"position_embeddings": self.model.rope_embeddings(pixels.to(weight.dtype))}

    def rotary(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Cosines and sines (patches, head_dim) by which queries and keys of a grid of patches are rotated."""
        rope, patch = self.model.rope_embeddings, self.shape.patch
        shape_alone = rope.inv_freq.new_zeros(1).expand(1, 3, grid[0] * patch, grid[1] * patch)
        cosines, sines = rope(shape_alone)
        return cosines, sines

    @property
    def rounded_periods(self) -> bool:
        """Whether the rotary periods are rounded to bfloat16, as in Meta's released files."""
        periods = 1 / self.model.rope_embeddings.inv_freq.float()
        return bool(torch.allclose(periods, periods.bfloat16().float(), rtol=1e-6, atol=0.0))


@cache
def _exact_rope() -> type[nn.Module]:
    """transformers' rotary positions, with frequencies that stay float32 where a model is moved or rounded."""
    from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTRopePositionEmbedding

    class ExactRope(DINOv3ViTRopePositionEmbedding):  # type: ignore[misc]
        inv_freq: Tensor

        def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
            before = self.inv_freq
            super()._apply(fn, recurse)
            self.inv_freq = before.to(self.inv_freq.device)
            return self

    return ExactRope


def without_autocast(kind: str) -> AbstractContextManager[object]:
    """Turn autocast off on devices of a kind; where it is off, nothing, for a mode would cut a traced graph into parts."""
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def default_taps(depth: int) -> tuple[int, ...]:
    """Four blocks at even intervals, as the released segmentation and depth heads read them."""
    if depth == 24:  # the one size for which the reference departs from its own rule
        return 4, 11, 17, 23
    if depth < 4:
        raise GramLoopError(f"four taps need at least four blocks, not {depth}")
    return tuple(index * (depth // 4) - 1 for index in range(1, 5))


def quarter_ends(depth: int) -> tuple[int, ...]:
    """The last block of each quarter, which the released detector and PMT's heads read."""
    return tuple(quarter * depth // 4 - 1 for quarter in range(1, 5))


def refuse_many_tokens(rows: int, columns: int, what: str, advice: str = "") -> None:
    """Raise if a ViT would see more than `MOST_TOKENS` patches at once: its work grows with their square.

    Args:
        rows: of patches, in the largest view of an image.
        columns: of patches.
        what: the image and its size, such as "an image of 5000 x 2 at a short side of 64".
        advice: what would help.
    """
    tokens = rows * columns
    if tokens > MOST_TOKENS:
        memory = 4 * tokens**2 / 1e9
        raise GramLoopError(
            f"{what} becomes {tokens:,} tokens at once ({columns:,} x {rows:,} patches), more than "
            f"{MOST_TOKENS:,}: in every head of every block attention would weigh {tokens**2:.1e} pairs, "
            f"{memory:,.0f} GB if held together; {advice or 'crop it or resize it to fewer pixels'}"
        )
