"""A paired prediction against a baseline and a replayed one run after each other.

The baseline pass that a replay needs anyway is the baseline prediction: a pair costs what the replayed prediction
costs, plus one more run of the head. Random weights in the size of DINOv3 ViT-B, the linear head on four taps.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from gramloop import ReplayConfig, cost
from gramloop.models.backbone import Backbone, LinearHead, LinearSegmentor, default_taps
from gramloop.models.dino import SHAPES
from gramloop.tasks.semantic import SegmentConfig, Segmenter
from gramloop.util.forward_patch import counting


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the processor."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def ratio(times: dict[str, list[tuple[float, float]]], clock: int) -> float:
    rounds = zip(times["plain"], times["replayed"], times["paired"], strict=True)
    return statistics.median(pair[clock] / (plain[clock] + again[clock]) for plain, again, pair in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SHAPES), default="vitb16")
    parser.add_argument("--side", type=int, default=448, help="pixels of the crop")
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()

    torch.manual_seed(0)
    shape = SHAPES[options.model]
    head = LinearHead(shape.width, options.classes, default_taps(shape.depth))
    model = LinearSegmentor(Backbone(shape), head)
    config = SegmentConfig(short_side=options.side, crop=options.side, stride=options.side)
    segmenter = Segmenter(model, config)
    image = np.random.default_rng(0).integers(0, 256, (options.side, options.side, 3), dtype=np.uint8)
    replay = ReplayConfig()
    runs: dict[str, Callable[[], object]] = {
        "plain": lambda: segmenter.predict(image),
        "replayed": lambda: segmenter.predict(image, replay),
        "paired": lambda: segmenter.predict(image, replay, paired=True),
    }

    blocks = {}
    for name, run in runs.items():
        with counting(list(model.backbone.blocks)) as counter:
            run()  # also the warm-up
        blocks[name] = counter.blocks
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(options.repeats):  # one after the other, so that a busy machine slows all alike
        for name, run in runs.items():
            times[name].append(seconds(run))

    grid = options.side // shape.patch
    print(
        f"{options.model}, {shape.depth} blocks, {grid} x {grid} patches, {torch.get_num_threads()} threads"
    )
    for name in runs:
        print(
            f"{name:9s}{blocks[name]:4d} blocks  {statistics.median(wall for wall, _ in times[name]):7.3f} s (median)"
        )
    print(f"formula   {cost(shape.depth).blocks:3d} blocks of a replayed prediction")
    expected = blocks["paired"] / (blocks["plain"] + blocks["replayed"])
    print(
        f"paired / (plain + replayed): {ratio(times, 0):.3f} of the time, "
        f"{ratio(times, 1):.3f} of the processor's time, {expected:.3f} of the blocks"
    )


if __name__ == "__main__":
    main()
