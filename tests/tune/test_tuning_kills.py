"""A hundred SIGKILLs, each after a trial was stored, and the bytes of one undisturbed search."""

import signal
from pathlib import Path

import pytest

from gramloop.tune.search.journal import PLAN, TRIALS
from gramloop.tune.search.plan import Search, plan_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.suites import suite_subject
from gramloop.tune.search.tuning import RESULT, run
from killing import hit, needs_proc
from small_runs import small_request, write_scene_set

KILLS = 100
SPACE = Space(
    {"window": [(2, 2), (3, 3), (4, 5), (5, 5)], "replays": [1], "strength": [0.5, 1.0]}, ["recentre:0.3"]
)


def search_of(model: Path, scenes: Path) -> Search:
    request = small_request(
        model, scenes, conditions=["fog", "impulse_noise", "pixelate", "contrast", "snow", "frost"]
    )
    return plan_search(suite_subject(request), SPACE, 900)


def _go_on(model: Path, scenes: Path, folder: Path) -> None:
    run(search_of(model, scenes), folder)


def trials(folder: Path) -> int:
    path = folder / TRIALS
    return path.read_bytes().count(b"\n") if path.exists() else 0


@needs_proc
@pytest.mark.slow
def test_a_hundred_kills_after_stored_trials_leave_the_bytes_of_one_search(model_folder, tmp_path):
    scenes = write_scene_set(tmp_path / "set", 33)
    whole, out, killed = tmp_path / "whole", tmp_path / "out", 0
    run(search_of(model_folder, scenes), whole)
    assert trials(whole) > 1.2 * KILLS
    while killed < KILLS:
        present = trials(out)
        assert present < trials(whole), f"it was through after {killed} kills"
        given = (model_folder, scenes, out)
        code = hit(_go_on, given, signal.SIGKILL, lambda least=present + 1: trials(out) >= least)
        assert code == -signal.SIGKILL
        assert trials(out) > present
        killed += 1
    run(search_of(model_folder, scenes), out)
    found, expected = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (out, whole))
    assert {RESULT, TRIALS, PLAN} <= set(expected)
    assert found == expected
