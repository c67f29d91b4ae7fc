"""Ray and Slurm: the same units elsewhere, a node lost on the way, and the same table."""

import os
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gramloop.errors import GramLoopError
from gramloop.evaluate.beginning import begin
from gramloop.evaluate.engines import Job
from gramloop.evaluate.engines.slurm import Share, ShareOutcome, run_slurm
from gramloop.app.page import look
from gramloop.evaluate.evaluation import Watcher, evaluate
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.store import Store
from small_runs import small_plan


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, shards=11)


@pytest.fixture(scope="module")
def reference(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("reference") / "out"
    evaluate(plan, folder, workers=1)
    return (folder / "results.csv").read_bytes()


def test_a_share_skips_what_is_stored(plan: Plan, reference: bytes, tmp_path: Path):
    begin(tmp_path, plan)
    assert Share(plan, tmp_path, plan.units[:2])() == ShareOutcome(2, ())
    assert Share(plan, tmp_path, plan.units)() == ShareOutcome(len(plan.units) - 2, ())
    evaluate(plan, tmp_path, workers=1)
    assert (tmp_path / "results.csv").read_bytes() == reference


@pytest.mark.slow
def test_jobs_of_submitit_give_the_same_table(plan: Plan, reference: bytes, tmp_path: Path):
    pytest.importorskip("submitit")
    out = tmp_path / "out"
    engine = partial(run_slurm, jobs=2, settings={"timeout_min": 5}, cluster="local")
    evaluate(plan, out, engine=engine, engine_name="slurm")
    assert (out / "results.csv").read_bytes() == reference
    assert len(list(out.glob("units/*/*.parquet"))) == len(plan.units)


@pytest.mark.slow
def test_a_reason_for_missing_units_comes_back_from_the_job(plan: Plan, tmp_path: Path):
    pytest.importorskip("submitit")
    from dataclasses import replace

    shutil.copytree(plan.data.root, tmp_path / "set")
    with (tmp_path / "set" / "images" / "validation" / "00000000.png").open("ab") as stream:
        stream.write(b"\0")
    moved = replace(plan, data=replace(plan.data, root=str(tmp_path / "set")))
    begin(tmp_path / "out", moved)
    with pytest.raises(GramLoopError, match=r"33 units are missing .* changed since"):
        list(run_slurm(Job(moved, tmp_path / "out", moved.units), jobs=1, cluster="local"))


def test_a_machine_without_slurm_is_told(plan: Plan, tmp_path: Path):
    pytest.importorskip("submitit")
    if shutil.which("sbatch"):
        pytest.skip("there is a Slurm here")
    begin(tmp_path / "out", plan)
    with pytest.raises(GramLoopError, match="no Slurm on this machine"):
        list(run_slurm(Job(plan, tmp_path / "out", plan.units)))
    with pytest.raises(GramLoopError, match="jobs must be at least 1"):
        list(run_slurm(Job(plan, tmp_path / "out", plan.units), jobs=0))


@pytest.mark.parametrize("package", ["ray", "submitit"])
def test_a_missing_package_is_named(package, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from gramloop.evaluate.engines.ray import run_ray

    monkeypatch.setitem(sys.modules, package, None)  # how Python marks what cannot be imported
    engine = {"ray": run_ray, "submitit": run_slurm}[package]
    with pytest.raises(GramLoopError, match=f"pip install {package}"):
        list(engine(Job(plan, tmp_path, plan.units)))


def test_a_preempted_share_is_queued_again_as_it_is(plan: Plan, tmp_path: Path):
    pytest.importorskip("submitit")
    share = Share(plan, tmp_path, plan.units[:2])
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
    from gramloop.evaluate.engines.ray import run_ray

    seen: list[str] = []

    class Killing(Watcher):
        def finished(self, done) -> None:
            seen.append(done.unit.name)
            if len(seen) == 3:
                cluster.remove_node(cluster.nodes[0], allow_graceful=False)

    out = tmp_path / "out"
    evaluate(plan, out, engine=run_ray, engine_name="ray", watcher=Killing())
    assert sorted(seen) == sorted(unit.name for unit in plan.units)  # every unit present once
    assert (out / "results.csv").read_bytes() == reference
    assert not look(Store(out, plan)).rejected
    deadline = time.monotonic() + 60
    while sum(node["Alive"] for node in cluster.ray.nodes()) != 2:  # Ray takes a while to call a node dead
        assert time.monotonic() < deadline, "no node was lost, so this test showed nothing"
        time.sleep(0.1)


@pytest.mark.slow
def test_an_address_is_enough_to_join_a_cluster(plan: Plan, reference: bytes, tmp_path: Path, cluster):
    from gramloop.evaluate.engines.ray import run_ray

    cluster.ray.shutdown()  # the program joins by itself, as the command line does
    evaluate(plan, tmp_path / "out", engine=partial(run_ray, address=cluster.address), engine_name="ray")
    assert (tmp_path / "out" / "results.csv").read_bytes() == reference
    assert not cluster.ray.is_initialized()


@pytest.mark.slow
def test_ray_brings_the_sentence_of_an_error(plan: Plan, tmp_path: Path, cluster):
    from dataclasses import replace

    from gramloop.evaluate.engines.ray import run_ray

    wrong = replace(plan, data=replace(plan.data, fingerprints={"clean": "0" * 64}))
    begin(tmp_path / "out", wrong)
    with pytest.raises(GramLoopError, match="changed since the evaluation was planned"):
        list(run_ray(Job(wrong, tmp_path / "out", wrong.units)))
