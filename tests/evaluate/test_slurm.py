"""Slurm on this machine: the same bytes as a local run whatever ends jobs, and a reason where nothing can come."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluate_command import MODEL, Command
from gramloop.cli import main
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.provenance import plan_workload
from gramloop.evaluate.slurm import run_missing
from gramloop.evaluate.store import open_folder
from gramloop.util.files import LOCK
from loopback_slurm import NODES, LoopbackSlurm, loopback_slurm, needs_slurm
from small_runs import small_plan


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSlurm]:
    with loopback_slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize("name", ["out", r"back\slash %A 'quoted'"])
def test_a_plain_run(cluster, given: Path, local_results: bytes, tmp_path: Path, name: str):
    run = Command(given, tmp_path / name, "--jobs", "3", slurm=cluster.conf)
    assert run.end()[0] == 0
    assert run.results == local_results
    assert len(list(run.out.glob("slurm/*/job-*.log"))) == 3
    assert not cluster.jobs()


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["partition=nowhere"], "Invalid partition name specified"),
        (["mem=9999G"], "Slurm refuses the jobs: .*(Memory|configuration)"),
        (["cpus_per_task=64"], r"its jobs can never start \(PartitionConfig"),
        (["cpus_per_task=5"], "CPU count per node can not be satisfied"),
        (["time=600"], r"its jobs can never start \(Partition(TimeLimit|Config)"),
        (["constraint=gold"], "Slurm refuses the jobs: .*Invalid feature"),
        (["sparkle=1"], "unrecognized option '--sparkle=1'"),
    ],
)
def test_what_slurm_cannot_run_is_one_message(cluster, given, tmp_path, words, reason):
    run = Command(
        given, tmp_path / "out", *(each for word in words for each in ("--slurm", word)), slurm=cluster.conf
    )
    code, said = run.end(60)
    assert code == 2
    assert re.search(reason, said)
    assert not run.out.exists()
    assert not cluster.jobs()


@needs_slurm
@pytest.mark.slow
def test_jobs_cancelled_while_they_wait(cluster, given: Path, local_results: bytes, tmp_path: Path):
    run = Command(given, tmp_path / "out", "--jobs", "2", "--slurm", "hold=", slurm=cluster.conf)
    run.until(lambda: "waiting for 24 parts from Slurm's array" in run.said)
    assert re.search(r"2 pending \(JobHeldUser\)", run.said)
    cluster.run("scancel", "--user=root")
    code, said = run.end(60)
    assert code == 2
    assert re.search(r"24 parts are missing from Slurm's array \d+: 2 cancelled", said)
    again = Command(given, tmp_path / "out", slurm=cluster.conf)
    assert again.end()[0] == 0
    assert run.results == local_results


@needs_slurm
@pytest.mark.slow
def test_a_job_cancelled_while_it_runs(cluster, given: Path, local_results: bytes, tmp_path: Path):
    run = Command(given, tmp_path / "out", "--jobs", "2", slurm=cluster.conf, pause=3)
    run.until(lambda: run.stored > 1)
    cluster.run("scancel", "--user=root")
    code, said = run.end(60)
    assert code == 2
    assert re.search(r"parts are missing from Slurm's array \d+: 2 cancelled", said)
    assert "the same command resumes" in said
    again = Command(given, tmp_path / "out", slurm=cluster.conf)
    assert again.end()[0] == 0
    assert run.results == local_results


@needs_slurm
@pytest.mark.slow
def test_a_time_limit_is_no_end_while_parts_come(cluster, given: Path, local_results: bytes, tmp_path: Path):
    run = Command(given, tmp_path / "out", "--jobs", "2", "--slurm", "time=1", slurm=cluster.conf, pause=9)
    code, said = run.end(420)
    assert code == 0
    assert "timeout) and submitted again" in said
    assert run.results == local_results


@needs_slurm
@pytest.mark.slow
def test_a_time_limit_that_no_part_meets(cluster, given: Path, tmp_path: Path):
    run = Command(given, tmp_path / "out", "--jobs", "1", "--slurm", "time=1", slurm=cluster.conf, pause=300)
    code, said = run.end(240)
    assert code == 2
    assert re.search(
        r"24 parts are missing .*1 timeout.* before one part was finished; ask for more time", said
    )


def lose_a_node(cluster: LoopbackSlurm) -> None:
    cluster.kill_node("n2")


def requeue(cluster: LoopbackSlurm) -> None:
    cluster.run("scontrol", "requeue", ",".join(cluster.jobs()))


def preempt(cluster: LoopbackSlurm) -> None:
    """A job of a partition that takes precedence wants all nodes for a few seconds."""
    nodes = f"--nodes={len(NODES)}"
    cluster.run("sbatch", "--partition=urgent", nodes, "--exclusive", "--output=/dev/null", "--wrap=sleep 3")


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize("fault", [lose_a_node, requeue, preempt])
def test_a_job_that_slurm_starts_again_costs_no_unit(
    cluster, given: Path, local_results: bytes, tmp_path: Path, fault: Callable[[LoopbackSlurm], None]
):
    words = ["--jobs", "3", "--slurm", "exclusive="]
    run = Command(given, tmp_path / "out", *words, slurm=cluster.conf, pause=2)
    run.until(lambda: run.stored > 3)
    fault(cluster)
    try:
        code, said = run.end()
    finally:
        if fault is lose_a_node:
            cluster.run("slurmd", "-N", "n2")
    assert code == 0
    assert run.results == local_results
    restarts = re.findall(r"Restarts=(\d+)", cluster.run("scontrol", "show", "job"))
    assert any(map(int, restarts)) or "submitted again" in said
    cluster.until_idle()


@needs_slurm
@pytest.mark.slow
@pytest.mark.parametrize("locks", [True, False])
def test_two_submitters_at_once(cluster, given: Path, local_results: bytes, tmp_path: Path, locks: bool):
    """The second is refused; where a file system has no locks, both run and store the same."""
    first = Command(given, tmp_path / "out", "--jobs", "2", slurm=cluster.conf, pause=2)
    first.until(lambda: first.stored > 1)
    if not locks:
        (first.out / LOCK).unlink()  # what the second one locks is another file
    second = Command(given, tmp_path / "out", "--jobs", "2", slurm=cluster.conf, log="second", pause=2)
    code, said = second.end()
    assert code == (2 if locks else 0)
    assert ("another gramloop is writing to" in said) == locks
    assert first.end()[0] == 0
    assert first.results == local_results
    assert len(list(first.out.glob("slurm/*/shares.pickle"))) == (1 if locks else 2)


@needs_slurm
@pytest.mark.slow
def test_a_controller_that_goes_away(cluster, given: Path, local_results: bytes, tmp_path: Path):
    run = Command(given, tmp_path / "out", "--jobs", "2", slurm=cluster.conf, pause=3)
    run.until(lambda: run.stored > 1)
    cluster.stop_controller()
    run.process.send_signal(2)  # as Ctrl-C: the jobs cannot be cancelled now
    code, said = run.end(90)
    cluster.start_controller()
    assert code == 130
    assert re.search(r"jobs may still run: scancel \d+ failed", said)
    cluster.run("scancel", "--user=root")
    again = Command(given, tmp_path / "out", slurm=cluster.conf)
    assert again.end()[0] == 0
    assert run.results == local_results


@needs_slurm
@pytest.mark.slow
def test_the_error_of_a_job_comes_back(cluster, given: Path, tmp_path: Path):
    model = tmp_path / "model.py"
    model.write_text(MODEL.replace("time.sleep(", "[][1] + ("))
    (tmp_path / "set").symlink_to(given / "set")
    run = Command(tmp_path, tmp_path / "out", "--jobs", "2", slurm=cluster.conf)
    code, said = run.end()
    assert code != 0
    assert "list index out of range" in said


@pytest.fixture
def slurm_without_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for sbatch that refuses everything as the real one does."""
    (tmp_path / "bin").mkdir()
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.write_text(
        "#!/bin/sh\ncat >/dev/null\necho 'sbatch: error: invalid partition specified: gpu' >&2\nexit 1\n"
    )
    sbatch.chmod(sbatch.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_jobs_that_are_refused_leave_nothing(
    slurm_without_partition, model_folder: Path, scene_folder: Path, tmp_path: Path, capsys
):
    words = ["evaluate", "--suite", "scenes-c", "--data", str(scene_folder), "--model", str(model_folder)]
    words += ["--task", "semantic", "--condition", "fog", "--engine", "slurm", "--slurm", "partition=gpu"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "Slurm refuses the jobs: invalid partition specified: gpu" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def plan(model_folder: Path, scene_folder: Path) -> Plan:
    return small_plan(model_folder, scene_folder, shards=11)


def test_a_share_skips_what_is_stored(plan: Plan, tmp_path: Path):
    store, subject = open_folder(tmp_path / "out", plan), plan_workload(plan)
    assert run_missing((subject, store, plan.parts[:2], 0)) == []
    first = [store.path(unit) for part in plan.parts[:2] for unit in part.units]
    times = [path.stat().st_mtime_ns for path in first]
    assert run_missing((subject, store, plan.parts, 0)) == []
    assert [path.stat().st_mtime_ns for path in first] == times
    assert store.missing(plan.parts) == []
    evaluate(plan, tmp_path / "out", workers=1)
    evaluate(plan, tmp_path / "local", workers=1)
    found, expected = ((tmp_path / name / "results.csv").read_bytes() for name in ("out", "local"))
    assert found == expected
