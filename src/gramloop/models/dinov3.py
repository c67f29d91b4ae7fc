"""DINOv3 backbones: transformers' DINOv3ViT, filled from a released ``.pth`` or from a transformers folder.

The rotary periods come from the file: the released ones are rounded, and regenerating them would change the features.

Precision: parameters and features are float32. On a GPU the blocks compute under bfloat16 autocast, as in the paper; on a
CPU everything is float32. Weights may be loaded in bfloat16: then so are the states, but the final norm is not, so that
heads and drift read float32.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self, Unpack

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import BackboneShape, TappedViT, without_autocast
from gramloop.models.checkpoint import (
    Checkpoint,
    LoadOptions,
    Shapes,
    check_names,
    load_weights,
    open_checkpoint,
    planned_shapes,
)
from gramloop.models.released_names import (
    DINOV3_CONFIG,
    config_path,
    dinov3_plan,
    infer_shape,
    infer_transformers_shape,
    transformers_plan,
    unread_shapes,
)
from gramloop.util.json_files import read_json

ROPE_THETA = 100.0
_COMPARED = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "num_register_tokens", "patch_size",
    "num_channels", "use_gated_mlp", "hidden_act", "query_bias", "key_bias", "value_bias", "layer_norm_eps",
)  # fmt: skip
_SIZES = {384: "ViT-S", 768: "ViT-B", 1024: "ViT-L", 1280: "ViT-H+", 4096: "ViT-7B"}


class Backbone(TappedViT):
    """A DINOv3 ViT whose blocks run in order, so that a hook on one of them takes effect in all later taps.

    ``model`` is the transformers model: attach a replay to it, or use it directly.
    """

    autocast_on: tuple[str, ...] = ("cuda",)  # types of devices on which blocks compute in bfloat16

    def __init__(self, shape: BackboneShape, *, rope_theta: float = ROPE_THETA) -> None:
        from transformers import DINOv3ViTModel

        super().__init__(shape)
        self.model: Any = DINOv3ViTModel(_config(shape, rope_theta))
        self._inv_freq: Tensor | None = None
        if not self.model.rope_embeddings.inv_freq.is_meta:
            self.keep_frequencies()
        self.eval()

    def parts(self) -> tuple[nn.ModuleList, nn.Module]:
        """The transformer blocks, first to last, and the final norm."""
        return self.model.model.layer, self.model.norm

    def precision(self, pixels: Tensor) -> AbstractContextManager[object]:
        """bfloat16 autocast on a GPU, where weights are float32; none elsewhere."""
        kind, weight = pixels.device.type, self.model.embeddings.patch_embeddings.weight
        wanted = kind in self.autocast_on and weight.dtype == torch.float32
        return torch.autocast(kind, torch.bfloat16) if wanted else without_autocast(kind)

    def shared_arguments(self, pixels: Tensor) -> dict[str, Any]:  # (B, 3, H, W)
        """The rotary positions."""
        self._restore_frequencies()  # the inner model may have been moved alone
        weight = self.model.embeddings.patch_embeddings.weight
        return {"position_embeddings": self.model.rope_embeddings(pixels.to(weight.dtype))}

    def rotary(self, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Cosines and sines (patches, head_dim) by which queries and keys of a grid of patches are rotated."""
        self._restore_frequencies()
        rope, patch = self.model.rope_embeddings, self.shape.patch
        shape_alone = rope.inv_freq.new_zeros(1).expand(1, 3, grid[0] * patch, grid[1] * patch)
        cosines, sines = rope(shape_alone)
        return cosines, sines

    def released_shapes(self) -> Shapes:
        """Every name with its shape as a released file of this size has it."""
        return planned_shapes(dinov3_plan(self.model, self.shape)) | unread_shapes(self.shape)

    @property
    def rounded_periods(self) -> bool:
        """Whether the rotary periods are rounded to bfloat16, as in Meta's released files."""
        periods = 1 / self.model.rope_embeddings.inv_freq.float()
        return bool(torch.allclose(periods, periods.bfloat16().float(), rtol=1e-6, atol=0.0))

    def keep_frequencies(self) -> None:
        """Remember the rotary frequencies in float32; moving or rounding the model does not round them then."""
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
    path: str | Path | Checkpoint, *, exact_periods: bool = False, **options: Unpack[LoadOptions]
) -> Backbone:
    """A DINOv3 backbone; its architecture follows from the names and shapes in the file.

    Args:
        path: a released ``.pth``, a ``.safetensors`` file, or a transformers folder.
        exact_periods: whether to compute the rotary periods, as transformers does, instead of reading the rounded ones of
            a released file: for heads that were trained on transformers' model.
        **options: see `LoadOptions`.
    """
    dtype, device = options.get("dtype", torch.float32), options.get("device", "cpu")
    checkpoint = (
        path if isinstance(path, Checkpoint) else open_checkpoint(path, verify=options.get("verify", False))
    )
    if "embeddings.cls_token" in checkpoint.shapes:
        shape, theta = infer_transformers_shape(checkpoint)
        backbone = meta_backbone(shape, rope_theta=theta)
        _check_config(config_path(checkpoint), backbone.model.config)
        plan = transformers_plan(backbone.model, checkpoint)
        load_weights(backbone.model, checkpoint, plan, dtype=dtype, device=device)
        frequencies = _frequencies(shape, theta)
    else:
        shape = infer_shape(checkpoint)
        backbone = meta_backbone(shape)
        plan, also = dinov3_plan(backbone.model, shape), unread_shapes(shape)
        load_weights(backbone.model, checkpoint, plan, also=also, dtype=dtype, device=device)
        periods = _stored_periods(checkpoint)
        frequencies = _frequencies(shape, ROPE_THETA) if exact_periods else 1 / periods
    backbone.model.rope_embeddings.inv_freq = frequencies.to(device)
    backbone.keep_frequencies()
    if dtype in (torch.bfloat16, torch.float16):
        backbone.norm.float()
    return backbone


def meta_backbone(shape: BackboneShape, *, rope_theta: float = ROPE_THETA) -> Backbone:
    """A backbone without weights, on the meta device: only names and shapes."""
    with torch.device("meta"):
        return Backbone(shape, rope_theta=rope_theta)


def backbone_of_head(
    head: Checkpoint,
    backbone: TappedViT | str | Path | None,
    width: int,
    *,
    prefix: str = "",
    exact_periods: bool = False,
    **options: Unpack[LoadOptions],
) -> Backbone:
    """The DINOv3 that a head's file was made for, loaded if it is not yet.

    Args:
        head: the head's file, which may repeat the backbone.
        backbone: a model, a file or a folder; None takes the copy in the head's file.
        width: the backbone's width, according to the head.
        prefix: of the backbone's names in the head's file.
        exact_periods: see `load_backbone`.
        **options: see `LoadOptions`.
    """
    inner = head.under(prefix) if prefix else None
    if backbone is None and (inner is None or not inner.shapes):
        raise GramLoopError(f"{head.path} holds only the head; give its backbone as well")
    found = backbone if backbone is not None else inner
    if isinstance(found, str | Path | Checkpoint):
        found = load_backbone(found, exact_periods=exact_periods, **options)
    if not isinstance(found, Backbone):
        raise GramLoopError(f"{head.path} needs a DINOv3 backbone, not a {type(found).__name__}")
    if width != found.shape.width:
        raise GramLoopError(
            f"{head.path} was made for a backbone of width {_named(width)}, "
            f"the backbone given has {_named(found.shape.width)}"
        )
    if inner is not None and inner.shapes:
        check_names(inner, found.released_shapes())
    return found


def _named(width: int) -> str:
    return f"{width} ({_SIZES[width]})" if width in _SIZES else str(width)


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
        layer_norm_eps=1e-5,
        rope_theta=rope_theta,
    )


def _check_config(path: Path, expected: Any) -> None:
    """Raise if config.json describes another model than its weights."""
    stored = read_json(path, DINOV3_CONFIG) if path.exists() else {}
    for name in _COMPARED:
        value = getattr(expected, name)
        if stored.get(name, value) != value:
            raise GramLoopError(
                f"{path} has {name} {stored[name]!r:.60}, but the weights next to it are those of a DINOv3 with {value!r}"
            )


def _frequencies(shape: BackboneShape, theta: float) -> Tensor:
    exponents = torch.arange(0, 1, 4 / shape.head_dim, dtype=torch.float32)
    return 1 / theta**exponents


def _stored_periods(checkpoint: Checkpoint) -> Tensor:
    periods = checkpoint.open()["rope_embed.periods"].float()
    if not (periods.isfinite() & (periods > 0)).all():
        raise GramLoopError(
            f"{checkpoint.path} is damaged: rope_embed.periods holds a number that is not above 0"
        )
    return periods
