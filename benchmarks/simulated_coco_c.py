"""COCO-C at its full size through plan, store, status, resume, report and image bootstrap, with predictions made up by rule.

75 conditions x 5,000 images x 2 methods, about 100 boxes an image: what a run of days on many GPUs leaves behind. Every
step runs in a process of its own; its seconds and the peak memory of it and its children are printed beside the bar.

    python benchmarks/simulated_coco_c.py --out DIR                               # all of it; steps that are done are kept
    python benchmarks/simulated_coco_c.py --out DIR --images 500 --conditions 15  # smaller
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from gramloop.data.suites import find_suite
from gramloop.evaluate.engines import Job
from gramloop.evaluate.plan import DataSource, Part, Plan, Workload
from gramloop.evaluate.planning import Request, make_plan
from gramloop.evaluate.provenance import PlannedImages, plan_workload
from gramloop.evaluate.rows import Facts, UnitRows
from gramloop.evaluate.runner import Done
from gramloop.evaluate.store import PLAN, UNITS, Store, open_folder, plan_in
from gramloop.metrics.bootstrap import REPLICATES, mean_interval
from gramloop.util.processes import process_context, process_pool
from simulated_set import made_up, write_set

SECONDS, BYTES = 600, 8 * 10**9  # the bar for every step
LOOK = 0.1  # seconds between looks at the memory
SUITE = "coco-c"
MISSING, DAMAGED = 5, 3  # units, before the resume
MODEL = f"{Path(__file__).parent / 'simulated_set.py'}:detector"


@dataclass(frozen=True)
class Size:
    """How much is simulated, and where."""

    out: Path
    images: int
    conditions: int
    detections: int
    workers: int

    @property
    def results(self) -> Path:
        """The folder of the whole run."""
        return self.out / "results"


def write_images(size: Size) -> str:
    write_set(size.out / "set", size.images)
    return f"{size.images} images"


def plan(size: Size) -> str:
    """As `gramloop evaluate` plans it: every image hashed once, the model fingerprinted."""
    chosen = find_suite(SUITE).conditions[: size.conditions]
    data = DataSource(str((size.out / "set").resolve()), partial=True)
    request = Request(SUITE, "detection", {"make": MODEL}, data, methods=("baseline", "gramloop"))
    whole = make_plan(request)
    kept = {condition.key: whole.conditions[condition.key] for condition in chosen}
    made = Plan(**{**vars_of(whole), "conditions": kept})
    open_folder(size.results, made)
    return f"{len(made.units)} units, {made.images * len(made.methods):,} predictions"


def vars_of(made: Plan) -> dict[str, Any]:
    return {name: getattr(made, name) for name in Plan.__dataclass_fields__}


def store(size: Size) -> str:
    stored = Store(size.results, plan_in(size.results))
    missing = [part for part in stored.plan.parts if not stored.path(part.units[-1]).is_file()]
    for _ in engine(Job(plan_workload(stored.plan), stored, missing), size):
        pass
    held = sum(path.stat().st_size for path in (size.results / UNITS).rglob("*.parquet"))
    return f"{held / 1e9:.1f} GB in {len(stored.plan.units)} files"


def engine(job: Job, size: Size) -> Iterator[Done]:
    """Units whose predictions are made up, in several processes; all else is the product's."""
    if size.workers < 2:
        _start(job.store, size.detections)
        yield from map(_part, job.parts)
        return
    with process_pool(size.workers, process_context(), _start, job.store, size.detections) as pool:
        for future in as_completed([pool.submit(_part, part) for part in job.parts]):
            yield future.result()


_work: tuple[Store[Plan], Workload, Any, int] | None = None


def _start(stored: Store[Plan], detections: int) -> None:
    global _work
    clean = PlannedImages(stored.plan).opened.clean
    assert clean is not None
    truths = [(int(record.image_id), record.instances()) for record in clean]
    _work = stored, plan_workload(stored.plan), truths, detections


def _part(part: Part) -> Done:
    assert _work is not None
    stored, workload, truths, detections = _work
    for unit in part.units:
        began, method = time.perf_counter(), unit.method
        rows, blocks = UnitRows(workload, stored.task, unit), method.blocks(stored.plan.model.depth)
        for position in unit.images:
            image, truth = truths[position]
            found = made_up(image, unit.condition, method.name, truth, detections, blocks)
            rows.add(position, str(image), found, truth)
        spent = time.perf_counter() - began
        stored.write(unit, rows.table(), (), (), Facts(spent, "", spent, 10**9, "cpu", "simulated"))
    return Done(part)


def status(size: Size, folder: str = "results") -> str:
    printed = _gramloop("evaluate", "--out", size.out / folder, "--status").splitlines()
    return next(line for line in printed if "units are stored" in line)


def linked(size: Size, name: str, keep: Callable[[int], bool]) -> Store[Plan]:
    """Another folder of results that holds some of the units, without copying them."""
    made = plan_in(size.results)
    whole, other = Store(size.results, made), Store(size.out / name, made)
    shutil.rmtree(other.folder, ignore_errors=True)
    other.folder.mkdir()
    shutil.copy(size.results / PLAN, other.folder / PLAN)
    for place, unit in enumerate(made.units):
        if keep(place):
            other.path(unit).parent.mkdir(parents=True, exist_ok=True)
            os.link(whole.path(unit), other.path(unit))
    return other


def half(size: Size) -> str:
    """The status of a run that has every second unit of every condition but the first, which is whole."""
    made = plan_in(size.results)
    first = len(made.parts_of(find_suite(SUITE).conditions[0].key)) * len(made.methods)
    linked(size, "half", lambda place: place < first or place % 2 == 0)
    return status(size, "half")


def resume(size: Size) -> str:
    """`evaluate` on a folder that lost a few units and has a few damaged ones, with the display that a user sees."""
    from gramloop.evaluate.display import Display
    from gramloop.evaluate.evaluation import evaluate

    units = plan_in(size.results).units
    places = [place * len(units) // (MISSING + DAMAGED) for place in range(MISSING + DAMAGED)]
    other = linked(size, "resumed", lambda place: place not in places)
    for place in places[MISSING:]:
        content = bytearray(Store(size.results, other.plan).path(units[place]).read_bytes())
        content[len(content) // 3] ^= 1
        other.path(units[place]).parent.mkdir(parents=True, exist_ok=True)
        other.path(units[place]).write_bytes(content)
    results = evaluate(other.plan, other.folder, engine=partial(engine, size=size), listener=Display())
    return f"{len(set(places))} units computed again, {len(results.warnings)} of them damaged"


def score(size: Size) -> str:
    from gramloop.evaluate.results import collect, write_results

    stored = Store(size.results, plan_in(size.results))
    results = collect(stored)
    write_results(stored, results)
    means = [results.mean(name) for name in ("baseline", "gramloop")]
    return ", ".join(f"{mean:.3f}" for mean in means if mean is not None)


def report(size: Size) -> str:
    printed = _gramloop("report", size.results, "--out", size.out / "report")
    return printed.strip().splitlines()[0]


def bootstrap(size: Size, replicates: int = REPLICATES) -> str:
    """The interval of the paired gain over images drawn with all their shifted versions."""
    from gramloop.report.load import load_runs, report_workers
    from gramloop.report.stats import resample

    run = load_runs([size.results]).runs[0]
    drawn = resample(run, "images", replicates=replicates, workers=report_workers([run.plan]))
    return f"gain {mean_interval([drawn.difference('gramloop', 'baseline')], drawn.units)}"


def _gramloop(*words: object) -> str:
    """What a command prints; every step is a process of its own already."""
    from gramloop.cli import main as command

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = command([str(word) for word in words])
    if code:
        raise SystemExit(f"gramloop {words[0]} ended with exit code {code}")
    return printed.getvalue()


STEPS: dict[str, tuple[str, Callable[[Size], str]]] = {
    "set": ("the set is written", write_images),
    "plan": ("planning", plan),
    "store": ("storing", store),
    "score": ("scoring", score),
    "status": ("status, everything stored", status),
    "half": ("status, half stored", half),
    "resume": ("resume, a few units missing or damaged", resume),
    "report": ("report", report),
    "bootstrap": ("image bootstrap of the gain", bootstrap),
}


def tree_memory(process: int) -> int:
    """Bytes of a process and of all below it; pages that several share are counted once."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        own = int(rollup.partition("\nPss:")[2].split()[0]) * 1024
        tasks = list(Path(f"/proc/{process}/task").iterdir())
        children = [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except (OSError, IndexError):  # ended meanwhile
        return 0
    return own + sum(map(tree_memory, children))


def run_step(name: str, words: Sequence[str]) -> dict[str, Any]:
    """One step in a process of its own."""
    began, peak = time.perf_counter(), 0
    command = [sys.executable, str(Path(__file__).resolve()), *words, "--only", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            peak = max(peak, tree_memory(process.pid))
            time.sleep(LOOK)
        printed = process.stdout.read() if process.stdout is not None else ""
    if process.returncode:
        raise SystemExit(f"{name} failed with exit code {process.returncode}")
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "bytes": peak, "printed": printed.strip().splitlines()[-1]}


def row(name: str, found: dict[str, Any]) -> str:
    within = found["seconds"] <= SECONDS and found["bytes"] <= BYTES
    verdict = "" if name == "set" else "yes" if within else "no"
    return f"| {STEPS[name][0]} | {found['seconds']:.0f} | {found['bytes'] / 1e9:.2f} | {verdict} | {found['printed']} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--conditions", type=int, default=75)
    parser.add_argument("--detections", type=int, default=100, help="boxes an image (100)")
    parser.add_argument("--workers", type=int, default=2, help="processes that store (2)")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="some of the steps")
    parser.add_argument("--again", action="store_true", help="measure steps again that are done")
    parser.add_argument("--only", choices=STEPS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = Size(args.out, args.images, args.conditions, args.detections, args.workers)
    if args.only:
        print(STEPS[args.only][1](size))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    file, shape = args.out / "steps.json", [size.images, size.conditions, size.detections]
    kept = json.loads(file.read_text()) if file.is_file() else {"size": shape, "steps": {}}
    if kept["size"] != shape:
        raise SystemExit(
            f"{args.out} holds a run of {kept['size']} images, conditions and boxes, not {shape}"
        )
    words = ["--out", str(args.out), *("--images", str(size.images), "--conditions", str(size.conditions))]
    words += ["--detections", str(size.detections), "--workers", str(size.workers)]
    print(
        f"{size.conditions} conditions x {size.images} images x 2 methods, {date.today()}, {os.cpu_count()} cores"
    )
    print("| step | seconds | peak GB | at most 600 s and 8 GB | |\n|---|---|---|---|---|", flush=True)
    for name in args.steps:
        if args.again or name not in kept["steps"]:
            kept["steps"][name] = run_step(name, words)
            file.write_text(json.dumps(kept, indent=1))
        print(row(name, kept["steps"][name]), flush=True)


if __name__ == "__main__":
    main()
