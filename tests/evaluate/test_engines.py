"""Engines: which GPU a worker gets, how many cores, and what a machine lacks."""

import sys
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.evaluate import engines, ray_engine
from gramloop.evaluate.engines import CLUSTER_PREPARE, default_workers, preparing_processes
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.ray_engine import run_ray
from gramloop.evaluate.slurm import run_slurm
from gramloop.util.device import gpus_of
from gramloop.util.processes import available_cores
from small_runs import job_of, small_plan


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, shards=11)


@pytest.mark.parametrize(
    ("engine", "message"), [(run_ray, "pip install ray"), (run_slurm, "sbatch is not found")]
)
def test_what_an_engine_lacks_is_named(engine, message: str, plan: Plan, tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)  # how Python marks what cannot be imported
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GramLoopError, match=message):
        list(engine(job_of(plan, tmp_path)))


@pytest.fixture(scope="module")
def fog(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, conditions=["fog"])


def on(plan: Plan, device: str) -> Plan:
    return replace(plan, model=replace(plan.model, device=device))


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


def test_one_model_process_for_each_gpu_that_is_named(three_gpus: None):
    assert [default_workers(name) for name in ("cuda", "cuda:1", "mps")] == [3, 1, 1]
    assert default_workers("cpu") == available_cores()


def test_a_task_of_ray_asks_for_no_more_than_a_node_has(plan: Plan):
    class Cluster:
        def __init__(self, *nodes: tuple[int, int]) -> None:
            self._nodes = [
                {
                    "Alive": True,
                    "Resources": {"CPU": float(cpus), "GPU": float(gpus)} if gpus else {"CPU": 4.0},
                }
                for cpus, gpus in nodes
            ]

        def nodes(self) -> list[dict[str, object]]:
            return self._nodes

    job = job_of(on(plan, "cuda"), Path("nowhere"))
    assert ray_engine._preparing(Cluster((64, 4), (96, 8), (4, 0)), job) == CLUSTER_PREPARE
    assert ray_engine._preparing(Cluster((64, 4), (8, 2)), job) == 3
    assert ray_engine._preparing(Cluster((1, 1)), job) == 0
    assert ray_engine._preparing(Cluster((1, 1)), replace(job, prepare=2)) == 2
    assert ray_engine._preparing(Cluster((64, 4)), replace(job, workload=plan_workload(plan))) == 0


def test_cores_are_shared_out_over_gpus(plan: Plan, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gramloop.evaluate.engines.available_cores", lambda: 32)
    assert preparing_processes("cpu", None, 32) == 0  # a model holds each core already
    assert preparing_processes("cuda", None, 3) == 10
    assert preparing_processes("cuda", None, 64) == 1
    assert preparing_processes("mps", None) == 32
    assert preparing_processes("cuda", 0, 3) == 0
    assert preparing_processes("cpu", 5) == 5
    with pytest.raises(GramLoopError, match="preparing processes is 0 to 1024, not -1"):
        preparing_processes("cpu", -1)


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]), ("cuda:1", ["cuda:1"] * 4), ("mps", ["mps"] * 4)],
)
def test_workers_take_gpus_in_turn(three_gpus: None, monkeypatch, device, expected):
    context = get_context("spawn")
    counters = (context.Value("q", 0) for _ in range(3))
    devices = gpus_of(torch.device(device)) or (device,)
    shared = engines._Shared(b"", devices, 0, *counters, context.Event(), None)
    for name in ("_shared", "_device"):
        monkeypatch.setattr(engines, name, getattr(engines, name))  # restored at the end
    found = []
    for _ in range(4):
        engines._start_worker(shared)
        found.append(engines._device)
    assert found == expected


def test_a_folder_resumes_with_its_own_kind_of_device(fog: Plan, three_gpus: None, tmp_path: Path, capsys):
    evaluate(fog, tmp_path / "out", workers=1)
    assert main(["evaluate", "--out", str(tmp_path / "out"), "--device", "cuda:1"]) == 2
    assert "was begun on cpu, whose numbers are not mixed with those of cuda" in capsys.readouterr().err
    assert main(["evaluate", "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0


def test_a_cluster_shares_out_gpus_itself(fog: Plan, three_gpus: None, tmp_path: Path, capsys):
    arguments = ["evaluate", "--suite", "scenes-c", "--data", fog.data.root, "--engine", "slurm"]
    assert main([*arguments, "--device", "cuda:1", "--out", str(tmp_path / "out")]) == 2
    assert "--device cuda:1 is one GPU of this machine; --engine slurm assigns" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
