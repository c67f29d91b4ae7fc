"""Make the embedded model again: draw scenes, train the backbone, freeze it, train the heads, write the weights.

    python tools/train_tiny.py --run out/tiny --minutes 80 --head-minutes 12

Everything starts from seeds. The run may be killed at any time; the same command goes on from its last
checkpoint. With --minutes the schedule follows training time (a slow machine takes fewer steps); with --steps it
follows steps, and two runs are equal.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers.models.dinov3_vit.modeling_dinov3_vit import Dinov3ViTDropPath

from gramloop.data.scenes import CLASSES, STUFF, THINGS
from gramloop.models.backbone import Backbone, BackboneShape, LinearHead, dinov3_model
from gramloop.models.tiny import DenseDetectConfig, DenseDetectHead, TinyModel
from tiny_data import SIZE, Scenes, render
from tiny_losses import detection_loss, segmentation_loss
from tiny_model import normalise, predict, save_tiny
from tiny_optim import Muon, average_gradients

SHAPE = BackboneShape(depth=12, width=128, head_dim=32, registers=4, patch=8)
TAPS = (2, 5, 8, 11)
ROPE_THETA = (
    10.0  # the default 100 spends most frequencies on distances far beyond a scene of 24 x 24 patches
)
LAYER_SCALE = 0.3
DROP_PATH = 0.05
POSITION_RESCALE = 1.3
# until this share of the schedule: crop size in pixels, crops per process and step
CROPS = ((0.40, 96, 16), (0.65, 144, 7), (1.01, 192, 4))
HEAD_CROPS = ((1.01, 192, 8),)


@dataclass(frozen=True)
class Stage:
    """One of the two stages of training: what moves, on which crops, how fast."""

    name: str
    crops: tuple[tuple[float, int, int], ...]
    matrix_rate: float
    other_rate: float
    warm_up: float
    averaging: float  # decay of the moving average of the weights

    def crop_at(self, progress: float) -> tuple[int, int]:
        """Crop size and batch size at a point of the schedule."""
        return next((crop, batch) for until, crop, batch in self.crops if progress < until)

    def rate_at(self, progress: float) -> float:
        """Factor on the learning rates: linear warm-up, then half a cosine."""
        if progress < self.warm_up:
            return (progress + 1e-3) / (self.warm_up + 1e-3)
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def new_model() -> TinyModel:
    """The model before training, from torch's current seed."""
    backbone = Backbone(SHAPE, dinov3_model(SHAPE, rope_theta=ROPE_THETA))
    backbone.autocast_on = ()
    config = backbone.model.config
    config.layerscale_value, config.pos_embed_rescale = LAYER_SCALE, POSITION_RESCALE
    config.drop_path_rate, config.image_size = DROP_PATH, SIZE
    for block in backbone.blocks:
        for scale in (block.layer_scale1, block.layer_scale2):
            torch.nn.init.constant_(scale.lambda1, LAYER_SCALE)
        block.drop_path = Dinov3ViTDropPath(DROP_PATH)
    detect = DenseDetectHead(DenseDetectConfig(SHAPE.width, len(THINGS), SHAPE.patch))
    return TinyModel(backbone, LinearHead(SHAPE.width, len(CLASSES), TAPS), detect, STUFF, THINGS)


BACKBONE = Stage("backbone", CROPS, 0.02, 2e-3, 0.02, 0.998)
HEADS = Stage("heads", HEAD_CROPS, 0.0, 1.5e-3, 0.02, 0.99)


class Trainer:
    """One process of a stage: its model, moving average, optimisers and place in the schedule."""

    def __init__(self, stage: Stage, args: argparse.Namespace, rank: int) -> None:
        self.stage, self.args, self.rank = stage, args, rank
        torch.manual_seed(args.seed)
        self.model, self.average = new_model(), new_model()
        self.step, self.elapsed = 0, 0.0
        if stage == HEADS:
            self.model.load_state_dict(
                torch.load(_checkpoint(args.run, BACKBONE), weights_only=True)["average"]
            )
            self.model.backbone.requires_grad_(False)
        self.model.backbone.model.embeddings.mask_token.requires_grad_(False)
        self.average.load_state_dict(self.model.state_dict())
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        matrices = [p for name, p in named if ".layer." in name and p.ndim == 2]
        others = [p for name, p in named if not (".layer." in name and p.ndim == 2)]
        self.moving = [p for _, p in named]
        self.optimisers = [torch.optim.AdamW(others, stage.other_rate, betas=(0.9, 0.98), weight_decay=0.01)]
        if matrices:
            self.optimisers.append(Muon(matrices, stage.matrix_rate))
        self._resume()

    def _resume(self) -> None:
        path = _checkpoint(self.args.run, self.stage)
        if not path.exists():
            return
        saved = torch.load(path, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.average.load_state_dict(saved["average"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.step, self.elapsed = saved["step"], saved["elapsed"]

    def save(self) -> None:
        """Write a checkpoint whole or not at all."""
        path = _checkpoint(self.args.run, self.stage)
        partial = path.with_suffix(".tmp")
        state = {
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "step": self.step,
            "elapsed": self.elapsed,
        }
        torch.save(state, partial)
        os.replace(partial, path)

    def progress(self) -> float:
        """How far the schedule has come, 0..1."""
        steps, minutes = _length(self.args, self.stage)
        return self.step / steps if steps else self.elapsed / (60 * minutes)

    def advance(self, scenes: Scenes) -> float:
        """One step; returns the loss of this process."""
        began = time.perf_counter()
        progress = self.progress()
        crop, size = self.stage.crop_at(progress)
        size = min(size, self.args.batch or size)
        draw = np.random.default_rng([self.args.seed, self.rank, self.step, self.stage == HEADS])
        torch.manual_seed(int(draw.integers(1 << 62)))
        batch = scenes.batch(draw, size, crop, SHAPE.patch)
        self.model.train()
        if self.stage == HEADS:
            self.model.backbone.eval()
        logits, (scores, sides) = self.model(batch.pixels)
        loss = segmentation_loss(logits, batch.labels)
        loss = loss + 0.5 * detection_loss(scores, sides, batch.cell_class, batch.cell_box)
        for parameter in self.moving:
            parameter.grad = None
        loss.backward()
        spent = average_gradients(self.moving, self.elapsed + time.perf_counter() - began)
        for optimiser in self.optimisers:
            base = self.stage.matrix_rate if isinstance(optimiser, Muon) else self.stage.other_rate
            for group in optimiser.param_groups:
                group["lr"] = base * self.stage.rate_at(progress)
            optimiser.step()
        self._follow()
        self.step += 1
        self.elapsed = spent
        return float(loss.detach())

    @torch.no_grad()
    def _follow(self) -> None:
        decay = min(self.stage.averaging, (self.step + 1) / (self.step + 10))
        average = self.average.state_dict()
        for name, value in self.model.state_dict().items():
            if value.is_floating_point():
                average[name].lerp_(value, 1 - decay)
            else:
                average[name].copy_(value)


def quick_miou(model: TinyModel, scenes: Scenes, count: int) -> float:
    """mIoU in percent on the first scenes of the validation split."""
    classes = len(model.classes)
    confusion = np.zeros((classes, classes))
    model.eval()
    for first in range(0, count, 8):
        rows = slice(first, min(count, first + 8))
        predicted, _ = predict(model, normalise(torch.from_numpy(scenes.images[rows])))
        true = scenes.labels[rows].astype(np.int64) - 1
        pairs = true.ravel() * classes + predicted.numpy().ravel()
        confusion += np.bincount(pairs, minlength=classes**2).reshape(classes, classes)
    hit = np.diag(confusion)
    union = confusion.sum(0) + confusion.sum(1) - hit
    return float(100 * np.mean(hit[union > 0] / union[union > 0]))


def _checkpoint(run: Path, stage: Stage) -> Path:
    return run / f"{stage.name}.pt"


def _length(args: argparse.Namespace, stage: Stage) -> tuple[int, float]:
    return (args.steps, args.minutes) if stage == BACKBONE else (args.head_steps, args.head_minutes)


def _log(args: argparse.Namespace, line: dict[str, object]) -> None:
    text = json.dumps(line)
    with (args.run / "log.jsonl").open("a") as stream:
        stream.write(text + "\n")
    print(text, flush=True)


def _work(rank: int, args: argparse.Namespace, stage: Stage, meeting: str) -> None:
    torch.set_num_threads(max(1, args.threads // args.processes))
    if args.processes > 1:
        dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=args.processes)
    scenes = Scenes(render(args.cache, "train", args.scenes, 1))
    held_out = Scenes(render(args.cache, "val", args.val_scenes, 1)) if rank == 0 else None
    trainer = Trainer(stage, args, rank)
    losses: list[float] = []
    saved = scored = trainer.elapsed
    while trainer.progress() < 1:
        losses.append(trainer.advance(scenes))
        done = trainer.progress() >= 1
        if rank == 0 and (trainer.step % args.log_every == 0 or done):
            entry = {"stage": stage.name, "step": trainer.step, "minutes": round(trainer.elapsed / 60, 2)}
            _log(
                args,
                {**entry, "progress": round(trainer.progress(), 4), "loss": round(float(np.mean(losses)), 4)},
            )
            losses.clear()
        if rank == 0 and (trainer.elapsed - saved > 60 * args.save_minutes or done):
            saved = trainer.elapsed
            trainer.save()
        if held_out is not None and (trainer.elapsed - scored > 60 * args.score_minutes or done):
            scored = trainer.elapsed
            score = quick_miou(trainer.average, held_out, min(48, args.val_scenes))
            _log(args, {"stage": stage.name, "step": trainer.step, "val_miou": round(score, 2)})
    if args.processes > 1:
        dist.barrier()
        dist.destroy_process_group()


def run_stage(args: argparse.Namespace, stage: Stage) -> None:
    """Train one stage to the end of its schedule, over all processes."""
    meeting = str(args.run / f"meeting-{os.getpid()}-{stage.name}")
    if args.processes == 1:
        _work(0, args, stage, meeting)
    else:
        mp.spawn(_work, (args, stage, meeting), nprocs=args.processes)
    Path(meeting).unlink(missing_ok=True)


def export(args: argparse.Namespace) -> None:
    """Write the averaged weights of the last stage that has a checkpoint."""
    source = next(path for s in (HEADS, BACKBONE) if (path := _checkpoint(args.run, s)).exists())
    model = new_model()
    model.load_state_dict(torch.load(source, weights_only=True)["average"])
    save_tiny(model, args.export)
    print(f"{source} -> {args.export}")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and log")
    parser.add_argument("--cache", type=Path, help="folder of rendered scenes (default: RUN/scenes)")
    parser.add_argument("--export", type=Path, help="folder for the finished weights (default: RUN/weights)")
    parser.add_argument("--only", choices=("scenes", "backbone", "heads", "export"), help="do one part only")
    parser.add_argument("--minutes", type=float, default=80.0, help="training time of the backbone")
    parser.add_argument("--head-minutes", type=float, default=12.0, help="training time of the heads")
    parser.add_argument("--steps", type=int, default=0, help="steps of the backbone, instead of minutes")
    parser.add_argument("--head-steps", type=int, default=0, help="steps of the heads, instead of minutes")
    parser.add_argument("--scenes", type=int, default=14000)
    parser.add_argument("--val-scenes", type=int, default=500)
    parser.add_argument("--batch", type=int, default=0, help="at most this many crops per process and step")
    parser.add_argument("--processes", type=int, default=2, help="data-parallel processes")
    parser.add_argument("--threads", type=int, default=2, help="threads over all processes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=20)
    parser.add_argument("--save-minutes", type=float, default=2.0)
    parser.add_argument("--score-minutes", type=float, default=6.0)
    args = parser.parse_args(argv)
    args.cache = args.cache or args.run / "scenes"
    args.export = args.export or args.run / "weights"
    return args


def main(argv: list[str] | None = None) -> int:
    """Do every part that is not done yet."""
    args = parse(argv)
    args.run.mkdir(parents=True, exist_ok=True)
    parts = [args.only] if args.only else ["scenes", "backbone", "heads", "export"]
    if "scenes" in parts:
        render(args.cache, "val", args.val_scenes, args.threads)
        render(args.cache, "train", args.scenes, args.threads)
    for stage in (BACKBONE, HEADS):
        if stage.name in parts:
            run_stage(args, stage)
    if "export" in parts:
        export(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
