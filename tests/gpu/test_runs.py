"""A whole evaluation, a scan and a search on the stand-in for a GPU, in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from gramloop.evaluate import Store, collect
from gramloop.evaluate.session import Session
from gramloop.models.tiny import load_tiny
from gramloop.tasks import to_tensor
from gramloop.tune import scan_windows
from gramloop.tune.scan.files import to_json
from small_runs import small_plan, write_model, write_scene_set
from stand_in_gpu import stand_in_gpu


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene_set(tmp_path_factory.mktemp("scenes"), 2)


def run_all(session: Session, out: Path) -> str:
    store = Store(out, session.plan)
    for unit in session.plan.units:
        done = session.run(unit)
        assert not done.failures
        store.write(unit, done.table, done.failures, done.facts)
    return collect(store).csv()


METHODS = ["baseline", "gramloop", "ungated", "flip", "denoise"]


@pytest.mark.parametrize("task", ["semantic", "detection"])
def test_an_evaluation(task: str, model: Path, scenes: Path, tmp_path: Path) -> None:
    few = {"conditions": ["fog"], "shards": 1, "diagnostics": True, "pictures": 1}
    plan = small_plan(model, scenes, task, methods=METHODS, **few)
    expected = run_all(Session(plan), tmp_path / "cpu")
    with stand_in_gpu():
        session = Session(plan, "cuda:0")
        session.predictor.backbone.autocast = None
        found = run_all(session, tmp_path / "gpu")
        assert torch.cuda.is_available()
    assert found == expected
    assert "gramloop" in found


def test_a_scan(model: Path) -> None:
    images = list(np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8))
    vit = load_tiny(model).backbone.model
    expected = scan_windows(vit, images, preprocess=to_tensor, shifts=[], max_length=2)
    with stand_in_gpu():
        there = load_tiny(model, "cuda:0").backbone.model
        found = scan_windows(
            there, images, preprocess=lambda pixels: to_tensor(pixels).to("cuda:0"), shifts=[], max_length=2
        )
    assert to_json(found) == to_json(expected)
