"""How the models of each ViT family are read: where they keep blocks and final norm, and how states are laid out.

Families are known by the names of classes and never imported, so nothing here needs the library that a host
comes from. In every family here all blocks are given the same arguments beside the state, and what differs from
block to block (relative position biases, windows) is inside the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from gramloop.core.layout import Layout
from gramloop.errors import GramLoopError


@dataclass(frozen=True)
class Family:
    """How to read one family's model.

    blocks, norm: attribute paths; no norm where the blocks' last state is used as it is.
    plain_depth, why_not_plain: as in `Host`.
    embedding: the path of the module that cuts the image into patches where that is no convolution; it is called
        with the image and has a ``patch_size``.
    shuffles: the patches of an image come in an order of their own, so that they have no grid.
    """

    blocks: str
    norm: str
    layout: Callable[[Any], Layout]
    plain_depth: Callable[[Any, int], int] = lambda vit, depth: depth
    why_not_plain: str = ""
    embedding: str = ""
    shuffles: bool = False


def _prefix(count: int) -> Callable[[Any], Layout]:
    return lambda vit: Layout(count)


def _class_and_registers(vit: Any) -> Layout:
    return Layout(1 + int(getattr(vit.config, "num_register_tokens", 0) or 0))


def _meta_prefix(vit: Any) -> Layout:
    return Layout(1 + int(getattr(vit, "n_storage_tokens", getattr(vit, "num_register_tokens", 0))))


def _timm_prefix(vit: Any) -> Layout:
    if not hasattr(vit, "num_prefix_tokens"):
        raise GramLoopError(
            f"{type(vit).__name__} has no num_prefix_tokens, so it is none of timm's; pass blocks=, norm= and prefix="
        )
    return Layout(int(vit.num_prefix_tokens))


def _map(order: Literal["BHWC", "BCHW"]) -> Callable[[Any], Layout]:
    return lambda vit: Layout(map=order)


def _before_queries(vit: Any, depth: int) -> int:
    return depth - int(vit.config.num_blocks)


def _if_one_window(vit: Any, depth: int) -> int:
    return depth if int(vit.config.num_windows) == 1 else 0


def _unless_mixed_rope(vit: Any, depth: int) -> int:
    return 0 if getattr(vit, "rope_mixed", False) else depth


def _unless_positions_between(vit: Any, depth: int) -> int:
    return 0 if vit.config.use_mid_position_embeddings else depth


_QUERIES = "it inserts mask queries among the tokens there"
_WINDOWS = "it regroups the tokens of one image into windows, so no block sees the whole image's patches"
_MIXED = "every block has position tables of its own (mixed RoPE)"
_BETWEEN = "it adds position embeddings between its blocks (use_mid_position_embeddings)"


FAMILIES: dict[str, Family] = {
    # Meta's own modules
    "DinoVisionTransformer": Family("blocks", "norm", _meta_prefix),
    # transformers, tokens
    "DINOv3ViTModel": Family("model.layer", "norm", _class_and_registers),
    "DINOv3ViTBackbone": Family("model.layer", "norm", _class_and_registers),
    "Dinov2Model": Family("encoder.layer", "layernorm", _prefix(1)),
    "Dinov2Backbone": Family("encoder.layer", "layernorm", _prefix(1)),
    "Dinov2WithRegistersModel": Family("encoder.layer", "layernorm", _class_and_registers),
    "Dinov2WithRegistersBackbone": Family("encoder.layer", "layernorm", _class_and_registers),
    "ViTModel": Family("layers", "layernorm", _prefix(1)),
    "ViTMSNModel": Family("layers", "layernorm", _prefix(1)),
    "ViTMAEModel": Family("layers", "layernorm", _prefix(1), shuffles=True),
    "DeiTModel": Family("layers", "layernorm", _prefix(2)),
    "IJepaModel": Family("layers", "layernorm", _prefix(0)),
    "BeitModel": Family("layers", "layernorm", _prefix(1)),
    "Data2VecVisionModel": Family("encoder.layer", "layernorm", _prefix(1)),
    "DPTModel": Family("encoder.layer", "layernorm", _prefix(1)),
    "CLIPVisionModel": Family("encoder.layers", "post_layernorm", _prefix(1)),
    "SiglipVisionModel": Family("encoder.layers", "post_layernorm", _prefix(0)),
    "Siglip2VisionModel": Family("encoder.layers", "post_layernorm", _prefix(0)),
    "OwlViTVisionTransformer": Family("encoder.layers", "post_layernorm", _prefix(1)),
    "Owlv2VisionTransformer": Family("encoder.layers", "post_layernorm", _prefix(1)),
    "MLCDVisionModel": Family("encoder.layers", "post_layernorm", _prefix(1)),
    "Aimv2VisionModel": Family("encoder.layers", "rms_norm", _prefix(0)),
    "Sapiens2Model": Family("model.layer", "norm", _class_and_registers),
    "Sapiens2Backbone": Family("model.layer", "norm", _class_and_registers),
    "Tipsv2VisionModel": Family("encoder.layer", "layernorm", _class_and_registers),
    "Tipsv2VisionBackbone": Family("encoder.layer", "layernorm", _class_and_registers),
    "PixioModel": Family("layers", "layernorm", lambda vit: Layout(int(vit.config.n_cls_tokens))),
    "PixioBackbone": Family("pixio.layers", "layernorm", lambda vit: Layout(int(vit.config.n_cls_tokens))),
    "VitPoseBackbone": Family("encoder.layer", "layernorm", _prefix(0)),
    "RadioModel": Family(
        "encoder.layer", "", lambda vit: Layout(int(vit.config.num_summary_tokens)), embedding="embeddings"
    ),
    "YolosModel": Family(
        "encoder.layer",
        "layernorm",
        lambda vit: Layout(1, int(vit.config.num_detection_tokens)),
        _unless_positions_between,
        _BETWEEN,
    ),
    "EomtForUniversalSegmentation": Family(
        "layers", "layernorm", _class_and_registers, _before_queries, _QUERIES
    ),
    "EomtDinov3ForUniversalSegmentation": Family(
        "layers", "layernorm", _class_and_registers, _before_queries, _QUERIES
    ),
    "RfDetrDinov2Backbone": Family("encoder.layer", "layernorm", _prefix(1), _if_one_window, _WINDOWS),
    "LwDetrViTBackbone": Family("encoder.layer", "", _prefix(0), _if_one_window, _WINDOWS),
    # transformers, maps
    "VitDetModel": Family("encoder.layer", "", _map("BCHW")),
    "VitDetBackbone": Family("encoder.layer", "", _map("BCHW")),
    "SamVisionEncoder": Family("layers", "", _map("BHWC")),
    "SamHQVisionEncoder": Family("layers", "", _map("BHWC")),
    "Sam3ViTModel": Family("layers", "", _map("BHWC")),
    # timm
    "VisionTransformer": Family("blocks", "norm", _timm_prefix),
    "Eva": Family("blocks", "norm", _timm_prefix, _unless_mixed_rope, _MIXED),
}
