"""DINOv2 backbones, with and without registers: transformers' Dinov2, filled from Meta's file or a folder.

Meta's file names its blocks as DINOv3 does, fuses queries, keys and values, and has learned positions, which
are resized to the grid of the image.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import load_backbone
from gramloop.models.checkpoint import Checkpoint, Source, load, open_checkpoint
from gramloop.models.released_names import BackboneShape
from gramloop.models.taps import Tap, TappedViT

HEAD_DIM = 64  # of every released DINOv2
_RENAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.mask_token": "mask_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.register_tokens": "register_tokens",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
}
_BLOCK_RENAMES = {
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "attention.o_proj": "attn.proj",
    "mlp.down_proj": "mlp.w3",
}


class Dinov2Backbone(TappedViT):
    """A DINOv2 ViT; ``model`` is transformers' Dinov2Model or Dinov2WithRegistersModel."""

    def __init__(self, shape: BackboneShape, positions: int) -> None:
        """``positions`` is the side of the grid for which positions were learned (37 for released files)."""
        super().__init__(shape)
        self.model = _model(shape, positions)
        self.eval()

    @property
    def blocks(self) -> nn.ModuleList:
        """The transformer blocks, first to last."""
        blocks: nn.ModuleList = self.model.encoder.layer
        return blocks

    @property
    def norm(self) -> nn.Module:
        """The final norm."""
        norm: nn.Module = self.model.layernorm
        return norm

    def features(self, pixels: Tensor, taps: Sequence[int]) -> list[Tap]:  # (B, 3, H, W)
        """The outputs of the blocks ``taps``, each after the final norm, in the order asked for."""
        wanted, grid = self.check_taps(taps), self.grid(pixels)
        states: dict[int, Tensor] = {}
        state = self.model.embeddings(pixels)
        for index, block in enumerate(self.blocks):
            state = block(state)
            if index in wanted:
                states[index] = state
        return [self.tap(states[index], grid, index) for index in taps]


def load_dinov2(
    path: str | Path | Checkpoint,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> Dinov2Backbone:
    """A DINOv2 backbone from Meta's ``.pth``; the architecture follows from its names and shapes."""
    checkpoint = path if isinstance(path, Checkpoint) else open_checkpoint(path, verify=verify)
    shape, positions = infer_dinov2(checkpoint)
    with torch.device("meta"):
        backbone = Dinov2Backbone(shape, positions)
    load(backbone.model, checkpoint, _plan(backbone.model), dtype=dtype, device=device)
    if dtype in (torch.bfloat16, torch.float16):
        backbone.norm.float()  # heads and drift read float32
    return backbone


def load_any_backbone(
    path: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> TappedViT:
    """A DINOv3 or DINOv2 backbone, whichever the file holds."""
    checkpoint = open_checkpoint(path, verify=verify)
    known = "pos_embed" in checkpoint.shapes and "cls_token" in checkpoint.shapes
    loader = load_dinov2 if known else load_backbone
    return loader(checkpoint, dtype=dtype, device=device)


def infer_dinov2(checkpoint: Checkpoint) -> tuple[BackboneShape, int]:
    """The architecture of Meta's file, and the side of the grid of its learned positions."""
    shapes = checkpoint.shapes
    gated = "blocks.0.mlp.w12.weight" in shapes
    hidden = "blocks.0.mlp.w12.weight" if gated else "blocks.0.mlp.fc1.weight"
    needed = ("cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight", hidden)
    if missing := [name for name in needed if name not in shapes]:
        raise GramLoopError(
            f"{checkpoint.path} is not a DINOv2 backbone: it lacks {', '.join(missing)} and "
            f"begins with {', '.join(list(shapes)[:3]) or 'nothing'}"
        )
    blocks = {int(found[1]) for name in shapes if (found := re.match(r"blocks\.(\d+)\.", name))}
    shape = BackboneShape(
        depth=len(blocks),
        width=shapes["cls_token"][-1],
        head_dim=HEAD_DIM,
        hidden=shapes[hidden][0] // (2 if gated else 1),
        gated=gated,
        registers=shapes.get("register_tokens", (1, 0))[1],
        patch=shapes["patch_embed.proj.weight"][-1],
    )
    return shape, round((shapes["pos_embed"][1] - 1) ** 0.5)


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


def _plan(model: nn.Module) -> dict[str, Source]:
    plan: dict[str, Source] = {}
    for name, value in model.state_dict().items():
        inner = re.match(r"encoder\.layer\.(\d+)\.(.*)\.(\w+)$", name)
        if inner is None:
            plan[name] = Source.same(_rename(name, _RENAMES), value.shape)
            continue
        block, layer, kind = f"blocks.{inner[1]}.", inner[2], inner[3]
        if layer in ("attention.q_proj", "attention.k_proj", "attention.v_proj"):
            plan[name] = Source.part(f"{block}attn.qkv.{kind}", "qkv".index(layer[10]), 3, value.shape)
        elif layer in ("mlp.gate_proj", "mlp.up_proj"):
            plan[name] = Source.part(f"{block}mlp.w12.{kind}", int(layer == "mlp.up_proj"), 2, value.shape)
        else:
            plan[name] = Source.same(block + _rename(f"{layer}.{kind}", _BLOCK_RENAMES), value.shape)
    return plan


def _rename(name: str, prefixes: dict[str, str]) -> str:
    return next((new + name[len(old) :] for old, new in prefixes.items() if name.startswith(old)), name)
