"""What a space holds, which candidates a predictor can take, and why not the others."""

import itertools

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.mitigations import parse_mitigations, stack_text
from gramloop.models.tiny import WEIGHTS
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.tasks import load_predictor
from gramloop.tasks.custom import FunctionPredictor
from gramloop.tune.space import (
    DEFAULT_MITIGATIONS,
    Space,
    combine,
    default_space,
    list_candidates,
    read_values,
    replay_values,
)


def model(task):
    return load_predictor(task, {"folder": str(WEIGHTS)}, device="meta")


def function():
    return FunctionPredictor(lambda image: image[..., 0].astype(np.int64) % 3, "semantic", [0, 1, 2])


def texts(found):
    return [stack_text(stack) for stack in found]


def test_every_window_of_one_or_two_blocks():
    assert replay_values(4)["window"] == [(0, 0), (1, 1), (2, 2), (3, 3), (0, 1), (1, 2), (2, 3)]
    assert replay_values(1, strength=[1.0]) == {"window": [(0, 0)], "replays": (1,), "strength": [1.0]}


def test_replays_are_the_combinations():
    space = Space({"window": [(1, 1), (2, 3)], "replays": [1, 2], "strength": [0.2, 1.0]})
    expected = {
        ReplayConfig(window=window, replays=replays, strength=strength)
        for window, replays, strength in itertools.product([(1, 1), (2, 3)], [1, 2], [0.2, 1.0])
    }
    found = space.replays(6)
    assert set(found) == expected
    assert len(found) == len(expected)


def test_settings_of_equal_effect_are_tried_once():
    space = Space({"window": [(2, 2)], "gate": ["none"], "strength": [0.2, 1.0], "gate_at": ["final"]})
    assert len(space.replays(6)) == 1


def test_what_a_configuration_refuses_is_left_out():
    space = Space({"gate": ["gram", "uniform"], "strength": ["matched", 0.5], "window": [(1, 1), (4, 9)]})
    found = space.replays(6)
    kinds = {("gram", 0.5), ("uniform", "matched"), ("uniform", 0.5)}
    assert {(each.gate, each.strength) for each in found} == kinds
    assert {each.window for each in found} == {(1, 1)}
    with pytest.raises(GramLoopError, match=r"window \[4, 9\] reaches past the last block"):
        Space({"window": [(4, 9)]}).replays(6)


def test_no_replay_is_no_candidate():
    assert [each.replays for each in Space({"window": [(1, 1)], "replays": [0, 1]}).replays(6)] == [1]


def test_values_as_on_a_command_line():
    assert read_values(["window=3-3,2-4", "strength=0.2,1,matched", "gate=gram,none"]) == {
        "window": ((3, 3), (2, 4)),
        "strength": (0.2, 1, "matched"),
        "gate": ("gram", "none"),
    }
    assert read_values(["gate-at=end,7", "adaptive=none,noise:1.7:1.8"]) == {
        "gate_at": ("end", 7),
        "adaptive": (None, Adaptive("noise", 1.7, 1.8)),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour=red", "'colour' is no setting of a replay"),
        ("strength", "strength is ''"),
        ("window=3", "window is '3'; it is a pair of blocks"),
        ("adaptive=noise:1", "in text noise:0.2:0.3"),
        ("strength=abc,0.5", "strength is 'abc'"),
        ("gate_at=middle", "gate_at is 'middle'"),
    ],
)
def test_values_that_cannot_be_read(text, message):
    with pytest.raises(GramLoopError, match=message):
        read_values([text])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"colour": [1]}, "'colour' is no setting"),
        ({"replays": []}, "a list with at least one"),
        ({"eps": [None, 1e-6]}, "eps is None"),
    ],
)
def test_a_space_of_nothing(values, message):
    with pytest.raises(GramLoopError, match=message):
        Space(values)


@pytest.mark.parametrize("task", ["semantic", "detection", "depth"])
def test_the_embedded_model_can_take_all_of_them(task):
    predictor = model(task)
    found = list_candidates(default_space(predictor), predictor, clean=20)
    named = texts(found.stacks)
    assert sum("window" in text for text in named) == 8
    without = {"norms:0.1"} if task == "detection" else set()  # its head has no batch norm
    assert set(DEFAULT_MITIGATIONS) - set(named) == without
    assert {text for text, _ in found.left_out} == without
    assert found.calibrates


def test_a_function_can_take_pixels_and_outputs():
    found = list_candidates(default_space(function()), function(), clean=20)
    assert texts(found.stacks) == ["denoise", "median", "levels", "sharpen", "resize:1.1", "flip"]
    reasons = dict(found.left_out)
    assert set(reasons) == {*DEFAULT_MITIGATIONS, "replay"} - {*texts(found.stacks)}
    assert "no transformer blocks that could be replayed" in reasons["replay"]


def test_calibration_needs_images():
    predictor = model("semantic")
    few = list_candidates(default_space(predictor), predictor, clean=7)
    assert not few.calibrates
    assert "recentre:c=1" in dict(few.left_out)
    assert "recentre:0.3" in texts(few.stacks)  # its head has a batch norm, which knows the mean
    assert not list_candidates(Space(mitigations=["recentre:0.3", "flip"]), predictor, clean=20).calibrates


def test_what_costs_too_much_is_left_out():
    predictor = model("semantic")
    found = list_candidates(default_space(predictor), predictor, max_cost=1.5, clean=20)
    assert dict(found.left_out)["flip"] == "it costs 2.00x, more than the limit of 1.5"
    assert "resize:1.1" in texts(found.stacks)
    with pytest.raises(GramLoopError, match=r"no candidate to try: flip: it costs 2\.00x"):
        list_candidates(Space(mitigations=["flip"]), predictor, max_cost=1.5)
    with pytest.raises(GramLoopError, match=r"no candidate costs at most 1\.01"):
        list_candidates(Space({"window": [(1, 1)]}), predictor, max_cost=1.01)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (lambda: Space(mitigations=["recentre:0.3"]), "recentre"),
        (lambda: Space({"window": [(1, 1)]}), "no transformer blocks that could be replayed"),
        (lambda: Space(mitigations=["pair"]), "needs a replay, such as gramloop"),
        (lambda: Space(mitigations=["blur"]), "there is no mitigation 'blur'"),
        (lambda: Space(mitigations="flip"), "a list, not the text 'flip'"),
    ],
)
def test_what_was_asked_for_and_cannot_run_is_refused(space, message):
    with pytest.raises(GramLoopError, match=message):
        list_candidates(space(), function(), clean=20)


def test_a_replay_is_named_by_its_blocks():
    found = list_candidates(Space(mitigations=["gramloop", "denoise"]), model("semantic"))
    assert texts(found.stacks) == ["replay:window=6-6", "denoise"]


def test_default_windows_are_spread_over_the_backbone():
    values = default_space(model("semantic")).values
    assert values["window"] == tuple((place, place) for place in (0, 1, 3, 4, 6, 7, 9, 10))


def test_winners_of_different_stages_are_combined_the_best_sum_first():
    values = {"median": 1.0, "denoise": 3.0, "recentre:0.3": 2.0, "gramloop": 0.5, "denoise+flip": 3.2}
    measured = {parse_mitigations(text): value for text, value in values.items()}
    assert texts(combine(measured)) == [
        "denoise+recentre:0.3+flip",  # 5.2
        "denoise+recentre:0.3",
        "denoise+gramloop+flip",
        "denoise+gramloop",
        "gramloop+recentre:0.3",
    ]
