"""The released segmentor: an adapter and a Mask2Former head on four taps of a frozen DINOv3.

In the adapter a small convolutional branch reads the image itself; its maps at strides 8, 16 and 32 then read the ViT's taps,
one after the other, by deformable attention. The ViT is never modified. The head consists of transformers' modules with
renamed weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, SegmentationModel, Tap, default_taps
from gramloop.models.checkpoint import Checkpoint, LoadOptions, fused_names, load_weights, open_checkpoint
from gramloop.models.dino import backbone_of_head

ADAPTER_STRIDE = 32  # of the coarsest map: both sides of an image must be multiples of it
SEGMENTOR_PREFIX = "segmentation_model."
SEGMENTOR_BACKBONE = SEGMENTOR_PREFIX + "0.backbone."  # the backbone's names in a head's file

Grids = list[tuple[int, int]]


class DeformableAttention(nn.Module):
    """Each head of each query samples ``points`` places of a map and averages them with learned weights.

    Values are projected to ``ratio`` of the width, which makes the sampling as much cheaper.
    """

    def __init__(self, width: int, *, heads: int = 16, points: int = 4, ratio: float = 0.5) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        inner = int(width * ratio)
        self.sampling_offsets = nn.Linear(width, heads * points * 2)
        self.attention_weights = nn.Linear(width, heads * points)
        self.value_proj = nn.Linear(width, inner)
        self.output_proj = nn.Linear(inner, width)

    def forward(self, queries: Tensor, places: Tensor, values: Tensor, grid: tuple[int, int]) -> Tensor:
        """Read ``values`` (B, h * w, C) near ``places`` (Q, 2; x and y in 0..1) for ``queries`` (B, Q, C)."""
        batch, count, _ = queries.shape
        rows, columns = grid
        maps = self.value_proj(values).transpose(1, 2).reshape(batch * self.heads, -1, rows, columns)
        offsets = self.sampling_offsets(queries).view(batch, count, self.heads, self.points, 2)
        weights = self.attention_weights(queries).view(batch, count, self.heads, self.points).softmax(-1)
        scale = offsets.new_tensor([columns, rows])
        where = places[:, None, None] + offsets / scale  # (B, Q, heads, points, 2)
        where = (2 * where - 1).transpose(1, 2).flatten(0, 1)
        weights = weights.transpose(1, 2).flatten(0, 1)
        gathered = self._gather(maps, where, weights)  # (B * heads, inner / heads, Q)
        return self.output_proj(gathered.reshape(batch, -1, count).transpose(1, 2))  # type: ignore[no-any-return]

    def _gather(self, maps: Tensor, where: Tensor, weights: Tensor) -> Tensor:
        # point by point: all points at once would need as many times the memory
        total = maps.new_zeros(maps.shape[0], maps.shape[1], where.shape[1])
        for point in range(self.points):
            sampled = F.grid_sample(maps, where[:, :, point, None], align_corners=False)
            total += sampled[..., 0] * weights[:, None, :, point]
        return total


def cell_centres(grids: list[tuple[int, int]], like: Tensor) -> Tensor:
    """Centres (Q, 2; x and y in 0..1) of the cells of several grids, row by row, grid after grid."""
    centres = []
    for rows, columns in grids:
        y = (torch.arange(rows, device=like.device, dtype=like.dtype) + 0.5) / rows
        x = (torch.arange(columns, device=like.device, dtype=like.dtype) + 0.5) / columns
        centres.append(torch.stack((x.expand(rows, -1), y[:, None].expand(-1, columns)), -1).flatten(0, 1))
    return torch.cat(centres)


class SpatialPrior(nn.Module):
    """Maps of the image itself at strides 4, 8, 16 and 32, each with ``width`` channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_conv(3, 64, 2), *_conv(64, 64, 1), *_conv(64, 64, 1), nn.MaxPool2d(3, stride=2, padding=1)
        )
        self.conv2 = nn.Sequential(*_conv(64, 128, 2))
        self.conv3 = nn.Sequential(*_conv(128, 256, 2))
        self.conv4 = nn.Sequential(*_conv(256, 256, 2))
        self.fc1, self.fc2 = nn.Conv2d(64, width, 1), nn.Conv2d(128, width, 1)
        self.fc3, self.fc4 = nn.Conv2d(256, width, 1), nn.Conv2d(256, width, 1)

    def forward(self, pixels: Tensor) -> list[Tensor]:  # (B, 3, H, W)
        """The four maps, finest first."""
        stride4 = self.stem(pixels)
        stride8 = self.conv2(stride4)
        stride16 = self.conv3(stride8)
        return [self.fc1(stride4), self.fc2(stride8), self.fc3(stride16), self.fc4(self.conv4(stride16))]


class _DepthwiseConv(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, tokens: Tensor, grids: Grids) -> Tensor:  # (B, Q, C), levels one after the other
        maps = [self.dwconv(each) for each in _maps(tokens, grids)]
        return torch.cat([each.flatten(2).transpose(1, 2) for each in maps], dim=1)


class _ConvFeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, width // 4)
        self.dwconv = _DepthwiseConv(width // 4)
        self.fc2 = nn.Linear(width // 4, width)

    def forward(self, tokens: Tensor, grids: Grids) -> Tensor:
        return self.fc2(F.gelu(self.dwconv(self.fc1(tokens), grids)))  # type: ignore[no-any-return]


class Extractor(nn.Module):
    """Tokens of several strides read one tap of the ViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query_norm, self.feat_norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = DeformableAttention(width)
        self.ffn = _ConvFeedForward(width)
        self.ffn_norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens: Tensor, places: Tensor, tap: Tap, grids: Grids) -> Tensor:
        """``tokens`` (B, Q, C) of all ``grids``, whose centres are ``places``, after reading ``tap``."""
        read = self.attn(self.query_norm(tokens), places, self.feat_norm(tap.patches), tap.grid)
        tokens = tokens + read
        return tokens + self.ffn(self.ffn_norm(tokens), grids)  # type: ignore[no-any-return]


class _Interaction(nn.Module):
    def __init__(self, width: int, extra: int) -> None:
        super().__init__()
        self.extractor = Extractor(width)
        if extra:
            self.extra_extractors = nn.ModuleList(Extractor(width) for _ in range(extra))

    def forward(self, tokens: Tensor, places: Tensor, tap: Tap, grids: Grids) -> Tensor:
        for extractor in (self.extractor, *getattr(self, "extra_extractors", ())):
            tokens = extractor(tokens, places, tap, grids)
        return tokens


class Adapter(nn.Module):
    """Four taps and the image become a pyramid of four maps, strides 4, 8, 16, 32, of the ViT's width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.level_embed = nn.Parameter(torch.zeros(3, width))
        self.spm = SpatialPrior(width)
        self.interactions = nn.ModuleList(_Interaction(width, extra) for extra in (0, 0, 0, 2))
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.norm3, self.norm4 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """Maps of the image itself, which do not depend on the taps."""
        height, width = pixels.shape[-2:]
        if height % ADAPTER_STRIDE or width % ADAPTER_STRIDE:
            raise GramLoopError(f"both sides must be multiples of {ADAPTER_STRIDE}, not {height} x {width}")
        maps: list[Tensor] = self.spm(pixels)
        return maps

    def pyramid(self, prior: Sequence[Tensor], taps: Sequence[Tap]) -> list[Tensor]:
        """The maps of :meth:`prior` after reading the taps, finest first."""
        finest, *coarse = prior
        grids = [(each.shape[2], each.shape[3]) for each in coarse]
        tokens = torch.cat(
            [each.flatten(2).transpose(1, 2) + self.level_embed[i] for i, each in enumerate(coarse)], dim=1
        )
        places = cell_centres(grids, tokens)
        for interaction, tap in zip(self.interactions, taps, strict=True):
            tokens = interaction(tokens, places, tap, grids)
        maps = _maps(tokens, grids)
        maps = [self.up(maps[0]) + finest, *maps]
        norms = (self.norm1, self.norm2, self.norm3, self.norm4)
        return [
            norm(each + F.interpolate(tap.map, each.shape[2:], mode="bilinear", align_corners=False))
            for norm, each, tap in zip(norms, maps, taps, strict=True)
        ]


def _conv(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def _maps(tokens: Tensor, grids: Grids) -> list[Tensor]:
    """Tokens (B, Q, C) of several grids, one after the other, as maps (B, C, h, w)."""
    levels = torch.split(tokens, [rows * columns for rows, columns in grids], dim=1)
    return [
        level.transpose(1, 2).reshape(level.shape[0], -1, *grid)
        for level, grid in zip(levels, grids, strict=True)
    ]


class Mask2Former(nn.Module):
    """A pyramid of four maps → 100 queries, each a distribution over the classes and a mask at stride 4."""

    def __init__(
        self,
        channels: int,
        *,
        hidden: int = 2048,
        classes: int = 150,
        queries: int = 100,
        feedforward: int = 4096,
    ) -> None:
        """``channels`` are those of the pyramid; the other sizes are by default those of the released head."""
        super().__init__()
        from transformers.models.mask2former import modeling_mask2former as modules

        config = modules.Mask2FormerConfig(
            feature_size=hidden,
            mask_feature_size=hidden,
            hidden_dim=hidden,
            encoder_feedforward_dim=feedforward,
            dim_feedforward=feedforward,
            encoder_layers=6,
            decoder_layers=10,  # transformers counts the prediction before the first of nine layers
            num_attention_heads=16,
            num_queries=queries,
            dropout=0.0,
            pre_norm=False,
            enforce_input_projection=False,
            common_stride=4,
            feature_strides=[4, 8, 16, 32],
        )
        self.pixel_decoder: Any = modules.Mask2FormerPixelDecoder(config, [channels] * 4)
        self.predictor: Any = modules.Mask2FormerTransformerModule(in_features=hidden, config=config)
        self.class_embed = nn.Linear(hidden, classes + 1)
        self.eval()

    def forward(self, pyramid: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Class logits (B, queries, classes + 1) and mask logits (B, queries, H / 4, W / 4)."""
        decoded = self.pixel_decoder(list(pyramid), output_hidden_states=False, return_dict=True)
        output = self.predictor(decoded.multi_scale_features, decoded.mask_features)
        queries = output.intermediate_hidden_states[-1].transpose(0, 1)
        return self.class_embed(queries), output.masks_queries_logits[-1]


def class_scores(
    logits: Tensor, masks: Tensor, size: tuple[int, int], *, product: torch.dtype = torch.bfloat16
) -> Tensor:
    """Scores (B, classes, *size): every query votes for its classes where its mask is.

    The product runs in bfloat16, as released.
    """
    masks = F.interpolate(masks, size, mode="bilinear", align_corners=False)
    classes = logits.softmax(-1)[..., :-1]  # the last is "no object"
    return torch.einsum("bqc,bqhw->bchw", classes.to(product), masks.sigmoid().to(product))


_LAYER = r"^1\.predictor\.decoder\.layers\.(\d+)\."
_RENAMES: Mapping[str, str] = {
    r"^adapter\.": "0.",  # the file numbers the two parts
    r"^decoder\.": "1.",
    r"^1\.class_embed\.": "1.predictor.class_embed.",
    r"pixel_decoder\.level_embed$": "pixel_decoder.encoder.level_encoding",
    r"pixel_decoder\.input_projections\.": "pixel_decoder.input_convs.",
    r"pixel_decoder\.encoder\.layers\.": "pixel_decoder.encoder.encoder.layers.",
    r"(encoder\.layers\.\d+)\.self_attn_layer_norm\.": r"\1.norm1.",
    r"(encoder\.layers\.\d+)\.final_layer_norm\.": r"\1.norm2.",
    r"(encoder\.layers\.\d+)\.fc([12])\.": r"\1.linear\2.",
    r"pixel_decoder\.mask_projection\.": "pixel_decoder.mask_feature.",
    r"pixel_decoder\.adapter_1\.0\.": "pixel_decoder.lateral_convs.0.",
    r"pixel_decoder\.adapter_1\.1\.": "pixel_decoder.lateral_convs.0.norm.",
    r"pixel_decoder\.layer_1\.0\.": "pixel_decoder.output_convs.0.",
    r"pixel_decoder\.layer_1\.1\.": "pixel_decoder.output_convs.0.norm.",
    r"predictor\.queries_embedder\.": "predictor.query_embed.",
    r"predictor\.queries_features\.": "predictor.query_feat.",
    _LAYER + r"(self|cross)_attn\.": r"1.predictor.transformer_\2_attention_layers.\1.\2_attn.",
    _LAYER + r"(self|cross)_attn_layer_norm\.": r"1.predictor.transformer_\2_attention_layers.\1.norm.",
    _LAYER + r"fc([12])\.": r"1.predictor.transformer_ffn_layers.\1.linear\2.",
    _LAYER + r"final_layer_norm\.": r"1.predictor.transformer_ffn_layers.\1.norm.",
    r"\.cross_attn\.": ".multihead_attn.",
    r"predictor\.decoder\.layernorm\.": "predictor.post_norm.",
    r"predictor\.decoder\.mask_predictor\.mask_embedder\.(\d)\.0\.": r"predictor.mask_embed.layers.\1.",
    **fused_names("in_proj_"),
}


class _Head(nn.Module):
    released_names = _RENAMES

    def __init__(self, channels: int, **sizes: int) -> None:
        super().__init__()
        self.adapter = Adapter(channels)
        self.decoder = Mask2Former(channels, **sizes)


class Mask2FormerSegmentor(SegmentationModel):
    """The released segmentor: adapter and Mask2Former head on four taps of a frozen backbone."""

    backbone: Backbone
    head: _Head

    def __init__(self, backbone: Backbone, channels: int, **sizes: int) -> None:
        """``channels`` and the other sizes are those of `Mask2Former`."""
        head, taps = _Head(channels, **sizes), default_taps(backbone.shape.depth)
        super().__init__(backbone, head, channels, taps, head.decoder.class_embed.out_features - 1)
        self.granularity = ADAPTER_STRIDE

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:  # (B, 3, H, W)
        """Class logits (B, queries, classes + 1) and mask logits (B, queries, H / 4, W / 4)."""
        return self.predict(self.prior(pixels), self.backbone(pixels, self.taps))

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """The adapter's own maps of the image."""
        return self.head.adapter.prior(pixels)

    def predict(self, prior: list[Tensor], taps: Sequence[Tap]) -> tuple[Tensor, Tensor]:
        """The logits of :meth:`forward` from taps computed before."""
        logits, masks = self.head.decoder(self.head.adapter.pyramid(prior, taps))
        return logits, masks

    def scores(
        self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool = False
    ) -> Tensor:
        """Scores (B, classes, *size); the product of classes and masks is bfloat16 unless exact."""
        logits, masks = self.predict(prior, taps)
        return class_scores(logits, masks, size, product=torch.float32 if exact else torch.bfloat16)


def load_segmentor(
    head: str | Path, backbone: Backbone | str | Path | None = None, **options: Unpack[LoadOptions]
) -> Mask2FormerSegmentor:
    """The released segmentor from its head file and its backbone.

    Args:
        head: the head's file.
        backbone: a model, a file or a transformers folder; None takes the copy that the head's file may hold.
        **options: see `LoadOptions`.
    """
    checkpoint = open_checkpoint(head)
    sizes = mask2former_sizes(checkpoint)
    vit = backbone_of_head(checkpoint, backbone, sizes["channels"], prefix=SEGMENTOR_BACKBONE, **options)
    with torch.device("meta"):
        segmentor = Mask2FormerSegmentor(vit, **sizes)
    own = checkpoint.under(SEGMENTOR_PREFIX).without("0.backbone.")
    load_weights(segmentor.head, own, device=options.get("device", "cpu"))
    return segmentor


def mask2former_sizes(checkpoint: Checkpoint) -> dict[str, int]:
    """The sizes that a released segmentation head was made with."""
    predictor = SEGMENTOR_PREFIX + "1.predictor."
    sizes = checkpoint.sizes(
        "a segmentation head",
        channels=(SEGMENTOR_PREFIX + "0.level_embed", 1),
        hidden=(predictor + "query_feat.weight", 1),
        queries=(predictor + "query_feat.weight", 0),
        classes=(predictor + "class_embed.weight", 0),
        feedforward=(predictor + "transformer_ffn_layers.0.linear1.weight", 0),
    )
    return {**sizes, "classes": sizes["classes"] - 1}  # the last is "no object"
