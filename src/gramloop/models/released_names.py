"""The names in released files: which head a file holds, and how DINOv3's weights are named by Meta and by transformers.

A file of Meta's fuses queries, keys and values into one projection, and carries a mask that removes the bias of the keys.
Both become plain projections here, as views of the file wherever that is possible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import BackboneShape
from gramloop.models.checkpoint import Checkpoint, Shapes, TensorSource, open_checkpoint, renamed_plan
from gramloop.util.json_files import read_checked

HeadKind = Literal["mask2former", "plain-detr", "pmt", "depther", "linear"]
HEAD_NAMES: dict[HeadKind, str] = {
    "mask2former": "Meta's Mask2Former head",
    "plain-detr": "Meta's Plain-DETR head",
    "pmt": "a PMT head",
    "depther": "Meta's depth head",
    "linear": "a linear head",
}
PMT_QUERIES, PMT_CLASSES = "decoder.q.weight", "decoder.class_head.weight"
# a name, or the beginning of one, that only files of this kind have
_MARKS: dict[HeadKind, str] = {
    "mask2former": "segmentation_model.",
    "plain-detr": "transformer.decoder.",
    "pmt": PMT_QUERIES,
    "depther": "reassemble_blocks.",
    "linear": "conv.weight",
}

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
DINOV3_CONFIG = "the config.json of a DINOv3 backbone"


def strip_wrappers(checkpoint: Checkpoint) -> Checkpoint:
    """The entries without the prefixes of torch.compile and of PMT's trainer."""
    plain = checkpoint.renamed(lambda name: re.sub(r"(^|\.)_orig_mod(?=\.)", "", name).lstrip("."))
    return plain.renamed(lambda name: name.removeprefix("network."))


def head_kind(path: str | Path) -> HeadKind:
    """The kind of head that a file holds; no tensor is read."""
    names = list(strip_wrappers(open_checkpoint(path)).shapes)
    for kind, mark in _MARKS.items():
        if any(name.startswith(mark) for name in names):
            return kind
    raise GramLoopError(
        f"{path} holds none of the supported heads ({', '.join(HEAD_NAMES.values())}): its names begin with "
        f"{', '.join(names[:3])}"
    )


def head_classes(path: str | Path) -> int:
    """How many classes a PMT head distinguishes."""
    checkpoint = strip_wrappers(open_checkpoint(path))
    return checkpoint.sizes(HEAD_NAMES["pmt"], classes=(PMT_CLASSES, 0))["classes"] - 1


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


def dinov3_plan(model: nn.Module, shape: BackboneShape) -> dict[str, TensorSource]:
    """What each tensor of transformers' DINOv3ViTModel is made of, in Meta's names."""
    up, down = ("w2", "w3") if shape.gated else ("fc1", "fc2")
    plan = renamed_plan(
        model,
        {
            r"^embeddings\.cls_token$": "cls_token",
            r"^embeddings\.register_tokens$": "storage_tokens",
            r"^embeddings\.patch_embeddings\.": "patch_embed.proj.",
            r"^model\.layer\.": "blocks.",
            r"\.layer_scale(\d)\.lambda1$": r".ls\1.gamma",
            r"\.attention\.o_proj\.": ".attn.proj.",
            r"\.mlp\.gate_proj\.": ".mlp.w1.",
            r"\.mlp\.up_proj\.": f".mlp.{up}.",
            r"\.mlp\.down_proj\.": f".mlp.{down}.",
            **{
                rf"\.attention\.{part}_proj\.(\w+)$": rf".attn.qkv.\1[{index}/3]"
                for index, part in enumerate("qkv")
            },
        },
    )
    for name, value in model.state_dict().items():
        if bias := re.fullmatch(r"model\.layer\.(\d+)\.attention\.([qkv])_proj\.bias", name):
            plan[name] = _masked_bias(f"blocks.{bias[1]}.attn.qkv", "qkv".index(bias[2]), len(value))
    token = tuple(model.state_dict()["embeddings.mask_token"].shape[1:])  # stored without its first dimension
    plan["embeddings.mask_token"] = TensorSource(
        {"mask_token": token}, lambda tensors: tensors["mask_token"][None]
    )
    return plan


def _masked_bias(qkv: str, third: int, width: int) -> TensorSource:
    """A third of the fused bias, multiplied by the file's mask."""
    rows = slice(third * width, (third + 1) * width)
    name, mask = f"{qkv}.bias", f"{qkv}.bias_mask"

    def masked(tensors: Mapping[str, Tensor]) -> Tensor:
        if tensors[mask][width : 2 * width].any():  # also true of NaN, which an unfinished file holds
            raise GramLoopError(f"{mask} keeps a bias of the keys, which no released DINOv3 has")
        return tensors[name][rows] * tensors[mask][rows]

    return TensorSource({name: (3 * width,), mask: (3 * width,)}, masked)


def unread_shapes(shape: BackboneShape) -> Shapes:
    """Entries of Meta's file that no parameter of the model comes from."""
    shapes: Shapes = {"rope_embed.periods": (shape.head_dim // 4,)}
    if shape.local_cls_norm:
        shapes |= {"local_cls_norm.weight": (shape.width,), "local_cls_norm.bias": (shape.width,)}
    return shapes


def transformers_plan(model: nn.Module, checkpoint: Checkpoint) -> dict[str, TensorSource]:
    """transformers keeps its blocks under ``model.layer`` in memory and under ``layer`` in its files."""
    short = any(name.startswith("layer.") for name in checkpoint.shapes)
    return renamed_plan(model, {r"^model\.": ""} if short else {})


@dataclass(frozen=True)
class StoredConfig:
    """What is read of config.json next to a backbone's weights."""

    num_attention_heads: int
    rope_theta: float = 100.0

    def __post_init__(self) -> None:
        if self.num_attention_heads < 1 or not 0 < self.rope_theta < math.inf:
            raise GramLoopError(
                f"num_attention_heads and rope_theta must be above 0, not {self.num_attention_heads} and {self.rope_theta}"
            )


def infer_transformers_shape(checkpoint: Checkpoint) -> tuple[BackboneShape, float]:
    """The architecture and the rotary base of a DINOv3 file in transformers' naming."""
    inner = checkpoint.renamed(lambda name: name.removeprefix("model."))
    sizes = inner.sizes(
        _DINOV3,
        width=("embeddings.cls_token", -1),
        hidden=("layer.0.mlp.up_proj.weight", 0),
        registers=("embeddings.register_tokens", 1),
        patch=("embeddings.patch_embeddings.weight", -1),
    )
    head_dim, theta = _head_dim(config_path(checkpoint), sizes["width"])
    shape = BackboneShape(
        depth=inner.count(r"layer\.(\d+)\."),
        head_dim=head_dim,
        gated="layer.0.mlp.gate_proj.weight" in inner.shapes,
        qkv_bias="layer.0.attention.q_proj.bias" in inner.shapes,
        local_cls_norm=False,
        **sizes,
    )
    return shape, theta


def config_path(checkpoint: Checkpoint) -> Path:
    """Where transformers stores the configuration of these weights."""
    return (checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent) / "config.json"


def _head_dim(config: Path, width: int) -> tuple[int, float]:
    """The two sizes that names and shapes of a transformers file do not contain."""
    if config.exists():
        stored = read_checked(config, StoredConfig, DINOV3_CONFIG)
        return width // stored.num_attention_heads, stored.rope_theta
    known = next((shape for shape in SHAPES.values() if shape.width == width), None)
    if known is None:
        raise GramLoopError(f"{config} is missing, and no released DINOv3 has the width {width}")
    return known.head_dim, 100.0
