"""Whether a GPU would wait: evaluate with a model that only waits, against its waiting and against preparing alone.

    python benchmarks/pipeline.py                # all of COCO-C's conditions, about 10 minutes on two cores
    python benchmarks/pipeline.py --quick        # severity 3, few images

Landscapes of 640 x 480 are drawn in COCO's layout, and shifted as COCO-C is. The model sleeps for 5, 20 and 100 ms an
image, as the process next to a GPU does. In one run, for each:
  model        the waiting alone, of all images
  preparation  comparing checksums, decoding, shifting and reading the truth of all images, in N processes without a model;
               where it takes longer than the model, the mean of one before and one after the evaluation
  evaluate     the whole: one model process, N preparing processes, stored units and scores, less its start, which is that
               of an evaluation of one image (the median of three)
  ratio        evaluate / max(model, preparation)
and the processor time of the model's process for each image, which other work on the machine disturbs less; and the most
memory of all processes together (proportional set size, every second).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from corrupt_throughput import draw_set
from gramloop.data.records import Record
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import DataSource, Plan
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.provenance import PlannedImages
from gramloop.tasks.base import read_labelled
from gramloop.util.processes import available_cores, process_context, process_pool

WAITING = """
import time
import numpy as np
from gramloop.data.scenes import THINGS
from gramloop.tasks.detection import Detection

BOXES = np.array([[10, 20, 110, 220], [200, 100, 400, 300], [5, 5, 60, 60]], np.float32)

def make():
    def predict(image):
        time.sleep({seconds})
        return Detection(BOXES.copy(), np.array([0.9, 0.6, 0.3], np.float32), np.array([1, 2, 3]))
    predict.task = "detection"
    predict.classes = {{number: name for number, name in enumerate(THINGS, 1)}}
    return predict
"""
BAR = 1.1


class Spent(NamedTuple):
    """What an evaluation took: seconds, and seconds of a core in the model's process."""

    wall: float
    cores: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less than 90 s on two cores")
    parser.add_argument("--images", type=int, help="of each condition (100, or 18 with --quick)")
    parser.add_argument("--processes", type=int, default=available_cores(), help="that prepare images")
    parser.add_argument("--milliseconds", type=int, nargs="+", default=[5, 20, 100])
    args = parser.parse_args()
    images = args.images or (18 if args.quick else 100)
    severities = [3] if args.quick else []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        took = draw_set(folder / "set", images)
        print(f"{images} pictures drawn in {took:.1f} s; {args.processes} preparing processes")
        whole = planned(folder, 0, images, severities)
        each = [prepare_alone(whole, args.processes)]
        print(f"preparing alone: {1e3 * each[0]:.2f} ms an image with {args.processes} processes")
        start = starting(folder, args.processes)
        print(f"start, which happens once and is taken off: {start.wall:.1f} s (an evaluation of one image)")
        print("  ms   images    model s   preparation s   evaluate s   ratio   own core-ms   memory MB")
        for wait in args.milliseconds:
            plan = planned(folder, wait, images if wait < 50 else max(2, images // 4), severities)
            model = waiting_alone(wait / 1e3, plan.images)
            with peak_memory() as peak:
                spent = evaluated(plan, folder / "out", args.processes)
            if model < each[-1] * plan.images:
                each.append(prepare_alone(whole, args.processes))
            preparation = sum(each[-2:]) / len(each[-2:]) * plan.images
            print(row(wait, plan.images, model, preparation, spent, start, peak[0]), flush=True)


def row(
    wait: int, images: int, model: float, preparation: float, spent: Spent, start: Spent, memory: int
) -> str:
    wall, own = spent.wall - start.wall, spent.cores - start.cores
    ratio = wall / max(model, preparation)
    return (
        f"{wait:4d} {images:8d} {model:10.1f} {preparation:15.1f} {wall:12.1f} {ratio:7.3f} "
        f"{1e3 * own / images:13.2f} {memory / 1e6:11.0f}{'' if ratio <= BAR else '   above the bar of 1.1'}"
    )


def starting(folder: Path, processes: int) -> Spent:
    """What an evaluation of one image takes, once this process has imported what it needs."""
    tries = [evaluated(planned(folder, 0, 1, [3], ["contrast"]), folder / "out", processes) for _ in range(4)]
    return sorted(tries[1:])[1]


def planned(
    folder: Path, wait: int, images: int, severities: list[int], conditions: list[str] | None = None
) -> Plan:
    model = folder / f"waiting_{wait}.py"
    model.write_text(textwrap.dedent(WAITING.format(seconds=wait / 1e3)))
    request = Request(
        "vga-c",
        "detection",
        {"make": f"{model}:make"},
        DataSource(str(folder / "set")),
        methods=["baseline"],
        conditions=conditions or [],
        severities=severities,
        images=images,
    )
    return make_plan(request)


def prepare_alone(plan: Plan, processes: int) -> float:
    """Seconds an image to prepare all of a plan, once all processes run."""
    images = PlannedImages(plan)
    records = [record for key in plan.conditions for record in images.data(key)]
    with process_pool(processes, process_context("gramloop.evaluate.loader")) as pool:
        list(pool.map(_prepare, [records[:1]] * 2 * processes))
        few = [records[start : start + 8] for start in range(0, len(records), 8)]
        began = time.perf_counter()
        list(pool.map(_prepare, few))
        return (time.perf_counter() - began) / len(records)


def _prepare(records: Sequence[Record]) -> int:
    return sum(isinstance(read_labelled(record, "detection"), str) for record in records)


def evaluated(plan: Plan, out: Path, processes: int) -> Spent:
    began, cores = time.perf_counter(), time.process_time()
    evaluate(plan, out, workers=1, prepare=processes)
    spent = Spent(time.perf_counter() - began, time.process_time() - cores)
    shutil.rmtree(out)
    return spent


def waiting_alone(seconds: float, images: int) -> float:
    """The waiting of so many images, by the mean of some: a system sleeps a little longer than asked."""
    some = 100
    began = time.perf_counter()
    for _ in range(some):
        time.sleep(seconds)
    return (time.perf_counter() - began) / some * images


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """The most memory of this process and all below it, in bytes; shared pages count once."""
    found, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(1.0):
            found[0] = max(found[0], sum(_memory(each) for each in _family()))

    watching = threading.Thread(target=look, daemon=True)
    watching.start()
    try:
        yield found
    finally:
        done.set()
        watching.join()


def _family() -> list[int]:
    found, left = [], ["self"]
    while left:
        place = Path("/proc") / left.pop()
        try:
            found.append(int(place.resolve().name))
            left += [word for each in place.glob("task/*/children") for word in each.read_text().split()]
        except (OSError, ValueError):
            continue
    return found


def _memory(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    main()
