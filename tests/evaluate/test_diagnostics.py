"""Diagnostics and kept pictures: the numbers of a direct computation, and the same however work is shared out."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from gramloop import ReplayConfig, attached
from gramloop.errors import GramLoopError
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.methods import Method, check_methods, parse_method
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.predicting import deterministic
from gramloop.evaluate.rows import KEPT, first_rows, maps_of, picture_of
from gramloop.evaluate.session import Session
from gramloop.evaluate.store import Store
from gramloop.evaluate.trajectories import trajectories_of, with_companions
from small_runs import small_plan

TRIO = ("gramloop-raw", "gramloop-matched", "gramloop")


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, diagnostics=True, conditions=["fog"], shards=1)


@pytest.fixture(scope="module")
def session(plan: Plan) -> Session:
    return Session(plan)


@pytest.fixture(scope="module")
def table(session: Session):
    return session.run(session.plan.units[0]).table


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
    late = [Method("late", ReplayConfig((4, 5), 1, eps=0.5))]
    assert with_companions(late)[1:] == [
        Method("late-raw", ReplayConfig((4, 5), 1, gate="none", eps=0.5)),
        Method("late-matched", ReplayConfig((4, 5), 1, gate="uniform", strength="matched", eps=0.5)),
    ]
    with pytest.raises(GramLoopError, match="late-raw is given twice"):
        check_methods(with_companions([*late, Method("late-raw", ReplayConfig((1, 2)))]))


def direct_trace(session: Session, image: np.ndarray, replay: ReplayConfig):
    """What an attached replay measures in the image as the model is shown it."""
    predictor = session.predictor
    with (
        deterministic(1),
        torch.no_grad(),
        attached(predictor.model.backbone.model, replay, trace=True) as loop,
    ):
        predictor.model.backbone(predictor._prepare(image), [5])
    return loop.trace


def test_stored_means_are_those_of_an_attached_replay(session: Session, table):
    records = session.data("fog/3")
    stored = {(row["position"], row["method"]): row for row in table.to_pylist()}
    ends = {name: [] for name in TRIO}
    for position in range(0, len(records), 3):
        image = records[position].image()
        assert stored[position, "baseline"]["post_drift"] is None
        for method in session.plan.methods[1:]:
            trace, row = direct_trace(session, image, method.replay), stored[position, method.name]
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


def test_kept_pictures_are_the_predictions(session: Session, table):
    records = session.data("fog/3")
    for method in session.plan.methods:
        rows = first_rows([table], method.name, session.plan.pictures)
        assert [row["position"] for row in rows] == [0, 1, 2, 3]
        for row, record in zip(rows, records, strict=False):
            with deterministic(1):
                found = session.predictor.predict(record.image(), method.replay, trace=True)
            assert np.array_equal(picture_of(row), found.labels)
            maps = maps_of(row)
            if method.replay is None:
                assert maps is None
                continue
            patches = found.trace.drift[:, ::8, ::8], found.trace.gate[:, ::8, ::8]
            check_close(maps.first_drift, patches[0][0])
            check_close(maps.last_drift, patches[0][-1])
            check_close(maps.last_gate, patches[1][-1])
            check_close(maps.post_drift, found.trace.post_drift[::8, ::8])
    assert all(row["picture"] is None and row["maps"] is None for row in table.to_pylist()[4 * 4 :])


def check_close(stored: np.ndarray, exact: np.ndarray) -> None:
    """Half a unit in the last of float16's eleven digits, of numbers up to 1 times the largest."""
    assert stored.shape == exact.shape
    assert np.abs(stored - exact).max() <= 2.0**-11 * exact.max()


def test_without_diagnostics_maps_are_kept_where_drift_is_measured_anyway(model_folder, scene_folder):
    methods = ["baseline", "gramloop", "ungated", "final-final"]
    plan = small_plan(model_folder, scene_folder, methods=methods, conditions=["fog"], shards=1, pictures=2)
    rows = Session(plan).run(plan.units[0]).table.to_pylist()
    kept = {(row["position"], row["method"]) for row in rows if row["maps"] is not None}
    assert kept == {(position, name) for position in (0, 1) for name in ("gramloop", "final-final")}
    assert {row["position"] for row in rows if row["picture"] is not None} == {0, 1}
    assert all(row["drift"] == [] and row["post_drift"] is None for row in rows)
    # and a trace that is kept costs no block: every image of a method took the same
    assert len({(row["method"], row["blocks"]) for row in rows}) == len(methods)


def test_detections_keep_maps_and_no_picture(model_folder, scene_folder):
    plan = small_plan(
        model_folder, scene_folder, "detection", conditions=["fog"], shards=1, diagnostics=True, pictures=3
    )
    session = Session(plan)
    rows = session.run(plan.units[0]).table
    shown = first_rows([rows], "gramloop-raw", 3)
    assert len(shown) == 3
    for row, record in zip(shown, session.data("fog/3"), strict=False):
        with deterministic(1):
            found = session.predictor.predict(record.image(), plan.methods[2].replay, trace=True)
        assert picture_of(row) is None
        check_close(maps_of(row).post_drift, found.trace.post_drift)
        assert row["post_drift"] == pytest.approx(found.trace.post_drift.mean(dtype=np.float64), rel=1e-6)
    assert maps_of(first_rows([rows], "baseline", 1)[0]) is None


def stored_rows(folder: Path, plan: Plan) -> pa.Table:
    store = Store(folder, plan)
    tables = [store.read(unit).table.replace_schema_metadata() for unit in plan.units]
    return pa.concat_tables(tables).combine_chunks()


def test_rows_do_not_depend_on_workers_or_shards(model_folder, scene_folder, tmp_path):
    found = []
    for shards, workers in ((1, 1), (7, 1), (4, 2)):
        plan = small_plan(
            model_folder, scene_folder, diagnostics=True, conditions=["fog", "pixelate"], shards=shards
        )
        evaluate(plan, tmp_path / str(shards), workers=workers)
        found.append(stored_rows(tmp_path / str(shards), plan))
        assert (tmp_path / str(shards) / "results.csv").read_bytes() == (
            tmp_path / "1/results.csv"
        ).read_bytes()
    assert found[0].num_rows == 2 * 11 * 4
    assert all(found[0][name].null_count < 88 for name in KEPT)
    assert found[0].equals(found[1])
    assert found[0].equals(found[2])
