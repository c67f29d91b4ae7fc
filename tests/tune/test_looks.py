"""What candidates share is done once, and comes out as if each had been done by itself."""

import numpy as np
import pytest

from gramloop.data.scenes.drawing import scene
from gramloop.mitigations import apply, calibrate, parse_mitigations
from gramloop.models.tiny import WEIGHTS
from gramloop.tasks import load_predictor
from gramloop.tune.search.looks import Looks
from gramloop.util.forward_patch import counting

REPLAY = "replay:window=9-9,replays=1"
TEXTS = (
    *("denoise", "median", "recentre:c=1", "flip", REPLAY, f"denoise+{REPLAY}", "denoise+recentre:c=1"),
    *("median+recentre:0.3+flip", f"{REPLAY}+pair"),
)


@pytest.fixture(scope="module")
def segmenter():
    return load_predictor("semantic", {"folder": str(WEIGHTS)})


@pytest.fixture(scope="module")
def source(segmenter):
    return calibrate(segmenter, [scene(number, split="val").image for number in range(8)])


def looks_at(pixels, segmenter, source):
    return Looks(segmenter, pixels, lambda stack: apply(stack, segmenter, source), source)


@pytest.fixture(scope="module", params=["ordinary", "noisy"])
def pixels(request):
    image = scene(9, split="val").image
    if request.param == "ordinary":
        return image
    noise = np.random.default_rng(0).normal(scale=30, size=image.shape)
    return (image + noise).clip(0, 255).astype(np.uint8)


def test_each_prediction_is_that_of_its_mitigations_alone(segmenter, source, pixels):
    looks, stacks = looks_at(pixels, segmenter, source), [parse_mitigations(text) for text in TEXTS]
    ordinary, signals = looks.ordinary(stacks)
    np.testing.assert_array_equal(ordinary.labels, segmenter.predict(pixels).labels)
    assert set(signals) >= {"length", "spread"}
    for text, stack in zip(TEXTS, stacks, strict=True):
        alone = apply(text, segmenter, source).predict(pixels)
        np.testing.assert_array_equal(looks.of(stack).labels, alone.labels, err_msg=text)
    assert set(looks.seconds) == {"denoise", "median"}


def test_what_is_shared_executes_no_block_twice(segmenter, source):
    pixels, depth = scene(9, split="val").image, len(segmenter.blocks)
    with counting(segmenter.blocks) as counter:
        looks = looks_at(pixels, segmenter, source)
        looks.ordinary([parse_mitigations("denoise"), parse_mitigations(REPLAY)])
        paired = counter.blocks
        for text in ("denoise", REPLAY, f"denoise+{REPLAY}"):  # the image has no noise to remove
            looks.of(parse_mitigations(text))
        assert counter.blocks == paired < 3 * depth
        looks.of(parse_mitigations("median"))
        assert counter.blocks == paired + depth


def test_what_a_model_cannot_do_is_told_and_the_others_go_on(segmenter):
    from gramloop.tasks.user_models import FunctionPredictor

    function = FunctionPredictor(lambda image: image[..., 0].astype(np.int64) % 3, "semantic", [0, 1, 2])
    looks = looks_at(scene(9, split="val").image, function, None)
    looks.ordinary([])
    assert "only scores can be averaged" in looks.of(parse_mitigations("flip"))
    assert looks.of(parse_mitigations("median")).labels.shape == (192, 192)
