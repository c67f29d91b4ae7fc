"""Small random models of transformers whose backbones are less common, or are called with more than an image."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

SIZE = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4}
VIT = {**SIZE, "intermediate_size": 64, "patch_size": 16, "image_size": 64}
RATIO = {**SIZE, "mlp_ratio": 2, "patch_size": 16, "image_size": 64}
TAPS = [2, 4, 5, 6]
NECK = {"neck_hidden_sizes": [8, 8, 8, 8], "fusion_hidden_size": 8}


class Called(nn.Module):
    """A model that takes more than images, called with the rest always the same."""

    def __init__(self, model: nn.Module, **rest: Any) -> None:
        super().__init__()
        self.model, self.rest = model, rest

    def forward(self, pixel_values: Tensor) -> Any:
        return self.model(pixel_values=pixel_values, **self.rest)


def _make(model: str, config: str, **settings: Any) -> nn.Module:
    import transformers

    return getattr(transformers, model)(getattr(transformers, config)(**settings))


def _sapiens2(model: str, **more: Any) -> nn.Module:
    heads = [4, 4, 2, 2, 4, 4]
    return _make(
        model, "Sapiens2Config", **VIT, num_register_tokens=3, num_key_value_heads_per_layer=heads, **more
    )


def _tips_dpt(model: str) -> nn.Module:
    from transformers import Tipsv2VisionConfig

    backbone = Tipsv2VisionConfig(**RATIO, out_indices=TAPS, reshape_hidden_states=False)
    return _make(model, "Tipsv2DptConfig", backbone_config=backbone, num_depth_bins=8, **NECK)


def _owl(family: str) -> nn.Module:
    text = {**SIZE, "num_hidden_layers": 2, "intermediate_size": 64, "vocab_size": 99}
    model = _make(
        f"{family}ForObjectDetection",
        f"{family}Config",
        text_config={**text, "max_position_embeddings": 8, "bos_token_id": 97, "eos_token_id": 98},
        vision_config=VIT,
        projection_dim=32,
    )
    words = torch.tensor([[97, 5, 98], [97, 7, 98], [97, 9, 98], [97, 11, 98]])  # two queries for each image
    return Called(model, input_ids=words, attention_mask=torch.ones_like(words))


def _vit_mae() -> nn.Module:
    # without noise of its own it would draw another order of patches in every forward
    noise = torch.rand(2, 16, generator=torch.Generator().manual_seed(3))
    return Called(_make("ViTMAEModel", "ViTMAEConfig", **VIT, mask_ratio=0.0), noise=noise)


def _vitpose() -> nn.Module:
    from transformers import VitPoseBackboneConfig

    sizes = {**RATIO, "patch_size": (16, 16), "image_size": (64, 64)}
    backbone = VitPoseBackboneConfig(**sizes, out_indices=[6], num_experts=2, part_features=8)
    model = _make("VitPoseForPoseEstimation", "VitPoseConfig", backbone_config=backbone)
    return Called(model, dataset_index=torch.tensor([0, 1]))


def _zoedepth() -> nn.Module:
    from transformers import BeitConfig

    backbone = BeitConfig(
        **VIT, out_indices=TAPS, use_relative_position_bias=True, reshape_hidden_states=False
    )
    bins = [{"n_bins": 8, "min_depth": 0.1, "max_depth": 10.0, "name": "nyu"}]
    sizes = {"bottleneck_features": 8, "num_relative_features": 8, "bin_embedding_dim": 8}
    return _make(
        "ZoeDepthForDepthEstimation", "ZoeDepthConfig", backbone_config=backbone, bin_configurations=bins,
        num_attractors=[4, 2, 2, 1], **sizes, **NECK,
    )  # fmt: skip


def _prompt_depth() -> nn.Module:
    from transformers import Dinov2Config

    backbone = Dinov2Config(**RATIO, out_indices=TAPS, reshape_hidden_states=False)
    model = _make(
        "PromptDepthAnythingForDepthEstimation", "PromptDepthAnythingConfig", backbone_config=backbone,
        patch_size=16, reassemble_hidden_size=32, head_hidden_size=8, **NECK,
    )  # fmt: skip
    prompt = torch.rand(2, 1, 16, 16, generator=torch.Generator().manual_seed(3))
    return Called(model, prompt_depth=prompt)


def deimv2(**more: Any) -> nn.Module:
    from transformers import DINOv3ViTConfig

    backbone = DINOv3ViTConfig(**VIT, num_register_tokens=4, out_indices=[3, 4, 6])
    return _make(
        "Deimv2ForObjectDetection", "Deimv2Config", backbone_config=backbone, encoder_hidden_dim=32, d_model=32,
        encoder_in_channels=[32, 32, 32], decoder_in_channels=[32, 32, 32], encoder_ffn_dim=32,
        decoder_ffn_dim=32, decoder_layers=2, num_queries=10, encoder_attention_heads=2, decoder_attention_heads=2,
        spatial_tuning_adapter_inplanes=8, num_denoising=0, **more,
    )  # fmt: skip


def _vitdet(model: str, **more: Any) -> nn.Module:
    return _make(
        model, "VitDetConfig", **RATIO, pretrain_image_size=64, window_size=3, window_block_indices=[0, 2, 4],
        residual_block_indices=[3], use_relative_position_embeddings=True, **more,
    )  # fmt: skip


def _sam(family: str, **more: Any) -> nn.Module:
    vision = {
        **RATIO,
        "mlp_ratio": 2.0,
        "output_channels": 16,
        "window_size": 3,
        "num_pos_feats": 8,
        "mlp_dim": 64,
        **more,
    }
    decoder = {"hidden_size": 16, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 16}
    model = _make(
        f"{family}Model",
        f"{family}Config",
        vision_config=vision,
        prompt_encoder_config={
            "hidden_size": 16, "image_size": 64, "patch_size": 16, "mask_input_channels": 4
        },
        mask_decoder_config={**decoder, "vit_dim": 32} if family == "SamHQ" else decoder,
    )  # fmt: skip
    return Called(model, input_points=torch.tensor([[[[20.0, 30.0]]]] * 2))


def _sam3() -> nn.Module:
    backbone = {"model_type": "sam3_vit_model", **VIT, "pretrain_image_size": 32, "window_size": 2}
    return _make(
        "Sam3VisionModel", "Sam3VisionConfig", backbone_config={**backbone, "global_attn_indexes": [1, 3]},
        fpn_hidden_size=16, backbone_feature_sizes=[[16, 16], [8, 8], [4, 4]],
    )  # fmt: skip


def _yolos() -> nn.Module:
    sizes = {**VIT, "image_size": [64, 64]}
    return _make(
        "YolosForObjectDetection",
        "YolosConfig",
        **sizes,
        num_detection_tokens=5,
        use_mid_position_embeddings=False,
    )


def _segmentor(model: str, config: str, **more: Any) -> nn.Module:
    sizes = {"out_indices": TAPS, "auxiliary_channels": 8, "num_labels": 3, "use_mean_pooling": False}
    return _make(model, config, **VIT, use_relative_position_bias=True, **sizes, **more)


def _beit(model: str, config: str, **more: Any) -> nn.Module:
    return _make(model, config, **VIT, use_mean_pooling=False, **more)


_BOTH_BIASES = {"use_relative_position_bias": True, "use_shared_relative_position_bias": True}

DENSE: dict[str, Callable[[], nn.Module]] = {
    "Sapiens2Model": partial(_sapiens2, "Sapiens2Model"),
    "Sapiens2Backbone": partial(_sapiens2, "Sapiens2Backbone", out_indices=[2, 6]),
    "Tipsv2VisionModel": partial(_make, "Tipsv2VisionModel", "Tipsv2VisionConfig", **RATIO),
    "Tipsv2-DPT-depth": partial(_tips_dpt, "Tipsv2DptForDepthEstimation"),
    "Tipsv2-DPT-segmentation": partial(_tips_dpt, "Tipsv2DptForSemanticSegmentation"),
    "OwlViTForObjectDetection": partial(_owl, "OwlViT"),
    "Owlv2ForObjectDetection": partial(_owl, "Owlv2"),
    "PixioModel": partial(_make, "PixioModel", "PixioConfig", **RATIO, n_cls_tokens=3),
    "PixioBackbone": partial(
        _make, "PixioBackbone", "PixioConfig", **RATIO, n_cls_tokens=3, out_indices=[2, 6]
    ),
    "RadioModel": partial(
        _make, "RadioModel", "RadioConfig", **{**RATIO, "mlp_ratio": 2.0}, max_img_size=128, num_cls_tokens=2, num_registers=3,
        summary_idxs=[0, 1],
    ),
    "VitPose-Backbone": _vitpose,
    "BeitModel": partial(_beit, "BeitModel", "BeitConfig", **_BOTH_BIASES),
    "Beit-Backbone-segmentation": partial(_segmentor, "BeitForSemanticSegmentation", "BeitConfig"),
    "Data2VecVisionModel": partial(
        _beit, "Data2VecVisionModel", "Data2VecVisionConfig", **_BOTH_BIASES
    ),
    "Data2Vec-Backbone-segmentation": partial(
        _segmentor, "Data2VecVisionForSemanticSegmentation", "Data2VecVisionConfig"
    ),
    "ViTMAEModel": _vit_mae,
    "ViTMSNModel": partial(_make, "ViTMSNModel", "ViTMSNConfig", **VIT),
    "Aimv2VisionModel": partial(_make, "Aimv2VisionModel", "Aimv2VisionConfig", **VIT),
    "MLCDVisionModel": partial(_make, "MLCDVisionModel", "MLCDVisionConfig", **VIT),
    "ZoeDepth": _zoedepth,
    "Prompt-Depth-Anything": _prompt_depth,
    "Deimv2-Backbone": deimv2,
    "YolosForObjectDetection": _yolos,
    "VitDetModel": partial(_vitdet, "VitDetModel"),
    "VitDetBackbone": partial(_vitdet, "VitDetBackbone", out_indices=[2, 6]),
    "SamModel": partial(_sam, "Sam", global_attn_indexes=[1, 3, 5]),
    "SamHQModel": partial(_sam, "SamHQ", global_attn_indexes=[1, 5]),
    "Sam3VisionModel": _sam3,
}  # fmt: skip
