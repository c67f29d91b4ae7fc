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
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone
from gramloop.models.checkpoint import load_weights, open_checkpoint
from gramloop.models.dino import load_backbone
from gramloop.models.heads import LinearHead, LinearSegmentor, TapHead
from gramloop.replay.config import ReplayConfig, read_replay
from gramloop.util.json_files import read_checked

WEIGHTS = Path(__file__).parent / "weights"
TINY_SHORT_SIDE = 192  # the size of the scenes that the embedded model was trained on
SUGGESTED = WEIGHTS / "replay.json"  # the replay tuned for it on other scenes
SOURCE = WEIGHTS / "source.safetensors"  # its calibration statistics on in-distribution scenes
DEPTH_HEAD = "depth.safetensors"  # optional: a model without it predicts no depth
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_GROUPS = 8  # of channels that are normed together
_DILATIONS = (1, 2, 4, 8, 1)  # together they reach 16 patches to every side: an object's foot, the horizon
_STEP = 4  # depths along the side of a patch
_LOG_RANGE = (-7.0, 7.0)  # of depth: about 1 mm to 1 km


@dataclass(frozen=True)
class DenseDetectConfig:
    """Size of the head and how its cells become detections."""

    channels: int
    classes: int
    stride: int
    width: int = 128
    candidates: int = 200
    keep: int = 50
    overlap: float = 0.6  # boxes of one class that overlap more than this count as the same object
    least_score: float = 0.02


@dataclass(frozen=True)
class DenseBoxes:
    """The detections in one image, best first."""

    boxes: Tensor  # (n, 4) float, left, top, right, bottom in pixels
    scores: Tensor  # (n,) float
    classes: Tensor  # (n,) int64


class DenseDetectHead(nn.Module):
    """Two 3 x 3 convolutions, then class scores that predict the box's IoU, and distances to its four sides."""

    def __init__(self, config: DenseDetectConfig) -> None:
        super().__init__()
        self.config = config
        self.tower = nn.Sequential(
            nn.Conv2d(config.channels, config.width, 3, padding=1),
            nn.GroupNorm(_GROUPS, config.width),
            nn.GELU(),
            nn.Conv2d(config.width, config.width, 3, padding=1),
            nn.GroupNorm(_GROUPS, config.width),
            nn.GELU(),
        )
        self.score = nn.Conv2d(config.width, config.classes, 1)
        self.sides = nn.Conv2d(config.width, 4, 1)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.constant_(cast(Tensor, self.score.bias), -3.0)  # objects are rare
        nn.init.normal_(self.sides.weight, std=0.01)
        nn.init.constant_(cast(Tensor, self.sides.bias), 1.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:  # (B, C, h, w)
        """Class logits (B, classes, h, w) and distances left, top, right, bottom in pixels (B, 4, h, w)."""
        hidden = self.tower(features)
        sides = self.sides(hidden).clamp(-4, 5).exp() * self.config.stride
        return self.score(hidden), sides

    def detect(self, features: Tensor) -> list[DenseBoxes]:  # (B, C, h, w)
        """The detections of every image, after non-maximum suppression per class."""
        logits, sides = self(features)
        boxes = boxes_from_sides(sides, self.config.stride)
        return [self._one(score, box) for score, box in zip(logits.sigmoid(), boxes, strict=True)]

    def _one(self, scores: Tensor, boxes: Tensor) -> DenseBoxes:
        limit = min(self.config.candidates, scores.numel())
        best, where = scores.flatten().topk(limit)
        where, best = where[best > self.config.least_score], best[best > self.config.least_score]
        cells = boxes.shape[1] * boxes.shape[2]
        classes = where // cells
        chosen = boxes.flatten(1).T[where % cells]
        kept = non_max_suppression(chosen, classes, self.config.overlap)[: self.config.keep]
        return DenseBoxes(chosen[kept], best[kept], classes[kept])


def boxes_from_sides(sides: Tensor, stride: int) -> Tensor:
    """Distances (B, 4, h, w) from cell centres to boxes left, top, right, bottom, clipped to the image."""
    height, width = sides.shape[-2:]
    y = (torch.arange(height, device=sides.device, dtype=sides.dtype) + 0.5)[:, None] * stride
    x = (torch.arange(width, device=sides.device, dtype=sides.dtype) + 0.5)[None, :] * stride
    left, top, right, bottom = sides.unbind(1)
    return torch.stack(
        [
            (x - left).clamp(min=0),
            (y - top).clamp(min=0),
            (x + right).clamp(max=width * stride),
            (y + bottom).clamp(max=height * stride),
        ],
        dim=1,
    )


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    """IoU of every box of (..., n, 4) with every box of (..., m, 4), as (..., n, m)."""
    one, other = first[..., :, None, :], second[..., None, :, :]
    top_left = torch.maximum(one[..., :2], other[..., :2])
    bottom_right = torch.minimum(one[..., 2:], other[..., 2:])
    shared = (bottom_right - top_left).clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).clamp(min=0).prod(-1) for boxes in (one, other)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=1e-9)


def non_max_suppression(boxes: Tensor, classes: Tensor, overlap: float) -> Tensor:
    """Indices of the boxes, sorted best first, that no better one of the same class overlaps too much."""
    same = (pairwise_iou(boxes, boxes) > overlap) & (classes[:, None] == classes[None, :])
    rows = same.cpu()
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for row in range(len(boxes)):
        if alive[row]:
            alive[row + 1 :] &= ~rows[row, row + 1 :]
    return alive.nonzero()[:, 0].to(boxes.device)


class DenseDepthHead(TapHead):
    """The logarithm of depth in metres, several numbers per patch, from the concatenated maps of ``taps``.

    Dilated convolutions see the whole grid of patches. The head also reads the height of a patch in the image, which a ViT
    with rotary positions does not encode. Weights are named ``bn.*``, ``reduce.*``, ``convs.*`` and ``out.*``.
    """

    kind, first_weight, more_channels = "a depth head", "reduce.weight", 1

    def __init__(self, width: int, hidden: int, taps: Sequence[int]) -> None:
        super().__init__(width, hidden, taps)
        self.channels = width
        self.reduce = nn.Conv2d(self.bn.num_features + 1, hidden, 1)
        self.convs = nn.ModuleList(nn.Conv2d(hidden, hidden, 3, padding=d, dilation=d) for d in _DILATIONS)
        self.out = nn.Conv2d(hidden, _STEP * _STEP, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:  # each (B, C, h, w)
        """The logarithm of depth, (B, 1, _STEP h, _STEP w)."""
        joined = self.bn(torch.cat(list(maps), dim=1))
        batch, _, high, wide = joined.shape
        rows = (torch.arange(high, device=joined.device, dtype=joined.dtype) + 0.5) * (2 / high) - 1
        heights = rows.view(1, 1, high, 1).expand(batch, 1, high, wide)
        hidden = self.reduce(torch.cat([joined, heights], dim=1))
        for conv in self.convs:
            hidden = hidden + conv(F.gelu(hidden))
        return F.pixel_shuffle(self.out(F.gelu(hidden)), _STEP)

    def depth(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:  # → (B, H, W)
        """Depth in metres in the size (H, W)."""
        logs = F.interpolate(self(maps), size, mode="bilinear", align_corners=False)
        return logs[:, 0].clamp(*_LOG_RANGE).exp()


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
