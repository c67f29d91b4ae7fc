"""A one-stage detector on a grid of patch features: every cell scores the classes and measures its box."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError

_GROUPS = 8  # of channels that are normed together


@dataclass(frozen=True)
class DenseDetectConfig:
    """Size of the head and how its cells become detections."""

    channels: int
    classes: int
    stride: int
    width: int = 128
    candidates: int = 200
    keep: int = 50
    overlap: float = 0.6  # boxes of one class that overlap more than this are taken for the same thing
    least_score: float = 0.02

    def __post_init__(self) -> None:
        for name in ("channels", "classes", "stride", "width", "candidates", "keep"):
            if getattr(self, name) < 1:
                raise GramLoopError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.width % _GROUPS:
            raise GramLoopError(f"width must be a multiple of {_GROUPS}, not {self.width}")
        if not 0 < self.overlap <= 1 or not 0 <= self.least_score < 1:
            raise GramLoopError(
                f"overlap must lie in (0, 1] and least_score in [0, 1), not {self.overlap} and {self.least_score}"
            )


@dataclass(frozen=True)
class DenseBoxes:
    """The things found in one image, best first."""

    boxes: Tensor  # (n, 4) float, left, top, right, bottom in pixels
    scores: Tensor  # (n,) float
    classes: Tensor  # (n,) int64


class DenseDetectHead(nn.Module):
    """Two 3 x 3 convolutions, then class scores that foretell the box's IoU, and distances to its four sides."""

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
        nn.init.constant_(cast(Tensor, self.score.bias), -3.0)  # things are rare: begin by doubting them
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
        boxes = boxes_of(sides, self.config.stride)
        return [self._one(score, box) for score, box in zip(logits.sigmoid(), boxes, strict=True)]

    def _one(self, scores: Tensor, boxes: Tensor) -> DenseBoxes:
        limit = min(self.config.candidates, scores.numel())
        best, where = scores.flatten().topk(limit)
        where, best = where[best > self.config.least_score], best[best > self.config.least_score]
        cells = boxes.shape[1] * boxes.shape[2]
        classes = where // cells
        chosen = boxes.flatten(1).T[where % cells]
        kept = suppress(chosen, classes, self.config.overlap)[: self.config.keep]
        return DenseBoxes(chosen[kept], best[kept], classes[kept])


def boxes_of(sides: Tensor, stride: int) -> Tensor:
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


def suppress(boxes: Tensor, classes: Tensor, overlap: float) -> Tensor:
    """Which of the boxes, sorted best first, remain when worse doubles of the same class are dropped."""
    doubles = (pairwise_iou(boxes, boxes) > overlap) & (classes[:, None] == classes[None, :])
    rows = doubles.cpu()
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for row in range(len(boxes)):
        if alive[row]:
            alive[row + 1 :] &= ~rows[row, row + 1 :]
    return alive.nonzero()[:, 0].to(boxes.device)
