"""Which candidates a predictor is offered: those that make sense for it, and why not the others."""

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.mitigations import parse_mitigations, stack_text
from gramloop.models.tiny import WEIGHTS
from gramloop.tasks import load_predictor
from gramloop.tasks.user_models import FunctionPredictor
from gramloop.tune.search.choices import USUAL, default_space, offer, spread_windows
from gramloop.tune.search.space import Space
from gramloop.tune.search.stacks import Part, combinations


def model(task):
    return load_predictor(task, {"folder": str(WEIGHTS)}, device="meta")


def function():
    return FunctionPredictor(lambda image: image[..., 0].astype(np.int64) % 3, "semantic", [0, 1, 2])


def texts(found):
    return [stack_text(stack) for stack in found]


@pytest.mark.parametrize("task", ["semantic", "detection", "depth"])
def test_the_embedded_model_can_have_all_of_them(task):
    predictor = model(task)
    found = offer(default_space(predictor), predictor, clean=20)
    named, replays = texts(found.stacks), [text for text in texts(found.stacks) if "window" in text]
    assert len(replays) == 8
    without = {"norms:0.1"} if task == "detection" else set()  # its head has no batch norm
    assert set(USUAL) - set(named) == {"pair", *without}
    assert {text for text, _ in found.left_out} == without
    assert texts(found.partners) == ["pair"]
    assert found.calibrates
    assert found.combines
    assert not found.replays_only


def test_a_function_has_pixels_and_outputs():
    found = offer(default_space(function()), function(), clean=20)
    assert texts(found.stacks) == ["denoise", "median", "levels", "sharpen", "resize:1.1", "flip"]
    reasons = dict(found.left_out)
    assert set(reasons) == {*USUAL, "replay"} - {*texts(found.stacks)}
    assert "no transformer blocks that could be replayed" in reasons["replay"]
    assert "no torch module with one ViT was found" in reasons["recentre:0.3"]


def test_what_has_to_be_learnt_needs_images():
    predictor = model("semantic")
    few = offer(default_space(predictor), predictor, clean=7)
    assert not few.calibrates
    assert "needs the statistics of in-distribution features" in dict(few.left_out)["recentre:c=1"]
    assert "recentre:0.3" in texts(few.stacks)  # its head has a batch norm, which knows the mean
    assert not offer(Space(mitigations=["recentre:0.3", "flip"]), predictor, clean=20).calibrates


def test_what_costs_too_much_is_left_out():
    predictor = model("semantic")
    found = offer(default_space(predictor), predictor, max_cost=1.5, clean=20)
    assert dict(found.left_out)["flip"] == "it costs 2.00x, more than the limit of 1.5"
    assert "resize:1.1" in texts(found.stacks)
    with pytest.raises(GramLoopError, match=r"no candidate to try: flip: it costs 2\.00x"):
        offer(Space(mitigations=["flip"]), predictor, max_cost=1.5)


@pytest.mark.parametrize(
    ("space", "told"),
    [
        (lambda: Space(mitigations=["recentre:0.3"]), "recentre acts on the patches of a ViT"),
        (lambda: Space({"window": [(1, 1)]}), "no transformer blocks that could be replayed"),
        (lambda: Space(mitigations=["pair"]), "needs a replay, such as gramloop"),
        (lambda: Space(mitigations=["blur"]), "there is no mitigation 'blur'"),
        (lambda: Space(mitigations="flip"), "a list, not the text 'flip'"),
    ],
)
def test_what_was_asked_for_and_makes_no_sense_is_refused(space, told):
    with pytest.raises(GramLoopError, match=told):
        offer(space(), function(), clean=20)


def test_a_replay_is_named_among_others_by_its_blocks():
    found = offer(Space(mitigations=["gramloop", "denoise"]), model("semantic"))
    assert texts(found.stacks) == ["replay:window=6-6", "denoise"]


def test_windows_are_spread_over_the_backbone():
    assert spread_windows(12) == tuple((place, place) for place in (0, 1, 3, 4, 6, 7, 9, 10))
    assert spread_windows(4) == ((0, 0), (1, 1), (2, 2))
    assert len(spread_windows(40)) == 8
    assert spread_windows(1) == ((0, 0),)


def test_winners_of_different_stages_are_combined_the_best_sum_first():
    parts = {"median": 1.0, "denoise": 3.0, "recentre:0.3": 2.0, "gramloop": 0.5, "denoise+flip": 3.2}
    measured = [Part(parse_mitigations(text), value) for text, value in parts.items()]
    assert texts(combinations(measured, [parse_mitigations("pair")])) == [
        "denoise+recentre:0.3+flip",  # 5.2
        "denoise+recentre:0.3",
        "denoise+gramloop+flip",
        "denoise+gramloop",
        "gramloop+recentre:0.3",
        "gramloop+pair",
    ]
