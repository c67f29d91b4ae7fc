"""The released segmentor: an adapter and a Mask2Former head on four taps of a frozen DINOv3.

The head consists of transformers' modules with renamed weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from gramloop.models.adapter import ADAPTER_STRIDE, Adapter
from gramloop.models.backbone import Backbone, Tap, TappedViT, default_taps
from gramloop.models.checkpoint import (
    Checkpoint,
    LoadOptions,
    Shapes,
    fused_names,
    load_weights,
    open_checkpoint,
    planned_shapes,
    renamed_plan,
)
from gramloop.models.dino import backbone_of_head, dinov3_file_shapes
from gramloop.models.heads import SegmentationModel

SEGMENTOR_PREFIX = "segmentation_model."
SEGMENTOR_BACKBONE = SEGMENTOR_PREFIX + "0.backbone."  # the backbone's names in a head's file


@dataclass(frozen=True)
class Mask2FormerShape:
    """The sizes of a Mask2Former head; the defaults are those of the released one."""

    channels: int  # of the pyramid it reads: the width of the backbone
    hidden: int = 2048
    classes: int = 150
    queries: int = 100
    feedforward: int = 4096


class Mask2Former(nn.Module):
    """A pyramid of four maps → 100 queries, each a distribution over the classes and a mask at stride 4."""

    def __init__(self, shape: Mask2FormerShape) -> None:
        super().__init__()
        from transformers.models.mask2former import modeling_mask2former as modules

        config = modules.Mask2FormerConfig(
            feature_size=shape.hidden,
            mask_feature_size=shape.hidden,
            hidden_dim=shape.hidden,
            encoder_feedforward_dim=shape.feedforward,
            dim_feedforward=shape.feedforward,
            encoder_layers=6,
            decoder_layers=10,  # transformers counts the prediction before the first of nine layers
            num_attention_heads=16,
            num_queries=shape.queries,
            dropout=0.0,
            pre_norm=False,
            enforce_input_projection=False,
            common_stride=4,
            feature_strides=[4, 8, 16, 32],
        )
        self.pixel_decoder: Any = modules.Mask2FormerPixelDecoder(config, [shape.channels] * 4)
        self.predictor: Any = modules.Mask2FormerTransformerModule(in_features=shape.hidden, config=config)
        self.class_embed = nn.Linear(shape.hidden, shape.classes + 1)
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
    masks = nn.functional.interpolate(masks, size, mode="bilinear", align_corners=False)
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

    def __init__(self, shape: Mask2FormerShape) -> None:
        super().__init__()
        self.adapter = Adapter(shape.channels)
        self.decoder = Mask2Former(shape)


class Mask2FormerSegmentor(SegmentationModel):
    """The released segmentor: adapter and Mask2Former head on four taps of a frozen backbone."""

    backbone: Backbone
    head: _Head

    def __init__(self, backbone: Backbone, head: Mask2FormerShape) -> None:
        super().__init__(
            backbone, _Head(head), head.channels, default_taps(backbone.shape.depth), head.classes
        )
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

    def released_shapes(self) -> Shapes:
        """Every name with its shape in the released naming, the backbone's included."""
        head = planned_shapes(renamed_plan(self.head))
        backbone = dinov3_file_shapes(self.backbone)
        return {SEGMENTOR_PREFIX + name: shape for name, shape in head.items()} | {
            SEGMENTOR_BACKBONE + name: shape for name, shape in backbone.items()
        }


def load_segmentor(
    head: str | Path, backbone: TappedViT | str | Path | None = None, **options: Unpack[LoadOptions]
) -> Mask2FormerSegmentor:
    """The released segmentor from its head file and its backbone.

    Args:
        head: the head's file.
        backbone: a model, a file or a transformers folder; None takes the copy that the head's file may hold.
        **options: see `LoadOptions`.
    """
    checkpoint = open_checkpoint(head, options.get("verify", False))
    shape = infer_mask2former_shape(checkpoint)
    vit = backbone_of_head(checkpoint, backbone, shape.channels, prefix=SEGMENTOR_BACKBONE, **options)
    with torch.device("meta"):
        segmentor = Mask2FormerSegmentor(vit, shape)
    own = checkpoint.under(SEGMENTOR_PREFIX).without("0.backbone.")
    load_weights(segmentor.head, own, device=options.get("device", "cpu"))
    return segmentor


def infer_mask2former_shape(checkpoint: Checkpoint) -> Mask2FormerShape:
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
    return Mask2FormerShape(**{**sizes, "classes": sizes["classes"] - 1})  # the last is "no object"
