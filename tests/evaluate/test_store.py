"""The store: what is written comes back, nothing torn, damaged or foreign is taken for a result, a lost plan costs nothing."""

import errno
import json
import multiprocessing
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.cli import main
from gramloop.data.truth import Instances, PixelLabels
from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import Method, parse_method
from gramloop.evaluate.plan import DataSource, Part, Plan, PlannedModel, Unit
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.rows import Facts, Failure, MethodRows, UnitRows, maps_of
from gramloop.evaluate.store import (
    ForeignFile,
    Store,
    UnusableFile,
    open_folder,
    plan_in,
    plan_with_stored,
    read_condition,
    record_start,
)
from gramloop.metrics.scores import NoScoreError
from gramloop.tasks.base import get_task
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import ReplayMaps
from gramloop.tasks.semantic import Segmentation, read_picture
from gramloop.util.files import TEMPORARY
from small_runs import counts_of
from small_stores import make_plan, write_store

BASELINE, GRAMLOOP = parse_method("baseline"), parse_method("gramloop").with_window(12)
PLAN = Plan(
    suite="scenes-c",
    task="semantic",
    methods=(BASELINE, GRAMLOOP),
    conditions={"fog/3": 5},
    shards=2,
    categories={0: "sky", 1: "tree", 2: "car"},
    data=DataSource("data", contents={"clean": "abc"}),
    model=PlannedModel("tiny", {"folder": "model"}, {"folder/tiny.json": "123"}, 12),
    diagnostics=True,
)
UNIT = PLAN.parts[1].units[1]  # images 2, 3, 4 under gramloop
FACTS = Facts(1.5, "baseline", 2.0, 10**8, "cpu", "here")
LOST = Failure(3, "scene 3", "cannot decode the image 3.png")
LABELS = np.random.default_rng(0).integers(0, 3, (5, 8, 8))
_MAPS = [np.full((4, 4), 0.5)] * 2 + [np.full((4, 4), 0.25)] * 2 + [np.eye(4)]
TRACE = ReplayMaps(np.stack(_MAPS).astype(np.float32))


def rows(lost: set[int], unit: Unit = UNIT) -> UnitRows:
    found = UnitRows(plan_workload(PLAN), get_task("semantic"), unit)
    for position in unit.images:
        if position not in lost:
            prediction = Segmentation(LABELS[position].astype(np.int32), blocks=13, trace=TRACE)
            found.add(position, f"scene {position}", prediction, PixelLabels(LABELS[0].astype(np.uint8)))
    found.failures += [LOST] if 3 in lost else []
    return found


def write(store: Store, lost: set[int], unit: Unit = UNIT) -> None:
    made = rows(lost, unit)
    store.write(unit, made.table(), made.failures, made.refused, FACTS)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = open_folder(tmp_path / "out", PLAN)
    write(store, {3})
    return store


def test_what_is_written_comes_back(store: Store):
    found = store.rows([UNIT])
    assert found is not None
    assert (found.failures, found.refused, found.facts) == ((LOST,), (), (FACTS,))
    assert found.positions == [2, 4]
    assert found.blocks == [13, 13]
    assert found.column("drift") == [[0.5, 0.5]] * 2
    assert found.column("gate") == [[0.25, 0.25]] * 2
    assert found.column("post_drift") == [0.25] * 2
    counts = counts_of(found)  # (images, 3, classes)
    assert counts.dtype == np.int64
    assert counts[0, 0].sum() == (LABELS[2] == LABELS[0]).sum()
    assert np.array_equal(counts[1, 1], np.bincount(LABELS[4].ravel(), minlength=3))
    [kept, later] = found.first(100)  # pictures are of the first four images
    assert np.array_equal(read_picture(kept["picture"]), LABELS[2])
    assert np.array_equal(maps_of(kept).post_drift, np.eye(4))
    assert later["picture"] is None
    assert maps_of(later) is None
    assert found.first(3) == [kept]
    assert store.read(PLAN.units[0]) is None
    assert store.rows(PLAN.units[:2]) is None


def test_boxes_come_back_to_the_bit(tmp_path: Path):
    plan = replace(PLAN, task="detection", conditions={"fog/3": 3}, shards=1)
    rng, task, unit = np.random.default_rng(0), get_task("detection"), plan.units[0]
    made = UnitRows(plan_workload(plan), task, unit)
    expected = []
    for position, (many, truths) in enumerate([(1500, 3), (0, 2), (7, 0)]):
        truth = Instances(
            ids=np.arange(truths),
            boxes=rng.random((truths, 4)) * 99,
            categories=rng.integers(0, 3, truths),
            areas=rng.random(truths) * 99,
            iscrowd=rng.random(truths) < 0.5,
        )
        corners = rng.random((many, 4)).astype(np.float32)
        labels = rng.integers(0, 3, many)
        prediction = Detection(corners, rng.random(many).astype(np.float32), labels, blocks=12)
        made.add(position, str(position), prediction, truth)
        expected.append(task.statistics(prediction, truth, plan.classes))
    store = open_folder(tmp_path / "out", plan)
    store.write(unit, made.table(), [], [], FACTS)
    found = store.rows([unit])
    for name in task.columns:
        assert np.array_equal(found.rows.values[name], np.concatenate([each[name] for each in expected])), (
            name
        )
        assert found.rows.lengths[name].tolist() == [len(each[name]) for each in expected]


def test_a_prediction_without_a_score_is_a_failure_and_another_kind_an_error(monkeypatch):
    made, truth = UnitRows(plan_workload(PLAN), get_task("semantic"), UNIT), PixelLabels(np.zeros((2, 2)))
    with pytest.raises(GramLoopError, match="a Detection cannot be scored as semantic"):
        made.add(2, "2", Detection(np.zeros((0, 4)), np.zeros(0), np.zeros(0)), truth)

    def refuse(*_: object) -> None:
        raise NoScoreError("it is constant")

    monkeypatch.setattr(type(made.task), "statistics", refuse)
    made.add(2, "2", Segmentation(np.zeros((2, 2), np.int32)), truth)
    assert made.failures == [Failure(2, "2", "gramloop: it is constant")]


def test_an_image_that_one_method_failed_on_counts_for_none(tmp_path: Path):
    plan = replace(PLAN, diagnostics=False)
    store = open_folder(tmp_path, plan)
    for unit in plan.units:
        write(store, {3} & set(unit.images) if unit.method == GRAMLOOP else set(), unit)
    found = read_condition(store, "fog/3")
    assert found.failures == (LOST,)
    assert found.image_ids == ["scene 0", "scene 1", "scene 2", "scene 4"]
    assert [each.positions for each in found.methods.values()] == [[0, 1, 2, 4]] * 2


def test_what_is_missing_is_known_by_method(store: Store):
    assert store.missing(PLAN.parts) == [PLAN.parts[0], replace(PLAN.parts[1], methods=(BASELINE,))]
    late = parse_method("late:window=4-5")
    added = Part("fog/3", UNIT.images, (GRAMLOOP, late))
    assert store.missing([added]) == [replace(added, methods=(late,))]
    assert store.missing([Part("fog/3", (2, 4), (GRAMLOOP,))]) != []  # other images are another unit


def test_a_replay_without_diagnostics_is_run_again_where_they_are_asked_for(store: Store):
    plain = Store(store.folder, replace(PLAN, diagnostics=False))
    assert plain.read(UNIT) is not None  # more than is asked for
    write(plain, {3})
    assert store.read(UNIT) is None
    baseline = replace(UNIT, method=BASELINE)
    write(plain, {3}, baseline)
    assert store.read(baseline) is not None  # it measures nothing


def _read(store: Store) -> tuple[str, MethodRows | None]:
    try:
        return "", store.read(UNIT)
    except UnusableFile as problem:
        return str(problem), None


@settings(max_examples=150, deadline=None)
@given(place=st.floats(0, 1), kind=st.sampled_from(["cut", "flip"]))
def test_no_torn_or_damaged_file_is_taken_for_a_result(tmp_path_factory, place, kind):
    """Cut anywhere, or with one bit turned anywhere: refused by name, or equal to what was written."""
    store = open_folder(tmp_path_factory.mktemp("damaged") / "out", PLAN)
    write(store, {3})
    path = store.path(UNIT)
    data = bytearray(path.read_bytes())
    at = int(place * (len(data) - 1))
    if kind == "cut":
        path.write_bytes(data[:at])
    else:
        data[at] ^= 0x10
        path.write_bytes(data)
    problem, found = _read(store)
    if problem:
        assert str(path) in problem
    else:
        assert kind == "flip"  # a bit of the footer that no value depends on
        assert found.table.equals(rows({3}).table())
        assert (found.failures, found.facts) == ((LOST,), (FACTS,))


def test_files_of_others_are_recognised(store: Store):
    path = store.path(UNIT)
    other = Store(store.folder, replace(PLAN, versions={"torch": "3"}))
    with pytest.raises(ForeignFile, match=f"belongs to the plan {PLAN.hash}"):
        other.read(UNIT)
    settings_changed = replace(UNIT, method=Method("gramloop", parse_method("m:window=2-3").stack))
    with pytest.raises(ForeignFile, match="another part of the plan"):
        store.read(settings_changed)
    earlier = PLAN.parts[0].units[1]
    shutil.copy(path, store.path(earlier))
    with pytest.raises(ForeignFile, match="another part of the plan"):
        store.read(earlier)
    pq.write_table(pa.table({"score": [1.0]}), path)
    with pytest.raises(ForeignFile, match="not written by gramloop evaluate"):
        store.read(UNIT)


def test_damage_that_hides_what_a_file_says_about_itself_is_damage(store: Store):
    """No single damage of a file of ours may pass for a file of another program, which would stop the run."""
    path = store.path(UNIT)
    data = path.read_bytes()
    pq.write_table(rows({3}).table(), path)
    assert "damaged" in _read(store)[0]
    for at in range(data.rindex(b"gramloop.sha256") - 40, len(data)):  # the end of the footer, byte by byte
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        _read(store)


def test_a_unit_with_an_image_missing_or_twice_is_refused(store: Store):
    for wrong in (rows({3, 4}).table(), rows(set()).table()):
        store.write(UNIT, wrong, [LOST], [], FACTS)
        with pytest.raises(UnusableFile, match="every image of its part once"):
            store.read(UNIT)


def test_another_plan_is_kept_out_of_the_folder(store: Store):
    before = store.path(UNIT).read_bytes()
    with pytest.raises(GramLoopError, match="made with shards 2, not 3; choose another folder"):
        open_folder(store.folder, replace(PLAN, shards=3))
    assert open_folder(store.folder, PLAN).read(UNIT) is not None
    assert store.path(UNIT).read_bytes() == before


def test_a_folder_with_other_things_is_refused_and_stays_untouched(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(GramLoopError, match=r"not empty and has no plan\.json"):
        evaluate(PLAN, tmp_path, workers=1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    with pytest.raises(GramLoopError, match="does not exist"):  # its weights
        evaluate(PLAN, tmp_path / "new", workers=1)
    assert not (tmp_path / "new").exists()


def test_leftovers_of_a_killed_run_are_removed(store: Store):
    left, busy = (store.path(UNIT).with_name(f"{TEMPORARY}{number}") for number in range(2))
    for path in (left, busy):
        path.write_bytes(b"half")
    os.utime(left, (time.time() - 90_000,) * 2)  # more than a day old
    open_folder(store.folder, PLAN)
    assert not left.exists()
    assert busy.exists()  # a job of a cluster may be at work on it
    assert store.read(UNIT) is not None


def test_the_manifest_records_every_start(store: Store):
    record_start(store, {"host": "a"})
    record_start(store, {"host": "b"})
    content = json.loads((store.folder / "manifest.json").read_text())
    assert [start["host"] for start in content["starts"]] == ["a", "b"]
    assert content["weights"] == {"folder/tiny.json": "123"}
    assert content["seed"] == 100
    assert content["plan"] == PLAN.hash


def _write_on_a_full_disk(folder: Path, answers: multiprocessing.Queue) -> None:
    import resource

    store = Store(folder, PLAN)
    before = store.path(UNIT).read_bytes()
    # the system refuses to let a file grow, as on a full disk
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, len(before) // 2))
    try:
        write(store, {3})
    except GramLoopError as error:
        answers.put(str(error))
    else:
        answers.put("no error")


@pytest.mark.skipif(os.name != "posix", reason="limits a process's files")
def test_a_full_disk_costs_nothing_that_was_there(store: Store):
    before = store.path(UNIT).read_bytes()
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_write_on_a_full_disk, args=(store.folder, answers))
    process.start()
    message = answers.get(timeout=60)
    process.join()
    assert f"cannot write {store.path(UNIT)}: {os.strerror(errno.EFBIG)}" in message
    assert "is kept" in message
    assert store.path(UNIT).read_bytes() == before
    assert not list(store.folder.rglob(f"{TEMPORARY}*"))


# a plan.json that was edited or deleted costs no finished unit

SMALL = make_plan(conditions=("fog/1", "fog/3"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "out", SMALL)
    return tmp_path / "out"


def units(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("units/*/*/*")}


def edit(folder: Path, **changes: object) -> None:
    content = json.loads((folder / "plan.json").read_text())
    (folder / "plan.json").write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize("changes", [{"shards": 3}, {"seed": 7}, {"pictures": 9}], ids=str)
def test_an_edited_plan_is_refused_and_nothing_is_moved(folder: Path, capsys, changes: dict[str, object]):
    edit(folder, **changes)
    before = units(folder)
    with pytest.raises(GramLoopError, match="holds results of the plan"):
        plan_with_stored(folder, SMALL)
    assert main(["evaluate", "--out", str(folder), "--status"]) in (0, 2)
    assert f"{SMALL.hash}" not in capsys.readouterr().out
    assert units(folder) == before


def test_a_folder_without_its_plan_is_refused(folder: Path):
    before = units(folder)
    (folder / "plan.json").unlink()
    with pytest.raises(GramLoopError, match=r"not empty and has no plan\.json"):
        open_folder(folder, SMALL)
    with pytest.raises(GramLoopError, match="holds no evaluation"):
        plan_in(folder)
    assert units(folder) == before
