"""What evaluating costs beyond the model: wall time of units over bare model calls, and pairs over single runs.

Two ratios, each measured side by side in one run on the embedded 12-block model and drawn scenes:
  overhead  a part (compare checksums, decode, shift, predict both methods, count, store) / the paired calls alone, in
            memory
  pairing   the paired calls / a baseline call and a replayed call
and, per image, what comparing its files with their checksums, preparing (the same, decode, shift, labels) and storing
take on their own.
Rounds alternate, and the medians of each side are compared. Core time, which other work on the machine
disturbs less, also counts what is done in the thread that prepares images ahead. Next to the pairing is what
blocks alone would give: a pair runs the replay's blocks, two single runs those and those of the baseline pass.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from gramloop.data.records import refuse_change
from gramloop.data.scenes import SceneFiles, draw_scenes
from gramloop.evaluate.methods import blocks_per_view
from gramloop.evaluate.plan import DataSource
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.runner import Runner
from gramloop.evaluate.store import open_folder
from gramloop.models.tiny import WEIGHTS
from gramloop.tasks.base import read_labelled
from gramloop.util.device import deterministic


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Wall time and core time."""
    began = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def ratio(over: list[tuple[float, float]], under: list[tuple[float, float]]) -> str:
    wall, core = (
        statistics.median(one[kind] for one in over) / statistics.median(one[kind] for one in under)
        for kind in (0, 1)
    )
    return f"{wall:.3f} of wall time, {core:.3f} of core time"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10, help="per round")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for task in ("semantic", "detection"):
            measure(task, Path(scratch), args.images, args.rounds)


def measure(task: str, scratch: Path, images: int, rounds: int) -> None:
    draw_scenes(scratch / "scenes", SceneFiles(2 * images))
    plan = make_plan(
        Request(
            "scenes-c",
            task,  # type: ignore[arg-type]
            {"folder": str(WEIGHTS)},
            DataSource(str(scratch / "scenes")),
            conditions=["fog"],
            severities=[3],
            shards=2,
        )
    )
    store, part = open_folder(scratch / task, plan), plan.parts[1]
    runner = Runner(plan_workload(plan), store)
    records = runner.images.records(part.condition, part.images)
    pixels = [record.image() for record in records]
    predict, replay = runner.predictor.predict, plan.methods[1].replay

    def paired() -> None:
        for image in pixels:
            predict(image, replay, paired=True, trace=False)

    def separate() -> None:
        for image in pixels:
            predict(image)
        for image in pixels:
            predict(image, replay, trace=False)

    def evaluated() -> None:
        list(runner.run([part]))

    def compared() -> None:
        for record in records:
            refuse_change(record)

    def prepared() -> None:
        for record in records:
            read_labelled(record, plan.task)

    finished = runner.run_one(part)

    def stored() -> None:
        runner._keep(finished, [])

    sides: dict[str, list[tuple[float, float]]] = {"paired": [], "separate": [], "evaluated": []}
    with deterministic(1):
        for round_number in range(rounds + 1):
            for name, call in (("paired", paired), ("evaluated", evaluated), ("separate", separate)):
                took = seconds(call)
                if round_number:  # the first one warms up
                    sides[name].append(took)
    each = statistics.median(pair[1] for pair in sides["paired"]) / images
    print(f"{task}: {images} images, {rounds} rounds, {each * 1e3:.0f} core-ms per pair")
    extra = {
        call.__name__: statistics.median(seconds(call)[1] for _ in range(rounds))
        for call in (compared, prepared, stored)
    }
    parts = ", ".join(f"{name} {took / images * 1e3:.2f}" for name, took in extra.items())
    print(f"  core-ms per image on their own           {parts}")
    print(f"  overhead  evaluate / bare paired calls   {ratio(sides['evaluated'], sides['paired'])}")
    print(f"  pairing   paired / baseline + replayed   {ratio(sides['paired'], sides['separate'])}")
    depth = plan.model.depth
    blocks = blocks_per_view(plan.methods, depth)
    print(f"            blocks alone: {blocks} / ({depth} + {blocks}) = {blocks / (depth + blocks):.3f}")


if __name__ == "__main__":
    main()
