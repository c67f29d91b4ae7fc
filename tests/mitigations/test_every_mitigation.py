"""What holds for every mitigation with every kind of predictor: a neutral setting is the plain prediction to the bit, the
predictor is left as it was, the cost is what is counted, and what cannot work is refused with one reason."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gramloop.errors import GramLoopError
from gramloop.mitigations import apply, stack_cost
from gramloop.mitigations.stack import KINDS
from gramloop.tasks import as_predictor
from gramloop.tasks.base import task_of
from gramloop.util.forward_patch import counting
from same_predictions import same
from user_models import grey_depth

# name: a neutral text, one that changes something, and the predictors that it is refused for
BLOCKS, VIT, NORMS = "no transformer blocks", "no torch module with one ViT", "none with a running mean"
NO_NORMS = dict.fromkeys(("function", "detector", "folder", "module"), NORMS)
EVERY = {
    "median": ("median:1", "median", {}),
    "gaussian": ("gaussian:0", "gaussian:0.7", {}),
    "nlm": ("nlm:0", "nlm:6", {}),
    "denoise": ("denoise:255", "denoise:0", {}),
    "levels": ("levels", "levels", {}),  # of an in-distribution image
    "sharpen": ("sharpen", "sharpen", {}),
    "replay": ("replay:replays=0", "replay:window=3-3,replays=1", {"function": BLOCKS}),
    "recentre": ("recentre:0", "recentre:0.3,c=0.5", {"function": VIT}),
    "norms": ("norms:0", "norms:0.2", NO_NORMS),
    "scales": ("scales:1", "scales:0.75,1", {}),
    "resize": ("resize:1", "resize:1.25", {}),
    "flip": (None, "flip", {}),
    "pair": ("replay:replays=0+pair", "replay:window=4-4,replays=1+pair", {"function": BLOCKS}),
}
PREDICTORS = ("segmenter", "detector", "estimator", "folder", "module", "function")


def test_none_is_left_out():
    assert set(EVERY) == set(KINDS)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", PREDICTORS)
def test_neutral_undone_counted_or_refused(request, name, kind, images, all_stats):
    predictor, stats, image = request.getfixturevalue(kind), all_stats[kind], images[1]
    neutral, something, refusals = EVERY[name]
    if kind in refusals:
        with pytest.raises(GramLoopError, match=refusals[kind]) as refused:
            apply(something, predictor, stats)
        assert "\n" not in str(refused.value)
        return
    plain, hooks = predictor.predict(image), hooks_of(predictor)
    if neutral is not None:
        same(apply(neutral, predictor, stats).predict(image), plain)
    stack, calls = apply(something, predictor, stats), []
    with counting(predictor.blocks) as counter:
        if kind == "function":
            function = predictor.function
            predictor.function = lambda pixels: calls.append(1) or function(pixels)
        treated = stack.predict(image)
        if kind == "function":
            predictor.function = function
    cost = stack_cost(stack.stack, predictor)
    assert cost.blocks == treated.blocks == (len(calls) if kind == "function" else counter.blocks)
    same(predictor.predict(image), plain)
    assert hooks_of(predictor) == hooks


def hooks_of(predictor):
    """Every hook and replaced forward on the predictor's model; transformers leaves some of its own there."""
    modules = (
        [] if predictor.host is None else list(getattr(predictor, "model", predictor.host.module).modules())
    )
    return [
        (list(each._forward_hooks), list(each._forward_pre_hooks), "forward" in vars(each))
        for each in modules
    ]


@pytest.mark.parametrize("kind", PREDICTORS)
def test_pair_needs_a_replay(request, kind):
    with pytest.raises(GramLoopError, match="it needs a replay, such as gramloop"):
        apply("pair", request.getfixturevalue(kind))


@pytest.mark.parametrize("kind", PREDICTORS)
def test_a_flip_of_a_flip_is_the_prediction(request, kind, images):
    found, width = request.getfixturevalue(kind).predict(images[2]), images[2].shape[1]
    task = task_of(found)
    twice = task.flip(task.flip(found, width), width)
    if kind == "detector":  # width - (width - x) rounds in float32
        np.testing.assert_allclose(twice.boxes, found.boxes, atol=width * 2**-23)
        np.testing.assert_array_equal(twice.scores, found.scores)
        return
    same(twice, found)


@given(arrays(np.uint8, st.tuples(st.integers(2, 9), st.integers(2, 9), st.just(3))))
@settings(max_examples=60, deadline=None)
def test_neutral_settings_keep_any_image_and_flips_of_a_symmetric_model_its_prediction(image):
    predictor = as_predictor(grey_depth, "depth")
    plain = predictor.predict(image)
    for text in ("median:1", "gaussian:0", "nlm:0", "denoise:255", "scales:1", "resize:1", "flip"):
        same(apply(text, predictor).predict(image), plain)
