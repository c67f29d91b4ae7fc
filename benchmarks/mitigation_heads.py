"""Heads on kept features, and what every mitigation makes of them: pixel counts per image, way and head.

A head is fitted on clean frames of one drive or two, and shown drives that it has not seen. Recentring moves all
patches alike, and both heads begin with an affine layer, so that it is a change of that layer's offset.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from evidence_study import CLASSES, DeepHead, read_labels, shares, train
from gramloop.metrics.miou import count_pixels
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.models.linear import LinearHead
from gramloop.tasks.images import read_image
from mitigation_passes import DRIVES, LARGER, MIRRORED, SIZES, STACKS, Features, Fitted, Item, Passes

HEADS = ("linear", "deep")
STRIDE = 4  # of the pixels at which a prediction is compared with its truth
RECENTRINGS = ("", "0.1", "0.3", "0.5", "c=0.5", "c=1", "c=2", "c=3", "0.5,c=1")
Counted = dict[str, NDArray[np.int32]]  # way → (labels and clean prediction, 3, classes)


def join(*parts: str) -> str:
    return "+".join(part for part in parts if part)


def recentre(arguments: str) -> str:
    return f"recentre:{arguments}" if arguments else ""


@dataclass(frozen=True)
class Affine:
    """The first layer with the batch norm folded in, and what follows it."""

    weight: Tensor  # (outputs, channels)
    bias: Tensor
    rest: nn.Module

    @classmethod
    def of(cls, norm: nn.BatchNorm2d, layer: nn.Conv2d, rest: nn.Module) -> Affine:
        assert norm.running_mean is not None
        assert norm.running_var is not None
        assert layer.bias is not None
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        weight = layer.weight[:, :, 0, 0]
        bias = layer.bias + weight @ (norm.bias - scale * norm.running_mean)
        return cls((weight * scale).detach(), bias.detach(), rest)

    def logits(
        self, features: Features, moves: Tensor
    ) -> Tensor:  # (moves, channels) → (moves, classes, h, w)
        rows, columns, channels = features.shape
        states = (
            torch.from_numpy(features.reshape(-1, channels).astype(np.float32)) @ self.weight.T + self.bias
        )
        moved = states[None] - (moves @ self.weight.T)[:, None]
        maps = moved.transpose(1, 2).reshape(len(moves), -1, rows, columns)
        return self.rest(maps)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Heads:
    """Fitted heads of one backbone, and the counts that they lead to."""

    passes: Passes

    @property
    def folder(self) -> Path:
        return self.passes.out / "heads"

    def fit(self) -> None:
        """Linear ones on every drive and pair of drives, ones with a hidden layer on pairs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for many in (1, 2):
            for drives in combinations(DRIVES, many):
                kinds = HEADS[:many]
                if not all(self._path(drives, kind).exists() for kind in kinds):
                    torch.manual_seed(0)
                    X, Y = self._training_set(drives)
                    for kind in kinds:
                        print(f"{' and '.join(drives)}: ", end="")
                        torch.save(self._fitted(kind, X, Y).state_dict(), self._path(drives, kind))

    def _path(self, drives: Fitted, kind: str) -> Path:
        return self.folder / f"{' '.join(drives)} {kind}.pt"

    def _fitted(self, kind: str, X: Tensor, Y: Tensor) -> nn.Module:
        if kind == "linear":
            backbone, _, taps = self.passes.model
            linear = LinearHead(backbone.shape.width, len(CLASSES), taps)
            train(linear, linear.bn, X, Y)
            return linear
        deep = DeepHead(X.shape[1], len(CLASSES))
        train(deep, deep[0], X, Y)  # type: ignore[arg-type]
        return deep

    def _training_set(self, drives: Fitted) -> tuple[Tensor, Tensor]:
        patch = self.passes.model[0].shape.patch
        features, targets = [], []
        for frame in (frame for drive in drives for frame in self.passes.frames(drive)):
            found = self.passes.plain(Item(frame))
            features.append(torch.from_numpy(found.reshape(-1, found.shape[-1]).astype(np.float32)))
            size = [side * patch for side in found.shape[:2]]
            targets.append(shares(read_labels(self.passes.label(frame), size), patch))
        return torch.cat(features), torch.cat(targets)

    @cached_property
    def fitted(self) -> dict[tuple[Fitted, str], Affine]:
        found = {}
        for many in (1, 2):
            for drives in combinations(DRIVES, many):
                for kind in HEADS[:many]:
                    weights = torch.load(self._path(drives, kind), weights_only=True)
                    if kind == "linear":
                        channels = weights["bn.weight"].shape[0]
                        linear = LinearHead(channels, len(CLASSES), [0])
                        linear.load_state_dict(weights)
                        affine = Affine.of(linear.bn, linear.conv, nn.Identity())
                    else:
                        deep = DeepHead(weights["0.weight"].shape[0], len(CLASSES))
                        deep.load_state_dict(weights)
                        affine = Affine.of(deep[0], deep[1], nn.Sequential(deep[2], deep[3]))  # type: ignore[arg-type]
                    found[drives, kind] = affine
        return found

    # counting

    def run(self, items: Sequence[Item]) -> None:
        (self.passes.out / "counts").mkdir(exist_ok=True)
        for item in items:
            path = self.passes.path(item, "counts")
            if path.exists():
                continue
            with torch.inference_mode():
                found = self.count(item)
            names, counts = list(found), np.stack(list(found.values()))
            part = path.with_suffix(".part.npz")
            np.savez(part, names=np.array(json.dumps(names)), counts=counts)
            part.replace(path)

    def read(self, item: Item) -> Counted:
        found = self.passes.read(item, "counts")
        return dict(zip(json.loads(str(found["names"])), found["counts"], strict=True))

    def count_pixels(self, item: Item) -> Counted:
        """Under ``drives|head|way``, for all heads that have not seen this drive."""
        passes, found = self.passes, {}
        versions = {"plain": passes.plain(item)}
        index = {}
        if passes.path(item, "gated").exists():
            versions |= passes.read(item, "gated")
            index = json.loads(str(versions.pop("index")))
        replayed = passes.read(item, "replay") if passes.path(item, "replay").exists() else None
        others = passes.read(item, "reference") if passes.path(item, "reference").exists() else {}
        truth, sample = self._truth(item.frame), self._sample(item.frame)
        clean = passes.plain(Item(item.frame))
        for (drives, kind), head in self.fitted.items():
            if item.drive in drives or (len(drives) == 1 and not passes.searched(item)):
                continue
            source = passes.sources[drives]
            none = torch.zeros(1, clean.shape[-1])
            said = sample(head.logits(clean, none)).argmax(1)[0].numpy()

            def measured(
                labels: Tensor, truths: tuple[NDArray[np.int64], ...] = (truth, said)
            ) -> NDArray[np.int32]:
                each = [[count_pixels(one.numpy(), t, len(CLASSES)) for t in truths] for one in labels]
                return np.array(each, dtype=np.int32)

            def moved(
                features: Features, head: Affine = head, source: CalibrationStats = source
            ) -> NDArray[np.int32]:
                logits = head.logits(features, moves(features, source, RECENTRINGS))
                return measured(sample(logits).argmax(1))

            named = {stack: index.get(f"{' '.join(drives)}|{stack}") for stack in STACKS}
            places = {"": "plain", **{stack: key for stack, key in named.items() if key is not None}}
            ordinary = {key: moved(versions[key]) for key in set(places.values())}
            again = ordinary | {key: moved(each) for key, each in (replayed or {}).items() if key in ordinary}
            ways = {}
            for stack, key in places.items():
                for place, arguments in enumerate(RECENTRINGS):
                    ways[join(stack, recentre(arguments))] = ordinary[key][place]
                    if replayed is not None and len(drives) == 2:
                        ways[join(stack, "replay", recentre(arguments))] = again[key][place]
            if replayed is not None:
                features = [versions["plain"], replayed.get("plain", versions["plain"])]
                both = [sample(head.logits(each, none)).softmax(1) for each in features]
                [ways["replay+pair"]] = measured((both[0] + both[1]).argmax(1))
            if others:
                for way, labels in self._looks(head, sample, versions["plain"], others, none):
                    [ways[way]] = measured(labels[None])
            found |= {f"{' '.join(drives)}|{kind}|{way}": counts for way, counts in ways.items()}
        return found

    def clean(self, drive: str, kind: str) -> dict[str, NDArray[np.int64]]:
        """Counts (frames, 3, classes) of every recentring on all clean frames of a drive that the head has not seen."""
        fitted = tuple(each for each in DRIVES if each != drive)
        head, source = self.fitted[fitted, kind], self.passes.sources[fitted]
        found: dict[str, list[NDArray[np.int64]]] = {way: [] for way in RECENTRINGS}
        for frame in self.passes.every(drive):
            features, truth = self.passes.plain(Item(frame)), self._truth(frame)
            sample = self._sample(frame)
            with torch.inference_mode():
                labels = sample(head.logits(features, moves(features, source, RECENTRINGS))).argmax(1)
            for way, each in zip(RECENTRINGS, labels, strict=True):
                found[way].append(count_pixels(each.numpy(), truth, len(CLASSES)))
        return {way: np.stack(each) for way, each in found.items()}

    def _truth(self, frame: Path) -> NDArray[np.int64]:
        label = read_labels(self.passes.label(frame), read_image(frame).shape[:2])
        whole: NDArray[np.int64] = label.where(label >= 0, torch.tensor(255)).numpy()
        return whole[::STRIDE, ::STRIDE]

    def _sample(self, frame: Path) -> Sample:
        height, width = read_image(frame).shape[:2]
        return Sample((height, width), self.passes.model[0].shape.patch)

    def _looks(
        self, head: Affine, sample: Sample, plain: Features, others: dict[str, Features], none: Tensor
    ) -> Iterator[tuple[str, Tensor]]:
        sizes = {float(name.split()[1]): each for name, each in others.items() if name.startswith("size")}
        once = {
            name: each for name, each in others.items() if not name.startswith("size") and name != MIRRORED
        }
        for name, features in once.items():
            yield name, sample(head.logits(features, none)).argmax(1)[0]
        ordinary = sample(head.logits(plain, none)).softmax(1)
        turned = sample(head.logits(others[MIRRORED], none), mirrored=True).softmax(1)
        yield MIRRORED, (ordinary + turned).argmax(1)[0]
        scores = {factor: sample(head.logits(each, none)).softmax(1) for factor, each in sizes.items()}
        yield LARGER, scores[1.11].argmax(1)[0]
        yield SIZES, (scores[0.75] + ordinary + scores[1.25]).argmax(1)[0]


def moves(features: Features, source: CalibrationStats, ways: Sequence[str]) -> Tensor:  # (ways, channels)
    """What each recentring takes from every patch, as `gramloop.mitigations.recentre` does."""
    means, spreads = (
        torch.cat([each[tap] for tap in sorted(each)]) for each in (source.means, source.spreads)
    )
    away = torch.from_numpy(features.reshape(-1, features.shape[-1]).astype(np.float32)).mean(0) - means
    found = []
    for way in ways:
        parts = [part for part in way.split(",") if part]
        limit = next((float(part[2:]) for part in parts if part.startswith("c=")), 0.0)
        weight = next((float(part) for part in parts if not part.startswith("c=")), 1.0 if way else 0.0)
        found.append(weight * away.sign() * (away.abs() - limit * spreads).clamp(min=0))
    return torch.stack(found)


class Sample:
    """Logits of patches at every fourth pixel of the image, as the segmenter resizes them: to its input, to the image."""

    def __init__(self, size: tuple[int, int], patch: int) -> None:
        self.size, self.patch = size, patch
        self._matrices: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(
        self, logits: Tensor, mirrored: bool = False
    ) -> Tensor:  # (B, K, h, w) → (B, K, rows, columns)
        if mirrored:
            logits = logits.flip(-1)
        grid = (logits.shape[-2], logits.shape[-1])
        if grid not in self._matrices:
            self._matrices[grid] = tuple(
                self._matrix(patches, side) for patches, side in zip(grid, self.size, strict=True)
            )  # type: ignore[assignment]
        rows, columns = self._matrices[grid]
        return rows @ logits @ columns.T

    def _matrix(self, patches: int, side: int) -> Tensor:  # (side / stride, patches)
        line = torch.eye(patches)[None]
        for length in (patches * self.patch, side):
            line = F.interpolate(line, length, mode="linear", align_corners=False)
        return line[0].T[::STRIDE].contiguous()
