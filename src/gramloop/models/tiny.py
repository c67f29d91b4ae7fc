"""The embedded model: a small DINOv3 vision transformer, trained on procedural scenes, that needs no download.

``load_tiny()`` returns the frozen backbone with a segmentation and a detection head, ``load_tiny_depth()`` its depth head.
The folder of weights holds the backbone as transformers stores it: ``DINOv3ViTModel.from_pretrained(WEIGHTS / "backbone")``
reads it too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import load_weights, open_checkpoint
from gramloop.models.dinov3 import Backbone, load_backbone
from gramloop.models.linear import LinearHead, LinearSegmentor
from gramloop.models.tiny_heads import (
    DenseBoxes,
    DenseDepthHead,
    DenseDetectConfig,
    DenseDetectHead,
)
from gramloop.replay.config import ReplayConfig, read_replay
from gramloop.util.json_files import read_checked

WEIGHTS = Path(__file__).parent / "weights"
TINY_SHORT_SIDE = 192  # the size of the scenes that the embedded model was trained on
SUGGESTED = WEIGHTS / "replay.json"  # the replay tuned for it on other scenes
SOURCE = WEIGHTS / "source.safetensors"  # its calibration statistics on in-distribution scenes
_FILES = (
    "tiny.json",
    "backbone/config.json",
    "backbone/model.safetensors",
    "segment.safetensors",
    "detect.safetensors",
)
DEPTH_HEAD = "depth.safetensors"  # optional: a model without it predicts no depth
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class _Settings:
    """The content of tiny.json: classes without and with boxes, and the size of the detection head."""

    stuff: tuple[str, ...]
    things: tuple[str, ...]
    detect: DenseDetectConfig

    def __post_init__(self) -> None:
        if len(self.things) != self.detect.classes:
            raise GramLoopError(
                f"it names {len(self.things)} things, but the head has {self.detect.classes} classes"
            )


class TinyModel(nn.Module):
    """Backbone and heads: pixels in, a class per pixel and detections out."""

    def __init__(
        self,
        backbone: Backbone,
        segment: LinearHead,
        detect: DenseDetectHead,
        stuff: Sequence[str],
        things: Sequence[str],
    ) -> None:
        super().__init__()
        self.backbone, self.segment, self.detect = backbone, segment, detect
        self.things = tuple(things)
        self.classes = (*stuff, *things)

    def features(self, pixels: Tensor) -> list[Tensor]:  # (B, 3, H, W) normalised
        """The final-normed patches of the tapped blocks, each (B, C, h, w); the detector reads the last."""
        return [tap.map for tap in self.backbone(pixels, self.segment.taps)]

    def forward(self, pixels: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Segmentation logits on the grid of patches, and the detector's scores and sides."""
        features = self.features(pixels)
        return self.segment(features), self.detect(features[-1])

    @torch.no_grad()
    def predict(self, pixels: Tensor) -> tuple[Tensor, list[DenseBoxes]]:
        """Indices into ``classes`` (B, H, W), and the detections of every image, indices into ``things``."""
        features = self.features(pixels)
        logits = F.interpolate(
            self.segment(features), size=pixels.shape[-2:], mode="bilinear", align_corners=False
        )
        return logits.argmax(1), self.detect.detect(features[-1])

    def segmentor(self) -> LinearSegmentor:
        """The backbone with its segmentation head."""
        return LinearSegmentor(self.backbone, self.segment)


def normalise(images: Tensor) -> Tensor:
    """(B, H, W, 3) uint8 to the pixels the model was trained on, (B, 3, H, W) float32."""
    if images.ndim != 4 or images.shape[-1] != 3 or images.dtype != torch.uint8:
        raise GramLoopError(f"expected uint8 images (B, H, W, 3), not {images.dtype} {tuple(images.shape)}")
    pixels = images.permute(0, 3, 1, 2).float() / 255
    mean, deviation = (torch.tensor(v, device=images.device)[:, None, None] for v in (_MEAN, _DEVIATION))
    return (pixels - mean) / deviation


def suggested_replay() -> ReplayConfig:
    """The replay that was tuned on other scenes, as stored next to the weights."""
    return read_replay(SUGGESTED)


def load_tiny(
    folder: Path | str = WEIGHTS,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> TinyModel:
    """The embedded model, frozen and in evaluation mode; ``dtype`` is that of the backbone's weights."""
    folder = Path(folder)
    if not folder.is_dir():
        raise GramLoopError(f"the folder {folder} does not exist")
    for name in _FILES:
        if not (folder / name).is_file():
            raise GramLoopError(f"{folder / name} is missing; the embedded model has {', '.join(_FILES)}")
    settings = read_checked(folder / "tiny.json", _Settings, "the description of a small model")
    backbone = load_backbone(folder / "backbone", dtype=dtype, device=device)
    segment = LinearHead.load(folder / "segment.safetensors", device=device)
    with torch.device("meta"):
        detect = DenseDetectHead(settings.detect)
    load_weights(detect, open_checkpoint(folder / "detect.safetensors"), device=device)
    model = TinyModel(backbone, segment, detect, settings.stuff, settings.things)
    return model.eval().requires_grad_(False)


def load_tiny_depth(folder: Path | str = WEIGHTS, device: torch.device | str = "cpu") -> DenseDepthHead:
    """The depth head of the embedded model, or of another folder; it reads the same taps as the segmentation head."""
    path = Path(folder) / DEPTH_HEAD
    if not path.is_file():
        raise GramLoopError(f"{path} is missing; a model without it predicts no depth")
    return DenseDepthHead.load(path, device=device).requires_grad_(False)


def save_tiny(model: TinyModel, folder: Path | str) -> None:
    """Write the model in float16; tiny.json, which ``load_tiny`` reads first, comes last."""
    from safetensors.torch import save_file

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
