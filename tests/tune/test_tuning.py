import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gramloop.data.truth import PixelLabels
from gramloop.errors import GramLoopError
from gramloop.mitigations.stack import replay_alone
from gramloop.replay.config import ReplayConfig, read_replay, read_settings
from gramloop.tune.search.journal import TRIALS
from gramloop.tune.search.plan import Options, plan_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.tuning import RESULT, run, tune
from laws import Lawful, lawful_subject, nothing, peak

SPACE = Space.default(6, longest=1)  # 18 candidates
CALM = Options(clean_tolerance=3.0)  # the laws' clean images scatter by some points


class Counting(Lawful):
    """Counts what is really predicted."""

    count = 0

    def predict(self, image, replay=None, paired=False, *, trace=None):
        Counting.count += 1
        return super().predict(image, replay, paired, trace=trace)


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_true_best_is_found_within_the_budget(noise):
    Counting.count = 0
    found = tune(lawful_subject(Counting(peak, noise=noise)), space=SPACE, budget=1000, options=CALM)
    assert found.config == ReplayConfig(window=(2, 2), replays=1, strength=0.5)
    assert found.outcome.predictions == found.search.schedule.predictions == Counting.count
    assert 1000 - 15 <= Counting.count <= 1000  # less than one more image of the decision is left over
    words = {part.name: part.word for part in found.outcome.parts}
    assert words["searched families"] == words["other families"] == "helps"
    assert words["clean"] == "inconclusive"


def chosen_of_noise(seeds):
    return sum(
        tune(
            lawful_subject(Lawful(nothing, noise=0.03, seed=seed), images=24, families=4),
            space=SPACE,
            budget=400,
            options=Options(clean_tolerance=100.0),  # so that the gain alone decides
        ).outcome.chosen
        for seed in seeds
    )


def test_of_pure_noise_nothing_is_chosen():
    assert chosen_of_noise(range(40)) <= 2  # at most 5%


@pytest.mark.slow
def test_of_much_pure_noise_nothing_is_chosen():
    assert chosen_of_noise(range(1000, 1400)) <= 20  # at most 5%


def test_no_replay_is_a_setting_and_its_file_says_so(tmp_path):
    found = tune(
        lawful_subject(Lawful(nothing, noise=0.03), images=24), space=SPACE, budget=600, out=tmp_path
    )
    assert not found.outcome.chosen
    config, about = read_settings(tmp_path / RESULT)
    assert config.replays == 0
    assert about["verdict"].startswith("No replay: none of 18 candidates beat it beyond noise")
    assert about["nearest"]["window"] == list(found.outcome.leader.config.window)
    assert about["tried"]["predictions"] <= about["tried"]["budget"] == 600


def harms_clean(config):
    return -0.05 if config.window == (2, 2) else 0.0


def test_a_gain_that_clean_images_pay_for_is_not_chosen():
    found = tune(lawful_subject(Lawful(peak, clean=harms_clean)), space=SPACE, budget=1000, options=Options())
    assert found.config == ReplayConfig(window=(3, 3), replays=1, strength=0.5)  # the next best


def test_what_costs_too_much_is_not_tried():
    subject = lawful_subject(Lawful(peak))
    cheap = plan_search(subject, SPACE, 1000, Options(max_cost=1.5))
    assert {replay_alone(stack).window for stack in cheap.candidates} == {(4, 4), (5, 5)}


def test_gain_per_cost_prefers_the_cheaper_of_two_good_ones():
    def law(config):
        return {(1, 1): 0.05, (5, 5): 0.04}.get(config.window, 0.0)

    subject = lawful_subject(Lawful(law))
    space = Space.default(6, longest=1, strength=(1.0,))
    best = [
        tune(subject, space=space, budget=1000, options=replace(CALM, objective=objective)).config.window
        for objective in ("gain", "gain-per-cost")
    ]
    assert best == [(1, 1), (5, 5)]  # 2.5 and 1.17 ordinary forwards


def test_any_number_of_workers_gives_the_same_bytes(tmp_path):
    subject = lawful_subject(Lawful(peak, noise=0.02), images=24, families=4)
    for workers in (1, 2):
        run(plan_search(subject, SPACE, 400, CALM), tmp_path / str(workers), workers=workers)
    assert (tmp_path / "1" / RESULT).read_bytes() == (tmp_path / "2" / RESULT).read_bytes()
    lines = [sorted((tmp_path / name / TRIALS).read_bytes().splitlines()) for name in "12"]
    assert lines[0] == lines[1]


SLOWLY = """
import sys, time
sys.path[:0] = [{here!r}, {support!r}]
from laws import Lawful, lawful_subject, peak
from test_tuning import CALM, SPACE
from gramloop.tune.search.plan import plan_search
from gramloop.tune.search.tuning import run

subject = lawful_subject(Lawful(peak, noise=0.02), images=24, families=4)
run(plan_search(subject, SPACE, 400, CALM), sys.argv[1], workers=int(sys.argv[2]), advance=lambda many: time.sleep(0.01))
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_search_goes_on_to_the_same_bytes(tmp_path, workers):
    search = plan_search(lawful_subject(Lawful(peak, noise=0.02), images=24, families=4), SPACE, 400, CALM)
    run(search, tmp_path / "whole")
    trials = tmp_path / "killed" / TRIALS
    script = SLOWLY.format(
        here=str(Path(__file__).parent), support=str(Path(__file__).parents[1] / "support")
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "killed"), str(workers)], start_new_session=True
    )
    wait_for(lambda: trials.is_file() and trials.read_bytes().count(b"\n") >= 10, process)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / RESULT).exists()
    stored = trials.read_bytes().count(b"\n")
    trials.write_bytes(
        trials.read_bytes() + b"0123456789abcdef half a li"
    )  # as a kill in mid-write leaves it
    Counting.count = 0
    again = plan_search(lawful_subject(Counting(peak, noise=0.02), images=24, families=4), SPACE, 400, CALM)
    found = run(again, tmp_path / "killed")
    assert (tmp_path / "killed" / RESULT).read_bytes() == (tmp_path / "whole" / RESULT).read_bytes()
    assert Counting.count <= found.outcome.predictions - stored  # nothing stored is predicted again


def wait_for(condition, process):
    until = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_finished_search_predicts_nothing_again(tmp_path):
    subject = lawful_subject(Lawful(peak), images=24)
    run(plan_search(subject, SPACE, 500, CALM), tmp_path)
    before = (tmp_path / RESULT).read_bytes()
    refusing = replace(subject, make_predictor=lambda: SimpleNamespace(predict=None))
    run(plan_search(refusing, SPACE, 500, CALM), tmp_path)
    assert (tmp_path / RESULT).read_bytes() == before


def test_another_budget_in_the_same_folder_is_refused(tmp_path):
    subject = lawful_subject(Lawful(peak), images=24)
    run(plan_search(subject, SPACE, 500, CALM), tmp_path)
    with pytest.raises(GramLoopError, match="schedule: budget = 500, not 600"):
        run(plan_search(subject, SPACE, 600, CALM), tmp_path)


def test_an_image_that_cannot_be_read_counts_for_no_candidate(tmp_path):
    subject = lawful_subject(Lawful(peak), images=24)

    def with_a_bad_one(key):
        records = list(subject.open_records(key))
        records[5] = replace(records[5], truth=PixelLabels(records[5].truth.indices[:-1]))
        return records

    found = run(plan_search(replace(subject, open_records=with_a_bad_one), SPACE, 500, CALM), tmp_path)
    assert found.config == ReplayConfig(window=(2, 2), replays=1, strength=0.5)
    assert found.outcome.failures
    assert all("image-5: the labels of image-5 are 16 x 15" in told for told in found.outcome.failures)
    assert found.outcome.predictions < found.search.schedule.predictions


def test_what_cannot_be_sent_to_other_processes_is_told():
    subject = replace(lawful_subject(Lawful(peak), images=24), make_predictor=lambda: None)
    with pytest.raises(GramLoopError, match="cannot be sent to other processes"):
        tune(subject, space=SPACE, budget=500, workers=2)


def test_the_file_holds_the_evidence(tmp_path):
    found = tune(lawful_subject(Lawful(peak)), space=SPACE, budget=800, options=CALM, out=tmp_path)
    assert read_replay(tmp_path / RESULT) == found.config
    about = json.loads((tmp_path / RESULT).read_text())["about"]
    for name, part in about["unseen images"].items():
        assert part["gain"] == pytest.approx(part["mitigated"] - part["ordinary"], abs=1e-9)
        assert part["over images"]["low"] <= part["gain"] <= part["over images"]["high"], name
    assert about["unseen images"]["other families"]["families"] == 2
    assert not set(about["split"]["seen families"]) & set(about["split"]["unseen families"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"caution": -1.0}, "0 or more"),
        ({"objective": "speed"}, "gain-per-cost"),
        ({"max_cost": 0.9}, "less than 1 ordinary forward"),
    ],
)
def test_options_that_mean_nothing(options, told):
    with pytest.raises(GramLoopError, match=told):
        Options(**options)
