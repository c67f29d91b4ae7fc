"""Predictors with mitigations: nothing asked is the plain prediction to the bit, costs are what is counted."""

from dataclasses import replace

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.mitigations import apply, calibrate, stack_cost
from gramloop.mitigations.stack import parse_mitigations
from gramloop.replay.config import ReplayConfig
from gramloop.tasks import Pair, Predictor
from gramloop.tasks.semantic import Segmentation
from gramloop.util.forward_patch import counting
from same_predictions import same

LATE = "replay:window=9-9,replays=1"


@pytest.mark.parametrize("text", ["recentre:c=1000", "median:1+recentre:0+scales:1"])
def test_where_nothing_is_asked_the_prediction_is_plain_to_the_bit(text, segmenter, images, stats):
    same(apply(text, segmenter, stats).predict(images[0]), segmenter.predict(images[0]))


@pytest.mark.parametrize("task", ["segmenter", "detector"])
@pytest.mark.parametrize("text", ["gramloop", LATE])
def test_a_replay_is_the_predictors_own(request, task, text, images):
    predictor = request.getfixturevalue(task)
    found = apply(text, predictor)
    assert isinstance(found, Predictor)
    (replay,) = parse_mitigations(text)
    same(found.predict(images[1]), predictor.predict(images[1], replay.config))
    with pytest.raises(GramLoopError, match="contains a replay"):
        found.predict(images[1], ReplayConfig())


def test_the_predictor_that_was_given_stays_as_it_is(segmenter, images, stats):
    before = segmenter.predict(images[0])
    treated = apply("median+recentre:0.8+flip", segmenter, stats).predict(images[0])
    same(segmenter.predict(images[0]), before)
    assert not segmenter.backbone.tap_point._forward_hooks
    assert (treated.labels != before.labels).any()
    assert treated.scores is None


def test_a_pair_shares_the_other_mitigations(segmenter, images):
    stack = apply(f"recentre:0.3+{LATE}", segmenter)
    pair = stack.predict(images[0], paired=True)
    assert isinstance(pair, Pair)
    same(pair.baseline, apply("recentre:0.3", segmenter).predict(images[0]))
    same(pair.replayed, stack.predict(images[0]))
    given = apply("recentre:0.3", segmenter).predict(images[0], parse_mitigations(LATE)[0].config)
    same(given, pair.replayed)


def test_recentring_undoes_a_shift_of_contrast(segmenter, images):
    from gramloop.shifts import corrupt

    plain, treated = [], []
    for image in images:
        wanted = segmenter.predict(image).labels
        pale = corrupt(image, "contrast", 4, np.random.default_rng(0))
        plain.append((segmenter.predict(pale).labels == wanted).mean())
        treated.append((apply("recentre:0.5", segmenter).predict(pale).labels == wanted).mean())
    assert np.mean(treated) > np.mean(plain)


@pytest.mark.parametrize(
    ("text", "multiplier"),
    [
        ("median+recentre:0.3", 1),
        ("flip", 2),
        ("scales:0.75,1,1.25+flip", 2 * (0.75**2 + 1 + 1.25**2)),
        ("resize:1.25", 1.25**2),
        (LATE, None),
        (f"{LATE}+pair", None),
        (f"{LATE}+pair+flip+recentre:0.1", None),
    ],
)
@pytest.mark.parametrize("task", ["segmenter", "detector"])
def test_the_cost_is_what_is_counted(request, task, text, multiplier, images):
    predictor = request.getfixturevalue(task)
    stack = apply(text, predictor, calibrate(predictor, images) if "recentre" in text else None)
    with counting(predictor.blocks) as counter:
        found = stack.predict(images[0])
    cost = stack_cost(stack.stack, predictor)
    assert counter.blocks == cost.blocks == found.blocks
    if multiplier is not None:
        assert cost.multiplier == pytest.approx(multiplier)


def test_refusals_name_the_reason(segmenter, detector, stats):
    class Fixed:
        task, classes, blocks, host, taps = "semantic", {0: None}, (), None, ()

        def predict(self, image, replay=None, paired=False, *, trace=None):
            return Segmentation(np.zeros((4, 4), np.int32))

        def cost(self, replay=None, paired=False):
            from gramloop.replay.config import Cost

            return Cost(1, 1)

    image = np.zeros((4, 4, 3), np.uint8)
    for text, predictor, sentence in [
        ("recentre:0.3", Fixed(), "no torch module with one ViT was found in Fixed"),
        ("recentre:0.3", detector, "needs calibration statistics of in-distribution images, with means"),
        ("recentre:c=1", segmenter, "needs calibration statistics of in-distribution images, with means"),
        ("gramloop", Fixed(), "no transformer blocks"),
        ("pair", segmenter, "it needs a replay, such as gramloop\\+pair"),
        ("resize:1.01", segmenter, "changes nothing"),
    ]:
        with pytest.raises(GramLoopError, match=sentence):
            apply(text, predictor)
    assert apply("median+gaussian", Fixed()).predict(image).labels.shape == (4, 4)
    with pytest.raises(GramLoopError, match="labels without scores"):
        apply("flip", Fixed()).predict(image)
    with pytest.raises(GramLoopError, match="at least 8 in-distribution images"):
        calibrate(segmenter, [np.zeros((64, 64, 3), np.uint8)])
    stranger = replace(stats, backbone="0" * 16)
    with pytest.raises(GramLoopError, match="of another backbone"):
        apply("recentre:c=1", segmenter, stranger)
