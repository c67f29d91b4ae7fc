"""The store: what is written comes back, and nothing that is torn, damaged or foreign is taken for a result."""

import errno
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.data.truth import Instances
from gramloop.errors import GramLoopError
from gramloop.evaluate.beginning import begin
from gramloop.evaluate.methods import parse_method
from gramloop.evaluate.plan import DataSource, ModelSource, Plan
from gramloop.evaluate.rows import Failure, Rows, counts_of, maps_of, picture_of, statistics_of
from gramloop.models.dense_detect import boxes_of
from gramloop.evaluate.store import (
    Facts,
    ForeignFile,
    Store,
    StoredUnit,
    UnusableFile,
)
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import ReplayMaps
from gramloop.tasks.semantic import Segmentation
from gramloop.util.files import TEMPORARY

PLAN = Plan(
    suite="scenes-c",
    task="semantic",
    methods=(parse_method("baseline"), parse_method("gramloop").with_window(12)),
    conditions={"fog/3": 5},
    shards=2,
    categories={0: "sky", 1: "tree", 2: "car"},
    data=DataSource("data", {"clean": "abc"}),
    model=ModelSource("tiny", {"folder": "model"}, {"folder/tiny.json": "123"}, 12),
)
UNIT = PLAN.units[1]  # images 2, 3, 4
FACTS = Facts(1.5, {"baseline+gramloop": 1.0}, 87, 10**8, "cpu", "here")
LOST = Failure(3, "scene 3", "cannot decode the image 3.png")


def statistics(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**40, (3, 3))


def rows(lost: set[int]) -> Rows:
    found = Rows("semantic", diagnostics=True, pictures=4)
    labels = np.arange(12).reshape(3, 4)
    trace = ReplayMaps(
        np.full((2, 4, 4), 0.5, np.float32), np.full((2, 4, 4), 0.25, np.float32), np.eye(4, dtype=np.float32)
    )
    for position in range(UNIT.start, UNIT.stop):
        if position not in lost:
            for number, method in enumerate(PLAN.methods):
                shown = trace if number else None
                prediction = Segmentation(labels + position, blocks=12 + number, trace=shown)
                row = dict(
                    zip(
                        ("intersection", "prediction", "label"),
                        statistics(10 * position + number),
                        strict=True,
                    )
                )
                found.add(position, f"scene {position}", method.name, prediction, row)
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = begin(tmp_path / "out", PLAN)
    store.write(UNIT, rows({3}).table(), [LOST], FACTS)
    return store


def test_what_is_written_comes_back(store: Store):
    found = store.read(UNIT)
    assert found is not None
    assert found.failures == (LOST,)
    assert found.facts == FACTS
    counts = counts_of([found.table], "gramloop")
    assert counts.dtype == np.int64
    assert np.array_equal(counts, np.stack([statistics(21), statistics(41)]))
    assert found.table["drift"].to_pylist() == [[], [0.5, 0.5], [], [0.5, 0.5]]
    assert found.table["gate"].to_pylist()[1] == [0.25, 0.25]
    assert found.table["post_drift"].to_pylist() == [None, 0.25, None, 0.25]
    assert found.table["blocks"].to_pylist() == [12, 13, 12, 13]
    kept, later = found.table.to_pylist()[1], found.table.to_pylist()[3]  # images 2 and 4
    assert np.array_equal(picture_of(kept), np.arange(12).reshape(3, 4) + 2)
    assert np.array_equal(maps_of(kept).post_drift, np.eye(4))
    assert picture_of(later) is None
    assert maps_of(later) is None
    assert store.read(PLAN.units[0]) is None


def test_boxes_come_back_to_the_bit(tmp_path: Path):
    plan = replace(PLAN, task="detection", conditions={"fog/3": 3}, shards=1)
    rng = np.random.default_rng(0)
    found, made = Rows("detection"), {}
    for position, (many, truths) in enumerate([(1500, 3), (0, 2), (7, 0)]):
        truth = Instances(
            ids=np.arange(truths),
            boxes=rng.random((truths, 4)) * 99,
            categories=rng.integers(0, 3, truths),
            areas=rng.random(truths) * 99,
            iscrowd=rng.random(truths) < 0.5,
            segmentations=(None,) * truths,
        )
        corners = rng.random((many, 4)).astype(np.float32)
        corners[:, 2:] += corners[:, :2]
        prediction = Detection(
            corners, rng.random(many).astype(np.float32), rng.integers(0, 3, many), blocks=12
        )
        made[position] = (prediction, truth)
        for method in plan.methods:
            found.add(
                position, position, method.name, prediction, statistics_of(prediction, truth, [1, 2, 3])
            )
    store = begin(tmp_path / "out", plan)
    store.write(plan.units[0], found.table(), [], FACTS)
    stored = store.read(plan.units[0])
    assert stored is not None
    truth, boxes = boxes_of([stored.table], "gramloop", [0, 1, 2])
    assert truth.images == [0, 1, 2]
    assert truth.image_ids.tolist() == [0, 0, 0, 1, 1]
    assert np.bincount(boxes.image_ids, minlength=3).tolist() == [1500, 0, 7]
    for name, column in (("boxes", truth.boxes), ("areas", truth.areas), ("iscrowd", truth.crowd)):
        assert np.array_equal(column, np.concatenate([getattr(t, name) for _, t in made.values()]))
    for name, column in (("scores", boxes.scores), ("labels", boxes.labels)):
        assert np.array_equal(column, np.concatenate([getattr(p, name) for p, _ in made.values()]))
    corners = np.concatenate([p.boxes for p, _ in made.values()]).astype(np.float64)
    assert np.array_equal(boxes.boxes[:, 2:], corners[:, 2:] - corners[:, :2])


def _read(store: Store) -> tuple[str, StoredUnit | None]:
    try:
        return "", store.read(UNIT)
    except UnusableFile as problem:
        return str(problem), None


@settings(max_examples=150, deadline=None)
@given(place=st.floats(0, 1), kind=st.sampled_from(["cut", "flip"]))
def test_no_torn_or_damaged_file_is_taken_for_a_result(tmp_path_factory, place, kind):
    """Cut anywhere, or with one bit turned anywhere: refused by name, or equal to what was written."""
    store = begin(tmp_path_factory.mktemp("damaged") / "out", PLAN)
    table = rows({3}).table()
    store.write(UNIT, table, [LOST], FACTS)
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
        assert found is not None
        assert found.table.equals(table)
        assert (found.failures, found.facts) == ((LOST,), FACTS)


def test_files_of_others_are_told_apart(store: Store):
    path = store.path(UNIT)
    other = Store(store.folder, replace(PLAN, versions={"torch": "3"}))
    with pytest.raises(ForeignFile, match=f"belongs to the plan {PLAN.hash}"):
        other.read(UNIT)
    shutil.copy(path, store.path(PLAN.units[0]))
    with pytest.raises(ForeignFile, match="another part of the plan"):
        store.read(PLAN.units[0])
    pq.write_table(rows(set()).table(), path)
    with pytest.raises(ForeignFile, match="not written by gramloop evaluate"):
        store.read(UNIT)


def test_a_unit_with_an_image_missing_or_twice_is_refused(store: Store):
    for wrong in (rows({3, 4}).table(), rows(set()).table()):
        store.write(UNIT, wrong, [LOST], FACTS)
        with pytest.raises(UnusableFile, match="every image of its part once"):
            store.read(UNIT)


def test_a_foreign_file_is_put_aside_whole(store: Store):
    content = store.path(UNIT).read_bytes()
    first = store.put_aside(UNIT)
    store.write(UNIT, rows({3}).table(), [LOST], FACTS)
    second = store.put_aside(UNIT)
    assert first != second
    assert first.read_bytes() == content
    assert store.read(UNIT) is None


def test_another_plan_is_kept_out_of_the_folder(store: Store):
    before = store.path(UNIT).read_bytes()
    with pytest.raises(GramLoopError, match="made with shards 2, not 3; choose another folder"):
        begin(store.folder, replace(PLAN, shards=3))
    assert begin(store.folder, PLAN).read(UNIT) is not None
    assert store.path(UNIT).read_bytes() == before


def test_a_folder_with_other_things_is_refused(tmp_path: Path):
    (tmp_path / "holiday.jpg").write_bytes(b"")
    with pytest.raises(GramLoopError, match=r"not empty and has no plan\.json"):
        begin(tmp_path, PLAN)


def test_leftovers_of_a_killed_run_are_swept(store: Store):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, busy = (
        store.path(UNIT).with_name(f"{TEMPORARY}{platform.node()}-{process}-{'0' * 16}")
        for process in (ended.pid, os.getpid())
    )
    for path in (left, busy):
        path.write_bytes(b"half")
    begin(store.folder, PLAN)
    assert not left.exists()
    assert busy.exists()  # a job of a cluster may be at work on it
    assert store.read(UNIT) is not None


def test_the_manifest_remembers_every_start(store: Store):
    import json

    store.note_start({"host": "a"})
    store.note_start({"host": "b"})
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
        store.write(UNIT, rows({3}).table(), [LOST], FACTS)
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
    sentence = answers.get(timeout=60)
    process.join()
    assert f"cannot write {store.path(UNIT)}: {os.strerror(errno.EFBIG)}" in sentence
    assert "is kept" in sentence
    assert store.path(UNIT).read_bytes() == before
    assert not list(store.folder.rglob(f"{TEMPORARY}*"))


def test_a_prediction_is_stored_beside_the_truth_of_its_task_alone():
    objects = Instances.from_annotations([])
    with pytest.raises(GramLoopError, match="a Segmentation cannot be compared with Instances"):
        statistics_of(Segmentation(np.zeros((2, 2), np.int32)), objects, [1, 2, 3])
