"""The embedded model: a small DINOv3 vision transformer, trained on procedural scenes, that needs no download.

``load_tiny()`` returns the frozen backbone with a segmentation and a detection head; its depth head has a file of its own.
The folder of weights holds the backbone as transformers stores it: ``DINOv3ViTModel.from_pretrained(WEIGHTS / "backbone")``
reads it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, LinearHead, LinearSegmentor, TapHead
from gramloop.models.checkpoint import load_weights, open_checkpoint
from gramloop.models.dino import load_backbone
from gramloop.util.json_files import read_checked

WEIGHTS = Path(__file__).parent / "weights"
TINY_SHORT_SIDE = 192  # the size of the scenes that the embedded model was trained on
SUGGESTED = WEIGHTS / "replay.json"  # the replay tuned for it on other scenes
SOURCE = WEIGHTS / "source.safetensors"  # its calibration statistics on in-distribution scenes
DEPTH_HEAD = "depth.safetensors"  # optional: a model without it predicts no depth
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

    def detect(self, features: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (B, C, h, w)
        """Boxes (B, n, 4) in pixels, scores and classes (B, n): the best first, without duplicates of one class.

        Images have as many rows as the head keeps at most; where there is no box, the class is -1.
        """
        config = self.config
        logits, sides = self(features)
        boxes = boxes_from_sides(sides, config.stride).flatten(2).transpose(1, 2)  # (B, cells, 4)
        scores = logits.flatten(1).sigmoid()  # (B, classes x cells)
        best, where = scores.topk(min(config.candidates, scores.shape[1]))
        cells = boxes.shape[1]
        classes, chosen = where // cells, _rows(boxes, where % cells)
        alive = suppressed(chosen, classes, best > config.least_score, config.overlap)
        count = alive.shape[1]
        # those alive in their order: every rank differs, so that no runtime sorts ties in its own order
        rank = torch.where(alive, 2 * count, count) - torch.arange(count, device=best.device)
        kept = rank.topk(min(config.keep, count)).indices
        there = alive.gather(1, kept)
        return (
            torch.where(there[..., None], _rows(chosen, kept), 0.0),
            torch.where(there, best.gather(1, kept), 0.0),
            torch.where(there, classes.gather(1, kept), -1),
        )


def _rows(boxes: Tensor, index: Tensor) -> Tensor:  # (B, n, 4), (B, m) → (B, m, 4)
    return boxes.gather(1, index[..., None].expand(-1, -1, 4))


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


def suppressed(boxes: Tensor, classes: Tensor, alive: Tensor, overlap: float) -> Tensor:
    """Which of the boxes (B, n, 4), best first, stay alive (B, n) when worse duplicates of one class are dropped.

    One step for each box, laid out in the graph: whether a box drops others depends on those before it.
    """
    count = boxes.shape[1]
    later = torch.ones(count, count, dtype=torch.bool, device=boxes.device).triu(1)
    duplicates = (pairwise_iou(boxes, boxes) > overlap) & (classes[:, :, None] == classes[:, None, :]) & later
    for row in range(count - 1):
        alive = alive & ~(duplicates[:, row] & alive[:, row : row + 1])
    return alive


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
            raise GramLoopError(f"{len(self.things)} things, but a head of {self.detect.classes} classes")


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

    def segmentor(self) -> LinearSegmentor:
        """The backbone with its segmentation head."""
        return LinearSegmentor(self.backbone, self.segment)


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
