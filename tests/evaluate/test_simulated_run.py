"""A small simulated COCO-C goes through every step that the large one is measured by."""

from __future__ import annotations

import csv
import importlib
import os
from pathlib import Path
from typing import Any

import pytest

IMAGES, CONDITIONS = 60, 3


@pytest.fixture(scope="module")
def simulated() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
        yield importlib.import_module("simulated_coco_c")


@pytest.fixture(scope="module")
def size(simulated: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = simulated.Size(tmp_path_factory.mktemp("simulated"), IMAGES, CONDITIONS, 30, workers=1)
    for step in ("set", "plan", "store", "score"):
        simulated.STEPS[step][1](made)
    return made


def scores(folder: Path) -> dict[tuple[str, str], float]:
    with (folder / "results.csv").open(encoding="utf-8", newline="") as stream:
        return {(row["condition"], row["method"]): float(row["AP"]) for row in csv.DictReader(stream)}


def test_predictions_get_worse_with_severity_and_a_little_better_with_the_replay(size: Any) -> None:
    found = scores(size.results)
    for method in ("baseline", "gramloop"):
        assert 90 > found["gaussian_noise/1", method] > found["gaussian_noise/3", method] + 5 > 15
    assert found["mean", "gramloop"] > found["mean", "baseline"]


def test_status_of_all_and_of_half(simulated: Any, size: Any) -> None:
    units = 2 * CONDITIONS * 2  # two shards, two methods
    assert simulated.status(size).startswith(f"{units} of {units} units are stored, 0 are missing")
    assert simulated.half(size).startswith("8 of 12 units are stored, 4 are missing")


def test_a_resumed_run_has_the_same_results_to_the_byte(simulated: Any, size: Any) -> None:
    assert simulated.resume(size) == "8 units computed again, 3 of them damaged"
    there = [(size.out / name / "results.csv").read_bytes() for name in ("results", "resumed")]
    assert there[0] == there[1]


def test_the_bootstrap_is_around_the_gain(simulated: Any, size: Any) -> None:
    told = simulated.bootstrap(size, replicates=100)
    found = scores(size.results)
    assert f"gain {found['mean', 'gramloop'] - found['mean', 'baseline']:+.3f} [" in told


def test_memory_of_a_process_and_its_children(simulated: Any) -> None:
    assert 10**6 < simulated.tree_memory(os.getpid()) < 10**11
    assert simulated.tree_memory(2**22 + 1) == 0  # no such process
