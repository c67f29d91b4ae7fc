"""Small random dense models of transformers, saved to folders with their image processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from dense_library_models import DENSE as HOSTS
from dense_library_models import deimv2
from library_models import DINOV2, SIZE, VIT

LABELS = {0: "sky", 1: "road", 2: "car"}


def _names() -> dict[str, Any]:
    return {"id2label": LABELS, "label2id": {name: number for number, name in LABELS.items()}}


def _t() -> Any:
    import transformers

    return transformers


def _dinov2_backbone(**more: Any) -> Any:
    return _t().Dinov2Config(**{**DINOV2, "out_indices": [2, 4, 5, 6], **more})


def _resnet() -> Any:
    return _t().ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 8, 16, 16],
        depths=[1, 1, 1, 1],
        out_features=["stage2", "stage3", "stage4"],
    )


def _segformer() -> Any:
    t = _t()
    config = t.SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 16, 16], num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=16,
        **_names(),
    )  # fmt: skip
    return t.SegformerForSemanticSegmentation(config), t.SegformerImageProcessorPil(
        size={"height": 64, "width": 64}
    )


def _beit(kind: str = "Beit") -> Any:
    t = _t()
    config = getattr(t, f"{kind}Config")(
        **VIT, out_indices=[2, 3, 4, 6], use_absolute_position_embeddings=True, **_names()
    )
    processor = t.BeitImageProcessorPil(size={"height": 64, "width": 64}, do_center_crop=False)
    return getattr(t, f"{kind}ForSemanticSegmentation")(config), processor


def _dpt() -> Any:
    t = _t()
    config = t.DPTConfig(
        **VIT,
        backbone_out_indices=[1, 2, 4, 5],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        **_names(),
    )
    return t.DPTForSemanticSegmentation(config), t.DPTImageProcessorPil(size={"height": 64, "width": 64})


def _upernet() -> Any:
    t = _t()
    backbone = _dinov2_backbone(reshape_hidden_states=True)
    config = t.UperNetConfig(
        backbone_config=backbone, hidden_size=16, pool_scales=[1, 2], use_auxiliary_head=False, **_names()
    )
    return t.UperNetForSemanticSegmentation(config), t.SegformerImageProcessorPil(
        size={"height": 56, "width": 56}
    )


def _mask2former() -> Any:
    t = _t()
    swin = t.SwinConfig(
        embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2, image_size=64,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = t.Mask2FormerConfig(
        backbone_config=swin, feature_size=32, mask_feature_size=32, hidden_dim=32, encoder_feedforward_dim=16,
        dim_feedforward=16, encoder_layers=1, decoder_layers=2, num_attention_heads=2, num_queries=5, **_names(),
    )  # fmt: skip
    processor = t.Mask2FormerImageProcessorPil(size={"height": 64, "width": 64}, size_divisor=32)
    return t.Mask2FormerForUniversalSegmentation(config), processor


def _eomt(kind: str = "Eomt") -> Any:
    t = _t()
    config = getattr(t, f"{kind}Config")(**VIT, num_blocks=2, num_queries=5, num_upscale_blocks=1, **_names())
    processor = t.EomtImageProcessorPil(size={"shortest_edge": 64, "longest_edge": None}, do_split_image=True)
    return getattr(t, f"{kind}ForUniversalSegmentation")(config), processor


def _detr() -> Any:
    t = _t()
    config = t.DetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=_resnet(), d_model=16,
        encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_attention_heads=2,
        decoder_attention_heads=2, num_queries=6, **_names(),
    )  # fmt: skip
    return t.DetrForObjectDetection(config), t.DetrImageProcessorPil(
        size={"shortest_edge": 64, "longest_edge": 96}
    )


def _deformable() -> Any:
    t = _t()
    config = t.DeformableDetrConfig(
        use_timm_backbone=False, use_pretrained_backbone=False, backbone=None, backbone_config=_resnet(), d_model=32,
        encoder_layers=1, decoder_layers=2, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_attention_heads=2,
        decoder_attention_heads=2, num_queries=40, num_feature_levels=3, **_names(),
    )  # fmt: skip
    processor = t.DeformableDetrImageProcessorPil(size={"shortest_edge": 64, "longest_edge": 96})
    return t.DeformableDetrForObjectDetection(config), processor


def _yolos() -> Any:
    t = _t()
    config = t.YolosConfig(
        **SIZE,
        patch_size=16,
        image_size=[64, 64],
        num_detection_tokens=6,
        use_mid_position_embeddings=False,
        **_names(),
    )
    return t.YolosForObjectDetection(config), t.YolosImageProcessorPil(size={"height": 64, "width": 64})


def _lw_detr() -> Any:
    t = _t()
    backbone = t.LwDetrViTConfig(
        **{**SIZE, "patch_size": 16, "image_size": 64, "pretrain_image_size": 64}, num_windows=1, num_windows_side=1,
        window_block_indices=[], out_indices=[2, 4, 6],
    )  # fmt: skip
    config = t.LwDetrConfig(
        backbone_config=backbone, d_model=32, decoder_layers=1, decoder_self_attention_heads=2,
        decoder_cross_attention_heads=2, num_queries=6, group_detr=1, projector_scale_factors=[1.0], **_names(),
    )  # fmt: skip
    processor = t.DeformableDetrImageProcessorPil(size={"height": 64, "width": 64})
    return t.LwDetrForObjectDetection(config), processor


def _depth_anything() -> Any:
    t = _t()
    backbone = _dinov2_backbone(reshape_hidden_states=False, apply_layernorm=True)
    config = t.DepthAnythingConfig(
        backbone_config=backbone, reassemble_hidden_size=32, patch_size=14, neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8, head_hidden_size=8,
    )  # fmt: skip
    return t.DepthAnythingForDepthEstimation(config), t.DPTImageProcessorPil(size={"height": 56, "width": 56})


def _dpt_depth() -> Any:
    t = _t()
    config = t.DPTConfig(
        **VIT, backbone_out_indices=[1, 2, 4, 5], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8
    )
    return t.DPTForDepthEstimation(config), t.DPTImageProcessorPil(size={"height": 64, "width": 64})


def _glpn() -> Any:
    t = _t()
    config = t.GLPNConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[8, 16, 16, 16],
        num_attention_heads=[1, 1, 2, 2],
        decoder_hidden_size=16,
    )
    return t.GLPNForDepthEstimation(config), t.GLPNImageProcessorPil(size_divisor=32)


def _prompt_depth_anything() -> Any:
    processor = _t().PromptDepthAnythingImageProcessorPil(
        size={"height": 64, "width": 64}, ensure_multiple_of=16
    )
    return HOSTS["Prompt-Depth-Anything"]().model, processor


def _rt_detr() -> Any:
    t = _t()
    sizes = {"encoder_hidden_dim": 32, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "d_model": 32}
    backbone = t.RTDetrResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )  # fmt: skip
    config = t.RTDetrConfig(
        backbone_config=backbone, encoder_in_channels=[8, 16, 16], decoder_in_channels=[32, 32, 32],
        encoder_attention_heads=2, decoder_attention_heads=2, decoder_layers=1, num_queries=6, num_denoising=0,
        **sizes, **_names(),
    )  # fmt: skip
    return t.RTDetrForObjectDetection(config), t.RTDetrImageProcessorPil(size={"height": 64, "width": 64})


def _maskformer() -> Any:
    t = _t()
    swin = t.SwinConfig(
        embed_dim=8, depths=[1, 1, 1, 1], num_heads=[1, 1, 2, 2], window_size=2, image_size=64,
        out_features=["stage1", "stage2", "stage3", "stage4"],
    )  # fmt: skip
    decoder = t.DetrConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16,
        encoder_attention_heads=2, decoder_attention_heads=2, num_queries=6,
    )  # fmt: skip
    config = t.MaskFormerConfig(
        backbone_config=swin, decoder_config=decoder, fpn_feature_size=32, mask_feature_size=32, **_names()
    )
    processor = t.MaskFormerImageProcessorPil(size={"height": 64, "width": 64}, size_divisor=32)
    return t.MaskFormerForInstanceSegmentation(config), processor


DEPTH: dict[str, Callable[[], Any]] = {
    "PromptDepthAnything": _prompt_depth_anything,
    "DepthAnything": _depth_anything,
    "DPT depth": _dpt_depth,
    "GLPN": _glpn,
}
MODELS: dict[str, Callable[[], Any]] = {
    "Segformer": _segformer,
    "Beit": _beit,
    "Data2VecVision": lambda: _beit("Data2VecVision"),
    "DPT": _dpt,
    "UperNet on Dinov2": _upernet,
    "Mask2Former": _mask2former,
    "Eomt": _eomt,
    "EomtDinov3": lambda: _eomt("EomtDinov3"),
    "Detr": _detr,
    "DeformableDetr": _deformable,
    "Yolos": _yolos,
    "LwDetr": _lw_detr,
    "RTDetr": _rt_detr,
    "Deimv2": lambda: (
        deimv2(**_names()),
        _t().RTDetrImageProcessorPil(size={"height": 64, "width": 64}),
    ),
    "MaskFormer": _maskformer,
}


def save_model(name: str, folder: Path) -> Path:
    """The folder of a model with weights large enough for blocks to matter."""
    torch.manual_seed(0)
    model, processor = (MODELS | DEPTH)[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.numel():
                parameter.copy_(torch.randn(parameter.shape) * parameter[0].numel() ** -0.5)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder
