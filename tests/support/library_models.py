"""Small random models of the libraries that people use, each with an input that it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dense_library_models import DENSE
from reference_packages import import_reference

SIZE = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 64}
DINOV2 = {**SIZE, "patch_size": 14, "image_size": 56, "mlp_ratio": 2}
VIT = {**SIZE, "patch_size": 16, "image_size": 64}


def images(size: int, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1))


def _dinov3(**more: Any):
    from transformers import DINOv3ViTConfig

    return DINOv3ViTConfig(**{**VIT, "num_register_tokens": 4, **more})


def _dinov2(**more: Any):
    from transformers import Dinov2Config

    return Dinov2Config(**{**DINOV2, **more})


def _registers(**more: Any):
    from transformers import Dinov2WithRegistersConfig

    return Dinov2WithRegistersConfig(**{**DINOV2, "num_register_tokens": 4, **more})


def _model(name: str, config: Callable[[], Any]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, name)(config())

    return build


def _simple(name: str, config: str, **more: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**{**VIT, **more}))

    return build


def _depth_anything() -> nn.Module:
    from transformers import DepthAnythingConfig, DepthAnythingForDepthEstimation

    backbone = _dinov2(out_indices=[2, 4, 5, 6], reshape_hidden_states=False, apply_layernorm=True)
    config = DepthAnythingConfig(
        backbone_config=backbone,
        reassemble_hidden_size=32,
        patch_size=14,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_hidden_size=8,
    )
    return DepthAnythingForDepthEstimation(config)


def _dpt_native() -> nn.Module:
    from transformers import DPTConfig, DPTForDepthEstimation

    config = DPTConfig(
        **VIT, backbone_out_indices=[1, 2, 4, 5], neck_hidden_sizes=[8, 8, 8, 8], fusion_hidden_size=8
    )
    return DPTForDepthEstimation(config)


def _dpt_on_dinov2() -> nn.Module:
    from transformers import DPTConfig, DPTForDepthEstimation

    backbone = _dinov2(out_indices=[2, 4, 5, 6], reshape_hidden_states=False)
    config = DPTConfig(
        backbone_config=backbone,
        hidden_size=32,
        patch_size=14,
        image_size=56,
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        is_hybrid=False,
    )
    return DPTForDepthEstimation(config)


def _chmv2() -> nn.Module:
    from transformers import CHMv2Config, CHMv2ForDepthEstimation

    backbone = _dinov3(
        out_indices=[2, 4, 5, 6], reshape_hidden_states=True, apply_layernorm=True, return_class_token=True
    )
    config = CHMv2Config(
        backbone_config=backbone,
        patch_size=16,
        reassemble_hidden_size=32,
        post_process_channels=[8, 8, 8, 8],
        fusion_hidden_size=8,
        head_hidden_size=8,
        number_output_channels=16,
    )
    return CHMv2ForDepthEstimation(config)


class SegmentorOnBackbone(nn.Module):
    """Somebody's own head on somebody's backbone."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import DINOv3ViTBackbone

        self.encoder = DINOv3ViTBackbone(_dinov3(out_indices=[2, 6]))
        self.head = nn.Conv2d(64, 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat(self.encoder(x).feature_maps, 1))


def _timm_vit() -> nn.Module:
    import_reference("timm")
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        img_size=64, patch_size=16, embed_dim=32, depth=6, num_heads=4, num_classes=3, reg_tokens=2
    )


def _timm_eva() -> nn.Module:
    import_reference("timm")
    from timm.models.eva import Eva

    return Eva(
        img_size=64, patch_size=16, embed_dim=32, depth=6, num_heads=4, num_classes=3, use_rot_pos_emb=True
    )


# name: (builder, image size)
MODELS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "DINOv3ViTModel": (_model("DINOv3ViTModel", _dinov3), 64),
    "DINOv3ViTBackbone": (_model("DINOv3ViTBackbone", lambda: _dinov3(out_indices=[2, 6])), 64),
    "Dinov2Model": (_model("Dinov2Model", _dinov2), 56),
    "Dinov2Backbone": (_model("Dinov2Backbone", lambda: _dinov2(out_indices=[2, 6])), 56),
    "Dinov2WithRegistersModel": (_model("Dinov2WithRegistersModel", _registers), 56),
    "Dinov2WithRegistersBackbone": (
        _model("Dinov2WithRegistersBackbone", lambda: _registers(out_indices=[2, 6])),
        56,
    ),
    "Dinov2ForImageClassification": (_model("Dinov2ForImageClassification", _dinov2), 56),
    "ViTModel": (_simple("ViTModel", "ViTConfig"), 64),
    "ViTForImageClassification": (_simple("ViTForImageClassification", "ViTConfig"), 64),
    "DeiTModel": (_simple("DeiTModel", "DeiTConfig"), 64),
    "IJepaModel": (_simple("IJepaModel", "IJepaConfig"), 64),
    "CLIPVisionModel": (_simple("CLIPVisionModel", "CLIPVisionConfig"), 64),
    "CLIPVisionModelWithProjection": (_simple("CLIPVisionModelWithProjection", "CLIPVisionConfig"), 64),
    "SiglipVisionModel": (_simple("SiglipVisionModel", "SiglipVisionConfig"), 64),
    "DepthAnything": (_depth_anything, 56),
    "DPT": (_dpt_native, 64),
    "DPT-on-Dinov2": (_dpt_on_dinov2, 56),
    "CHMv2": (_chmv2, 64),
    "own-head": (SegmentorOnBackbone, 64),
    "timm-vit": (_timm_vit, 64),
    "timm-eva": (_timm_eva, 64),
    **{name: (builder, 64) for name, builder in DENSE.items()},
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    """The model, with weights large enough for blocks to matter, and two images."""
    builder, size = MODELS[name]
    torch.manual_seed(0)
    model = builder().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                scale = parameter[0].numel() ** -0.5
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
            elif parameter.abs().max() < 1e-2:  # layer scale that starts at almost nothing
                parameter.fill_(0.3)
    return model, images(size)


def outputs(model: nn.Module, x: Tensor) -> list[Tensor]:
    """Every tensor that a forward returns, in order."""
    with torch.no_grad():
        return list(_tensors(model(x)))


def _tensors(value: Any):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, (tuple, list)):
        for entry in value:
            yield from _tensors(entry)
