"""PMT's heads on a frozen DINOv3: queries and all tokens of four taps go through a few blocks together.

A tap is normed by its own batch norm, passes a small MLP and is scaled; the sum of the four joins learned queries in
blocks like DINOv3's own, in which the patches alone are rotated. A query becomes a class and an embedding, the patches
become pixels at stride 4, and a mask is the product of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone
from gramloop.models.mask2former import class_scores
from gramloop.models.taps import Tap, quarter_ends
from gramloop.util.precision import without_autocast

STRIDE = 4  # of the masks
Rotary = tuple[Tensor, Tensor]  # cosines and sines, each (patches, head_dim)


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
        sizes = (self.channels, self.head_dim, self.queries, self.classes, self.layers, self.taps)
        if min(sizes) < 1 or self.channels % self.head_dim or self.channels % 2:
            raise GramLoopError(
                f"a PMT head needs positive sizes and channels that heads and 2 divide, not {self}"
            )


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
        """The batch norm of each tap, which knows the mean of the images of training."""
        return tuple(self.bn)

    def forward(self, taps: Sequence[Tap], rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Class logits (B, queries, classes + 1) and mask logits (B, queries, 4 h, 4 w)."""
        tokens = self.begin(taps)
        for block in self.decoder.blocks:
            tokens = block(tokens, position_embeddings=rotary)
        return self.decoder.predict(tokens, taps[0].grid)

    def begin(self, taps: Sequence[Tap]) -> Tensor:  # → (B, queries + T, C)
        """The queries, and the sum of the taps, class token and registers included."""
        scaled = [
            self.decoder.lateral(index, self.normed(index, tap.tokens)) for index, tap in enumerate(taps)
        ]
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
        """A tap on its way into the sum."""
        return (tokens + self.lateral_projections[index](tokens)) * self.scalers[index]  # type: ignore[no-any-return]

    def predict(self, tokens: Tensor, grid: tuple[int, int]) -> tuple[Tensor, Tensor]:  # (B, queries + T, C)
        """The logits that tokens stand for, after any block."""
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
    """Twice the size: the norm comes last, with an epsilon of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm = nn.LayerNorm(channels, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:  # (B, C, h, w)
        found = self.conv2(nn.functional.gelu(self.conv1(pixels)))
        return self.norm(found.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


class PMT(nn.Module):
    """A frozen DINOv3 with a PMT head; `gramloop.tasks` shows it images."""

    def __init__(self, backbone: Backbone, head: PMTHead, taps: Sequence[int] | None = None) -> None:
        """``taps`` are the last blocks of each quarter where nothing else is said, as for all released heads."""
        super().__init__()
        if not isinstance(backbone, Backbone):
            raise GramLoopError(f"a PMT head needs a DINOv3 backbone, not a {type(backbone).__name__}")
        self.taps = tuple(quarter_ends(backbone.shape.depth) if taps is None else taps)
        backbone.check_taps(self.taps)
        made_for = (head.shape.channels, head.shape.head_dim, head.shape.taps)
        if made_for != (backbone.shape.width, backbone.shape.head_dim, len(self.taps)):
            raise GramLoopError(
                f"the head was made for a backbone of width {made_for[0]}, heads of {made_for[1]} and {made_for[2]} taps; "
                f"this one has {backbone.shape.width}, {backbone.shape.head_dim} and {len(self.taps)}"
            )
        self.backbone, self.head = backbone, head
        self.classes, self.granularity = head.shape.classes, backbone.shape.patch
        self.eval()

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:  # (B, 3, H, W)
        """Class logits (B, queries, classes + 1) and mask logits (B, queries, H / 4, W / 4)."""
        return self.predict(self.backbone(pixels, self.taps))

    def predict(self, taps: Sequence[Tap]) -> tuple[Tensor, Tensor]:
        """The logits of :meth:`forward` from taps that are there already, in the precision of the head."""
        weight = self.head.decoder.class_head.weight
        cosines, sines = (each.to(weight.dtype) for each in self.backbone.rotary(taps[0].grid))
        with without_autocast(weight.device.type):
            shown = [Tap(tap.tokens.to(weight.dtype), tap.grid) for tap in taps]
            logits, masks = self.head(shown, (cosines, sines))
        return logits, masks

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """The head looks at the taps alone."""
        return []

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
    """A block as DINOv3 has them, with an MLP of its own width."""
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
