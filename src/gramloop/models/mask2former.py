"""The Mask2Former head of the released segmentor: transformers' modules, renamed weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import Source


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a Mask2Former head; the defaults are those of the released one."""

    channels: int  # of the pyramid it reads: the width of the backbone
    hidden: int = 2048
    classes: int = 150
    queries: int = 100
    feedforward: int = 4096

    def __post_init__(self) -> None:
        if min(self.channels, self.hidden, self.classes, self.queries, self.feedforward) < 1:
            raise GramLoopError(f"a segmentation head needs positive sizes, not {self}")
        if self.hidden % 32:
            raise GramLoopError(f"the hidden size of a head must be a multiple of 32, not {self.hidden}")


class Mask2Former(nn.Module):
    """A pyramid of four maps → 100 queries, each a distribution over the classes and a mask at stride 4."""

    def __init__(self, shape: HeadShape) -> None:
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

    def released_plan(self) -> dict[str, Source]:
        """What each tensor is made of, in the names of the released file."""
        return {name: _source(name, value) for name, value in self.state_dict().items()}


def class_scores(
    logits: Tensor, masks: Tensor, size: tuple[int, int], *, product: torch.dtype = torch.bfloat16
) -> Tensor:
    """Scores (B, classes, *size): every query votes for its classes where its mask is.

    The product runs in bfloat16, as released.
    """
    masks = nn.functional.interpolate(masks, size, mode="bilinear", align_corners=False)
    classes = logits.softmax(-1)[..., :-1]  # the last is "no object"
    return torch.einsum("bqc,bqhw->bchw", classes.to(product), masks.sigmoid().to(product))


_RENAMES: Mapping[str, str] = {
    r"^pixel_decoder\.level_embed$": "pixel_decoder.encoder.level_encoding",
    r"^pixel_decoder\.input_projections\.": "pixel_decoder.input_convs.",
    r"^pixel_decoder\.encoder\.layers\.": "pixel_decoder.encoder.encoder.layers.",
    r"(encoder\.layers\.\d+)\.self_attn_layer_norm\.": r"\1.norm1.",
    r"(encoder\.layers\.\d+)\.final_layer_norm\.": r"\1.norm2.",
    r"(encoder\.layers\.\d+)\.fc([12])\.": r"\1.linear\2.",
    r"^pixel_decoder\.mask_projection\.": "pixel_decoder.mask_feature.",
    r"^pixel_decoder\.adapter_1\.0\.": "pixel_decoder.lateral_convs.0.",
    r"^pixel_decoder\.adapter_1\.1\.": "pixel_decoder.lateral_convs.0.norm.",
    r"^pixel_decoder\.layer_1\.0\.": "pixel_decoder.output_convs.0.",
    r"^pixel_decoder\.layer_1\.1\.": "pixel_decoder.output_convs.0.norm.",
    r"^predictor\.queries_embedder\.": "predictor.query_embed.",
    r"^predictor\.queries_features\.": "predictor.query_feat.",
    r"^predictor\.decoder\.layers\.(\d+)\.self_attn\.": (
        r"predictor.transformer_self_attention_layers.\1.self_attn."
    ),
    r"^predictor\.decoder\.layers\.(\d+)\.self_attn_layer_norm\.": (
        r"predictor.transformer_self_attention_layers.\1.norm."
    ),
    r"^predictor\.decoder\.layers\.(\d+)\.cross_attn\.": (
        r"predictor.transformer_cross_attention_layers.\1.multihead_attn."
    ),
    r"^predictor\.decoder\.layers\.(\d+)\.cross_attn_layer_norm\.": (
        r"predictor.transformer_cross_attention_layers.\1.norm."
    ),
    r"^predictor\.decoder\.layers\.(\d+)\.fc([12])\.": r"predictor.transformer_ffn_layers.\1.linear\2.",
    r"^predictor\.decoder\.layers\.(\d+)\.final_layer_norm\.": r"predictor.transformer_ffn_layers.\1.norm.",
    r"^predictor\.decoder\.layernorm\.": "predictor.post_norm.",
    r"^predictor\.decoder\.mask_predictor\.mask_embedder\.(\d)\.0\.": r"predictor.mask_embed.layers.\1.",
    r"^class_embed\.": "predictor.class_embed.",
}


def _source(name: str, value: Tensor) -> Source:
    released = name
    for pattern, replacement in _RENAMES.items():
        released = re.sub(pattern, replacement, released)
    part = re.search(r"\.([qkv])_proj\.(weight|bias)$", released)
    if part is None:
        return Source.same(released, value.shape)
    fused = f"{released[: part.start()]}.in_proj_{part[2]}"
    return Source.part(fused, "qkv".index(part[1]), 3, value.shape)
