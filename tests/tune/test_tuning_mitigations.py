"""Searches over mitigations whose true gains are known: nothing of noise, the right stack of what adds up."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_tuning import CALM, Counting, wait_for

from gramloop.mitigations import stack_text
from gramloop.replay.config import ReplayConfig
from gramloop.tune.search.choices import FREE
from gramloop.tune.search.journal import TRIALS
from gramloop.tune.search.plan import Options, plan_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.tuning import RESULT, run, tune
from laws import Lawful, OnFeatures, OnOutputs, OnPixels, lawful_subject, made_up, nothing, peak

SPACE = Space(
    {"window": [(block, block) for block in range(6)], "replays": [1], "strength": [0.5]},
    made_up((OnPixels, 4), (OnFeatures, 4), (OnOutputs, 3)),
)  # 17 candidates of four stages
GAINS = {"on-pixels:1": 0.04, "on-features:2": 0.05, "on-features:0": 0.02, "on-outputs:0": -0.04}


def subject(predictor=Lawful, **settings):
    made = predictor(peak, noise=0.02, gains=GAINS, **settings)
    return lawful_subject(made, images=24, families=4)


def chosen_of_noise(seeds):
    return sum(
        tune(
            lawful_subject(Lawful(nothing, noise=0.03, seed=seed), images=24, families=4),
            space=SPACE,
            budget=600,
            options=Options(clean_tolerance=100.0),  # so that the gain alone decides
        ).outcome.chosen
        for seed in seeds
    )


def test_of_mitigations_that_are_noise_none_is_chosen():
    assert chosen_of_noise(range(20)) <= 1  # at most 5%


@pytest.mark.slow
def test_of_many_mitigations_that_are_noise_none_is_chosen():
    assert chosen_of_noise(range(1000, 1400)) <= 20  # at most 5%


@pytest.mark.parametrize("budget", [500, 1200])
def test_winners_of_different_stages_are_stacked_within_the_budget(budget):
    Counting.count = 0
    found = tune(subject(Counting), space=SPACE, budget=budget, options=CALM)
    assert found.outcome.predictions <= found.search.schedule.predictions <= budget
    assert Counting.count <= found.outcome.predictions  # what is shared is predicted once
    if budget == 1200:
        assert found.mitigations == (
            "on-pixels:1+replay:window=2-2,replays=1,strength=0.5+on-features:2"
        )  # 0.15 more of the pixels, in three stages
        assert found.config == ReplayConfig(window=(2, 2), replays=1, strength=0.5)
        words = {part.name: part.word for part in found.outcome.parts}
        assert words["searched families"] == words["other families"] == "helps"


def test_what_comes_without_extra_cost_is_told_beside_the_choice():
    found = tune(subject(), space=SPACE, budget=1200, options=CALM)
    assert found.outcome.leader.cost > FREE
    assert found.outcome.free is not None
    assert found.outcome.free.standing.cost <= FREE
    assert stack_text(found.outcome.free.standing.stack) in found.sentence
    assert "At no extra cost, " in found.sentence
    assert f"({found.outcome.leader.cost:.2f}x the work)" in found.sentence
    unseen = found.about()["at no extra cost"]["unseen images"]
    assert unseen["other families"]["verdict"] == "helps"


def test_a_cost_limit_keeps_out_what_a_stack_would_cost():
    found = tune(subject(), space=SPACE, budget=1200, options=Options(clean_tolerance=3.0, max_cost=1.0))
    assert found.mitigations == "on-pixels:1+on-features:2"
    assert found.outcome.leader.cost <= FREE
    reasons = dict(found.search.offer.left_out)
    assert reasons["on-outputs:0"] == "it costs 1.21x, more than the limit of 1"
    assert "no candidate costs at most 1" in reasons["replays"]


def test_without_stacking_one_mitigation_is_chosen():
    found = tune(subject(), space=SPACE, budget=1200, options=Options(clean_tolerance=3.0, stacking=False))
    assert not found.search.combines
    assert len(found.stack) == 1


def test_nothing_is_an_outcome_in_words(tmp_path):
    noise = lawful_subject(Lawful(nothing, noise=0.03), images=24, families=4)
    found = tune(noise, space=SPACE, budget=600, out=tmp_path)
    assert found.stack == ()
    assert found.mitigations == ""
    assert found.sentence.startswith("Nothing: none of 17 candidates or their combinations beat it beyond")


SLOWLY = """
import sys, time
sys.path[:0] = [{here!r}, {support!r}]
from test_tuning_mitigations import CALM, SPACE, subject
from gramloop.tune.search.plan import plan_search
from gramloop.tune.search.tuning import run

run(plan_search(subject(), SPACE, 600, CALM), sys.argv[1], advance=lambda many: time.sleep(0.01))
"""


def test_a_killed_search_over_mitigations_goes_on_to_the_same_bytes(tmp_path):
    run(plan_search(subject(), SPACE, 600, CALM), tmp_path / "whole")
    script = SLOWLY.format(
        here=str(Path(__file__).parent), support=str(Path(__file__).parents[1] / "support")
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "killed")])
    trials = tmp_path / "killed" / TRIALS

    def in_the_second_rung():  # where candidates are no longer those of the plan
        return trials.is_file() and b"\t17," in trials.read_bytes().replace(b"\\t", b"\t")

    wait_for(in_the_second_rung, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / RESULT).exists()
    Counting.count = 0
    stored = trials.read_bytes().count(b"\n")
    found = run(plan_search(subject(Counting), SPACE, 600, CALM), tmp_path / "killed")
    assert (tmp_path / "killed" / RESULT).read_bytes() == (tmp_path / "whole" / RESULT).read_bytes()
    lines = [sorted((tmp_path / name / TRIALS).read_bytes().splitlines()) for name in ("whole", "killed")]
    assert lines[0] == lines[1]
    assert Counting.count <= found.outcome.predictions - stored  # nothing stored is predicted again
