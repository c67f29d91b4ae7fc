"""Backbones from files: DINOv3 and DINOv2 in Meta's ``.pth``, and DINOv3 in a transformers folder.

Meta's files fuse queries, keys and values into one projection, which becomes three of transformers' model, as views of the
file. Those of DINOv3 carry a mask that is 0 for the bias of the keys, which transformers' model does not have.

DINOv3's rotary periods come from the file: the released ones are rounded, and regenerating them would change the features.
DINOv2's positions are learned for one grid and resized to that of the image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch

from gramloop.errors import GramLoopError
from gramloop.models.backbone import ROPE_THETA, Backbone, BackboneShape, dinov3_model
from gramloop.models.checkpoint import (
    Checkpoint,
    Entry,
    LoadOptions,
    Shapes,
    check_names,
    fused_names,
    load_weights,
    open_checkpoint,
    planned_shapes,
    renamed_plan,
)
from gramloop.util.json_files import read_checked

SHAPES: Mapping[str, BackboneShape] = {
    "vits16": BackboneShape(12, 384),
    "vits16plus": BackboneShape(12, 384, gated=True),
    "vitb16": BackboneShape(12, 768),
    "vitl16": BackboneShape(24, 1024),
    "vitl16_sat": BackboneShape(24, 1024, local_cls_norm=True),
    "vitl16plus": BackboneShape(24, 1024, gated=True),
    "vith16plus": BackboneShape(32, 1280, gated=True),
    "vit7b16": BackboneShape(
        40, 4096, head_dim=128, hidden=8192, gated=True, qkv_bias=False, local_cls_norm=True
    ),
}
_DINOV3 = "a DINOv3 backbone"
_COMPARED = (
    "model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "num_register_tokens", "patch_size",
    "num_channels", "use_gated_mlp", "hidden_act", "query_bias", "key_bias", "value_bias", "layer_norm_eps",
)  # fmt: skip


def load_backbone(
    path: str | Path | Checkpoint, *, exact_periods: bool = False, **options: Unpack[LoadOptions]
) -> Backbone:
    """A DINOv3 or DINOv2 backbone; its architecture follows from the names and shapes in the file.

    Args:
        path: a released ``.pth``; of DINOv3 also a ``.safetensors`` file or a transformers folder with its config.json.
        exact_periods: whether to compute the rotary periods, as transformers does, instead of reading the rounded ones of
            a released file: for heads that were trained on transformers' model.
        **options: see `LoadOptions`.
    """
    checkpoint = open_checkpoint(path)
    unused: Shapes = {}
    older = {"pos_embed", "cls_token"} <= checkpoint.shapes.keys()
    released = "embeddings.cls_token" not in checkpoint.shapes
    if older:
        with torch.device("meta"):
            backbone = dinov2(*infer_dinov2(checkpoint))
        plan = renamed_plan(backbone.model, _DINOV2_NAMES)
    elif released:
        backbone = meta_backbone(infer_shape(checkpoint))
        plan, unused = dinov3_plan(backbone), unused_shapes(backbone.shape)
    else:
        backbone = transformers_backbone(checkpoint)
        # transformers keeps its blocks under model.layer in memory and under layer in its files
        short = any(name.startswith("layer.") for name in checkpoint.shapes)
        plan = renamed_plan(backbone.model, {r"^model\.": ""} if short else {})
    dtype, device = options.get("dtype", torch.float32), options.get("device", "cpu")
    load_weights(backbone.model, checkpoint, plan, unused=unused, dtype=dtype, device=device)
    if dtype in (torch.bfloat16, torch.float16):
        backbone.norm.float()  # heads and drift read float32
    if older:
        return backbone
    rope = backbone.model.rope_embeddings
    frequencies = 1 / rope.base ** torch.arange(0, 1, 4 / rope.head_dim, dtype=torch.float32)
    if released:
        _check_bias_masks(checkpoint)
    if released and not exact_periods:
        periods = checkpoint.open()["rope_embed.periods"].float()
        if not (periods.isfinite() & (periods > 0)).all():
            raise GramLoopError(
                f"{checkpoint.path} is damaged: rope_embed.periods holds a number that is not above 0"
            )
        frequencies = 1 / periods
    rope.inv_freq = frequencies.to(device)
    return backbone


def _check_bias_masks(checkpoint: Checkpoint) -> None:
    """Raise unless the masks of fused biases remove those of the keys, which the model does not have, and no other."""
    for name, mask in checkpoint.open().items():
        if name.endswith("attn.qkv.bias_mask"):
            queries, keys, values = mask.chunk(3)
            if not ((queries == 1).all() and (keys == 0).all() and (values == 1).all()):
                raise GramLoopError(
                    f"{checkpoint.path}: {name} keeps a bias of the keys or removes another, which no released DINOv3 does"
                )


def meta_backbone(shape: BackboneShape, *, rope_theta: float = ROPE_THETA) -> Backbone:
    """A backbone without weights, on the meta device: only names and shapes."""
    with torch.device("meta"):
        return Backbone(shape, dinov3_model(shape, rope_theta=rope_theta))


def backbone_of_head(
    head: Checkpoint,
    backbone: Backbone | str | Path | None,
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
    if not isinstance(found, Backbone) or not found.is_dinov3:
        given = getattr(found, "model", found)
        raise GramLoopError(f"{head.path} needs a DINOv3 backbone, not a {type(given).__name__}")
    if width != found.shape.width:
        raise GramLoopError(
            f"{head.path} was made for a backbone of width {width}, the backbone given has {found.shape.width}"
        )
    if inner is not None and inner.shapes:
        check_names(inner, dinov3_file_shapes(found))
    return found


def dinov3_file_shapes(backbone: Backbone) -> Shapes:
    """Every name with its shape as a released DINOv3 file of this size has it."""
    return planned_shapes(dinov3_plan(backbone)) | unused_shapes(backbone.shape)


def infer_shape(checkpoint: Checkpoint) -> BackboneShape:
    """The architecture of a DINOv3 file in Meta's naming."""
    gated = "blocks.0.mlp.w1.weight" in checkpoint.shapes
    sizes = checkpoint.sizes(
        _DINOV3,
        width=("cls_token", -1),
        hidden=("blocks.0.mlp.w1.weight" if gated else "blocks.0.mlp.fc1.weight", 0),
        registers=("storage_tokens", 1),
        patch=("patch_embed.proj.weight", -1),
        head_dim=("rope_embed.periods", 0),
    )
    sizes["head_dim"] *= 4
    return BackboneShape(
        depth=checkpoint.count(r"blocks\.(\d+)\."),
        gated=gated,
        qkv_bias="blocks.0.attn.qkv.bias" in checkpoint.shapes,
        local_cls_norm="local_cls_norm.weight" in checkpoint.shapes,
        **sizes,
    )


def dinov3_plan(backbone: Backbone) -> dict[str, Entry]:
    """The entries of Meta's file for the tensors of transformers' DINOv3ViTModel."""
    up, down = ("w2", "w3") if backbone.shape.gated else ("fc1", "fc2")
    renames = {
        r"^embeddings\.cls_token$": "cls_token",
        r"^embeddings\.register_tokens$": "storage_tokens",
        r"^embeddings\.patch_embeddings\.": "patch_embed.proj.",
        r"^model\.layer\.": "blocks.",
        r"\.layer_scale(\d)\.lambda1$": r".ls\1.gamma",
        r"\.attention\.o_proj\.": ".attn.proj.",
        r"\.mlp\.gate_proj\.": ".mlp.w1.",
        r"\.mlp\.up_proj\.": f".mlp.{up}.",
        r"\.mlp\.down_proj\.": f".mlp.{down}.",
        r"\.attention\.": ".attn.",
        **fused_names("qkv."),
    }
    plan = renamed_plan(backbone.model, renames)
    return plan | {"embeddings.mask_token": Entry("mask_token", (1, backbone.shape.width))}


def unused_shapes(shape: BackboneShape) -> Shapes:
    """Entries of Meta's file that no parameter of the model comes from."""
    shapes: Shapes = {"rope_embed.periods": (shape.head_dim // 4,)}
    if shape.local_cls_norm:
        shapes |= {"local_cls_norm.weight": (shape.width,), "local_cls_norm.bias": (shape.width,)}
    if shape.qkv_bias:
        shapes |= {f"blocks.{block}.attn.qkv.bias_mask": (3 * shape.width,) for block in range(shape.depth)}
    return shapes


def transformers_backbone(checkpoint: Checkpoint) -> Backbone:
    """A DINOv3 without weights for a file in transformers' naming; config.json says what names and shapes do not."""
    inner = checkpoint.renamed(lambda name: name.removeprefix("model."))
    sizes = inner.sizes(
        _DINOV3,
        width=("embeddings.cls_token", -1),
        hidden=("layer.0.mlp.up_proj.weight", 0),
        registers=("embeddings.register_tokens", 1),
        patch=("embeddings.patch_embeddings.weight", -1),
    )
    config = (checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent) / "config.json"
    stored = read_checked(config, dict[str, Any], "the config.json of a DINOv3 backbone")
    heads, theta = stored.get("num_attention_heads"), stored.get("rope_theta", ROPE_THETA)
    if type(heads) is not int or type(theta) not in (int, float) or heads < 1 or not 0 < theta < math.inf:
        raise GramLoopError(
            f"{config}: num_attention_heads and rope_theta must be numbers above 0, not {heads!r:.60} and {theta!r:.60}"
        )
    shape = BackboneShape(
        depth=inner.count(r"layer\.(\d+)\."),
        head_dim=sizes["width"] // heads,
        gated="layer.0.mlp.gate_proj.weight" in inner.shapes,
        qkv_bias="layer.0.attention.q_proj.bias" in inner.shapes,
        local_cls_norm=False,
        **sizes,
    )
    backbone = meta_backbone(shape, rope_theta=float(theta))
    for name in _COMPARED:
        value = getattr(backbone.model.config, name)
        if stored.get(name, value) != value:
            raise GramLoopError(
                f"{config} has {name} {stored[name]!r:.60}, but the weights next to it are those of a DINOv3 with {value!r}"
            )
    return backbone


HEAD_DIM = 64  # of every released DINOv2
_DINOV2_NAMES = {
    r"^embeddings\.(cls_token|mask_token|register_tokens)$": r"\1",
    r"^embeddings\.position_embeddings$": "pos_embed",
    r"^embeddings\.patch_embeddings\.projection\.": "patch_embed.proj.",
    r"^layernorm\.": "norm.",
    r"^encoder\.layer\.": "blocks.",
    r"\.layer_scale(\d)\.lambda1$": r".ls\1.gamma",
    r"\.attention\.o_proj\.": ".attn.proj.",
    r"\.mlp\.down_proj\.": ".mlp.w3.",
    r"\.mlp\.gate_proj\.(\w+)$": r".mlp.w12.\1[0/2]",
    r"\.mlp\.up_proj\.(\w+)$": r".mlp.w12.\1[1/2]",
    r"\.attention\.": ".attn.",
    **fused_names("qkv."),
}


def dinov2(shape: BackboneShape, positions: int) -> Backbone:
    """A DINOv2 with random weights; its positions were learned for a grid with this side (37 for released files)."""
    import transformers

    # transformers derives the width of a SwiGLU from the ratio, as the released giant has it
    settings = {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.width // shape.head_dim,
        "mlp_ratio": 4 if shape.gated else shape.hidden // shape.width,
        "use_swiglu_ffn": shape.gated,
        "image_size": positions * shape.patch,
        "patch_size": shape.patch,
        "layer_norm_eps": 1e-6,
    }
    if shape.registers:
        config = transformers.Dinov2WithRegistersConfig(**settings, num_register_tokens=shape.registers)
        return Backbone(shape, transformers.Dinov2WithRegistersModel(config))
    return Backbone(shape, transformers.Dinov2Model(transformers.Dinov2Config(**settings)))


def infer_dinov2(checkpoint: Checkpoint) -> tuple[BackboneShape, int]:
    """The architecture of Meta's file, and the side of the grid of its learned positions."""
    shapes = checkpoint.shapes
    gated = "blocks.0.mlp.w12.weight" in shapes
    sizes = checkpoint.sizes(
        "a DINOv2 backbone",
        width=("cls_token", -1),
        patch=("patch_embed.proj.weight", -1),
        hidden=("blocks.0.mlp.w12.weight" if gated else "blocks.0.mlp.fc1.weight", 0),
        positions=("pos_embed", 1),
    )
    shape = BackboneShape(
        depth=checkpoint.count(r"blocks\.(\d+)\."),
        width=sizes["width"],
        head_dim=HEAD_DIM,
        hidden=sizes["hidden"] // (2 if gated else 1),
        gated=gated,
        registers=shapes.get("register_tokens", (1, 0))[1],
        patch=sizes["patch"],
    )
    return shape, round((sizes["positions"] - 1) ** 0.5)
