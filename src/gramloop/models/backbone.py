"""A frozen ViT whose blocks' tokens are read after the final norm, and heads that score classes from them.

Precision: parameters and features are float32. On a GPU the blocks of a DINOv3 compute under bfloat16 autocast, as in the
paper; on a CPU everything is float32. Weights may be loaded in bfloat16: then so are the states, but the final norm is
not, so that heads and drift read float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import load_weights, open_checkpoint
from gramloop.util.files import atomic_write
from gramloop.util.json_files import checked, parse_json

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
        if self.head_dim < 1 or self.head_dim % 4 or self.width % self.head_dim:
            raise GramLoopError(
                f"head_dim must be a multiple of 4 that divides the width {self.width}, not {self.head_dim}"
            )


@dataclass(frozen=True)
class Tap:
    """All tokens of one block after the encoder's final norm, in the order cls, registers, patches."""

    tokens: Tensor  # (B, T, C)
    grid: tuple[int, int]  # rows and columns of patches
    block: int = -1

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


class Backbone(nn.Module):
    """A DINOv3 or DINOv2 whose blocks run in order, so that a hook on one of them takes effect in all later taps.

    ``model`` is transformers' own model: attach a replay to it, or use it directly.
    """

    autocast_on: tuple[str, ...] = ("cuda",)  # devices on which a DINOv3's blocks compute in bfloat16

    def __init__(self, shape: BackboneShape, model: nn.Module | None = None) -> None:
        """``model`` has this shape; by default it is a DINOv3ViTModel with random weights."""
        super().__init__()
        self.shape = shape
        self.tap_point = nn.Identity()  # a forward hook on it sees, and may change, what heads read
        self.model: Any = dinov3_model(shape) if model is None else model
        self.is_dinov3 = hasattr(self.model, "rope_embeddings")
        self.eval()

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks, first to last."""
        return cast(nn.ModuleList, self.model.model.layer if self.is_dinov3 else self.model.encoder.layer)

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        return cast(nn.Module, self.model.norm if self.is_dinov3 else self.model.layernorm)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.norm.parameters()).device

    def forward(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:  # (B, 3, H, W)
        """The outputs of the blocks ``taps``, each after the final norm, in the given order."""
        self.check_taps(taps)
        grid, states = self.grid(pixels), {}
        precision: AbstractContextManager[object] = nullcontext()
        shared: dict[str, Any] = {}
        if self.is_dinov3:
            kind, weight = pixels.device.type, self.model.embeddings.patch_embeddings.weight
            rounded = kind in self.autocast_on and weight.dtype == torch.float32
            precision = torch.autocast(kind, torch.bfloat16) if rounded else without_autocast(kind)
            shared = {"position_embeddings": self.model.rope_embeddings(pixels.to(weight.dtype))}
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
        tap: Tap = self.tap_point(Tap(self.norm(state.to(wide)), grid, block))
        return tap

    def grid(self, pixels: Tensor) -> tuple[int, int]:
        """Rows and columns of patches in a batch of images; each side must be a multiple of the patch."""
        (height, width), patch = pixels.shape[-2:], self.shape.patch
        rows, columns = height // patch, width // patch
        if min(rows, columns) < 1 or height % patch or width % patch:
            raise GramLoopError(
                f"an image of {height} x {width} has no whole patches: both sides must be multiples of {patch}"
            )
        refuse_many_tokens(rows, columns, f"an input of {width} x {height} pixels")
        return rows, columns

    def check_taps(self, taps: Sequence[int]) -> None:
        """Raise unless the taps are different blocks of this model."""
        if not taps or len(set(taps)) != len(taps) or not all(0 <= tap < self.shape.depth for tap in taps):
            raise GramLoopError(
                f"taps must be different blocks between 0 and {self.shape.depth - 1}, not {list(taps)}"
            )

    def rotary(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Cosines and sines (patches, head_dim) by which queries and keys of a grid of patches are rotated."""
        rope, patch = self.model.rope_embeddings, self.shape.patch
        cosines, sines = rope(rope.inv_freq.new_zeros(1).expand(1, 3, grid[0] * patch, grid[1] * patch))
        return cosines, sines

    @property
    def rounded_periods(self) -> bool:
        """Whether the rotary periods are rounded to bfloat16, as in Meta's released files."""
        periods = 1 / self.model.rope_embeddings.inv_freq.float()
        return bool(torch.allclose(periods, periods.bfloat16().float(), rtol=1e-6, atol=0.0))


def dinov3_model(shape: BackboneShape, *, rope_theta: float = ROPE_THETA) -> nn.Module:
    """transformers' DINOv3 of a shape, with random weights and exact rotary periods."""
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

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
    model: nn.Module = DINOv3ViTModel(config)
    model.rope_embeddings.__class__ = _exact_rope()
    return model


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
    """Raise if ``what`` makes a ViT see more than `MOST_TOKENS` patches at once: its work grows with their square."""
    tokens = rows * columns
    if tokens > MOST_TOKENS:
        raise GramLoopError(
            f"{what} becomes {tokens:,} tokens at once ({columns:,} x {rows:,} patches), more than "
            f"{MOST_TOKENS:,}: in every head of every block attention would weigh {tokens**2:.1e} pairs; "
            f"{advice or 'crop it or resize it to fewer pixels'}"
        )


class SegmentationModel(nn.Module):
    """A frozen ViT with a head on some of its blocks, which scores the classes of every pixel."""

    def __init__(
        self, backbone: Backbone, head: nn.Module, width: int, taps: Sequence[int], classes: int
    ) -> None:
        super().__init__()
        if width != backbone.shape.width:
            raise GramLoopError(f"the head is for width {width}, this one has {backbone.shape.width}")
        backbone.check_taps(taps)
        self.backbone, self.head = backbone, head
        self.taps, self.classes = tuple(taps), classes
        self.granularity = backbone.shape.patch  # both sides of an input must be multiples of it
        self.eval()

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """What the head needs of the image in addition to the taps: nothing, unless it has an adapter."""
        return []

    def scores(
        self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool = False
    ) -> Tensor:
        """Scores (B, classes, *size) from the taps; ``exact`` asks for float32 where less is usual."""
        raise NotImplementedError


class TapHead(nn.Module):
    """A head on the concatenated maps of some taps, whose numbers are stored with its weights."""

    kind = "a head"
    first_weight = ""  # of the convolution that reads the maps
    more_channels = 0  # that it reads in addition

    def __init__(self, width: int, outputs: int, taps: Sequence[int]) -> None:
        super().__init__()
        self.width, self.taps = width, tuple(taps)
        self.bn = nn.BatchNorm2d(width * len(self.taps))

    def save(self, path: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write the weights, in another precision if given, and the taps as safetensors; an old file is replaced whole."""
        from safetensors.torch import save

        weights = {
            name: value.detach().cpu().to(dtype=dtype if value.is_floating_point() else None).contiguous()
            for name, value in self.state_dict().items()
        }
        atomic_write(Path(path), save(weights, metadata={"taps": json.dumps(self.taps)}))

    @classmethod
    def load(
        cls, path: str | Path, *, taps: Sequence[int] | None = None, device: torch.device | str = "cpu"
    ) -> Self:
        """A head from a ``.safetensors`` or ``.pth`` file; give the ``taps`` if the file does not hold them."""
        checkpoint = open_checkpoint(path)
        taps = taps or _stored_taps(checkpoint.path)
        if not taps:
            raise GramLoopError(f"{path} does not hold the taps that the head reads; give them")
        weight = checkpoint.shapes.get(cls.first_weight)
        if weight is None or len(weight) != 4 or (weight[1] - cls.more_channels) % len(taps):
            raise GramLoopError(
                f"{path} is not {cls.kind} on {len(taps)} taps: its {cls.first_weight} is {weight or 'missing'}"
            )
        with torch.device("meta"):
            head = cls((weight[1] - cls.more_channels) // len(taps), weight[0], taps)
        load_weights(head, checkpoint, device=device)
        return head.eval()


def _stored_taps(path: Path) -> tuple[int, ...]:
    if path.suffix != ".safetensors":
        return ()
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        stored = (opened.metadata() or {}).get("taps", "[]")
    what = "the taps of a head"
    return checked(parse_json(stored.encode(), str(path), what), tuple[int, ...], str(path), what)


class LinearHead(TapHead):
    """Logits at the stride of the patches, from the concatenated maps of ``taps``.

    Weights are named ``bn.*`` and ``conv.*``.
    """

    kind, first_weight = "a linear head", "conv.weight"

    def __init__(self, width: int, classes: int, taps: Sequence[int]) -> None:
        super().__init__(width, classes, taps)
        self.classes = classes
        self.conv = nn.Conv2d(self.bn.num_features, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:  # each (B, C, h, w)
        """Logits (B, classes, h, w)."""
        return self.conv(self.bn(torch.cat(list(maps), dim=1)))  # type: ignore[no-any-return]


class LinearSegmentor(SegmentationModel):
    """A backbone with a linear head: logits at the patches' stride, resized."""

    head: LinearHead

    def __init__(self, backbone: Backbone, head: LinearHead) -> None:
        super().__init__(backbone, head, head.width, head.taps, head.classes)

    def forward(self, pixels: Tensor) -> Tensor:  # (B, 3, H, W)
        """Logits (B, classes, H / patch, W / patch)."""
        return self.head([tap.map for tap in self.backbone(pixels, self.taps)])  # type: ignore[no-any-return]

    def scores(
        self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool = False
    ) -> Tensor:
        """Logits (B, classes, *size)."""
        logits = self.head([tap.map for tap in taps])
        return F.interpolate(logits, size, mode="bilinear", align_corners=False)
