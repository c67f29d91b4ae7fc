"""What an evaluation costs: estimated by trying a few of its images, and measured method by method."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import Method, blocks_per_view
from gramloop.evaluate.plan import Part, Plan
from gramloop.evaluate.predicting import peak_memory, reset_peak
from gramloop.evaluate.provenance import plan_subject
from gramloop.evaluate.runner import Runner
from gramloop.tasks.base import read_labelled
from gramloop.util.device import available_devices
from gramloop.util.files import atomic_write
from gramloop.util.forward_patch import counting
from gramloop.util.json_files import read_checked

TRIED = 3  # images of an estimate
TIMES = "times.json"  # in a results folder
_PICTURES = ("map_size", "map_scales", "maps")


class _Times(TypedDict):
    """The content of ``times.json``."""

    images: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Estimate:
    """Per image: seconds of one worker, blocks executed, bytes stored; and the bytes of kept pictures."""

    seconds: float
    blocks: float
    stored: float
    picture: float


@dataclass(frozen=True)
class MethodCost:
    """What one method costs alone, on a sample of images."""

    method: str
    images: int
    seconds: float  # the median over images
    spread: float  # between the quartiles
    blocks: float  # transformer blocks executed, the mean over images
    peak_memory: int  # bytes, of the process, or of the GPU where one was used
    reading: float = 0.0  # seconds to read and shift an image, the median; no part of ``seconds``


def measure_cost(
    plan: Plan, methods: Sequence[Method] | None = None, images: int = 8, device: str | None = None
) -> list[MethodCost]:
    """Time each method alone on the first images of the first condition, after one to warm up.

    Args:
        plan: whose model and images are used; nothing is stored.
        methods: those to time; all of the plan's by default.
        images: how many images to time each on.
        device: one of this machine's GPUs.

    Returns:
        The cost of each method, in their order. Methods take turns on every image, so that a busy moment of the machine
        affects all alike.
    """
    chosen = list(plan.methods if methods is None else methods)
    key, many = next(iter(plan.conditions.items()))
    seconds: dict[str, list[float]] = {method.name: [] for method in chosen}
    blocks, peaks = dict.fromkeys(seconds, 0), dict.fromkeys(seconds, 0)
    with Runner(plan_subject(plan), device=device) as runner:
        pixels, reading = [], []
        for record in runner.images.records(key, range(min(images, many))):
            began = time.perf_counter()
            read = read_labelled(record, plan.task, labels=False)
            reading.append(time.perf_counter() - began)
            pixels += [] if isinstance(read, str) else [read.pixels]
        for number, image in enumerate([*pixels[:1], *pixels]):
            for method in chosen:
                reset_peak(runner.device)
                with counting(runner.predictor.blocks) as counter:
                    began = time.perf_counter()
                    runner.predict(image, [method], trace=False)
                    took = time.perf_counter() - began
                peaks[method.name] = max(peaks[method.name], peak_memory(runner.device))
                if number:  # the first one warms up
                    seconds[method.name].append(took)
                    blocks[method.name] += counter.blocks
    found = []
    for name, each in seconds.items() if pixels else ():
        low, middle, high = np.percentile(each, [25, 50, 75]).tolist()
        mean = blocks[name] / len(each)
        found.append(
            MethodCost(name, len(each), middle, high - low, mean, peaks[name], float(np.median(reading)))
        )
    return found


def time_methods(plan: Plan, folder: Path, device: str | None = None) -> dict[str, float]:
    """Seconds of an image by method, each measured alone on a few images and kept in the results folder."""
    known = read_times(folder)
    missing = [method.name for method in plan.methods if method.name not in known]
    if missing:  # all of them again: only times of one moment can be compared
        known = {each.method: each.seconds for each in measure_cost(plan, images=TRIED, device=device)}
        content = json.dumps({"images": TRIED, "seconds": known}, indent=1)
        atomic_write(folder / TIMES, f"{content}\n".encode())
    return known


def read_times(folder: Path) -> dict[str, float]:
    """What `time_methods` measured; empty where it did not."""
    if not (folder / TIMES).is_file():
        return {}
    return dict(
        read_checked(folder / TIMES, _Times, "times of methods, written by gramloop evaluate")["seconds"]
    )


def estimate(plan: Plan) -> Estimate:
    """Run the first images of the first condition, after one to warm up; nothing is written."""
    key, images = next(iter(plan.conditions.items()))
    tried = min(TRIED, images)
    with Runner(plan_subject(plan)) as runner:
        runner.run_one(Part(key, range(1), plan.methods))
        finished = runner.run_one(Part(key, range(tried), plan.methods))
    tables = [rows.table() for rows in finished.rows.values()]
    for rows in finished.rows.values():
        if rows.failures:
            raise GramLoopError(f"an image to be tried cannot be used: {rows.failures[0].reason}")
    kept = [*_PICTURES, *runner.task.picture_columns]
    stored = sum(_size(table.drop_columns(kept)) for table in tables) / tried
    pictures = max(0.0, sum(map(_size, tables)) / tried - stored)  # the tried images are among the first
    facts = finished.facts.values()
    wall = next(iter(facts)).wall_seconds
    return Estimate(wall / tried, sum(each.blocks for each in facts) / tried, stored, pictures)


def _size(table: Any) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return int(sink.getvalue().size)


def describe(plan: Plan, workers: int) -> str:
    """A plan and its cost in a few lines; images are tried where the plan's device is on this machine."""
    blocks, depth = blocks_per_view(plan.methods, plan.model.depth, plan.diagnostics), plan.model.depth
    lines = [
        f"plan {plan.hash}: {plan.suite}, {plan.task}, methods {', '.join(each.name for each in plan.methods)}",
        f"{len(plan.conditions)} conditions, {len(plan.units)} units, {plan.images} images",
        *([] if plan.calibration_split is None else [str(plan.calibration_split)]),
        f"{blocks} blocks per view of an image ({blocks / depth:.2f} baseline passes of {depth})",
    ]
    if plan.model.device not in {name.partition(":")[0] for name in available_devices()}:
        lines.append(f"time and size of the results are left out: there is no {plan.model.device} here")
        return "\n".join(lines)
    found = estimate(plan)
    pictures = sum(min(plan.pictures, images) for images in plan.conditions.values())
    stored = (found.stored * plan.images + found.picture * pictures) / 1e6
    hours = found.seconds * plan.images / workers / 3600
    return "\n".join(
        [
            *lines,
            f"{found.blocks * plan.images:,.0f} blocks in all, by the images tried",
            f"about {_duration(hours)} with {workers} workers, {found.seconds:.2f} s per image (measured here)",
            f"about {stored:,.1f} MB of results",
        ]
    )


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:.0f} seconds"
