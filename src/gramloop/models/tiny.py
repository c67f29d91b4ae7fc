"""The embedded model: a small DINOv3 vision transformer, trained on procedural scenes, that needs no download.

``load_tiny()`` gives the frozen backbone of transformers with a segmentation and a detection head.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.dense_detect import DenseDetectConfig, DenseDetectHead, Detections
from gramloop.models.hf import transformers_module

WEIGHTS = Path(__file__).parent / "weights"
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class TapHead(nn.Module):
    """Linear segmentation on several taps: batch normalisation and a 1 x 1 convolution on their concatenation."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)
        self.conv = nn.Conv2d(channels, classes, 1)
        nn.init.normal_(self.conv.weight, std=0.01)
        nn.init.zeros_(cast(Tensor, self.conv.bias))

    def forward(self, taps: list[Tensor]) -> Tensor:  # each (B, C, h, w)
        """Class logits on the grid of patches, (B, classes, h, w)."""
        return cast(Tensor, self.conv(self.bn(torch.cat(taps, dim=1))))


class TinyModel(nn.Module):
    """Backbone and heads; pixels in, class logits and detections out."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        dinov3 = transformers_module("models.dinov3_vit")
        self.settings = settings
        self.classes: list[str] = settings["stuff"] + settings["things"]
        self.things: list[str] = settings["things"]
        config = dinov3.DINOv3ViTConfig(**settings["backbone"], out_indices=settings["taps"])
        config._attn_implementation = "sdpa"
        self.backbone = dinov3.DINOv3ViTBackbone(config)
        width = config.hidden_size
        self.segment = TapHead(len(settings["taps"]) * width, len(self.classes))
        self.detect = DenseDetectHead(DenseDetectConfig(width, len(self.things), config.patch_size))

    def taps(self, pixels: Tensor) -> list[Tensor]:  # (B, 3, H, W) normalised
        """The final-normed patch features of the tapped blocks, each (B, C, h, w)."""
        patch = self.backbone.config.patch_size
        if pixels.shape[-2] % patch or pixels.shape[-1] % patch:
            raise GramLoopError(
                f"the image's sides must be multiples of {patch}, not {tuple(pixels.shape[-2:])}"
            )
        return list(self.backbone(pixels).feature_maps)

    def forward(self, pixels: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Segmentation logits on the patch grid, and the detection head's scores and sides."""
        taps = self.taps(pixels)
        return self.segment(taps), self.detect(taps[-1])

    @torch.inference_mode()
    def predict(self, pixels: Tensor) -> tuple[Tensor, list[Detections]]:
        """Class indices (B, H, W) in the order of ``classes``, and the detections of every image."""
        taps = self.taps(pixels)
        full = F.interpolate(self.segment(taps), size=pixels.shape[-2:], mode="bilinear", align_corners=False)
        return full.argmax(1), self.detect.detect(taps[-1])


def normalise(images: Tensor) -> Tensor:
    """(B, H, W, 3) uint8 to the pixels the model was trained on, (B, 3, H, W) float32."""
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != torch.uint8:
        raise GramLoopError(f"expected uint8 images (B, H, W, 3), not {images.dtype} {tuple(images.shape)}")
    pixels = images.permute(0, 3, 1, 2).float() / 255
    mean, deviation = (torch.tensor(v, device=images.device)[:, None, None] for v in (_MEAN, _DEVIATION))
    return (pixels - mean) / deviation


def load_tiny(folder: Path | str = WEIGHTS) -> TinyModel:
    """The embedded model in float32, frozen and in evaluation mode."""
    from safetensors.torch import load_file

    folder = Path(folder)
    config, weights = folder / "config.json", folder / "model.safetensors"
    for path in (config, weights):
        if not path.is_file():
            raise GramLoopError(f"{path} is missing; a model folder holds config.json and model.safetensors")
    model = TinyModel(json.loads(config.read_text()))
    state = {
        name: value.float() if value.is_floating_point() else value
        for name, value in load_file(weights).items()
    }
    model.load_state_dict(state)
    return model.eval().requires_grad_(False)
