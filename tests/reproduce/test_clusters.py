"""Two evaluations and a measurement of costs as one array of Slurm and as one Ray job: the same bytes as on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loopback_slurm import LoopbackSlurm, loopback_slurm, needs_slurm

pytestmark = pytest.mark.slow
RECIPE = """
title: A small recipe
models: {segmenter: {task: semantic, model: tiny, depth: 12}, detector: {task: detection, model: tiny, depth: 12}}
data: {scenes: {scenes: 2}}
evaluations:
  clean: {suite: scenes, data: scenes, model: detector, methods: [baseline, gramloop], time_images: 1}
  shifted:
    suite: scenes-c
    data: scenes
    model: segmenter
    methods: [baseline, gramloop]
    conditions: [fog, contrast]
    severities: [3]
outputs:
  main:
    layout: methods
    title: Main
    methods: [baseline, gramloop]
    columns: [{evaluation: clean, title: Clean}, {evaluation: shifted, title: Shifted}]
  compute: {layout: compute, title: Cost, evaluations: [clean], methods: [baseline, gramloop]}
"""
CODE = "import sys; from gramloop.cli import main; sys.exit(main(sys.argv[1:]))"


def begin(folder: Path, out: str, *words: str, **environment: str) -> subprocess.Popen[str]:
    (folder / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-c", CODE, "reproduce", "recipe.yaml", "--out", out, "--shards", "2", *words]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.Popen(command, cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)


def end(process: subprocess.Popen[str]) -> str:
    _, said = process.communicate(timeout=900)
    print(said)
    assert process.returncode == 0, said
    return said


def made(folder: Path, out: str) -> dict[str, bytes]:
    paths = [*(folder / out).glob("report/tables/main.*"), *(folder / out).glob("*/results.csv")]
    assert len(paths) == 5
    assert (folder / out / "costs" / "clean.json").is_file()
    return {str(path.relative_to(folder / out)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("local")
    end(begin(folder, "out"))
    return made(folder, "out")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackSlurm]:
    with loopback_slurm(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def lose_a_node(cluster: LoopbackSlurm) -> None:
    cluster.kill_node("n1")


def requeue(cluster: LoopbackSlurm) -> None:
    cluster.run("scontrol", "requeue", ",".join(cluster.jobs()))


def cancel(cluster: LoopbackSlurm) -> None:
    cluster.run("scancel", "--user=root")


@needs_slurm
@pytest.mark.parametrize("fault", [None, requeue, cancel, lose_a_node])
def test_one_array_of_slurm(
    cluster: LoopbackSlurm,
    reference: dict[str, bytes],
    tmp_path: Path,
    fault: Callable[[LoopbackSlurm], None] | None,
) -> None:
    words = ["--engine", "slurm", "--jobs", "2", "--slurm", "exclusive="]
    process = begin(tmp_path, "out", *words, SLURM_CONF=str(cluster.conf))
    if fault is not None:
        deadline = time.monotonic() + 600
        while not list(tmp_path.glob("out/*/units/**/*.parquet")) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not (tmp_path / "out/report").exists()
        fault(cluster)
    _, said = process.communicate(timeout=900)
    print(said)
    # Slurm may report the job as failed, rather than its node as lost
    assert process.returncode in {cancel: (2,), lose_a_node: (0, 2)}.get(fault, (0,)), said
    if process.returncode:
        assert "the same command resumes" in said
        end(begin(tmp_path, "out", *words, SLURM_CONF=str(cluster.conf)))
    if fault in (None, requeue):
        assert len(list(tmp_path.glob("out/slurm/*/shares.pickle"))) == 1
        assert len(list(tmp_path.glob("out/slurm/*/job-*.log"))) == 2
    if fault is requeue:
        assert any(map(int, re.findall(r"Restarts=(\d+)", cluster.run("scontrol", "show", "job"))))
    assert made(tmp_path, "out") == reference


@needs_slurm
def test_a_refused_array_leaves_no_results(cluster: LoopbackSlurm, tmp_path: Path) -> None:
    words = ["--engine", "slurm", "--slurm", "partition=nowhere"]
    process = begin(tmp_path, "out", *words, SLURM_CONF=str(cluster.conf))
    _, said = process.communicate(timeout=600)
    assert process.returncode == 2
    assert "Invalid partition name specified" in said
    assert "Traceback" not in said
    assert not list(tmp_path.glob("out/*/plan.json"))


def test_one_job_of_ray(reference: dict[str, bytes], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1)
    try:
        end(begin(tmp_path, "out", "--engine", "ray", "--address", cluster.address))
    finally:
        cluster.shutdown()
    assert made(tmp_path, "out") == reference
