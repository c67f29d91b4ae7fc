"""What an evaluation costs: estimated by trying a few of its images, and measured method by method."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from gramloop.data.records import Image8
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import Method, blocks_per_view
from gramloop.evaluate.plan import Part, Plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.runner import Runner
from gramloop.tasks.base import read_labelled
from gramloop.util.device import available_devices, peak_memory, release_memory, reset_peak
from gramloop.util.files import atomic_write
from gramloop.util.forward_patch import counting
from gramloop.util.json_files import read_checked

TRIED = 3  # images of an estimate
COSTS = "costs.json"  # in a results folder


@dataclass(frozen=True)
class MethodCost:
    """What one method costs alone, on a sample of images."""

    method: str
    images: int
    seconds: float  # the median over images
    spread: float  # between the quartiles
    blocks: float  # transformer blocks executed, the mean over images
    peak_memory: int  # bytes of tensors, weights among them, alive at once while an image is predicted
    reading: float = 0.0  # seconds to read and shift an image, the median; no part of ``seconds``


def measure_cost(
    plan: Plan, methods: Sequence[Method] | None = None, images: int = 8, device: str | None = None
) -> list[MethodCost]:
    """Time each method alone on the first images of the first condition, after one to warm up.

    Memory is what PyTorch allocated for tensors: by CUDA's own count of any image; elsewhere counted tensor by tensor
    while the largest image is predicted to warm up, since the memory of a process hardly shows what one method needs.

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
    runner = Runner(plan_workload(plan), device=device)
    key, many = next(iter(plan.conditions.items()))
    pixels: list[Image8] = []
    reading: list[float] = []
    for record in runner.images.records(key, range(min(images, many))):
        began = time.perf_counter()
        read = read_labelled(record, plan.task, labels=False)
        reading.append(time.perf_counter() - began)
        pixels += [] if isinstance(read, str) else [read.pixels]
    found: dict[str, list[tuple[float, int, int]]] = {method.name: [] for method in chosen}
    for image in [*sorted(pixels, key=lambda each: each.size)[-1:], *pixels]:
        for method in chosen:
            found[method.name].append(_measured(runner, image, method, warm=not found[method.name]))
    costs = []
    for name, each in found.items() if pixels else ():
        seconds, blocks, peaks = zip(*each, strict=True)
        low, middle, high = np.percentile(seconds[1:], [25, 50, 75]).tolist()
        spent = middle, high - low, float(np.mean(blocks[1:])), max(peaks)
        costs.append(MethodCost(name, len(pixels), *spent, float(np.median(reading))))
    return costs


def _measured(runner: Runner, image: Image8, method: Method, warm: bool) -> tuple[float, int, int]:
    """Seconds, blocks and peak memory of one prediction; off GPUs, memory is counted in the first one."""
    from gramloop.util.live_tensors import LiveTensors

    gpu, live = runner.device.type == "cuda", LiveTensors()
    if warm:
        release_memory(runner.device)
        gc.collect()  # and not while tensors are counted: what is alive must not depend on when Python collects
    reset_peak(runner.device)
    collects = gc.isenabled()
    with counting(runner.predictor.blocks) as counter, live if warm and not gpu else nullcontext():
        gc.disable()
        try:
            began = time.perf_counter()
            runner.predict(image, [method], trace=False)
            took = time.perf_counter() - began
        finally:
            if collects:
                gc.enable()
    return took, counter.blocks, peak_memory(runner.device) if gpu else live.peak


def time_methods(plan: Plan, folder: Path, device: str | None = None) -> None:
    """Measure methods alone on a few images, all at one moment, where the results folder lacks one of them."""
    known = {each.method for each in stored_costs(folder / COSTS)}
    if any(method.name not in known for method in plan.methods):
        store_costs(folder / COSTS, measure_cost(plan, images=TRIED, device=device))


def store_costs(file: Path, costs: Sequence[MethodCost]) -> None:
    """Keep what was measured."""
    atomic_write(file, (json.dumps([asdict(each) for each in costs], indent=1) + "\n").encode())


def stored_costs(file: Path) -> list[MethodCost]:
    """What was measured; nothing where there is no such file."""
    return read_checked(file, list[MethodCost], "a file of costs of methods") if file.is_file() else []


def describe_plan(plan: Plan, workers: int) -> str:
    """A plan and its cost in a few lines; images are tried where the plan's device is on this machine."""
    blocks, depth = blocks_per_view(plan.methods, plan.model.depth, plan.diagnostics), plan.model.depth
    lines = [
        f"plan {plan.hash}: {plan.suite}, {plan.task}, methods {', '.join(each.name for each in plan.methods)}",
        f"{len(plan.conditions)} conditions, {len(plan.units)} units, {plan.images} images",
        *([] if plan.calibration_split is None else [str(plan.calibration_split)]),
        f"{blocks} blocks per view of an image ({blocks / depth:.2f} baseline passes of {depth})",
    ]
    if plan.model.device not in {name.partition(":")[0] for name in available_devices()}:
        return "\n".join([*lines, f"time and storage are left out: there is no {plan.model.device} here"])
    seconds, executed, stored = _try_images(plan)
    hours = seconds * plan.images / workers / 3600
    duration = f"{hours:,.1f} hours" if hours >= 1 else f"{hours * 60:,.1f} minutes"
    lines += [
        f"{executed * plan.images:,.0f} blocks in all, by the first image",
        f"about {duration} with {workers} workers, {seconds:.2f} s per image (measured here)",
        f"about {stored / 1e6:,.1f} MB of results",
    ]
    return "\n".join(lines)


def _try_images(plan: Plan) -> tuple[float, int, float]:
    """Seconds of an image with all methods, blocks of the first one, and bytes of all results; nothing is written."""
    key, images = next(iter(plan.conditions.items()))
    tried, runner = min(TRIED, images), Runner(plan_workload(plan))
    with counting(runner.predictor.blocks) as counter:
        runner.run_one(Part(key, range(1), plan.methods))  # to warm up
    finished = runner.run_one(Part(key, range(tried), plan.methods))
    for rows in finished.rows.values():
        if rows.failures:
            raise GramLoopError(f"an image to be tried cannot be used: {rows.failures[0].reason}")
    facts = next(iter(finished.facts.values()))
    stored = _stored_bytes(plan, [rows.table() for rows in finished.rows.values()], tried)
    return facts.wall_seconds / tried, counter.blocks, stored


def _stored_bytes(plan: Plan, tables: Sequence[Any], tried: int) -> float:
    """The size of all units, by the tables of a few images: the first ones of a condition keep pictures too."""
    names = list(plan.load_task().columns)
    statistics = sum(_row_bytes(table.select(names)) for table in tables)
    pictures = sum(map(_row_bytes, tables)) - statistics
    kept = sum(min(plan.pictures, images) for images in plan.conditions.values())
    empty = sum(_file_bytes(table.slice(0, 0)) for table in tables) / len(tables)
    per_picture = pictures / max(1, min(plan.pictures, tried))
    return empty * len(plan.units) + statistics / tried * plan.images + per_picture * kept


def _row_bytes(table: Any) -> int:
    return _file_bytes(table) - _file_bytes(table.slice(0, 0))


def _file_bytes(table: Any) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return int(sink.getvalue().size)
