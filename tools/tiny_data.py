"""Scenes for training the embedded model: rendered once into chunk files, then cropped and flipped at random."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import cv2
import numpy as np
import torch
from rich.progress import track

from gramloop.data.scenes import scene
from tiny_model import normalise

CHUNK = 250
SIZE = 192
MOST_THINGS = 8  # more than a scene ever holds


@dataclass(frozen=True)
class Batch:
    """Pixels and targets of one step; detection targets live on the grid of patches."""

    pixels: torch.Tensor  # (B, 3, H, W) float32, normalised
    labels: torch.Tensor  # (B, H, W) int64, 0 .. classes - 1
    cell_class: torch.Tensor  # (B, h, w) int64, thing index, -1 = nothing or a thing's rim
    cell_box: torch.Tensor  # (B, h, w, 4) float32, distances left, top, right, bottom in pixels


def _render(path: Path, split: str, first: int, count: int) -> None:
    cv2.setNumThreads(1)
    images = np.zeros((count, SIZE, SIZE, 3), np.uint8)
    labels = np.zeros((count, SIZE, SIZE), np.uint8)
    owners = np.zeros((count, SIZE, SIZE), np.uint8)
    kinds = np.full((count, MOST_THINGS + 1), -1, np.int64)
    for row in range(count):
        one = scene(first + row, SIZE, split)
        images[row], labels[row] = one.image, one.labels
        for number, mask in enumerate(one.masks, start=1):
            owners[row][mask] = number
            kinds[row, number] = one.categories[number - 1]
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    with partial.open("wb") as stream:
        np.savez(stream, images=images, labels=labels, owners=owners, kinds=kinds)
    partial.rename(path)


def render(folder: Path, split: str, count: int, workers: int) -> list[Path]:
    """Make sure that ``count`` scenes of a split lie in the folder, and return the chunk files in order."""
    folder.mkdir(parents=True, exist_ok=True)
    starts = range(0, count, CHUNK)
    paths = [folder / f"{split}-{start:06d}-{min(CHUNK, count - start)}.npz" for start in starts]
    missing = [(path, start) for path, start in zip(paths, starts, strict=True) if not path.exists()]
    if missing:
        with ProcessPoolExecutor(
            workers, get_context("spawn")
        ) as pool:  # forking a process with threads can hang
            jobs = [
                pool.submit(_render, path, split, start, min(CHUNK, count - start)) for path, start in missing
            ]
            for job in track(jobs, description=f"drawing {split} scenes"):
                job.result()
    return paths


def _gather(chunks: list[np.lib.npyio.NpzFile], name: str) -> np.ndarray:
    first = chunks[0][name]
    whole = np.empty((CHUNK * len(chunks), *first.shape[1:]), first.dtype)
    filled = 0
    for chunk in chunks:  # one at a time: concatenating them would need the memory twice
        part = chunk[name]
        whole[filled : filled + len(part)] = part
        filled += len(part)
    return whole[:filled]


class Scenes:
    """Rendered scenes in memory, from which batches are cut."""

    def __init__(self, paths: list[Path]) -> None:
        chunks = [np.load(path) for path in paths]
        self.images, self.labels, self.owners, self.kinds = (
            _gather(chunks, name) for name in ("images", "labels", "owners", "kinds")
        )

    def batch(self, rng: np.random.Generator, size: int, crop: int, patch: int) -> Batch:
        """Random scenes, each cropped at a random place and flipped left to right half of the time."""
        picks = rng.integers(len(self.images), size=size)
        corners = rng.integers(0, SIZE - crop + 1, size=(size, 2))
        flips = rng.random(size) < 0.5
        cut = []
        for pick, (y, x), flip in zip(picks, corners, flips, strict=True):
            window = np.s_[y : y + crop, x : x + crop]
            step = -1 if flip else 1
            parts = (self.images[pick][window], self.labels[pick][window], self.owners[pick][window])
            cut.append((*(np.ascontiguousarray(part[:, ::step]) for part in parts), self.kinds[pick]))
        return collate(cut, patch)


def collate(cut: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]], patch: int) -> Batch:
    """Turn crops of (image, labels, owner, kinds) into a batch with detection targets."""
    targets = [cell_targets(owner, kinds, patch) for _, _, owner, kinds in cut]
    return Batch(
        normalise(torch.from_numpy(np.stack([image for image, *_ in cut]))),
        torch.from_numpy(np.stack([labels for _, labels, *_ in cut]).astype(np.int64) - 1),
        torch.from_numpy(np.stack([kind for kind, _ in targets])),
        torch.from_numpy(np.stack([box for _, box in targets])),
    )


def cell_targets(owner: np.ndarray, kinds: np.ndarray, patch: int) -> tuple[np.ndarray, np.ndarray]:
    """Per cell the thing at its centre and the distances to that thing's box.

    Only the inner part of a box counts as positive: near its border the far side is hard to see, and a cell there
    that keeps silent leaves no double.
    """
    height, width = owner.shape[0] // patch, owner.shape[1] // patch
    centres = owner[patch // 2 :: patch, patch // 2 :: patch]
    cell_class = np.full((height, width), -1, np.int64)
    cell_box = np.zeros((height, width, 4), np.float32)
    y = ((np.arange(height) + 0.5) * patch)[:, None]
    x = ((np.arange(width) + 0.5) * patch)[None, :]
    for number in np.unique(owner):
        if number == 0:
            continue
        left, top, w, h = cv2.boundingRect((owner == number).astype(np.uint8))
        here = centres == number
        inner = here & (abs(x - left - w / 2) < 0.3 * w + 2) & (abs(y - top - h / 2) < 0.3 * h + 2)
        positive = inner if inner.any() else here
        cell_class[positive] = kinds[number]
        sides = np.broadcast_arrays(x - left, y - top, left + w - x, top + h - y)
        cell_box[positive] = np.stack(sides, axis=-1)[positive]
    return cell_class, cell_box
