"""What holds for every mitigation, with every kind of predictor: at nothing it is the plain prediction to the bit, it
leaves the predictor as it was, its cost is what is counted, and where it makes no sense one sentence says so."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gramloop.core.cost import counting
from gramloop.errors import GramLoopError
from gramloop.mitigations import apply, calibrate, stack_cost
from gramloop.mitigations.merging import merged, mirrored
from gramloop.mitigations.replay import SUBSTEPS
from gramloop.mitigations.texts import KINDS
from gramloop.tasks import Depth, as_predictor
from gramloop.tasks.semantic import Segmentation
from same_predictions import same

# name: the text at which nothing is asked, one at which something is, and the predictors for which that makes no sense
BLOCKS, SIZE, TAPS = "no transformer blocks", "has no size to set", "does not show"
LOOK = "needs to know how ordinary images look"
EVERY = {
    "median": ("median:1", "median", {}),
    "gaussian": ("gaussian:0", "gaussian:0.7", {}),
    "nlm": ("nlm:0", "nlm:6", {}),
    "denoise": ("denoise:255", "denoise:0", {}),
    "levels": ("levels", "levels", {"function": LOOK}),  # of an ordinary image
    "sharpen": ("sharpen", "sharpen", {"function": LOOK}),
    "replay": ("replay:replays=0", "replay:window=6-6,replays=1", {"function": BLOCKS}),
    SUBSTEPS: ("substeps:1,window=5-6", "substeps:3,window=5-6", {"function": BLOCKS}),
    "recentre": ("recentre:0", "recentre:0.3,c=0.5", {"function": TAPS}),
    "norms": ("norms:0", "norms:0.2", {"function": "shows none with", "detector": "shows none with"}),
    "scales": ("scales:1", "scales:0.75,1", {"function": SIZE}),
    "resize": ("resize:1", "resize:1.25", {"function": SIZE}),
    "flip": (None, "flip", {}),
    "pair": ("replay:replays=0+pair", "replay:window=9-9,replays=1+pair", {"function": BLOCKS}),
}
PREDICTORS = ("segmenter", "detector", "estimator", "function")


def grey_depth(pixels):
    """As deep as it is bright: a model that knows nothing of left and right."""
    return Depth(1 + pixels.mean(2, dtype=np.float32))


@pytest.fixture(scope="session")
def estimator():
    from gramloop.models.tiny import WEIGHTS
    from gramloop.tasks import load_predictor

    return load_predictor("depth", {"folder": str(WEIGHTS)})


@pytest.fixture(scope="session")
def function():
    return as_predictor(grey_depth, "depth")


@pytest.fixture(scope="session")
def sources(segmenter, detector, estimator, images):
    found = {"segmenter": segmenter, "detector": detector, "estimator": estimator}
    return {name: calibrate(each, images) for name, each in found.items()} | {"function": None}


def test_none_is_left_out():
    assert set(EVERY) == {*KINDS, SUBSTEPS}


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("kind", PREDICTORS)
def test_at_nothing_undone_counted_or_refused(request, name, kind, images, sources):
    predictor, source, image = request.getfixturevalue(kind), sources[kind], images[1]
    nothing, something, senseless = EVERY[name]
    if kind in senseless:
        with pytest.raises(GramLoopError, match=senseless[kind]) as refused:
            apply(something, predictor, source)
        assert "\n" not in str(refused.value)
        return
    plain = predictor.predict(image)
    if nothing is not None:
        same(apply(nothing, predictor, source).predict(image), plain)
    stack, calls = apply(something, predictor, source), []
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
    for hooked in predictor.blocks:
        assert not hooked._forward_hooks
        assert not hooked._forward_pre_hooks
        assert "forward" not in vars(hooked)


@pytest.mark.parametrize("kind", PREDICTORS)
def test_pair_needs_a_replay_beside_it(request, kind, sources):
    with pytest.raises(GramLoopError, match="it needs a replay, such as gramloop"):
        apply("pair", request.getfixturevalue(kind), sources[kind])


@pytest.mark.parametrize("kind", PREDICTORS)
def test_a_flip_of_a_flip_is_the_prediction(request, kind, images):
    found, width = request.getfixturevalue(kind).predict(images[2]), images[2].shape[1]
    twice = mirrored(mirrored(found, width), width)
    if kind == "detector":  # width - (width - x) rounds in float32
        np.testing.assert_allclose(twice.boxes, found.boxes, atol=width * 2**-23)
        np.testing.assert_array_equal(twice.scores, found.scores)
        return
    same(twice, found)


@given(arrays(np.uint8, st.tuples(st.integers(2, 9), st.integers(2, 9), st.just(3))))
@settings(max_examples=60, deadline=None)
def test_any_image_is_the_same_at_nothing_and_flips_of_the_symmetric_are_free_of_charge(image):
    predictor = as_predictor(grey_depth, "depth")
    plain = predictor.predict(image)
    for text in ("median:1", "gaussian:0", "nlm:0", "denoise:255", "scales:1", "resize:1", "flip"):
        same(apply(text, predictor).predict(image), plain)


def test_labels_alone_are_not_averaged(images):
    labels = as_predictor(lambda pixels: Segmentation(np.zeros(pixels.shape[:2], np.int32)), "semantic")
    with pytest.raises(GramLoopError, match="labels without scores, and only scores can be averaged"):
        apply("flip", labels).predict(images[0])


def test_disparities_are_averaged_in_the_first_looks_frame():
    first = np.random.default_rng(0).uniform(1, 5, (6, 8)).astype(np.float32)
    looks = [Depth(first, disparity=True), Depth(3 * first + 2, disparity=True)]
    np.testing.assert_allclose(merged(looks).values, first, rtol=1e-5)  # found from float32 values
    metres = [Depth(first), Depth(3 * first + 2)]
    np.testing.assert_allclose(merged(metres).values, (first + (3 * first + 2)) / 2, rtol=1e-6)


class TestNorms:
    """Batch norms inside heads and adapters."""

    def test_on_a_head_that_begins_with_one_they_are_recentring(self, segmenter, images):
        from gramloop.mitigations.norms import Norms
        from gramloop.mitigations.recentre import Recentre
        from gramloop.tasks.images import to_tensor

        pixels, maps = to_tensor(images[0]), []
        for mitigation in (Norms(0.4), Recentre(0.4)):
            treated = mitigation.prepare(segmenter, None)
            with torch.no_grad():
                maps.append(treated.model(pixels))
        torch.testing.assert_close(maps[0], maps[1], rtol=0, atol=1e-4)  # logits of scale 10, in float32
        assert not torch.allclose(maps[0], segmenter.model(pixels), atol=1e-2)

    def test_weights_and_the_backbone_are_shared_and_the_ordinary_head_has_no_hook(self, segmenter):
        from gramloop.mitigations.norms import Norms

        treated = Norms(0.4).prepare(segmenter, None)
        assert treated.model is not segmenter.model
        assert treated.model.backbone is segmenter.backbone
        both = zip(treated.model.parameters(), segmenter.model.parameters(), strict=True)
        assert all(one is two for one, two in both)
        assert not segmenter.model.head.bn._forward_pre_hooks

    def test_those_of_a_released_adapter_are_all_mixed(self):
        from gramloop.mitigations.norms import Norms
        from gramloop.models.adapter import SpatialPrior

        torch.manual_seed(0)
        adapter, pixels = SpatialPrior(16).eval(), torch.randn(1, 3, 64, 64)
        for norm in adapter.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                norm.running_mean.normal_()
        module = torch.nn.Module()
        module.adapter, module.forward = adapter, lambda shown: adapter(shown)
        module.preprocess = lambda image: pixels
        module.postprocess = lambda maps, size: Depth(np.zeros(size, np.float32))
        predictor = as_predictor(module, "depth")
        treated = Norms(1.0).prepare(predictor, None).model.adapter
        given = []
        for norm in treated.modules():
            if isinstance(norm, torch.nn.BatchNorm2d):
                # prepended hooks would run before the mixing; this one sees what the norm is given
                norm.register_forward_pre_hook(
                    lambda norm, args: given.append((args[0].mean((0, 2, 3)), norm.running_mean))
                )
        with torch.no_grad():
            treated(pixels)
        assert len(given) == 6
        for mean, running in given:  # at weight 1 every norm is given what it expects
            torch.testing.assert_close(mean, running, rtol=0, atol=1e-4)


class TestStreams:
    """A mean that is carried from image to image."""

    def test_a_share_of_one_is_each_images_own_and_a_reset_begins_anew(self, segmenter, images):
        own, stream = apply("recentre:0.5", segmenter), apply("recentre:0.5,stream=1", segmenter)
        for image in images[:2]:
            same(stream.predict(image), own.predict(image))
        carried = apply("recentre:0.9,stream=0.1", segmenter)
        alone = apply("recentre:0.9", segmenter).predict(images[3])
        same(carried.predict(images[3]), alone)  # the first is its own mean
        second = carried.predict(images[4])
        carried.reset()
        same(carried.predict(images[3]), alone)
        same(carried.predict(images[4]), second)

    def test_the_mean_is_the_recursion(self):
        from gramloop.mitigations.streaming import StreamMean

        views = torch.randn(5, 1, 3, generator=torch.Generator().manual_seed(0))
        stream, expected = StreamMean(0.25), views[0]
        found = torch.cat([stream.update(7, views[:2]), stream.update(7, views[2:])])
        for view, mean in zip(views, found, strict=True):
            expected = 0.75 * expected + 0.25 * view
            torch.testing.assert_close(mean, expected)

    def test_refusals(self, segmenter, images):
        from threading import Thread

        from gramloop.core.config import ReplayConfig
        from gramloop.evaluate.methods import parse_method

        for text in ("flip", "scales:0.75,1", "gramloop+pair"):
            with pytest.raises(GramLoopError, match="every image is looked at once"):
                apply(f"recentre:0.5,stream=0.1+{text}", segmenter)
        with pytest.raises(GramLoopError, match="depends on the images before"):
            parse_method("recentre:0.5,stream=0.1")
        carried = apply("recentre:0.5,stream=0.1", segmenter)
        with pytest.raises(GramLoopError, match="follows one version of each image, and a pair has two"):
            carried.predict(images[0], ReplayConfig(window=(9, 9)), paired=True)
        carried.predict(images[0])
        caught = []

        def elsewhere():
            try:
                carried.predict(images[0])
            except GramLoopError as error:
                caught.append(str(error))

        thread = Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "carried by the thread that began it" in caught[0]
