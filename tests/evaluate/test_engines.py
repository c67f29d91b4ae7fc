"""Engines: which GPU a worker gets, Ray and Slurm with a node lost on the way, and the same table everywhere."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from gramloop.cli import main
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import CLUSTER_PREPARE, cores_of, local, preparing_processes, ray
from gramloop.evaluate.engines.local import default_workers
from gramloop.evaluate.engines.ray import run_ray
from gramloop.evaluate.engines.slurm import Share, ShareOutcome, run_slurm
from gramloop.evaluate.evaluation import Listener, evaluate, inspect_store
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.provenance import plan_subject
from gramloop.evaluate.store import Store, open_folder
from gramloop.util.device import gpus_of
from gramloop.util.processes import available_cores
from small_runs import job_of, small_plan


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, shards=11)


@pytest.fixture(scope="module")
def reference(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("reference") / "out"
    evaluate(plan, folder, workers=1)
    return (folder / "results.csv").read_bytes()


def test_a_share_skips_what_is_stored(plan: Plan, reference: bytes, tmp_path: Path):
    store, subject = open_folder(tmp_path, plan), plan_subject(plan)
    assert Share(subject, store, plan.parts[:2])() == ShareOutcome(2, ())
    assert Share(subject, store, plan.parts)() == ShareOutcome(len(plan.parts) - 2, ())
    evaluate(plan, tmp_path, workers=1)
    assert (tmp_path / "results.csv").read_bytes() == reference


@pytest.mark.slow
def test_jobs_of_submitit_give_the_same_table(plan: Plan, reference: bytes, tmp_path: Path):
    pytest.importorskip("submitit")
    out = tmp_path / "out"
    engine = partial(run_slurm, jobs=2, settings={"timeout_min": 5}, cluster="local")
    evaluate(plan, out, engine=engine, engine_name="slurm")
    assert (out / "results.csv").read_bytes() == reference
    assert len(list(out.glob("units/*/*/*.parquet"))) == len(plan.units)


@pytest.mark.slow
def test_a_reason_for_missing_units_comes_back_from_the_job(plan: Plan, tmp_path: Path):
    pytest.importorskip("submitit")
    shutil.copytree(plan.data.root, tmp_path / "set")
    with (tmp_path / "set" / "images" / "validation" / "00000000.png").open("ab") as stream:
        stream.write(b"\0")
    moved = replace(plan, data=replace(plan.data, root=str(tmp_path / "set")))
    open_folder(tmp_path / "out", moved)
    with pytest.raises(GramLoopError, match=r"33 parts are missing .* changed since"):
        list(run_slurm(job_of(moved, tmp_path / "out"), jobs=1, cluster="local"))


def test_a_machine_without_slurm_is_told(plan: Plan, tmp_path: Path):
    pytest.importorskip("submitit")
    if shutil.which("sbatch"):
        pytest.skip("there is a Slurm here")
    open_folder(tmp_path / "out", plan)
    with pytest.raises(GramLoopError, match="no Slurm on this machine"):
        list(run_slurm(job_of(plan, tmp_path / "out")))
    with pytest.raises(GramLoopError, match="jobs must be at least 1"):
        list(run_slurm(job_of(plan, tmp_path / "out"), jobs=0))


@pytest.mark.parametrize("package", ["ray", "submitit"])
def test_a_missing_package_is_named(package, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, package, None)  # how Python marks what cannot be imported
    engine = {"ray": run_ray, "submitit": run_slurm}[package]
    with pytest.raises(GramLoopError, match=f"pip install {package}"):
        list(engine(job_of(plan, tmp_path)))


def test_a_preempted_share_is_queued_again_as_it_is(plan: Plan, tmp_path: Path):
    pytest.importorskip("submitit")
    share = Share(plan_subject(plan), Store(tmp_path, plan), plan.parts[:2])
    assert share.checkpoint().function == share


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Three simulated nodes of one core each."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    paths = [str(Path(__file__).parents[1] / "support"), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.ray, made.nodes = ray, [made.add_node(num_cpus=1) for _ in range(2)]
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.slow
def test_a_lost_node_of_ray_costs_no_unit(plan: Plan, reference: bytes, tmp_path: Path, cluster):
    seen: list[str] = []

    class Killing(Listener):
        def finished(self, done) -> None:
            seen.append(str(done.part))
            if len(seen) == 3:
                cluster.remove_node(cluster.nodes[0], allow_graceful=False)

    out = tmp_path / "out"
    evaluate(plan, out, engine=run_ray, engine_name="ray", listener=Killing())
    assert sorted(seen) == sorted(map(str, plan.parts))  # every part once
    assert (out / "results.csv").read_bytes() == reference
    assert not inspect_store(Store(out, plan)).rejected
    deadline = time.monotonic() + 60
    while sum(node["Alive"] for node in cluster.ray.nodes()) != 2:  # Ray takes a while to call a node dead
        assert time.monotonic() < deadline, "no node was lost, so this test showed nothing"
        time.sleep(0.1)


@pytest.mark.slow
def test_an_address_is_enough_to_join_a_cluster(plan: Plan, reference: bytes, tmp_path: Path, cluster):
    cluster.ray.shutdown()  # the program joins by itself, as the command line does
    evaluate(plan, tmp_path / "out", engine=partial(run_ray, address=cluster.address), engine_name="ray")
    assert (tmp_path / "out" / "results.csv").read_bytes() == reference
    assert not cluster.ray.is_initialized()


@pytest.mark.slow
def test_ray_brings_the_sentence_of_an_error(plan: Plan, tmp_path: Path, cluster):
    wrong = replace(plan, data=replace(plan.data, fingerprints={"clean": "0" * 64}))
    open_folder(tmp_path / "out", wrong)
    with pytest.raises(GramLoopError, match="changed since the evaluation was planned"):
        list(run_ray(job_of(wrong, tmp_path / "out")))


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
    assert ray._preparing(Cluster((64, 4), (96, 8), (4, 0)), job) == CLUSTER_PREPARE
    assert ray._preparing(Cluster((64, 4), (8, 2)), job) == 3
    assert ray._preparing(Cluster((1, 1)), job) == 0
    assert ray._preparing(Cluster((1, 1)), replace(job, prepare=2)) == 2
    assert ray._preparing(Cluster((64, 4)), replace(job, subject=plan_subject(plan))) == 0


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
    assert cores_of(plan_subject(plan), None) == 1
    assert cores_of(plan_subject(on(plan, "cuda")), None) == 1 + CLUSTER_PREPARE
    assert cores_of(plan_subject(on(plan, "cuda")), 3) == 4


@pytest.mark.parametrize(
    ("device", "expected"),
    [("cuda", ["cuda:0", "cuda:1", "cuda:2", "cuda:0"]), ("cuda:1", ["cuda:1"] * 4), ("mps", ["mps"] * 4)],
)
def test_workers_take_gpus_in_turn(three_gpus: None, monkeypatch, device, expected):
    context = get_context("spawn")
    shared = local._Shared(*(context.Value("q", 0) for _ in range(3)), context.Event(), None)
    start = local._Start(b"", gpus_of(torch.device(device)) or (device,), 0, shared)
    for name in ("_started", "_device"):
        monkeypatch.setattr(local, name, getattr(local, name))  # restored at the end
    found = []
    for _ in range(4):
        local._start_worker(start)
        found.append(local._device)
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
