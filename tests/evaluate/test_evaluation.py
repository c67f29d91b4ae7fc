"""However the work is shared out, interrupted or resumed, the results are the same to the byte."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate import engines
from gramloop.evaluate.engines import Listener, run_local
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import parse_method
from gramloop.evaluate.plan import Plan, read_plan
from gramloop.evaluate.store import Store, open_folder
from gramloop.metrics.segmentation import class_iou
from killing import children, hit, needs_proc
from small_runs import job_of, small_plan, stored_counts

METHODS = ["baseline", "gramloop", "matched"]


def table(folder: Path) -> bytes:
    return (folder / "results.csv").read_bytes()


def backwards(parts):
    return tuple(parts)[::-1]


def shuffled(parts):
    return random.Random(5).sample(list(parts), len(parts))


def ordered(order):
    """An engine that runs parts in another order."""
    return lambda job: run_local(replace(job, parts=order(job.parts)), 1)


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, methods=METHODS)


@pytest.fixture(scope="module")
def reference(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "out"
    evaluate(plan, folder, workers=1)
    return folder


def test_the_table_is_that_of_a_direct_computation(plan: Plan, reference: Path):
    import csv

    rows = list(csv.DictReader((reference / "results.csv").read_text().splitlines()))
    assert len(rows) == 3 * 3 + 3
    for row in rows[:9]:
        sums = stored_counts(reference, plan, row["condition"], row["method"]).sum(axis=0)
        intersection, union = sums[0].astype(np.float64), (sums[1] + sums[2] - sums[0]).astype(np.float64)
        direct = 100 * np.mean([i / u for i, u in zip(intersection, union, strict=True) if u > 0])
        assert float(row["mIoU"]) == pytest.approx(direct, abs=1e-12)
        assert np.nanmax(class_iou(sums)) <= 100
        assert row["images"] == "11"
    for place, name in enumerate(METHODS):
        mine = [float(row["mIoU"]) for row in rows[:9] if row["method"] == name]
        assert float(rows[9 + place]["mIoU"]) == pytest.approx(np.mean(mine), abs=1e-12)
        gain = float(rows[9 + place]["mIoU"]) - float(rows[9]["mIoU"])
        assert rows[9 + place]["mIoU gain"] == ("" if name == "baseline" else repr(gain))
    assert float(rows[10]["mIoU gain"]) != 0


@pytest.mark.parametrize("order", [backwards, shuffled])
@pytest.mark.parametrize("shards", [1, 7, 11])
def test_shards_and_order_change_nothing(
    plan, reference, scene_folder, model_folder, tmp_path, shards, order
):
    other = small_plan(model_folder, scene_folder, methods=METHODS, shards=shards)
    evaluate(other, tmp_path / "out", engine=ordered(order))
    assert table(tmp_path / "out") == table(reference)


def test_two_processes_change_nothing(plan, reference, tmp_path):
    seen: list[int] = []

    class Counting(Listener):
        def images(self, number: int) -> None:
            seen.append(number)

    evaluate(plan, tmp_path / "out", workers=2, listener=Counting())
    assert table(tmp_path / "out") == table(reference)
    assert sum(seen) == plan.images
    starts = json.loads((tmp_path / "out" / "manifest.json").read_text())["starts"]
    assert [start["workers"] for start in starts] == [2]


def test_detections_do_not_depend_on_shards_either(scene_folder, model_folder, tmp_path):
    for shards, order in ((1, tuple), (7, backwards)):
        plan = small_plan(model_folder, scene_folder, "detection", shards=shards)
        evaluate(plan, tmp_path / str(shards), engine=ordered(order))
    assert table(tmp_path / "1") == table(tmp_path / "7")
    assert b"mean,gramloop" in table(tmp_path / "1")


def test_what_is_stored_is_not_computed_again(plan, reference, tmp_path):
    shutil.copytree(reference, tmp_path / "out")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    gone = Store(tmp_path / "out", plan).path(plan.units[4])  # a replay: the baseline stays
    gone.unlink()
    ran: list[str] = []

    class Recording(Listener):
        def outcome(self, outcome) -> None:
            ran.extend(unit.name for unit in outcome.part.units)

    evaluate(plan, tmp_path / "out", workers=1, listener=Recording())
    assert ran == [plan.units[4].name]
    assert all(path.stat().st_mtime_ns == before for path, before in times.items() if path != gone)
    assert table(tmp_path / "out") == table(reference)


def test_a_torn_file_is_named_and_computed_again_and_a_foreign_one_refused(plan, reference, tmp_path):
    shutil.copytree(reference, tmp_path / "out")
    store = Store(tmp_path / "out", plan)
    torn, foreign = store.path(plan.units[0]), store.path(plan.units[4])
    content = foreign.read_bytes()
    torn.write_bytes(torn.read_bytes()[:-9])
    shutil.copy(store.path(plan.units[3]), foreign)
    with pytest.raises(GramLoopError, match=r"holds another part of the plan .*; move it away"):
        evaluate(plan, tmp_path / "out", workers=1)
    foreign.write_bytes(content)
    [rejected] = evaluate(plan, tmp_path / "out", workers=1).warnings
    assert f"{torn} is torn or damaged" in rejected
    assert table(tmp_path / "out") == table(reference)
    assert not store.survey(plan.parts)[1]


def test_a_method_is_added_to_a_finished_folder_and_only_that_is_run(
    plan, reference, model_folder, scene_folder, tmp_path
):
    """One replay after the other: every unit of the new method is run once, none of the others."""
    ran: Counter[str] = Counter()

    class Recording(Listener):
        def outcome(self, outcome) -> None:
            ran.update(method.name for method in outcome.part.methods)

    for names in (["baseline"], ["gramloop"], ["baseline", "matched"], METHODS):
        ran.clear()
        some = small_plan(model_folder, scene_folder, methods=names)
        outcome = evaluate(some, tmp_path / "out", workers=1, listener=Recording())
        assert ran == ({} if names == METHODS else {names[-1]: len(plan.parts)})
    assert [method.name for method in outcome.plan.methods] == METHODS
    assert table(tmp_path / "out") == table(reference)
    assert [method.name for method in read_plan(tmp_path / "out" / "plan.json").methods] == METHODS
    other = replace(plan, methods=(parse_method("baseline"), replace(plan.methods[1], name="matched")))
    with pytest.raises(GramLoopError, match="holds the method matched with other settings"):
        evaluate(other, tmp_path / "out", workers=1)


def test_an_error_in_a_worker_arrives_as_itself(plan, tmp_path):
    shutil.copytree(plan.data.root, tmp_path / "set")
    with (tmp_path / "set" / "images" / "validation" / "00000000.png").open("ab") as stream:
        stream.write(b"\0")
    moved = replace(plan, data=replace(plan.data, root=str(tmp_path / "set")))
    open_folder(tmp_path / "out", moved)
    with pytest.raises(GramLoopError, match="changed since"):
        list(run_local(job_of(moved, tmp_path / "out"), 2))
    with pytest.raises(GramLoopError, match="workers must be at least 1"):
        list(run_local(job_of(plan, tmp_path / "out"), 0))


def _evaluate(folder: Path, workers: int) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    with contextlib.suppress(KeyboardInterrupt):
        evaluate(read_plan(folder / "plan.json"), folder, workers=workers)
        sys.exit(0)
    sys.exit(130)


def stored_units(folder: Path) -> int:
    return sum(1 for _ in folder.glob("units/*/*/[0-9]*.parquet"))


def hit_evaluation(folder: Path, workers: int, number: signal.Signals, units: int) -> int:
    """Send a signal to an evaluation once so many units exist; the exit code."""
    return hit(_evaluate, (folder, workers), number, lambda: stored_units(folder) >= units)


def check_kills(plan: Plan, expected: bytes, folder: Path, kills: int, parallel: int) -> None:
    """Killed so often at random, every ``parallel``-th time with two workers; then resumed to the end."""
    draw, killed, total = random.Random(20261115), 0, len(plan.units)
    open_folder(folder, plan)
    while killed < kills:
        present = stored_units(folder)
        if present > 0.9 * total:  # too little is left to hit: see this one through and begin again
            evaluate(plan, folder, workers=1)
            assert table(folder) == expected
            shutil.rmtree(folder)
            open_folder(folder, plan)
            present = 0
        workers = 2 if (killed + 1) % parallel == 0 else 1
        aim = present + draw.randint(0, max(1, (total - present) // 3))
        killed += hit_evaluation(folder, workers, signal.SIGKILL, aim) == -signal.SIGKILL
    evaluate(plan, folder, workers=1)
    assert table(folder) == expected
    assert stored_units(folder) == total


@needs_proc
def test_kills_and_resumes_give_the_table_of_one_run(reference, scene_folder, model_folder, tmp_path):
    plan = small_plan(model_folder, scene_folder, methods=METHODS, shards=7)
    check_kills(plan, table(reference), tmp_path / "out", kills=3, parallel=99)


@needs_proc
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_interrupt_stops_cleanly(plan, reference, tmp_path, workers):
    open_folder(tmp_path / "out", plan)
    code = hit_evaluation(tmp_path / "out", workers, signal.SIGINT, 2)
    assert code in (0, 130)  # 0: it was through before the signal came
    assert stored_units(tmp_path / "out") >= 2
    assert not Store(tmp_path / "out", plan).survey(plan.parts)[1]
    assert not list((tmp_path / "out").rglob(".gramloop-*"))
    evaluate(plan, tmp_path / "out", workers=1)
    assert table(tmp_path / "out") == table(reference)


def _evaluate_or_say(folder: Path) -> None:
    """Evaluate with a pipe of one page for the results of workers, which is soon full while nothing reads it."""
    make_context = engines.process_context

    def with_small_pipe(*names):
        context = make_context(*names)
        ends = context.Pipe(duplex=False)
        fcntl.fcntl(ends[1].fileno(), fcntl.F_SETPIPE_SZ, 4096)
        context.Pipe = lambda duplex: ends
        return context

    engines.process_context = with_small_pipe
    try:
        evaluate(read_plan(folder / "plan.json"), folder, workers=2)
    except GramLoopError as error:
        (folder / "said").write_text(str(error))
        sys.exit(2)


@needs_proc
@pytest.mark.slow
def test_workers_that_are_killed_within_a_result_end_the_run_with_a_sentence(
    scene_folder, model_folder, tmp_path
):
    """A process that does not listen for a while lets the pipe fill up, so that workers wait within a result."""
    out = tmp_path / "out"
    names = ["fog", "contrast", "frost", "brightness", "saturate", "pixelate"]
    plan = small_plan(model_folder, scene_folder, conditions=names, shards=11, severities=[1, 2, 3, 4, 5])
    open_folder(out, plan)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_evaluate_or_say, args=(out,))
    process.start()
    while not stored_units(out):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGSTOP)
    before = -1
    while before < (before := stored_units(out)):
        time.sleep(4)
    assert before < len(plan.units), "the pipe held everything; this needs more units"
    for worker in [one for each in children(process.pid) for one in children(each)]:
        os.kill(worker, signal.SIGKILL)
    os.kill(process.pid, signal.SIGCONT)
    process.join(60)
    assert process.exitcode == 2
    assert "a worker process died" in (out / "said").read_text()
    evaluate(plan, out, workers=1)
    evaluate(plan, tmp_path / "whole", workers=1)
    assert table(out) == table(tmp_path / "whole")


KILLS = 100


def _resume(folder: Path) -> None:
    evaluate(read_plan(folder / "plan.json"), folder, workers=1)


@needs_proc
@pytest.mark.slow
def test_a_hundred_kills_after_stored_units_leave_the_bytes_of_one_run(model_folder, scene_folder, tmp_path):
    names = list(dict.fromkeys(condition.name for condition in find_suite("scenes-c").conditions))
    plan = small_plan(model_folder, scene_folder, conditions=names, shards=11)
    assert len(plan.parts) == 165  # of one image each
    out, killed, hits = tmp_path / "out", 0, []
    open_folder(out, plan)
    while killed < KILLS:
        present = stored_units(out)
        assert present < len(plan.units), f"it was through after {killed} kills"
        code = hit(_resume, (out,), signal.SIGKILL, lambda least=present + 1: stored_units(out) >= least)
        assert code == -signal.SIGKILL
        assert stored_units(out) > present
        hits.append(stored_units(out))
        killed += 1
    assert len(set(hits)) == KILLS
    missing, _ = Store(out, plan).survey(plan.parts)
    assert len(plan.units) - sum(len(part.methods) for part in missing) == hits[-1]
    evaluate(plan, out, workers=1)
    evaluate(plan, tmp_path / "whole", workers=1)
    assert (out / "results.csv").read_bytes() == (tmp_path / "whole" / "results.csv").read_bytes()
    for unit in plan.units:
        found, expected = (Store(folder, plan).read(unit) for folder in (out, tmp_path / "whole"))
        assert found.table.equals(expected.table)
        assert found.failures == expected.failures
