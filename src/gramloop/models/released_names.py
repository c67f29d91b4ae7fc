"""The names of DINOv3 weights: in Meta's released files, in transformers' files, and in transformers' model.

A released file fuses queries, keys and values into one projection, and carries a mask that takes the bias of
the keys away. Both become plain projections here, as views of the file wherever that is possible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from gramloop.core.fields import shown
from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import Checkpoint, Shapes, Source
from gramloop.util.json_files import read_checked, read_json

LAYER_NORM_EPS = 1e-5
_CONFIG = "the config.json of a DINOv3 backbone"


@dataclass(frozen=True)
class BackboneShape:
    """The sizes that tell one DINOv3 ViT from another."""

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


def infer_shape(checkpoint: Checkpoint) -> BackboneShape:
    """The architecture that a file in the released naming was made for."""
    shapes = checkpoint.shapes
    blocks = {int(found[1]) for name in shapes if (found := re.match(r"blocks\.(\d+)\.", name))}
    gated = "blocks.0.mlp.w1.weight" in shapes
    hidden = "blocks.0.mlp.w1.weight" if gated else "blocks.0.mlp.fc1.weight"
    needed = ("cls_token", "storage_tokens", "patch_embed.proj.weight", "rope_embed.periods", hidden)
    missing = [name for name in needed if name not in shapes]
    if missing:
        raise GramLoopError(
            f"{checkpoint.path} is not a DINOv3 backbone: it lacks {', '.join(missing)} and "
            f"begins with {', '.join(list(shapes)[:3]) or 'nothing'}"
        )
    return BackboneShape(
        depth=len(blocks),
        width=shapes["cls_token"][-1],
        head_dim=4 * shapes["rope_embed.periods"][0],
        hidden=shapes[hidden][0],
        gated=gated,
        qkv_bias="blocks.0.attn.qkv.bias" in shapes,
        local_cls_norm="local_cls_norm.weight" in shapes,
        registers=shapes["storage_tokens"][1],
        patch=shapes["patch_embed.proj.weight"][-1],
    )


_BLOCK_NAMES = {
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "attention.o_proj": "attn.proj",
    "mlp.gate_proj": "mlp.w1",
}
_OUTER_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.register_tokens": "storage_tokens",
    "embeddings.patch_embeddings": "patch_embed.proj",
}


def released_plan(model: nn.Module, shape: BackboneShape) -> dict[str, Source]:
    """What each tensor of a transformers DINOv3ViTModel is made of, in the names of the released files."""
    plan: dict[str, Source] = {}
    up, down = ("mlp.w2", "mlp.w3") if shape.gated else ("mlp.fc1", "mlp.fc2")
    renames = _BLOCK_NAMES | {"mlp.up_proj": up, "mlp.down_proj": down}
    for name, value in model.state_dict().items():
        inner = re.match(r"model\.layer\.(\d+)\.(.*)", name)
        projection = re.match(r"attention\.([qkv])_proj\.(weight|bias)", inner[2]) if inner else None
        if inner and projection:
            plan[name] = _third(
                f"blocks.{inner[1]}.attn.qkv", projection[2], "qkv".index(projection[1]), value
            )
        elif inner:
            plan[name] = Source.same(f"blocks.{inner[1]}.{_rename(inner[2], renames)}", value.shape)
        elif name == "embeddings.mask_token":  # stored without its first dimension
            plan[name] = Source(
                {"mask_token": tuple(value.shape[1:])}, lambda tensors: tensors["mask_token"][None]
            )
        else:
            plan[name] = Source.same(_rename(name, _OUTER_NAMES), value.shape)
    return plan


def _third(qkv: str, kind: str, third: int, value: Tensor) -> Source:
    """Rows of the fused projection: queries, keys, values. The bias is multiplied by the file's mask."""
    width = value.shape[0]
    rows = slice(third * width, (third + 1) * width)
    name, mask = f"{qkv}.{kind}", f"{qkv}.bias_mask"
    if kind == "weight":
        return Source({name: (3 * width, *value.shape[1:])}, lambda tensors: tensors[name][rows])

    def masked(tensors: Mapping[str, Tensor]) -> Tensor:
        if tensors[mask][width : 2 * width].any():  # also true of NaN, which an unfinished file holds
            raise GramLoopError(f"{mask} lets a bias of the keys through, which no released DINOv3 has")
        return tensors[name][rows] * tensors[mask][rows]

    return Source({name: (3 * width,), mask: (3 * width,)}, masked)


def unread_shapes(shape: BackboneShape) -> Shapes:
    """Entries of a released file that no parameter of the model comes from."""
    shapes: Shapes = {"rope_embed.periods": (shape.head_dim // 4,)}
    if shape.local_cls_norm:
        shapes |= {"local_cls_norm.weight": (shape.width,), "local_cls_norm.bias": (shape.width,)}
    return shapes


def _rename(name: str, prefixes: Mapping[str, str]) -> str:
    return next((new + name[len(old) :] for old, new in prefixes.items() if name.startswith(old)), name)


def transformers_plan(model: nn.Module, checkpoint: Checkpoint) -> dict[str, Source]:
    """transformers keeps its blocks under ``model.layer`` in memory and under ``layer`` in its files."""
    short = any(name.startswith("layer.") for name in checkpoint.shapes)
    return {
        name: Source.same(name.removeprefix("model.") if short else name, value.shape)
        for name, value in model.state_dict().items()
    }


def infer_transformers_shape(checkpoint: Checkpoint) -> tuple[BackboneShape, float]:
    """The architecture and the rotary base that a file in transformers' naming was made for."""
    shapes = {name.removeprefix("model."): shape for name, shape in checkpoint.shapes.items()}
    width = shapes["embeddings.cls_token"][-1]
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    head_dim, theta = _head_dim(folder / "config.json", width)
    layers = {int(found[1]) for name in shapes if (found := re.match(r"layer\.(\d+)\.", name))}
    shape = BackboneShape(
        depth=len(layers),
        width=width,
        head_dim=head_dim,
        hidden=_required(shapes, "layer.0.mlp.up_proj.weight", checkpoint.path)[0],
        gated="layer.0.mlp.gate_proj.weight" in shapes,
        qkv_bias="layer.0.attention.q_proj.bias" in shapes,
        registers=_required(shapes, "embeddings.register_tokens", checkpoint.path)[1],
        patch=_required(shapes, "embeddings.patch_embeddings.weight", checkpoint.path)[-1],
    )
    check_config(folder / "config.json", shape)
    return shape, theta


@dataclass(frozen=True)
class StoredConfig:
    """What is read of config.json beside a backbone's weights; the rest of it is compared with them."""

    num_attention_heads: int
    rope_theta: float = 100.0

    def __post_init__(self) -> None:
        if self.num_attention_heads < 1 or not 0 < self.rope_theta < math.inf:
            raise GramLoopError(
                f"num_attention_heads and rope_theta are above 0, not {self.num_attention_heads} and {self.rope_theta}"
            )


def check_config(config: Path, shape: BackboneShape) -> None:
    """Refuse a config.json that tells of another model than the one these weights make up."""
    if not config.exists():
        return
    stored = read_json(config, _CONFIG)
    expected = {
        "model_type": "dinov3_vit",
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "intermediate_size": shape.hidden,
        "num_register_tokens": shape.registers,
        "patch_size": shape.patch,
        "num_channels": 3,
        "use_gated_mlp": shape.gated,
        "hidden_act": "silu" if shape.gated else "gelu",
        "query_bias": shape.qkv_bias,
        "key_bias": False,
        "value_bias": shape.qkv_bias,
        "layer_norm_eps": LAYER_NORM_EPS,
    }
    for name, value in expected.items():
        if stored.get(name, value) != value:
            raise GramLoopError(
                f"{config} says {name} {shown(stored[name])}, but the weights beside it are those of a DINOv3 with "
                f"{shown(value)}"
            )


def _head_dim(config: Path, width: int) -> tuple[int, float]:
    """The two facts that names and shapes of a transformers file do not tell."""
    if config.exists():
        stored = read_checked(config, StoredConfig, _CONFIG)
        return width // stored.num_attention_heads, stored.rope_theta
    known = next((shape for shape in SHAPES.values() if shape.width == width), None)
    if known is None:
        raise GramLoopError(f"{config} is missing, and no released DINOv3 has the width {width}")
    return known.head_dim, 100.0


def _required(shapes: Mapping[str, tuple[int, ...]], name: str, path: Path) -> tuple[int, ...]:
    if name not in shapes:
        raise GramLoopError(f"{path} is not a DINOv3 backbone: it lacks {name}")
    return shapes[name]
