"""DINOv3 backbones: transformers' DINOv3ViT, filled from a released ``.pth`` or from a transformers folder.

The released files are read as they are (:mod:`gramloop.models.released_names`). The rotary periods come from
the file: the released ones are rounded, and regenerating them would change the features.

Precision: parameters and features are float32. On a GPU the blocks compute under bfloat16 autocast, as in
the paper; on a CPU everything is float32. Weights may be loaded in bfloat16: then so are the states, but the final norm
is not, so that heads and drift read float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models import released_names as names
from gramloop.models.checkpoint import Checkpoint, Shapes, Source, load, open_checkpoint, planned_shapes
from gramloop.models.released_names import LAYER_NORM_EPS, SHAPES, BackboneShape, infer_shape
from gramloop.models.taps import Tap, TappedViT
from gramloop.util.precision import without_autocast

__all__ = ["SHAPES", "Backbone", "BackboneShape", "Tap", "default_taps", "infer_shape", "load_backbone"]


class Backbone(TappedViT):
    """A DINOv3 ViT whose blocks run in order, so that a hook on one of them takes effect in all later taps.

    ``model`` is the transformers model: attach a replay to it, or use it in any other way.
    """

    def __init__(
        self,
        shape: BackboneShape,
        *,
        autocast: torch.dtype | None = torch.bfloat16,
        rope_theta: float = 100.0,
    ) -> None:
        from transformers import DINOv3ViTModel

        super().__init__(shape)
        self.autocast = autocast
        self.autocast_on: tuple[str, ...] = ("cuda",)
        self.model: Any = DINOv3ViTModel(_config(shape, rope_theta))
        self._inv_freq: Tensor | None = None
        if not self.model.rope_embeddings.inv_freq.is_meta:
            self.keep_frequencies()
        self.eval()

    def features(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:  # (B, 3, H, W)
        """The outputs of the blocks ``taps``, each after the final norm, in the order asked for."""
        wanted, grid = self.check_taps(taps), self.grid(pixels)
        self._restore_frequencies()  # somebody may have moved the inner model alone
        states: dict[int, Tensor] = {}
        with self._precision(pixels):
            weight = self.model.embeddings.patch_embeddings.weight
            positions = self.model.rope_embeddings(pixels.to(weight.dtype))
            state = self.model.embeddings(pixels)
            for index, block in enumerate(self.blocks):
                state = block(state, position_embeddings=positions)
                if index in wanted:
                    states[index] = state
        return [self.tap(states[index], grid, index) for index in taps]

    def rotary(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Cosines and sines (patches, head_dim) by which queries and keys of a grid of patches are turned."""
        self._restore_frequencies()
        rope, patch = self.model.rope_embeddings, self.shape.patch
        shape_alone = rope.inv_freq.new_zeros(1).expand(1, 3, grid[0] * patch, grid[1] * patch)
        cosines, sines = rope(shape_alone)
        return cosines, sines

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks, first to last."""
        blocks: nn.ModuleList = self.model.model.layer
        return blocks

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        norm: nn.Module = self.model.norm
        return norm

    def released_plan(self) -> dict[str, Source]:
        """What each tensor of ``model`` is made of, in the names of the released files."""
        return names.released_plan(self.model, self.shape)

    def released_shapes(self) -> Shapes:
        """Every name with its shape as a released file of this size has it."""
        return planned_shapes(self.released_plan()) | names.unread_shapes(self.shape)

    def _precision(self, pixels: Tensor) -> AbstractContextManager[object]:
        kind = pixels.device.type
        return torch.autocast(kind, self.autocast) if self._uses_autocast(pixels) else without_autocast(kind)

    def _uses_autocast(self, pixels: Tensor) -> bool:
        weight = self.model.embeddings.patch_embeddings.weight
        wanted = self.autocast is not None and pixels.device.type in self.autocast_on
        return wanted and weight.dtype == torch.float32

    @property
    def rounded_periods(self) -> bool:
        """Whether the rotary periods are rounded to bfloat16, as in Meta's released files."""
        periods = 1 / self.model.rope_embeddings.inv_freq.float()
        return bool(torch.allclose(periods, periods.bfloat16().float(), rtol=1e-6, atol=0.0))

    def keep_frequencies(self) -> None:
        """Remember the rotary frequencies in float32; moving or rounding the model will not round them."""
        self._inv_freq = self.model.rope_embeddings.inv_freq.detach().float()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._restore_frequencies()
        return self

    def _restore_frequencies(self) -> None:
        rope = self.model.rope_embeddings
        if self._inv_freq is not None and rope.inv_freq is not self._inv_freq:
            self._inv_freq = self._inv_freq.to(rope.inv_freq.device)
            rope.inv_freq = self._inv_freq


def load_backbone(
    path: str | Path | Checkpoint,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
    autocast: torch.dtype | None = torch.bfloat16,
    exact_periods: bool = False,
) -> Backbone:
    """A backbone from a released ``.pth``, a ``.safetensors`` file, or a transformers folder.

    The architecture follows from the names and shapes in the file. With ``verify`` the file is compared with
    the sha256 prefix in its name. With ``exact_periods`` the rotary periods are not those of a released file, which
    are rounded, but computed, as transformers does: for heads that were trained on transformers' model.
    """
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(path, verify=verify)
    if "embeddings.cls_token" in checkpoint.shapes:
        shape, theta = names.infer_transformers_shape(checkpoint)
        backbone = meta_backbone(shape, autocast=autocast, rope_theta=theta)
        load(
            backbone.model,
            checkpoint,
            names.transformers_plan(backbone.model, checkpoint),
            dtype=dtype,
            device=device,
        )
        backbone.model.rope_embeddings.inv_freq = _frequencies(shape, theta).to(device)
    else:
        shape = infer_shape(checkpoint)
        backbone = meta_backbone(shape, autocast=autocast)
        plan = backbone.released_plan()
        load(backbone.model, checkpoint, plan, also=names.unread_shapes(shape), dtype=dtype, device=device)
        periods = checkpoint.open()["rope_embed.periods"].float()
        if not (periods.isfinite() & (periods > 0)).all():
            raise GramLoopError(
                f"{checkpoint.path} is damaged: rope_embed.periods holds a number that is not above 0"
            )
        frequencies = _frequencies(shape, 100.0) if exact_periods else 1 / periods
        backbone.model.rope_embeddings.inv_freq = frequencies.to(device)
    backbone.keep_frequencies()
    if dtype in (torch.bfloat16, torch.float16):
        backbone.norm.float()
    return backbone


def meta_backbone(
    shape: BackboneShape, *, autocast: torch.dtype | None = torch.bfloat16, rope_theta: float = 100.0
) -> Backbone:
    """A backbone without weights, on the meta device: names and shapes alone."""
    with torch.device("meta"):
        return Backbone(shape, autocast=autocast, rope_theta=rope_theta)


def fitting(backbone: TappedViT, width: int, head: Path) -> Backbone:
    """The backbone, after making sure that a head's file was made for one like it."""
    if not isinstance(backbone, Backbone):
        raise GramLoopError(f"{head} needs a DINOv3 backbone, not a {type(backbone).__name__}")
    if width != backbone.shape.width:
        raise GramLoopError(
            f"{head} was made for a backbone of width {_called(width)}, "
            f"the backbone given has {_called(backbone.shape.width)}"
        )
    return backbone


def _called(width: int) -> str:
    names = {384: "ViT-S", 768: "ViT-B", 1024: "ViT-L", 1280: "ViT-H+", 4096: "ViT-7B"}
    return f"{width} ({names[width]})" if width in names else str(width)


def default_taps(depth: int) -> tuple[int, ...]:
    """Four blocks at even intervals, as the released segmentation head reads them."""
    if depth < 4:
        raise GramLoopError(f"four taps need at least four blocks, not {depth}")
    if depth == 24:  # the one size for which the reference departs from its own rule
        return 4, 11, 17, 23
    return tuple(index * (depth // 4) - 1 for index in range(1, 5))


def _config(shape: BackboneShape, rope_theta: float) -> Any:
    from transformers import DINOv3ViTConfig

    return DINOv3ViTConfig(
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
        layer_norm_eps=LAYER_NORM_EPS,
        rope_theta=rope_theta,
    )


def _frequencies(shape: BackboneShape, theta: float) -> Tensor:
    exponents = torch.arange(0, 1, 4 / shape.head_dim, dtype=torch.float32)
    return 1 / theta**exponents
