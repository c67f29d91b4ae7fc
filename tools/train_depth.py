"""Train the embedded model's depth head on clean procedural scenes of the split train.

The backbone is frozen, so its taps are computed once per scene and its mirror image. Minutes on one core:

    python tools/train_depth.py --out src/gramloop/models/weights/depth.safetensors
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from gramloop.data.scenes import scene
from gramloop.data.truth import DepthMap
from gramloop.metrics.scores import depth_scores
from gramloop.models.tiny import TINY_SHORT_SIDE, DenseDepthHead, TinyModel, load_tiny
from tiny_model import normalise


@torch.no_grad()
def features(model: TinyModel, images: np.ndarray) -> torch.Tensor:  # (B, H, W, 3) → (B, taps * C, h, w)
    """The maps that the head reads, side by side."""
    return torch.cat(model.features(normalise(torch.from_numpy(images))), dim=1)


def train_set(model: TinyModel, count: int, part: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Maps (2 count, ...) in float16 and the logarithm of depth, nan for the sky; every scene and its mirror image."""
    maps, logs = [], []
    for first in range(0, count, part):
        drawn = [scene(index, TINY_SHORT_SIDE, "train") for index in range(first, min(first + part, count))]
        for step in (1, -1):
            images = np.stack([one.image[:, ::step] for one in drawn])
            depth = np.stack([one.depth[:, ::step] for one in drawn])
            maps.append(features(model, images).half())
            logs.append(torch.from_numpy(np.log(np.where(depth > 0, depth, np.nan)).astype(np.float16)))
    return torch.cat(maps), torch.cat(logs)


def train(
    model: TinyModel, maps: torch.Tensor, logs: torch.Tensor, args: argparse.Namespace
) -> DenseDepthHead:
    """The head after so many steps of AdamW with a cosine schedule."""
    torch.manual_seed(args.seed)
    draw = np.random.default_rng(args.seed)
    taps = model.segment.taps
    head = DenseDepthHead(maps.shape[1] // len(taps), 48, taps).train()
    with torch.no_grad():
        torch.nn.init.zeros_(head.out.weight)
        torch.nn.init.constant_(head.out.bias, float(logs[:32].nanmedian()))
    optimiser = torch.optim.AdamW(head.parameters(), lr=args.rate, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, args.rate, total_steps=args.steps, pct_start=0.1
    )
    began, losses = time.perf_counter(), []
    for step in range(1, args.steps + 1):
        rows = torch.from_numpy(draw.integers(len(maps), size=args.batch))
        wanted = logs[rows].float()
        found = F.interpolate(head([maps[rows].float()]), wanted.shape[1:], mode="bilinear")[:, 0]
        known = wanted.isfinite()
        loss = (found - wanted)[known].abs().mean()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(float(loss.detach()))
        if step % 50 == 0 or step == args.steps:
            seconds = time.perf_counter() - began
            print(f"step {step}: loss {np.mean(losses[-50:]):.4f}, {seconds:.0f} s", flush=True)
    return head.eval()


@torch.no_grad()
def score(model: TinyModel, head: DenseDepthHead, count: int) -> dict[str, float]:
    """The mean numbers on unseen clean scenes of the split val."""
    found = []
    for index in range(count):
        one = scene(index, TINY_SHORT_SIDE, "val")
        predicted = head.depth([features(model, one.image[None])], one.depth.shape)[0].numpy()
        found.append(depth_scores(predicted, DepthMap(one.depth)))
    names = found[0]._fields
    return {name: round(float(value), 4) for name, value in zip(names, np.mean(found, axis=0), strict=True)}


def main(argv: list[str] | None = None) -> int:
    """Train, write, read again, score."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="the head's file")
    parser.add_argument("--scenes", type=int, default=500)
    parser.add_argument("--val-scenes", type=int, default=100)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    began = time.perf_counter()
    model = load_tiny()
    maps, logs = train_set(model, args.scenes)
    print(f"{len(maps)} images ready after {time.perf_counter() - began:.0f} s", flush=True)
    train(model, maps, logs, args).save(args.out, torch.float16)
    print(json.dumps(score(model, DenseDepthHead.load(args.out), args.val_scenes)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
