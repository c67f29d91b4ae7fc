"""Loader processes give what a thread gives, in order and within bounds, and end in a sentence or with their parent."""

import multiprocessing
import os
import signal
import sys
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gramloop.data.opening import OpenSuite, ReadOptions, open_suite
from gramloop.data.records import ChangedFileError
from gramloop.errors import GramLoopError
from gramloop.evaluate import loader
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.loader import BYTES, FAR_AHEAD, Loader
from gramloop.evaluate.plan import Plan, read_plan
from gramloop.evaluate.store import Store, open_folder
from gramloop.tasks.base import get_task
from killing import children, hit, needs_proc
from small_runs import small_plan


@pytest.fixture(scope="module")
def suite(scene_folder: Path) -> OpenSuite:
    options = ReadOptions(task="semantic")
    return open_suite(
        "scenes-c", scene_folder, conditions=["fog", "glass_blur"], severities=[3], options=options
    )


@pytest.fixture(scope="module")
def two() -> Loader:
    return Loader(partial(get_task, "semantic"), True, 2)


def records(suite: OpenSuite) -> list[tuple[int, object]]:
    return list(enumerate(record for _, data in suite for record in data))


def test_processes_and_the_thread_give_the_same_in_the_same_order(suite: OpenSuite, two: Loader):
    wanted = records(suite)
    number, broken = wanted[3]
    wanted[3] = (number, replace(broken, height=99))  # a sentence in place of an image
    here, there = (list(made.ahead(wanted)) for made in (Loader(partial(get_task, "semantic"), True), two))
    assert [about for about, _ in there] == [about for about, _ in here] == list(range(len(wanted)))
    assert here[3][1] == there[3][1]
    assert "is 64 x 64, but was 64 x 99" in there[3][1]
    for place, ((_, one), (_, other)) in enumerate(zip(here, there, strict=True)):
        if place != 3:
            assert other.image_id == one.image_id
            assert np.array_equal(other.pixels, one.pixels)
            assert np.array_equal(other.truth.indices, one.truth.indices)
            assert other.pixels.flags.writeable


@pytest.mark.parametrize(("limit", "most"), [(BYTES, FAR_AHEAD), (1_000_000, 11)])
def test_what_waits_is_bounded_by_count_and_by_bytes(suite, two, monkeypatch, limit, most):
    monkeypatch.setattr(loader, "BYTES", limit)
    asked = 0

    def wanted():
        nonlocal asked
        for pair in records(suite) * 13:
            asked += 1
            yield pair

    ahead = []
    for done, _ in enumerate(two.ahead(wanted())):
        ahead.append(asked - done)
    assert max(ahead) <= most + 1
    assert max(ahead) >= 4


def test_an_image_that_is_larger_than_all_memory_comes_alone(suite, two, monkeypatch):
    monkeypatch.setattr(loader, "BYTES", 1)
    assert [about for about, _ in two.ahead(records(suite)[:3])] == [0, 1, 2]


def test_a_run_that_is_left_early_spoils_no_later_one(suite: OpenSuite, two: Loader):
    expected = [
        found.pixels for _, found in Loader(partial(get_task, "semantic"), True).ahead(records(suite))
    ]
    for _ in range(5):
        with closing(two.ahead(records(suite)[::-1])) as begun:
            next(begun)
        found = [found.pixels for _, found in two.ahead(records(suite))]
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_changed_file_arrives_as_itself(suite: OpenSuite, two: Loader):
    number, record = records(suite)[0]
    changed = replace(record, content=("0" * 64,))
    with pytest.raises(ChangedFileError, match=r"00000000\.png changed since the run was planned"):
        list(two.ahead([(number, changed)]))


def test_lack_of_memory_is_told_of_its_image_alone(suite: OpenSuite, monkeypatch):
    def read(record, *rest):
        if record.image_id == "00000001":
            raise MemoryError
        return "fine"

    monkeypatch.setattr(loader, "read_labelled", read)
    found = dict(Loader(partial(get_task, "semantic"), True).ahead(records(suite)[:3]))
    assert isinstance(found.pop(1), MemoryError)
    assert found == {0: "fine", 2: "fine"}


@needs_proc
def test_a_killed_preparing_process_is_a_sentence(suite: OpenSuite):
    before = {child.pid for child in multiprocessing.active_children()}
    ahead = Loader(partial(get_task, "semantic"), True, 2).ahead(records(suite) * 20)
    next(ahead)
    started = [child.pid for child in multiprocessing.active_children() if child.pid not in before]
    os.kill(started[0], signal.SIGKILL)
    with pytest.raises(GramLoopError, match=r"a process that reads images died .* resumes"):
        list(ahead)


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, severities=[2, 3], shards=4)


@pytest.fixture(scope="module")
def reference(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference") / "out"
    evaluate(plan, folder, workers=1)
    return folder


def same(plan: Plan, one: Path, other: Path) -> None:
    assert (one / "results.csv").read_bytes() == (other / "results.csv").read_bytes()
    for unit in plan.units:
        found, expected = (Store(folder, plan).read(unit) for folder in (one, other))
        assert found.table.equals(expected.table)
        assert found.failures == expected.failures


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_results_are_the_same_to_the_byte(plan: Plan, reference: Path, tmp_path: Path, workers: int):
    evaluate(plan, tmp_path / "out", workers=workers, prepare=2)
    same(plan, tmp_path / "out", reference)


def test_clean_predictions_as_truth_give_the_same(model_folder: Path, scene_folder: Path, tmp_path: Path):
    plan = small_plan(model_folder, scene_folder, conditions=["fog"], truth="clean")
    for prepare in (0, 1):
        evaluate(plan, tmp_path / str(prepare), workers=1, prepare=prepare)
    same(plan, tmp_path / "0", tmp_path / "1")


def _go_on(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    with suppress(KeyboardInterrupt):
        evaluate(read_plan(folder / "plan.json"), folder, workers=1, prepare=1)
        sys.exit(0)
    sys.exit(130)


def stored(folder: Path) -> int:
    return sum(1 for _ in folder.glob("units/*/*/[0-9]*.parquet"))


@needs_proc
@pytest.mark.parametrize(
    "number",
    [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)],
    ids=["killed", "interrupted"],
)
def test_stopped_runs_leave_no_process_and_lose_no_unit(plan, reference, tmp_path, number):
    out = tmp_path / "out"
    open_folder(out, plan)
    code = hit(_go_on, (out,), number, lambda: stored(out) >= 2)  # and sees every process below it end
    assert code in (0, 130, -number)
    assert stored(out) >= 2
    evaluate(plan, out, workers=1)
    same(plan, out, reference)


def _kill_below(folder: Path) -> None:
    """Go on, and end whatever prepares images once two units are stored."""
    import threading
    import time

    def kill() -> None:
        while stored(folder) < 2:
            time.sleep(0.002)
        for child in [one for each in children(os.getpid()) for one in children(each)]:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    loader.FAR_AHEAD = 4  # or all images of this small set would be ready by then
    threading.Thread(target=kill, daemon=True).start()
    with suppress(GramLoopError):
        evaluate(read_plan(folder / "plan.json"), folder, workers=1, prepare=1)
        sys.exit(0)
    sys.exit(2)


@needs_proc
def test_a_killed_preparing_process_loses_no_unit(plan, reference, tmp_path):
    out = tmp_path / "out"
    open_folder(out, plan)
    assert hit(_kill_below, (out,), signal.SIGCONT, lambda: False) == 2
    assert 2 <= stored(out) < len(plan.units)
    evaluate(plan, out, workers=1)
    same(plan, out, reference)
