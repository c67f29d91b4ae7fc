"""Weights, frames and head of the evidence run: who sees what, and the linear head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from evidence_vitb import NORMALISATION, load_vitb
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.planning import Request
from gramloop.models.backbone import TappedViT, default_taps
from gramloop.models.dinov2 import load_any_backbone
from gramloop.models.linear import LinearHead
from gramloop.tasks.images import RGB, WEB, Normalisation, read_image, resize_short_side, to_tensor
from gramloop.tune.tuning import RESULT

CLASSES = [
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
]
SEARCHED = ["gaussian_noise", "impulse_noise", "defocus_blur", "glass_blur", "snow", "brightness", "pixelate"]
UNSEEN_IN_TUNE = ["fog", "jpeg_compression"]
SHORT_SIDE = 252
TUNE_SEVERITY, ABLATION_SEVERITY = 4, 3
TRUST = 1e-3
# what seemed worth a search on the search's own frames
TRIED_WINDOWS = [(0, 0), (1, 1), (2, 2), (5, 5), (6, 6), (9, 9)]
TRIED_STRENGTHS = (0.3, 0.6, 1.0)


@dataclass(frozen=True)
class Sizes:
    """How many images each stage sees."""

    fit: int = 102
    search: int = 60
    report: int = 24
    ablation: int = 9
    windows: int = 4
    tries: int = 12
    second: int = 6
    budget: int = 4500


QUICK = Sizes(fit=12, search=24, report=3, ablation=2, windows=1, tries=2, second=2, budget=600)


@dataclass(frozen=True)
class Study:
    """Where things lie."""

    weights: Path
    out: Path
    workers: int
    sizes: Sizes

    @property
    def sets(self) -> Path:
        return self.out / "sets"

    @property
    def head(self) -> Path:
        return self.out / "head.safetensors"

    @property
    def deep_head(self) -> Path:
        return self.out / "deep_head.pt"

    @property
    def replay(self) -> Path:
        return self.out / "tune" / RESULT

    def request(self, suite: str, split: str, **settings: object) -> Request:
        return Request(
            suite=suite,
            task="semantic",
            files={"backbone": str(self.weights.resolve()), "head": str(self.head.resolve())},
            data=DataSource(str(self.sets.resolve()), split=split),
            sizes={"mode": "whole", "short_side": SHORT_SIDE},
            **settings,  # type: ignore[arg-type]
        )


def divide(data: Path, study: Study) -> None:
    """Three sets of links: frames that the head, the search and the report see, no frame in two of them."""
    drives: dict[str, list[Path]] = {}
    for split in ("training", "validation"):
        for image in sorted((data / "images" / split).glob("*.jpg")):
            drives.setdefault(f"{split} {image.stem.split('_')[0]}", []).append(image)
    same, other = drives["validation 0016E5"], drives["training 0006R0"]
    sizes = study.sizes
    parts = {
        "fit": spread(drives["training 0016E5"], sizes.fit),
        # the first half of two drives, then their second halves and a third drive
        "search": spread(other[:50], sizes.search // 2) + spread(same[:50], sizes.search // 2),
        "report": spread(drives["training 0001TP"], sizes.report // 3)
        + spread(other[55:], sizes.report // 3)
        + spread(same[55:], sizes.report // 3),
    }
    for part, images in parts.items():
        for image in images:
            label = data / "annotations" / image.parent.name / f"{image.stem}.png"
            link(image, study.sets / "images" / part / image.name)
            link(label, study.sets / "annotations" / part / label.name)
    (study.sets / "classes.txt").write_text("\n".join(CLASSES) + "\n")


def spread(images: Sequence[Path], many: int) -> list[Path]:
    return [images[round(place)] for place in np.linspace(0, len(images) - 1, max(many, 1))]


def link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_symlink():
        target.symlink_to(source.resolve())


class DeepHead(nn.Sequential):
    """A head with a hidden layer, to see whether replay does for it what it does for a linear one."""

    def __init__(self, channels: int, classes: int, hidden: int = 256) -> None:
        super().__init__(
            nn.BatchNorm2d(channels), nn.Conv2d(channels, hidden, 1), nn.GELU(), nn.Conv2d(hidden, classes, 1)
        )

    def forward(self, maps: Sequence[torch.Tensor]) -> torch.Tensor:
        return super().forward(torch.cat(list(maps), dim=1))  # type: ignore[no-any-return]


def load_backbone(study: Study) -> tuple[TappedViT, Normalisation]:
    return load_any(study.weights)


def load_any(weights: Path) -> tuple[TappedViT, Normalisation]:
    """DINOv2-S, or the ViT-B of a safetensors file, and how its images are normalised."""
    if weights.suffix == ".safetensors":
        return load_vitb(weights), NORMALISATION
    return load_any_backbone(weights), WEB


def prepare(
    pixels: RGB, backbone: TappedViT, normalisation: Normalisation, short_side: float = SHORT_SIDE
) -> torch.Tensor:
    patch = backbone.shape.patch
    short = round(short_side / patch) * patch
    return to_tensor(resize_short_side(pixels, short, multiple=patch), normalisation)


def fit(study: Study) -> None:
    """Heads on the taps, by cross-entropy with the share of each class in every patch."""
    if study.head.exists() and study.deep_head.exists():
        return
    torch.manual_seed(0)
    backbone, normalisation = load_backbone(study)
    taps = default_taps(backbone.shape.depth)
    X, Y = _training_set(study, backbone, normalisation, taps)
    linear = LinearHead(backbone.shape.width, len(CLASSES), taps)
    train(linear, linear.bn, X, Y)
    linear.save(study.head)
    deep = DeepHead(X.shape[1], len(CLASSES))
    train(deep, deep[0], X, Y)
    torch.save(deep.state_dict(), study.deep_head)


def load_deep_head(study: Study) -> DeepHead:
    weights = torch.load(study.deep_head, weights_only=True)
    head = DeepHead(weights["1.weight"].shape[1], len(CLASSES), weights["1.weight"].shape[0])
    head.load_state_dict(weights)
    return head.eval()


def _training_set(
    study: Study, backbone: TappedViT, normalisation: Normalisation, taps: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """The patches of all taps side by side, (patches, channels), and the share of each class in them."""
    features, targets = [], []
    for path in sorted((study.sets / "images" / "fit").iterdir()):
        pixels = prepare(read_image(path), backbone, normalisation)
        with torch.inference_mode():
            features.append(torch.cat([tap.patches for tap in backbone(pixels, taps)], dim=-1)[0])
        labels = read_labels(study.sets / "annotations" / "fit" / f"{path.stem}.png", pixels.shape[-2:])
        targets.append(shares(labels, backbone.shape.patch))
    return torch.cat(features).clone(), torch.cat(targets)


def train(head: nn.Module, normalised: nn.BatchNorm2d, X: torch.Tensor, Y: torch.Tensor) -> None:
    normalised.running_mean, normalised.running_var = X.mean(0), X.var(0)
    head.eval()
    layers = [layer for layer in head.modules() if isinstance(layer, nn.Conv2d)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=1e-2)
    for _ in range(12):
        for batch in torch.randperm(len(X)).split(1024):
            logits = head([X[batch].T[None, :, :, None]])[0, :, :, 0].T
            loss = -(Y[batch] * logits.log_softmax(-1)).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{type(head).__name__}: {len(X)} patches, last loss {loss.item():.3f}")


def read_labels(path: Path, size: Sequence[int]) -> torch.Tensor:
    from PIL import Image

    with Image.open(path) as opened:
        resized = opened.resize((size[1], size[0]), Image.Resampling.NEAREST)
        return torch.from_numpy(np.array(resized)).long() - 1  # -1: unlabelled


def shares(labels: torch.Tensor, patch: int) -> torch.Tensor:
    """(H, W) -> (patches, classes), the share of every class in each patch."""
    rows, columns = labels.shape[0] // patch, labels.shape[1] // patch
    cells = labels.reshape(rows, patch, columns, patch).permute(0, 2, 1, 3).reshape(rows * columns, -1)
    return torch.stack([(cells == index).float().mean(1) for index in range(len(CLASSES))], dim=1)


def part_of(study: Study, split: str, many: int) -> str:
    name = f"{split}-{many}"
    for kind in ("images", "annotations"):
        for path in spread(sorted((study.sets / kind / split).iterdir()), many):
            link(path, study.sets / kind / name / path.name)
    return name
