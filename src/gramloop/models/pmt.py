"""PMT's heads on a frozen DINOv3: queries and all tokens of four taps go through a few blocks together.

A tap is normed by its own batch norm, passes a small MLP and is scaled; the sum of the four joins learned queries in
blocks like DINOv3's own, in which only the patches are rotated. A query becomes a class and an embedding, the patches
become pixels at stride 4, and a mask is the product of both.

Head files are read in every form in which they were written: the weights lie flat or under ``state_dict``; names may begin
with ``network.`` and carry ``_orig_mod``, which torch.compile writes; queries, keys and values may be fused; and a trainer
leaves entries of its own. A file does not contain which blocks the head reads and at which size it was trained.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, SegmentationModel, Tap, quarter_ends, without_autocast
from gramloop.models.checkpoint import (
    HEAD_NAMES,
    PMT_CLASSES,
    PMT_QUERIES,
    LoadOptions,
    fused_names,
    load_weights,
    open_checkpoint,
    renamed_plan,
    strip_wrappers,
)
from gramloop.models.dino import backbone_of_head
from gramloop.models.mask2former import class_scores

Rotary = tuple[Tensor, Tensor]  # cosines and sines, each (patches, head_dim)
_UNUSED = "decoder.attn_mask_probs"  # of training; every file has it
# what a trainer leaves in its own checkpoints, and inference does not need
_LEFTOVERS = re.compile(
    r"criterion\.|encoder\.|decoder\.pe\.|bn_prefix\.|bn_patch\.|_attn_mask_probs_fallback$|rope\."
)
_TRAINED_AT = re.compile(r"pmt_[a-z]+_(\d+)_dinov3")


@dataclass(frozen=True)
class PMTShape:
    """The sizes of a head; the defaults are those of the released panoptic ones."""

    channels: int  # the width of the backbone
    head_dim: int = 64
    queries: int = 200
    classes: int = 133
    hidden: int = 0  # of the blocks' MLPs; 0 means as many as channels
    layers: int = 6
    taps: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", self.hidden or self.channels)


class PMTHead(nn.Module):
    """Tokens of the taps in, class logits and mask logits out. Weights are named as in the released files."""

    def __init__(self, shape: PMTShape) -> None:
        super().__init__()
        self.shape = shape
        self.bn = nn.ModuleList(nn.BatchNorm1d(shape.channels) for _ in range(shape.taps))
        self.decoder = PMTDecoder(shape)
        self.eval()

    @property
    def tap_norms(self) -> tuple[nn.Module, ...]:
        """The batch norm of each tap, which holds the mean over the training images."""
        return tuple(self.bn)

    def forward(self, taps: Sequence[Tap], rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Class logits (B, queries, classes + 1) and mask logits (B, queries, 4 h, 4 w)."""
        tokens = self.begin(taps)
        for block in self.decoder.blocks:
            tokens = block(tokens, position_embeddings=rotary)
        return self.decoder.predict(tokens, taps[0].grid)

    def begin(self, taps: Sequence[Tap]) -> Tensor:  # → (B, queries + T, C)
        """The queries, and the sum of the taps, class token and registers included."""
        scaled = [self.decoder.lateral(i, self.normed(i, tap.tokens)) for i, tap in enumerate(taps)]
        memory = torch.stack(scaled).sum(0)
        queries = self.decoder.q.weight.expand(len(memory), -1, -1)
        return torch.cat([queries, memory], dim=1)

    def normed(self, index: int, tokens: Tensor) -> Tensor:  # (B, T, C)
        """All tokens of a tap after its batch norm."""
        return self.bn[index](tokens.transpose(1, 2)).transpose(1, 2)  # type: ignore[no-any-return]


class PMTDecoder(nn.Module):
    """Everything of a head but its batch norms."""

    def __init__(self, shape: PMTShape) -> None:
        super().__init__()
        channels, taps = shape.channels, range(shape.taps)
        self.lateral_projections = nn.ModuleList(_mlp(channels, channels // 2, channels) for _ in taps)
        self.scalers = nn.ParameterList(torch.ones(channels) for _ in taps)
        self.q = nn.Embedding(shape.queries, channels)
        self.blocks = nn.ModuleList(_block(shape) for _ in range(shape.layers))
        self.decoder_norm = nn.LayerNorm(channels, eps=1e-5)
        self.upscale = nn.ModuleList(_Upscale(channels) for _ in range(2))
        self.mask_head = _mlp(channels, channels, channels, channels)
        self.class_head = nn.Linear(channels, shape.classes + 1)

    def lateral(self, index: int, tokens: Tensor) -> Tensor:  # (B, T, C)
        """What a tap adds to the sum."""
        return (tokens + self.lateral_projections[index](tokens)) * self.scalers[index]  # type: ignore[no-any-return]

    def predict(self, tokens: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:  # (B, queries + T, C)
        """The logits of tokens after any block."""
        normed = self.decoder_norm(tokens)
        queries = normed[:, : self.q.num_embeddings]
        masks = torch.einsum("bqc,bchw->bqhw", self.mask_head(queries), self.pixels(normed, grid))
        return self.class_head(queries), masks

    def pixels(self, normed: Tensor, grid: tuple[int, int]) -> Tensor:  # → (B, C, 4 h, 4 w)
        """The patches, which are the last of the tokens, as a map at stride 4."""
        patches = normed[:, normed.shape[1] - grid[0] * grid[1] :]
        found = patches.transpose(1, 2).reshape(len(normed), -1, *grid)
        for step in self.upscale:
            found = step(found)
        return found


class _Upscale(nn.Module):
    """Twice the size; the norm comes last, with another epsilon than the rest."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:  # (B, C, h, w)
        found = self.conv2(nn.functional.gelu(self.conv1(pixels)))
        return self.norm(found.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class PMT(SegmentationModel):
    """A frozen DINOv3 with a PMT head."""

    backbone: Backbone
    head: PMTHead

    def __init__(self, backbone: Backbone, head: PMTHead, taps: Sequence[int] | None = None) -> None:
        """``taps`` are by default the last blocks of each quarter, as for all released heads."""
        taps = quarter_ends(backbone.shape.depth) if taps is None else taps
        made_for = head.shape.head_dim, head.shape.taps
        if made_for != (backbone.shape.head_dim, len(taps)):
            raise GramLoopError(
                f"the head was made for heads of {made_for[0]} and {made_for[1]} taps, not for those of this backbone, "
                f"{backbone.shape.head_dim} and {len(taps)}"
            )
        super().__init__(backbone, head, head.shape.channels, taps, head.shape.classes)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:  # (B, 3, H, W)
        """Class logits (B, queries, classes + 1) and mask logits (B, queries, H / 4, W / 4)."""
        return self.predict(self.backbone(pixels, self.taps))

    def predict(self, taps: Sequence[Tap]) -> tuple[Tensor, Tensor]:
        """The logits of :meth:`forward` from taps computed before, in the precision of the head."""
        weight = self.head.decoder.class_head.weight
        cosines, sines = (each.to(weight.dtype) for each in self.backbone.rotary(taps[0].grid))
        with without_autocast(weight.device.type):
            cast = [Tap(tap.tokens.to(weight.dtype), tap.grid) for tap in taps]
            logits, masks = self.head(cast, (cosines, sines))
        return logits, masks

    def scores(
        self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool = True
    ) -> Tensor:
        """Scores (B, classes, *size): each query's classes where its mask is; always in float32."""
        logits, masks = self.predict(taps)
        return class_scores(logits.float(), masks.float(), size, product=torch.float32)


def _mlp(*widths: int) -> nn.Sequential:
    """Linear layers with GELU between them."""
    layers: list[nn.Module] = []
    for width, following in pairwise(widths):
        layers += [nn.Linear(width, following), nn.GELU()]
    return nn.Sequential(*layers[:-1])


def _block(shape: PMTShape) -> nn.Module:
    """A block of DINOv3, with its own width of the MLP."""
    from transformers import DINOv3ViTConfig
    from transformers.models.dinov3_vit.modeling_dinov3_vit import DINOv3ViTLayer

    config: Any = DINOv3ViTConfig(
        hidden_size=shape.channels,
        intermediate_size=shape.hidden,
        num_attention_heads=shape.channels // shape.head_dim,
        hidden_act="gelu",
        use_gated_mlp=False,
        query_bias=True,
        key_bias=False,
        value_bias=True,
        layer_norm_eps=1e-5,
        attn_implementation="sdpa",
    )
    block: nn.Module = DINOv3ViTLayer(config)
    return block


def load_pmt(head: str | Path, backbone: Backbone | str | Path, **options: Unpack[LoadOptions]) -> PMT:
    """A PMT head on its backbone, with exact rotary periods, which the heads were trained with.

    Args:
        head: the head's file.
        backbone: a model, Meta's file or a transformers folder.
        **options: see `LoadOptions`.
    """
    device = options.get("device", "cpu")
    opened = strip_wrappers(open_checkpoint(head))
    checkpoint = opened.renamed(lambda name: None if _LEFTOVERS.match(name) else name)
    sizes = checkpoint.sizes(
        HEAD_NAMES["pmt"],
        queries=(PMT_QUERIES, 0),
        channels=(PMT_QUERIES, 1),
        classes=(PMT_CLASSES, 0),
        hidden=("decoder.blocks.0.mlp.up_proj.weight", 0),
        norms=("bn.0.weight", 0),
    )
    if "sat493m" in str(backbone):
        raise GramLoopError(
            f"{checkpoint.path} was trained on a DINOv3 of web images (lvd1689m), but {backbone} is one of satellite images"
        )
    vit = backbone_of_head(checkpoint, backbone, sizes["channels"], exact_periods=True, **options)
    shape = PMTShape(
        channels=sizes["channels"],
        head_dim=vit.shape.head_dim,
        queries=sizes["queries"],
        classes=sizes["classes"] - 1,  # the last is "no object"
        hidden=sizes["hidden"],
        layers=checkpoint.count(r"decoder\.blocks\.(\d+)\."),
        taps=checkpoint.count(r"bn\.(\d+)\."),
    )
    if torch.device(device).type != "meta" and vit.rounded_periods:
        raise GramLoopError(
            f"{checkpoint.path} was trained with exact rotary periods, but those of the backbone given are rounded; "
            "load_backbone(path, exact_periods=True) has the others"
        )
    with torch.device("meta"):
        made = PMTHead(shape)
    fused = any(".qkv_proj." in name for name in checkpoint.shapes)
    plan = renamed_plan(made, fused_names("qkv_proj.") if fused else {})
    load_weights(made, checkpoint, plan, unused={_UNUSED: (shape.layers,)}, device=device)
    for name, value in checkpoint.open().items() if fused and torch.device(device).type != "meta" else ():
        if name.endswith(".qkv_proj.bias") and bool(value.chunk(3)[1].any()):
            raise GramLoopError(
                f"{checkpoint.path} has a bias on the keys in {name}, which a PMT head does not have"
            )
    return PMT(vit, made)


def trained_side(path: str | Path) -> int | None:
    """The size at which a released head was trained, by the name of its repository in the path; None without it."""
    found = _TRAINED_AT.search(str(Path(path).absolute()))
    return int(found[1]) if found else None
