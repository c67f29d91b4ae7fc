"""What training and scoring the embedded model need of it: images as it takes them, its answers, and its files."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from gramloop.models.tiny import TinyModel

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def normalise(images: Tensor) -> Tensor:
    """(B, H, W, 3) uint8 to (B, 3, H, W) float32 with ImageNet's mean and deviation, as DINOv3 has it."""
    mean, deviation = (torch.tensor(each)[:, None, None] for each in (_MEAN, _DEVIATION))
    return (images.permute(0, 3, 1, 2).float() / 255 - mean) / deviation


@torch.no_grad()
def predict(model: TinyModel, pixels: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Indices into ``classes`` (B, H, W), and boxes, scores and indices into ``things`` as `DenseDetectHead.detect` has them."""
    features = model.features(pixels)
    logits = F.interpolate(model.segment(features), pixels.shape[-2:], mode="bilinear", align_corners=False)
    return logits.argmax(1), model.detect.detect(features[-1])


def save_tiny(model: TinyModel, folder: Path | str) -> None:
    """Write the model in float16; tiny.json, which ``load_tiny`` reads first, comes last."""
    folder = Path(folder)
    (folder / "backbone").mkdir(parents=True, exist_ok=True)
    vit = model.backbone.model
    vit.half().save_pretrained(folder / "backbone")
    vit.float()
    model.segment.save(folder / "segment.safetensors", torch.float16)
    save_file(
        {name: value.half().contiguous() for name, value in model.detect.state_dict().items()},
        folder / "detect.safetensors",
    )
    stuff = model.classes[: len(model.classes) - len(model.things)]
    detect = {name: getattr(model.detect.config, name) for name in ("channels", "classes", "stride", "width")}
    settings = {"stuff": list(stuff), "things": list(model.things), "detect": detect}
    (folder / "tiny.json").write_text(json.dumps(settings, indent=2) + "\n")
