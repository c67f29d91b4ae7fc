"""A hundred SIGKILLs, each after a unit was stored, and the bytes of one undisturbed run."""

import signal
from pathlib import Path

import pytest

from gramloop.data.suites import find_suite
from gramloop.evaluate.beginning import begin
from gramloop.app.page import look
from gramloop.evaluate.evaluation import evaluate
from gramloop.evaluate.plan import read_plan
from gramloop.evaluate.store import Store
from killing import hit, needs_proc
from small_runs import small_plan

KILLS = 100


def _go_on(folder: Path) -> None:
    evaluate(read_plan(folder / "plan.json"), folder, workers=1)


def stored_units(folder: Path) -> int:
    return sum(1 for _ in folder.glob("units/*/[0-9]*.parquet"))


@needs_proc
@pytest.mark.slow
def test_a_hundred_kills_after_stored_units_leave_the_bytes_of_one_run(model_folder, scene_folder, tmp_path):
    names = list(dict.fromkeys(condition.name for condition in find_suite("scenes-c").conditions))
    plan = small_plan(model_folder, scene_folder, conditions=names, shards=11)
    assert len(plan.units) == 165  # of one image each
    out, killed, hits = tmp_path / "out", 0, []
    begin(out, plan)
    while killed < KILLS:
        present = stored_units(out)
        assert present < len(plan.units), f"it was through after {killed} kills"
        code = hit(_go_on, (out,), signal.SIGKILL, lambda least=present + 1: stored_units(out) >= least)
        assert code == -signal.SIGKILL
        assert stored_units(out) > present
        hits.append(stored_units(out))
        killed += 1
    assert len(set(hits)) == KILLS
    assert len(look(Store(out, plan)).stored) == hits[-1]
    evaluate(plan, out, workers=1)
    evaluate(plan, tmp_path / "whole", workers=1)
    assert (out / "results.csv").read_bytes() == (tmp_path / "whole" / "results.csv").read_bytes()
    for unit in plan.units:
        found, expected = (Store(folder, plan).read(unit) for folder in (out, tmp_path / "whole"))
        assert found.table.equals(expected.table)
        assert found.failures == expected.failures
