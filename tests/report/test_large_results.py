"""Results that are read and resampled by several processes say what one process says, to the last digit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.evaluate.results import collect
from gramloop.evaluate.store import UnusableFile
from gramloop.report import load
from gramloop.report.load import load_runs, report_workers
from gramloop.report.run import ConditionResults
from gramloop.report.stats import resample
from small_stores import CONDITIONS, make_plan, write_store


def same(first: ConditionResults, second: ConditionResults) -> bool:
    return repr(first.scores) == repr(
        second.scores
    ) and all(  # some areas have no score, and no nan equals another
        np.array_equal(first.classes[name], second.classes[name], equal_nan=True) for name in first.classes
    )


def test_two_processes_say_what_one_says(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    store = write_store(folder, make_plan(task="detection"), skip=["snow/3"])
    damaged = store.path(store.plan.parts_of("fog/3")[0].units[0])
    damaged.write_bytes(damaged.read_bytes()[:-100])
    one, two = (load_runs([folder], workers=workers) for workers in (1, 2))
    assert set(one.runs[0].missing) == {"fog/3", "snow/3"}
    assert one.runs[0].missing == two.runs[0].missing
    assert one.warnings == two.warnings
    assert all(same(*pair) for pair in zip(one.runs[0].results, two.runs[0].results, strict=True))


def test_two_processes_draw_what_one_draws(tmp_path: Path) -> None:
    write_store(tmp_path / "r", make_plan(task="detection"), lost={"fog/1": [3]})
    run = load_runs([tmp_path / "r"]).runs[0]
    one = resample(run, "images", replicates=100)
    two = resample(run, "images", replicates=100, workers=2)
    assert one.units == two.units == 11
    for method in run.methods:
        np.testing.assert_array_equal(one.scores[method], two.scores[method])


def test_processes_are_started_where_there_is_much_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert report_workers([make_plan()]) == 1
    assert report_workers([make_plan()], 3) == 3
    monkeypatch.setattr(load, "worker_count", lambda asked: 64)
    monkeypatch.setattr(load, "_MANY", 100)
    assert report_workers([make_plan()]) == 4


def test_no_processes_are_refused() -> None:
    with pytest.raises(GramLoopError, match="at least 1"):
        report_workers([make_plan()], 0)


def test_scores_are_computed_again_once_a_file_is_another(tmp_path: Path) -> None:
    plan = make_plan(task="detection")
    store = write_store(tmp_path / "r", plan)
    first = collect(store)
    assert collect(store).conditions[0] is first.conditions[0]
    path = store.path(plan.units[0])
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UnusableFile):
        collect(store)
    path.unlink()
    assert [one.condition for one in collect(store).conditions] == list(CONDITIONS[1:])
