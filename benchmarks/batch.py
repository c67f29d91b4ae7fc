"""Throughput of an evaluation in batches, relative to single images: plain methods, mitigations, clean truths.

    python benchmarks/batch.py --images 16 --batches 1,4,8

The embedded model on drawn scenes, one thread. A batch helps where launching kernels costs more than running them, as
on a GPU; on one CPU core the ratio shows that it costs nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from gramloop.data.scenes import SceneFiles, write_scenes
from gramloop.evaluate import DataSource, Plan, Request, make_plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.runner import Runner
from gramloop.models.tiny import WEIGHTS

CASES = {
    "baseline and replay": (["baseline", "gramloop"], "labels"),
    "mitigations": (["denoise", "recentre:0.3", "flip", "both=recentre:0.3+gramloop"], "labels"),
    "clean truth": (["baseline"], "clean"),
}


def planned(folder: Path, methods: list[str], truth: str, batch: int, device: str) -> Plan:
    request = Request(
        "scenes-c",
        "semantic",
        {"folder": str(WEIGHTS)},
        DataSource(str(folder)),
        methods=methods,
        conditions=["fog"],
        severities=[3],
        shards=1,
        truth=truth,
        batch=batch,
        device=device,
    )
    return make_plan(request)


def seconds(plan: Plan) -> float:
    """The faster of two runs, each with the model loaded and nothing kept from an earlier one.

    On the CPU, seconds of the process, so that others on the machine do not count.
    """
    best = float("inf")
    clock = time.process_time if plan.model.device == "cpu" else time.perf_counter
    for _ in range(2):
        with Runner(plan_workload(plan)) as runner:
            part = plan.parts[0]
            runner.run_one(replace(part, images=part.images[:1]))  # what happens only once
            began = clock()
            runner.run_one(part)
            best = min(best, clock() - began)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    sizes = [int(each) for each in args.batches.split(",")]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_scenes(folder, SceneFiles(args.images), workers=1)
        for name, (methods, truth) in CASES.items():
            times = {size: seconds(planned(folder, methods, truth, size, args.device)) for size in sizes}
            first = times[sizes[0]]
            for size, spent in times.items():
                print(
                    f"{name:20} batch {size:2}: {args.images / spent:6.2f} images/s on {args.device}, {first / spent:.2f}x"
                )


if __name__ == "__main__":
    main()
