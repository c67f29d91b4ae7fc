"""Diagnostics and kept pictures: the numbers of a direct computation, and the same however work is shared out."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from gramloop import ReplayConfig, attached
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Listener
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import Method, check_methods, parse_method, with_companions
from gramloop.evaluate.plan import Plan, trajectories_of
from gramloop.evaluate.rows import maps_of
from gramloop.evaluate.runner import Finished, Runner
from gramloop.evaluate.store import Store
from gramloop.mitigations.stack import Replay
from gramloop.tasks.semantic import read_picture
from gramloop.util.device import deterministic
from small_runs import rows_of, runner_of, small_plan

TRIO = ("gramloop-raw", "gramloop-matched", "gramloop")


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, diagnostics=True, conditions=["fog"], shards=1)


@pytest.fixture(scope="module")
def runner(plan: Plan) -> Runner:
    return runner_of(plan)


@pytest.fixture(scope="module")
def finished(plan: Plan, runner: Runner) -> Finished:
    return runner.run_one(plan.parts[0])


def test_the_plan_gains_the_companions_of_the_gate(plan: Plan):
    assert [method.name for method in plan.methods] == ["baseline", "gramloop", *TRIO[:2]]
    replay = {method.name: method.replay for method in plan.methods}
    assert replay["gramloop-raw"] == ReplayConfig((3, 3), gate="none")
    assert replay["gramloop-matched"] == ReplayConfig((3, 3), gate="uniform", strength="matched")
    assert trajectories_of(plan) == {"gramloop": TRIO}
    assert trajectories_of(replace(plan, diagnostics=False)) == {}


def test_companions_that_are_there_already_are_taken():
    given = [parse_method(name).with_window(12) for name in ("baseline", "ungated", "gramloop", "matched")]
    assert with_companions(given) == given
    assert with_companions(given[:2]) == given[:2]
    late = [Method("late", (Replay(ReplayConfig((4, 5), 1, eps=0.5)),))]
    assert with_companions(late)[1:] == [
        Method("late-raw", (Replay(ReplayConfig((4, 5), 1, gate="none", eps=0.5)),)),
        Method(
            "late-matched", (Replay(ReplayConfig((4, 5), 1, gate="uniform", strength="matched", eps=0.5)),)
        ),
    ]
    with pytest.raises(GramLoopError, match="late-raw is given twice"):
        check_methods(with_companions([*late, Method("late-raw", (Replay(ReplayConfig((1, 2))),))]))


def direct_trace(runner: Runner, image: np.ndarray, replay: ReplayConfig):
    """What an attached replay measures in the image as the model is shown it."""
    predictor = runner.predictor
    with (
        deterministic(1),
        torch.no_grad(),
        attached(predictor.model.backbone.model, replay, trace=True) as loop,
    ):
        predictor.model.backbone(predictor.prepare(image), [5])
    return loop.trace


def test_stored_means_are_those_of_an_attached_replay(plan, runner: Runner, finished: Finished):
    records = runner.images.records("fog/3", range(11))
    stored = {
        (row["position"], method.name): row
        for method in plan.methods
        for row in rows_of(plan, finished, method.name).first(11)
    }
    ends = {name: [] for name in TRIO}
    for position in range(0, len(records), 3):
        image = records[position].image()
        assert stored[position, "baseline"]["post_drift"] is None
        for method in plan.methods[1:]:
            trace, row = direct_trace(runner, image, method.replay), stored[position, method.name]
            # float32 means of the same maps
            assert row["post_drift"] == pytest.approx(trace.post_drift.double().mean().item(), rel=1e-6)
            assert row["drift"] == pytest.approx(
                [each.double().mean().item() for each in trace.drift], rel=1e-6
            )
            assert row["gate"] == pytest.approx(
                [each.double().mean().item() for each in trace.gate], rel=1e-6
            )
            ends[method.name].append(row["post_drift"])
        assert stored[position, "gramloop-raw"]["gate"] == [1.0, 1.0]
    # the gate holds the trajectory closer to the ordinary pass than the raw loop goes
    assert np.sum(ends["gramloop"]) < np.sum(ends["gramloop-raw"])


def test_kept_pictures_are_the_predictions(plan, runner: Runner, finished: Finished):
    records = runner.images.records("fog/3", range(4))
    for method in plan.methods:
        rows = rows_of(plan, finished, method.name)
        assert [row["position"] for row in rows.first(plan.pictures)] == [0, 1, 2, 3]
        for row, record in zip(rows.first(plan.pictures), records, strict=True):
            with deterministic(1):
                found = runner.predictor.predict(record.image(), method.replay, trace=True)
            assert np.array_equal(read_picture(row["picture"]), found.labels)
            maps = maps_of(row)
            if method.replay is None:
                assert maps is None
                continue
            patches = found.trace.drift[:, ::8, ::8], found.trace.gate[:, ::8, ::8]
            check_close(maps.first_drift, patches[0][0])
            check_close(maps.last_drift, patches[0][-1])
            check_close(maps.last_gate, patches[1][-1])
            check_close(maps.post_drift, found.trace.post_drift[::8, ::8])
        assert all(row["picture"] is None and row["maps"] is None for row in rows.first(11)[4:])


def check_close(stored: np.ndarray, exact: np.ndarray) -> None:
    """Half a unit in the last of float16's eleven digits, of numbers up to 1 times the largest."""
    assert stored.shape == exact.shape
    assert np.abs(stored - exact).max() <= 2.0**-11 * exact.max()


def test_without_diagnostics_maps_are_kept_where_drift_is_measured_anyway(model_folder, scene_folder):
    methods = ["baseline", "gramloop", "ungated", "final-final"]
    plan = small_plan(model_folder, scene_folder, methods=methods, conditions=["fog"], shards=1, pictures=2)
    finished = runner_of(plan).run_one(plan.parts[0])
    rows = {name: rows_of(plan, finished, name).first(11) for name in finished.rows}
    for name, each in rows.items():
        kept = [0, 1] if name in ("gramloop", "final-final") else []
        assert [row["position"] for row in each if row["maps"] is not None] == kept
        assert [row["position"] for row in each if row["picture"] is not None] == [0, 1]
        assert all(row["drift"] == [] and row["post_drift"] is None for row in each)
        assert len({row["blocks"] for row in each}) == 1  # a trace that is kept costs no block


def test_detections_keep_maps_and_no_picture(model_folder, scene_folder):
    given = {"conditions": ["fog"], "shards": 1, "diagnostics": True, "pictures": 3}
    plan = small_plan(model_folder, scene_folder, "detection", **given)
    runner = runner_of(plan)
    finished = runner.run_one(plan.parts[0])
    kept = rows_of(plan, finished, "gramloop-raw").first(3)
    for row, record in zip(kept, runner.images.records("fog/3", range(3)), strict=True):
        with deterministic(1):
            found = runner.predictor.predict(record.image(), plan.methods[2].replay, trace=True)
        assert "picture" not in row
        check_close(maps_of(row).post_drift, found.trace.post_drift)
        assert row["post_drift"] == pytest.approx(found.trace.post_drift.mean(dtype=np.float64), rel=1e-6)
    assert maps_of(rows_of(plan, finished, "baseline").first(1)[0]) is None


def test_rows_do_not_depend_on_workers_or_shards(model_folder, scene_folder, tmp_path):
    found = []
    for shards, workers in ((1, 1), (7, 1), (4, 2)):
        given = {"diagnostics": True, "conditions": ["fog", "pixelate"], "shards": shards}
        plan = small_plan(model_folder, scene_folder, **given)
        folder = tmp_path / str(shards)
        evaluate(plan, folder, workers=workers)
        units = [
            [unit for unit in plan.units if (unit.condition, unit.method) == (key, method)]
            for key in plan.conditions
            for method in plan.methods
        ]
        found.append(pa.concat_tables([Store(folder, plan).rows(each).table for each in units]))
        assert (folder / "results.csv").read_bytes() == (tmp_path / "1/results.csv").read_bytes()
    assert found[0].num_rows == 2 * 11 * 4
    assert all(found[0][name].null_count < 88 for name in ("picture", "maps"))
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])


def test_diagnostics_are_added_to_a_finished_folder_and_the_baseline_is_not_run_again(
    model_folder, scene_folder, tmp_path
):
    plain, more = (
        small_plan(model_folder, scene_folder, conditions=["fog"], diagnostics=each) for each in (False, True)
    )
    evaluate(plain, tmp_path / "out", workers=1)
    ran: Counter[str] = Counter()

    class Recording(Listener):
        def outcome(self, outcome) -> None:
            ran.update(method.name for method in outcome.part.methods)

    evaluate(more, tmp_path / "out", workers=1, listener=Recording())
    assert ran == dict.fromkeys(TRIO, len(more.parts))  # each unit once, and none of the baseline
    evaluate(more, tmp_path / "whole", workers=1)
    for unit in more.units:
        added, whole = (Store(tmp_path / name, more).rows([unit]) for name in ("out", "whole"))
        for name in set(added.table.column_names) - {"blocks"}:
            assert added.table[name].equals(whole.table[name]), (unit.name, name)
