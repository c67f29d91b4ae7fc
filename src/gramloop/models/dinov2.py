"""DINOv2 backbones, with and without registers: transformers' Dinov2, filled from Meta's file.

Meta's file fuses queries, keys and values, and has learned positions, which are resized to the grid of the image.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Unpack

import torch
from torch import nn

from gramloop.models.backbone import BackboneShape, TappedViT
from gramloop.models.checkpoint import Checkpoint, LoadOptions, load_weights, open_checkpoint, renamed_plan
from gramloop.models.dinov3 import load_backbone

HEAD_DIM = 64  # of every released DINOv2
_RENAMES = {
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
    **{rf"\.attention\.{part}_proj\.(\w+)$": rf".attn.qkv.\1[{index}/3]" for index, part in enumerate("qkv")},
}


class Dinov2Backbone(TappedViT):
    """A DINOv2 ViT; ``model`` is transformers' Dinov2Model or Dinov2WithRegistersModel."""

    def __init__(self, shape: BackboneShape, positions: int) -> None:
        """``positions`` is the side of the grid for which positions were learned (37 for released files)."""
        super().__init__(shape)
        self.model = _model(shape, positions)
        self.eval()

    def parts(self) -> tuple[nn.ModuleList, nn.Module]:
        """The transformer blocks, first to last, and the final norm."""
        return self.model.encoder.layer, self.model.layernorm


def load_dinov2(path: str | Path | Checkpoint, **options: Unpack[LoadOptions]) -> Dinov2Backbone:
    """A DINOv2 backbone from Meta's ``.pth``; the architecture follows from its names and shapes."""
    dtype, device = options.get("dtype", torch.float32), options.get("device", "cpu")
    checkpoint = (
        path if isinstance(path, Checkpoint) else open_checkpoint(path, verify=options.get("verify", False))
    )
    shape, positions = infer_dinov2(checkpoint)
    with torch.device("meta"):
        backbone = Dinov2Backbone(shape, positions)
    plan = renamed_plan(backbone.model, _RENAMES)
    load_weights(backbone.model, checkpoint, plan, dtype=dtype, device=device)
    if dtype in (torch.bfloat16, torch.float16):
        backbone.norm.float()  # heads and drift read float32
    return backbone


def load_any_backbone(path: str | Path, **options: Unpack[LoadOptions]) -> TappedViT:
    """A DINOv3 or DINOv2 backbone, whichever the file holds."""
    checkpoint = open_checkpoint(path, verify=options.get("verify", False))
    is_dinov2 = "pos_embed" in checkpoint.shapes and "cls_token" in checkpoint.shapes
    return (load_dinov2 if is_dinov2 else load_backbone)(checkpoint, **options)


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


def _model(shape: BackboneShape, positions: int) -> Any:
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
    if not shape.registers:
        return transformers.Dinov2Model(transformers.Dinov2Config(**settings))
    config = transformers.Dinov2WithRegistersConfig(**settings, num_register_tokens=shape.registers)
    return transformers.Dinov2WithRegistersModel(config)
