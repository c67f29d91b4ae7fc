"""Searches whose true gains are known: the best is found, noise is not chosen, and kills change nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from gramloop.data.truth import PixelLabels
from gramloop.errors import GramLoopError
from gramloop.mitigations import stack_text
from gramloop.mitigations.stack import replay_alone
from gramloop.replay.config import ReplayConfig, read_replay
from gramloop.tune.options import SearchOptions
from gramloop.tune.planning import describe_search, plan_search
from gramloop.tune.result import RESULT
from gramloop.tune.space import NO_EXTRA_COST, Space, replay_values
from laws import (
    FAMILIES,
    Lawful,
    OnFeatures,
    OnOutputs,
    OnPixels,
    lawful_target,
    made_up,
    nothing,
    peak,
    pictures,
)
from memory_targets import MemoryImages, searched

WINDOWS = [(block, block) for block in range(6)]
REPLAYS = Space(replay_values(6, window=WINDOWS))  # 18 candidates
CALM = SearchOptions(clean_tolerance=3.0)  # the laws' clean images scatter by some points
STAGES = Space(
    {"window": [(block, block) for block in range(6)], "replays": [1], "strength": [0.5]},
    made_up((OnPixels, 4), (OnFeatures, 4), (OnOutputs, 3)),
)  # 17 candidates of four stages
GAINS = {"on-pixels:1": 0.04, "on-features:2": 0.05, "on-features:0": 0.02, "on-outputs:0": -0.04}


class Counting(Lawful):
    """Counts what is really predicted."""

    count = 0

    def predict(self, image, replay=None, paired=False, *, trace=None):
        Counting.count += 1
        return super().predict(image, replay, paired, trace=trace)


def search(target, space=REPLAYS, budget=400, options=CALM, out=None, **more):
    return searched(target, space, budget, options, out, **more)


def few(predictor=Lawful, noise=0.02):
    return lawful_target(predictor(peak, noise=noise), images=24, families=4)


def staged(predictor=Lawful):
    return lawful_target(predictor(peak, noise=0.02, gains=GAINS), images=24, families=4)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_true_best_is_found_within_the_budget(noise):
    Counting.count = 0
    found = search(lawful_target(Counting(peak, noise=noise)), budget=1000)
    assert found.config == ReplayConfig(window=(2, 2), replays=1, strength=0.5)
    assert found.outcome.predictions == found.search.schedule.predictions == Counting.count
    assert 1000 - 15 <= Counting.count <= 1000  # less than one more image of the decision is left over
    words = {name: part["verdict"] for name, part in found.outcome.leader.holdout.items()}
    assert words["searched families"] == "helps"
    assert words["clean"] == "not significantly different"


@pytest.mark.parametrize(("space", "budget"), [(REPLAYS, 400), (STAGES, 600)], ids=["replays", "all stages"])
@pytest.mark.parametrize(
    ("seeds", "most"), [(range(3), 1), pytest.param(range(1000, 1100), 9, marks=pytest.mark.slow)]
)
def test_of_pure_noise_nothing_is_chosen(space, budget, seeds, most):
    """At 5%, 9 of 100 are exceeded in 3 of 100 tests; benchmarks/decision_rule.py measures the rate."""
    free = SearchOptions(clean_tolerance=100.0)  # so that the gain alone decides
    noise = (lawful_target(Lawful(nothing, noise=0.03, seed=seed), images=24, families=4) for seed in seeds)
    assert sum(search(each, space, budget, free).outcome.chosen for each in noise) <= most


def test_no_replay_is_a_setting_and_its_file_says_so(tmp_path):
    target = lawful_target(Lawful(nothing, noise=0.03), images=24)
    found = search(target, budget=600, options=SearchOptions(), out=tmp_path)
    assert not found.outcome.chosen
    config, about = read_replay(tmp_path / RESULT), json.loads((tmp_path / RESULT).read_text())["about"]
    assert config.replays == 0
    assert about["verdict"].startswith(
        "Use the model as it is: none of 18 candidates improves mIoU beyond noise"
    )
    assert about["nearest"]["replay"]["window"] == list(replay_alone(found.outcome.leader.stack).window)
    assert about["tried"]["predictions"] <= about["tried"]["budget"] == 600


def harms_clean(config):
    return -0.05 if config.window == (2, 2) else 0.0


def test_a_gain_that_clean_images_pay_for_is_not_chosen():
    found = search(lawful_target(Lawful(peak, clean=harms_clean)), budget=1000, options=SearchOptions())
    assert found.config == ReplayConfig(window=(3, 3), replays=1, strength=0.5)  # the next best


def test_what_costs_too_much_is_not_tried():
    cheap = plan_search(lawful_target(Lawful(peak)), REPLAYS, 1000, SearchOptions(max_cost=1.5))
    assert {replay_alone(stack).window for stack in cheap.candidates} == {(4, 4), (5, 5)}


def test_an_image_that_cannot_be_read_counts_for_no_candidate(tmp_path):
    data = {name: pictures(name, 24) for name in ("clean", *FAMILIES)}
    for records in data.values():
        records[5] = replace(records[5], truth=PixelLabels(records[5].truth.indices[:-1]))
    target = lawful_target(Lawful(peak), images=24)
    broken = replace(target.workload, open_images=partial(MemoryImages, data))
    found = search(replace(target, workload=broken), budget=500, out=tmp_path)
    assert found.config == ReplayConfig(window=(2, 2), replays=1, strength=0.5)
    assert found.outcome.failures
    assert all("image-5" in text and "16 x 15" in text for text in found.outcome.failures)
    assert found.outcome.predictions < found.search.schedule.predictions


def test_the_file_holds_the_evidence(tmp_path):
    found = search(lawful_target(Lawful(peak)), budget=800, out=tmp_path)
    assert read_replay(tmp_path / RESULT) == found.config
    about = json.loads((tmp_path / RESULT).read_text())["about"]
    for name, part in about["unseen images"].items():
        assert part["gain"] == pytest.approx(part["mitigated score"] - part["baseline score"], abs=1e-9)
        assert part["over images"]["low"] <= part["gain"] <= part["over images"]["high"], name
    assert about["unseen images"]["other families"]["families"] == 2
    assert not set(about["split"]["seen families"]) & set(about["split"]["unseen families"])


# mitigations of several stages


@pytest.mark.parametrize("budget", [500, 1200])
def test_winners_of_different_stages_are_stacked_within_the_budget(budget):
    Counting.count = 0
    found = search(staged(Counting), STAGES, budget)
    assert found.outcome.predictions <= found.search.schedule.predictions <= budget
    assert Counting.count <= found.outcome.predictions  # what is shared is predicted once
    if budget == 1200:  # 0.15 more of the pixels, in three stages
        assert found.mitigations == "on-pixels:1+replay:window=2-2,replays=1,strength=0.5+on-features:2"
        assert found.config == ReplayConfig(window=(2, 2), replays=1, strength=0.5)
        words = {name: part["verdict"] for name, part in found.outcome.leader.holdout.items()}
        assert words["searched families"] == "helps"


def test_what_comes_without_extra_cost_is_reported_too():
    found = search(staged(), STAGES, 1200)
    free = found.outcome.free
    assert found.outcome.leader.cost > NO_EXTRA_COST >= free.cost
    assert [each.method for each in found.answer.gains] == [found.mitigations, stack_text(free.stack)]
    assert [each.work for each in found.answer.gains] == [found.outcome.leader.cost, free.cost]
    assert found.about()["at no extra cost"]["unseen images"]["other families"]["verdict"] == "helps"


def test_a_cost_limit_keeps_out_what_a_stack_would_cost():
    found = search(staged(), STAGES, 1200, replace(CALM, max_cost=1.0))
    assert found.mitigations == "on-pixels:1+on-features:2"
    assert found.outcome.leader.cost <= NO_EXTRA_COST
    reasons = dict(found.search.offered.left_out)
    assert reasons["on-outputs:0"] == "it costs 1.21x, more than the limit of 1"
    assert "no candidate costs at most 1" in reasons["replays"]


def test_too_few_images_choose_nothing_and_the_answer_says_so():
    found = search(lawful_target(Lawful(peak), images=16), budget=400)
    assert not found.outcome.chosen
    reason = "the decision has 4 images, and a confidence of 0.95 needs 5"
    assert f"Nothing can be chosen: {reason}." in describe_search(found.search).text()
    assert found.answer.sentence.startswith(f"Use the model as it is: {reason}. The closest is replay:")


def test_without_stacking_one_mitigation_is_chosen():
    found = search(staged(), STAGES, 1200, replace(CALM, stacking=False))
    assert not any(rung.joining for rung in found.search.schedule.rungs)
    assert len(found.stack) == 1


def test_nothing_is_an_outcome_in_words():
    noise = lawful_target(Lawful(nothing, noise=0.03), images=24, families=4)
    found = search(noise, STAGES, 600, SearchOptions())
    assert found.stack == ()
    assert found.mitigations == ""
    assert found.answer.sentence.startswith("Use the model as it is: none of 17 candidates improves mIoU")


# resuming


def units(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet"))


@pytest.mark.slow
def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    for workers in (1, 2):
        search(few(), out=tmp_path / str(workers), workers=workers)
    assert (tmp_path / "1" / RESULT).read_bytes() == (tmp_path / "2" / RESULT).read_bytes()
    assert units(tmp_path / "1") == units(tmp_path / "2")


SLOWLY = """
import sys, time
from pathlib import Path
sys.path[:0] = [{here!r}, {support!r}, {tools!r}]
import test_search

space = getattr(test_search, sys.argv[2])
target = test_search.few() if sys.argv[2] == "REPLAYS" else test_search.staged()
slowly = lambda many: time.sleep(0.01)
test_search.search(target, space, 600, out=Path(sys.argv[1]), workers=int(sys.argv[3]), advance=slowly)
"""


@pytest.mark.parametrize(
    ("space", "workers"),
    [
        pytest.param("REPLAYS", 1, marks=pytest.mark.slow),
        pytest.param("REPLAYS", 2, marks=pytest.mark.slow),
        ("STAGES", 1),
    ],
)
def test_a_killed_search_resumes_to_the_same_bytes(tmp_path, space, workers):
    tried, target = globals()[space], few if space == "REPLAYS" else staged
    search(target(), tried, 600, out=tmp_path / "whole")
    folder = tmp_path / "killed"
    tests = Path(__file__).parents[1]
    paths = {
        "here": str(tests / "tune"),
        "support": str(tests / "support"),
        "tools": str(tests.parent / "tools"),
    }
    arguments = [sys.executable, "-c", SLOWLY.format(**paths), str(folder), space, str(workers)]
    process = subprocess.Popen(arguments, start_new_session=True)
    combination = "candidate-17" if space == "STAGES" else "candidate-1"  # no longer one of the plan
    wait_for(lambda: len(units(folder)) > 30 and list(folder.rglob(combination)), process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / RESULT).exists()
    stored = units(folder)
    Counting.count = 0
    found = search(target(Counting), tried, 600, out=folder)
    assert (folder / RESULT).read_bytes() == (tmp_path / "whole" / RESULT).read_bytes()
    assert units(folder) == units(tmp_path / "whole")
    candidates = [name for name in stored if "baseline" not in name]
    assert Counting.count <= found.outcome.predictions - len(candidates)  # nothing stored is predicted again


def wait_for(condition, process):
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_finished_search_predicts_nothing_again(tmp_path):
    target = lawful_target(Lawful(peak), images=24)
    search(target, budget=500, out=tmp_path)
    before = (tmp_path / RESULT).read_bytes()
    refusing = replace(
        target.workload, load_predictor=lambda device: SimpleNamespace(predict=None, blocks=())
    )
    search(replace(target, workload=refusing), budget=500, out=tmp_path)
    assert (tmp_path / RESULT).read_bytes() == before


def test_a_damaged_unit_is_run_again(tmp_path):
    search(few(), out=tmp_path)
    before = (tmp_path / RESULT).read_bytes()
    damaged = tmp_path / next(name for name in units(tmp_path) if "candidate-3" in name)
    damaged.write_bytes(damaged.read_bytes()[:-20])
    Counting.count = 0
    search(few(Counting), out=tmp_path)
    assert 0 < Counting.count <= 4
    assert (tmp_path / RESULT).read_bytes() == before


def test_another_budget_in_the_same_folder_is_refused(tmp_path):
    search(few(), budget=400, out=tmp_path)
    with pytest.raises(GramLoopError, match="schedule: budget = 400, not 500"):
        search(few(), budget=500, out=tmp_path)


def test_units_without_their_plan_are_left_alone(tmp_path):
    search(few(), out=tmp_path)
    (tmp_path / "plan.json").unlink()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(GramLoopError, match=r"has units but no plan\.json"):
        search(few(), out=tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_sent_to_other_processes_is_refused():
    target = few()
    local = replace(target.workload, load_predictor=lambda device: None)
    with pytest.raises(GramLoopError, match="cannot be sent to other processes"):
        search(replace(target, workload=local), workers=2)
