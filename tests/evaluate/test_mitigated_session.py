"""Mitigations as methods of an evaluation: the numbers are those of the mitigated predictors, costs are counted."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import blocks_per_view
from gramloop.evaluate.plan import read_plan
from gramloop.evaluate.predicting import deterministic
from gramloop.evaluate.rows import counts_of
from gramloop.evaluate.session import Session
from gramloop.metrics.miou import count_pixels
from gramloop.mitigations import apply, calibrate
from small_runs import small_plan

METHODS = ["baseline", "median", "gramloop", "recentre:0.3", "both=recentre:0.3+gramloop", "flip"]


@pytest.fixture(scope="module")
def session(model_folder: Path, scene_folder: Path) -> Session:
    return Session(small_plan(model_folder, scene_folder, methods=METHODS))


def test_stored_counts_and_blocks_are_those_of_the_mitigated_predictors(session: Session):
    unit = session.plan.units[1]
    finished = session.run(unit)
    records = session.data(unit.condition)[unit.start : unit.stop]
    texts = {
        "median": "median",
        "recentre-0.3": "recentre:0.3",
        "both": "recentre:0.3+gramloop",
        "flip": "flip",
    }
    stored = {method.name: counts_of([finished.table], method.name) for method in session.plan.methods}
    for name, text in texts.items():
        with deterministic(1):
            alone = [apply(text, session.predictor).predict(record.image()) for record in records]
        direct = [
            count_pixels(one.labels, record.labels(), 15) for one, record in zip(alone, records, strict=True)
        ]
        assert np.array_equal(stored[name], np.stack(direct)), name
        assert not np.array_equal(stored[name], stored["baseline"]), name
    assert finished.facts.blocks == len(unit) * blocks_per_view(session.plan.methods, 6)
    assert list(finished.facts.predict_seconds) == [
        "baseline+gramloop", "median", "recentre-0.3", "both", "flip"
    ]  # fmt: skip
    blocks = {row["method"]: row["blocks"] for row in finished.table.to_pylist()}
    assert {name: blocks[name] for name in ("baseline", "median", "recentre-0.3", "flip")} == {
        "baseline": 6, "median": 6, "recentre-0.3": 6, "flip": 12
    }  # fmt: skip
    assert blocks["both"] == blocks["gramloop"] > 6


def test_a_plan_with_mitigations_survives_its_file(session: Session, tmp_path: Path):
    path = tmp_path / "plan.json"
    path.write_text(session.plan.text())
    assert read_plan(path).hash == session.plan.hash
    assert read_plan(path).methods == session.plan.methods


def test_a_source_is_a_file_of_the_model(session: Session, model_folder, scene_folder, tmp_path: Path):
    with pytest.raises(GramLoopError, match="needs the statistics of in-distribution features"):
        small_plan(model_folder, scene_folder, methods=["baseline", "recentre:c=1"])
    records = session.data(session.plan.units[0].condition)
    source = calibrate(session.predictor, [record.image() for record in records[:8]])
    hashes = []
    for name, noise in [("one", source.noise), ("moved", source.noise), ("other", 2 * source.noise)]:
        path = tmp_path / f"{name}.safetensors"
        replace(source, noise=noise).save(path)
        files = {"folder": str(model_folder), "source": str(path)}
        plan = small_plan(model_folder, scene_folder, methods=["baseline", "recentre:c=1"], files=files)
        hashes.append(plan.hash)
    assert hashes[0] == hashes[1] != hashes[2]
    finished = Session(plan).run(plan.units[0])
    assert not finished.failures


def test_detections_are_merged(model_folder: Path, scene_folder: Path):
    plan = small_plan(
        model_folder, scene_folder, "detection", methods=["baseline", "flip", "resize:1.25", "denoise"]
    )
    finished = Session(plan).run(plan.units[0])
    assert not finished.failures
    assert finished.facts.blocks == len(plan.units[0]) * 6 * 5
    with pytest.raises(GramLoopError, match="needs the statistics of in-distribution features"):
        small_plan(model_folder, scene_folder, "detection", methods=["baseline", "recentre:0.3"])


def test_what_shares_a_call_is_also_timed_alone_on_one_image_of_a_condition(session: Session):
    first, second = session.plan.units[:2]
    assert (first.start, second.start > 0) == (0, True)
    finished = session.run(first)
    assert set(finished.facts.alone) == {"baseline", "gramloop"}
    assert 0 < finished.facts.alone["baseline"] < finished.facts.alone["gramloop"] < 10
    assert finished.facts.blocks == len(first) * blocks_per_view(session.plan.methods, 6)  # not counted
    assert session.run(second).facts.alone == {}
