"""Predictors with mitigations: nothing asked is the plain prediction to the bit, costs are what is counted."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gramloop.core.config import ReplayConfig
from gramloop.core.cost import counting
from gramloop.errors import GramLoopError
from gramloop.mitigations import apply, calibrate, read_source, stack_cost, write_source
from gramloop.mitigations.merging import merged
from gramloop.mitigations.texts import parse_mitigations
from gramloop.tasks import Depth, Pair, Predictor
from gramloop.tasks.semantic import Segmentation
from same_predictions import same

LATE = "replay:window=9-9,replays=1"


@pytest.mark.parametrize("text", ["recentre:c=1000", "median:1+recentre:0+scales:1"])
def test_where_nothing_is_asked_the_prediction_is_plain_to_the_bit(text, segmenter, images, source):
    same(apply(text, segmenter, source).predict(images[0]), segmenter.predict(images[0]))


@pytest.mark.parametrize("task", ["segmenter", "detector"])
@pytest.mark.parametrize("text", ["gramloop", LATE])
def test_a_replay_is_the_predictors_own(request, task, text, images):
    predictor = request.getfixturevalue(task)
    found = apply(text, predictor)
    assert isinstance(found, Predictor)
    (replay,) = parse_mitigations(text)
    same(found.predict(images[1]), predictor.predict(images[1], replay.config))
    with pytest.raises(GramLoopError, match="has its replay already"):
        found.predict(images[1], ReplayConfig())


def test_the_predictor_that_was_given_stays_as_it_is(segmenter, images, source):
    before = segmenter.predict(images[0])
    treated = apply("median+recentre:0.8+flip", segmenter, source).predict(images[0])
    same(segmenter.predict(images[0]), before)
    assert segmenter.backbone.adjust is None
    assert (treated.labels != before.labels).any()
    assert treated.scores is None


def test_a_pair_shares_the_other_mitigations(segmenter, images):
    stack = apply(f"recentre:0.3+{LATE}", segmenter)
    pair = stack.predict(images[0], paired=True)
    assert isinstance(pair, Pair)
    same(pair.ordinary, apply("recentre:0.3", segmenter).predict(images[0]))
    same(pair.replayed, stack.predict(images[0]))
    given = apply("recentre:0.3", segmenter).predict(images[0], parse_mitigations(LATE)[0].config)
    same(given, pair.replayed)


def test_recentring_moves_the_mean_the_share_of_the_way(segmenter, images, source):
    from gramloop.mitigations.recentre import Recentre, norm_means
    from gramloop.tasks.images import to_tensor

    means, pixels = norm_means(segmenter), to_tensor(images[0])
    for mitigation, target in [
        (Recentre(1.0), lambda mean, tap: means[tap]),
        (Recentre(0.25), lambda mean, tap: 0.75 * mean + 0.25 * means[tap]),
        (
            Recentre(1.0, 1.0),
            lambda mean, tap: torch.clamp(
                mean, source.means[tap] - source.spreads[tap], source.means[tap] + source.spreads[tap]
            ),
        ),
    ]:
        treated = mitigation.prepare(segmenter, source)
        plain = segmenter.backbone(pixels, segmenter.taps)
        moved = treated.backbone(pixels, segmenter.taps)
        for tap, one, two in zip(segmenter.taps, plain, moved, strict=True):
            torch.testing.assert_close(
                two.patches.mean(1)[0], target(one.patches.mean(1)[0], tap), atol=1e-4, rtol=0
            )
            assert torch.equal(one.tokens[:, : one.prefix], two.tokens[:, : two.prefix])
            spread = (one.patches - one.patches.mean(1, keepdim=True)) - (
                two.patches - two.patches.mean(1, keepdim=True)
            )
            assert spread.abs().max() < 1e-4


def test_recentring_undoes_a_shift_of_contrast(segmenter, images):
    from gramloop.shifts import corrupt

    plain, treated = [], []
    for image in images:
        wanted = segmenter.predict(image).labels
        pale = corrupt(image, "contrast", 4, np.random.default_rng(0))
        plain.append((segmenter.predict(pale).labels == wanted).mean())
        treated.append((apply("recentre:0.5", segmenter).predict(pale).labels == wanted).mean())
    assert np.mean(treated) > np.mean(plain)


def test_flipping_commutes_with_the_mirror(segmenter, images):
    flip = apply("flip", segmenter)
    straight = flip.predict(images[3]).labels
    turned = flip.predict(np.ascontiguousarray(images[3][:, ::-1])).labels
    assert (straight == turned[:, ::-1]).mean() > 0.9999  # sums of two numbers, but ties may fall either way


def test_averages():
    scores = np.array([[[0.6]], [[0.4]]], np.float32), np.array([[[0.1]], [[0.9]]], np.float32)
    looks = [Segmentation(each.argmax(0).astype(np.int32), each, blocks=3) for each in scores]
    mean = merged(looks)
    np.testing.assert_allclose(mean.scores[:, 0, 0], [0.35, 0.65])
    assert mean.labels.tolist() == [[1]]
    assert mean.blocks == 6
    depth = [Depth(np.full((2, 2), value, np.float32)) for value in (1.0, 4.0)]
    np.testing.assert_allclose(merged(depth).values, 2.5)
    with pytest.raises(GramLoopError, match="labels without scores"):
        merged([replace(each, scores=None) for each in looks])


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


def test_refusals_are_one_sentence(segmenter, detector, source):
    class Fixed:
        task, classes, blocks, host, taps = "semantic", {0: None}, (), None, ()

        def predict(self, image, replay=None, paired=False, *, trace=None):
            return Segmentation(np.zeros((4, 4), np.int32))

        def cost(self, replay=None, paired=False):
            from gramloop.core.cost import Cost

            return Cost(1, 1)

    image = np.zeros((4, 4, 3), np.uint8)
    for text, predictor, sentence in [
        ("recentre:0.3", Fixed(), "which Fixed does not show"),
        ("recentre:0.3", detector, "without a batch norm on its taps"),
        ("recentre:c=1", segmenter, "needs the spread of ordinary images"),
        ("gramloop", Fixed(), "no transformer blocks"),
        ("pair", segmenter, "it needs a replay, such as gramloop\\+pair"),
        ("resize:1.1", Fixed(), "Fixed has no size to set"),
        ("resize:1.01", segmenter, "changes nothing"),
    ]:
        with pytest.raises(GramLoopError, match=sentence):
            apply(text, predictor)
    assert apply("median+gaussian", Fixed()).predict(image).labels.shape == (4, 4)
    with pytest.raises(GramLoopError, match="labels without scores"):
        apply("flip", Fixed()).predict(image)
    with pytest.raises(GramLoopError, match="at least 8 ordinary images"):
        calibrate(segmenter, [np.zeros((64, 64, 3), np.uint8)])
    stranger = replace(source, backbone="0" * 16)
    with pytest.raises(GramLoopError, match="of another backbone"):
        apply("recentre:c=1", segmenter, stranger)


def test_statistics_survive_their_file(tmp_path, source):
    path = tmp_path / "source.safetensors"
    write_source(path, source)
    again = read_source(path)
    assert (again.noise, again.images, again.backbone) == (source.noise, source.images, source.backbone)
    for tap in source.means:
        assert torch.equal(again.means[tap], source.means[tap])
        assert torch.equal(again.spreads[tap], source.spreads[tap])
    path.write_bytes(b"nothing")
    with pytest.raises(GramLoopError, match="cannot read the source statistics"):
        read_source(path)


def test_a_model_with_other_numbers_is_mitigated_like_itself(segmenter, images, source):
    from gramloop.tasks.renumbering import numbered_as

    names = [name for name in segmenter.classes.values() if name]
    other = numbered_as(segmenter, {10 + place: name for place, name in enumerate(reversed(names))})
    assert other is not segmenter
    for text in ("recentre:0.5", "flip", "resize:1.25"):
        found = apply(text, other, source)
        assert found.classes == other.classes
        same(found.predict(images[0]), other.renumbered(apply(text, segmenter, source).predict(images[0])))
    assert calibrate(other, images).images == len(images)


@pytest.mark.parametrize("text", ["flip", "scales:0.75,1", "gramloop+pair"])
@pytest.mark.parametrize("task", ["panoptic", "instance"])
def test_masks_of_several_looks_are_not_made_one(segmenter, text, task):
    from copy import copy

    other = copy(segmenter)
    other.task = task
    with pytest.raises(GramLoopError, match=f"not known how to do with the masks of a model for {task}"):
        apply(text, other)
