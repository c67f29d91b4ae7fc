"""Which GPU a worker gets, and how many processes there are, on machines that are not at hand."""

from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import CLUSTER_PREPARE, Job, cores_of, local, preparing_processes, ray
from gramloop.evaluate.engines.local import default_workers
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import Plan
from gramloop.util.device import gpus_of
from gramloop.util.processes import available_cores
from small_runs import small_plan


@pytest.fixture
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, conditions=["fog"])


def on(plan: Plan, device: str) -> Plan:
    return replace(plan, model=replace(plan.model, device=device))


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)


def test_one_model_process_for_each_gpu_that_is_named(plan: Plan, three_gpus: None):
    assert default_workers(on(plan, "cuda")) == 3
    assert default_workers(on(plan, "cuda"), "cuda:1") == 1
    assert default_workers(on(plan, "mps")) == 1
    assert default_workers(plan) == available_cores()


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

    job = Job(on(plan, "cuda"), Path("nowhere"), plan.units)
    assert ray._preparing(Cluster((64, 4), (96, 8), (4, 0)), job) == CLUSTER_PREPARE
    assert ray._preparing(Cluster((64, 4), (8, 2)), job) == 3
    assert ray._preparing(Cluster((1, 1)), job) == 0
    assert ray._preparing(Cluster((1, 1)), replace(job, prepare=2)) == 2
    assert ray._preparing(Cluster((64, 4)), replace(job, plan=plan)) == 0


def test_cores_are_shared_out_over_gpus(plan: Plan, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gramloop.evaluate.engines.available_cores", lambda: 32)
    assert preparing_processes(plan, None, 32) == 0  # a model holds each core already
    assert preparing_processes(on(plan, "cuda"), None, 3) == 10
    assert preparing_processes(on(plan, "cuda"), None, 64) == 1
    assert preparing_processes(on(plan, "mps"), None) == 32
    assert preparing_processes(on(plan, "cuda"), 0, 3) == 0
    assert preparing_processes(plan, 5) == 5
    with pytest.raises(GramLoopError, match="preparing processes is 0 to 1024, not -1"):
        preparing_processes(plan, -1)
    assert cores_of(plan, None) == 1
    assert cores_of(on(plan, "cuda"), None) == 1 + CLUSTER_PREPARE
    assert cores_of(on(plan, "cuda"), 3) == 4


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]), ("cuda:1", ["cuda:1"] * 4), ("mps", ["mps"] * 4)],
)
def test_workers_take_gpus_in_turn(plan: Plan, three_gpus: None, monkeypatch, device, expected):
    context = get_context("spawn")
    counters = [context.Value("q", 0) for _ in range(3)]
    shared = local._Shared(*counters, context.Event(), context.Lock(), None)
    devices = gpus_of(torch.device(device)) or (device,)
    share = local._Share(plan, Path("nowhere"), plan.units, devices, 0, shared)
    for name in ("_share", "_device"):
        monkeypatch.setattr(local, name, getattr(local, name))  # put back at the end
    found = []
    for _ in range(4):
        local._start_worker(share)
        found.append(local._device)
    assert found == expected


def test_a_folder_goes_on_with_its_own_kind_of_device(plan: Plan, three_gpus: None, tmp_path: Path, capsys):
    evaluate(plan, tmp_path / "out", workers=1)
    assert main(["evaluate", "--out", str(tmp_path / "out"), "--device", "cuda:1"]) == 2
    assert "was begun on cpu, whose numbers are not mixed with those of cuda" in capsys.readouterr().err
    assert main(["evaluate", "--out", str(tmp_path / "out"), "--device", "cpu"]) == 0


def test_a_cluster_shares_out_gpus_itself(plan: Plan, three_gpus: None, tmp_path: Path, capsys):
    arguments = ["evaluate", "--suite", "scenes-c", "--data", plan.data.root, "--engine", "slurm"]
    assert main([*arguments, "--device", "cuda:1", "--out", str(tmp_path / "out")]) == 2
    assert "--device cuda:1 is one GPU of this machine; --engine slurm shares" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
