"""A Ray cluster on this machine: the same bytes as a local run, and a reason where nothing can come."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluate_command import MODEL, Command

pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two nodes of one core each."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.other = made.add_node(num_cpus=1)
    yield made
    made.shutdown()


def started(given: Path, cluster: Any, out: Path, *words: str, pause: float = 0) -> Command:
    return Command(given, out, "--engine", "ray", "--address", cluster.address, *words, pause=pause)


def test_a_plain_run(cluster, given: Path, local_results: bytes, tmp_path: Path):
    run = started(given, cluster, tmp_path / "out")
    assert run.end()[0] == 0
    assert run.results == local_results


def test_a_lost_node_costs_no_unit(cluster, given: Path, local_results: bytes, tmp_path: Path):
    run = started(given, cluster, tmp_path / "out", pause=2)
    run.until(lambda: run.stored > 5)
    cluster.remove_node(cluster.other, allow_graceful=False)
    assert run.end()[0] == 0
    assert run.results == local_results


def test_no_node_can_hold_a_task(cluster, given: Path, tmp_path: Path):
    run = started(given, cluster, tmp_path / "out", "--threads", "3")
    code, said = run.end()
    assert code == 2
    assert (
        "waiting for 24 parts from Ray: no node has 3 CPU; its nodes have 1 CPU and 0 GPU, 1 CPU and 0 GPU"
        in said
    )
    assert "no node of the Ray cluster has 3 CPU, which a part needs" in said
    assert not run.out.exists()


def test_a_head_that_is_gone(cluster, given: Path, tmp_path: Path):
    run = started(given, cluster, tmp_path / "out", pause=2)
    run.until(lambda: run.stored > 3)
    cluster.remove_node(cluster.head_node, allow_graceful=False)
    code, said = run.end(55)  # Ray itself would end the process after a minute, without a reason
    assert code == 2
    assert "the Ray cluster's head is gone" in said
    assert "the same command resumes" in said
    cluster.head_node = None


def test_the_error_of_a_task_comes_back(cluster, given: Path, tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL.replace("time.sleep(", "np.missing("))
    (tmp_path / "set").symlink_to(given / "set")
    code, said = started(tmp_path, cluster, tmp_path / "out").end()
    assert code == 2
    assert "module 'numpy' has no attribute 'missing'" in said
