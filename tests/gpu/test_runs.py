"""Whole evaluations of every task and a search on the stand-in for a GPU, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from gramloop.data.opening import ReadOptions, open_set
from gramloop.data.records import Shift, shift_data_set
from gramloop.data.suites import Condition
from gramloop.evaluate import Store, collect
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.runner import Done, Runner
from gramloop.models.tiny import DenseDepthHead
from gramloop.tasks import load_predictor
from gramloop.tune import Space
from gramloop.util.forward_patch import counting
from memory_targets import memory_target, searched
from small_runs import SIDE, runner_of, small_plan, write_model, write_scene_set
from stand_in_audit import in_float32
from stand_in_gpu import stand_in_gpu

PMT = Path(__file__).parents[1] / "support" / "small_pmt.py"
METHODS = ["baseline", "gramloop", "ungated", "flip", "denoise"]
OF_QUERIES = ["baseline", "late:window=5-6", "denoise"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_model(tmp_path_factory.mktemp("model"))
    torch.manual_seed(1)
    DenseDepthHead(32, 8, [2, 5]).save(folder / "depth.safetensors")
    return folder


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scene_set(tmp_path_factory.mktemp("scenes"), 2)


def planned(task: str, model: Path, scenes: Path, **more: object) -> Plan:
    few = {"conditions": ["fog"], "shards": 1, "diagnostics": True, "pictures": 1, **more}
    if task in ("panoptic", "instance"):
        name = {"panoptic": "panoptic", "instance": "instances"}[task]
        few |= {"files": {"make": f"{PMT}:{name}"}, "methods": OF_QUERIES}
    sizes = {"short_side": SIDE} if task in ("semantic", "depth") else {}
    return small_plan(model, scenes, task, **{"methods": METHODS, "sizes": sizes, **few})


def run_all(plan: Plan, runner: Runner, out: Path) -> str:
    runner.store = Store(out, plan)
    assert all(isinstance(each, Done) for each in runner.run(plan.parts))
    results = collect(runner.store)
    assert not results.failures
    return results.csv()


def numbers(table: str) -> list[float]:
    cells = [cell for line in table.splitlines()[1:] for cell in line.split(",")[2:]]
    return [float(cell or "nan") for cell in cells]


@pytest.mark.parametrize("task", ["semantic", "detection", "depth", "panoptic", "instance"])
def test_an_evaluation(task: str, model: Path, scenes: Path, tmp_path: Path) -> None:
    """As it runs on a GPU, with deterministic kernels alone; in float32, so that its table is the CPU's.

    Those kernels resize in other steps, which the digits of a depth show.
    """
    plan = planned(task, model, scenes)
    # a plan belongs to one kind of device: here the CPU's runs on the stand-in, whose autocast moves trial predictions
    plan = replace(plan, model=replace(plan.model, behaviour=None))
    expected = run_all(plan, runner_of(plan), tmp_path / "cpu")
    with stand_in_gpu():
        runner = runner_of(plan, device="cuda:0")
        in_float32(runner.predictor)
        found = run_all(plan, runner, tmp_path / "gpu")
    if task == "depth":
        np.testing.assert_allclose(numbers(found), numbers(expected), rtol=1e-6)
    else:
        assert found == expected
    assert len(found.splitlines()) > len(plan.methods)


@pytest.mark.parametrize("truth", ["labels", "clean"])
def test_an_evaluation_in_batches(truth: str, model: Path, scenes: Path, tmp_path: Path) -> None:
    """Mitigations and clean truths, too: the table is the CPU's, and every block runs for two images at once."""
    methods = ["baseline", "gramloop", "flip", "denoise", "recentre:0.3"]
    single, plan = (
        planned("semantic", model, scenes, batch=batch, methods=methods, truth=truth) for batch in (1, 2)
    )
    expected = run_all(plan, runner_of(plan), tmp_path / "cpu")
    ran = []
    with stand_in_gpu():
        for each in (single, plan):
            runner = runner_of(each, device="cuda:0")
            in_float32(runner.predictor)
            with counting(runner.predictor.blocks) as counted:
                found = run_all(each, runner, tmp_path / f"gpu{each.batch}")
            ran.append(counted.blocks)
    assert found == expected
    assert ran[0] == 2 * ran[1]


def test_an_evaluation_under_autocast(model: Path, scenes: Path, tmp_path: Path) -> None:
    plan = planned("detection", model, scenes, methods=["baseline", "gramloop"])
    with stand_in_gpu():
        first, again = (
            run_all(plan, runner_of(plan, device="cuda:0"), tmp_path / name) for name in ("one", "two")
        )
    assert first == again


def test_a_search(model: Path, tmp_path: Path) -> None:
    """Every candidate and the decision: verdict and file are those of the CPU."""
    data = open_set("scenes", write_scene_set(tmp_path / "scenes", 14), ReadOptions(task="semantic"))
    shifts = [Shift("scenes-c", "c", Condition(name, 3)) for name in ("fog", "contrast", "pixelate")]
    shown = {"clean": data, **{one.condition.key: shift_data_set(data, one) for one in shifts}}
    space = Space({"window": [(2, 2)], "replays": [1], "strength": [0.5]})

    def search(device: str, out: Path) -> tuple[str, bytes]:
        sizes = {"short_side": SIDE}
        predictor = in_float32(load_predictor("semantic", {"folder": model}, sizes, device))
        found = searched(memory_target(predictor, shown, list(data.categories)), space, 100, out=out)
        return found.answer.sentence, (out / "best.json").read_bytes()

    expected = search("cpu", tmp_path / "cpu")
    with stand_in_gpu():
        assert search("cuda:0", tmp_path / "gpu") == expected
