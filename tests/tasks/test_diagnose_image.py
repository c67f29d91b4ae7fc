"""A diagnosis holds what `gramloop.attach(trace=True)` measures, and says its numbers right."""

import numpy as np
import pytest
import torch

import gramloop
from gramloop.data.scenes import scene
from gramloop.errors import GramLoopError
from gramloop.models.tiny import SUGGESTED, load_tiny
from gramloop.replay.config import read_replay
from gramloop.tasks.diagnosis import diagnose, diagnose_prediction, spread
from gramloop.tasks.semantic import SegmentConfig, Segmenter
from tiny_model import normalise

REPLAY = gramloop.ReplayConfig(window=(8, 9), replays=2)


@pytest.fixture(scope="module")
def tiny():
    return load_tiny()


@pytest.fixture(scope="module")
def pixels():
    return normalise(torch.from_numpy(scene(3, 96).image.copy())[None])


def test_maps_are_those_of_attach(tiny, pixels):
    found = diagnose(tiny, pixels, REPLAY)
    with gramloop.attached(tiny, REPLAY, trace=True) as loop, torch.no_grad():
        tiny(pixels)
    trace = loop.trace
    for name in ("drift", "gate"):
        expected = torch.cat(getattr(trace, name)).numpy()
        np.testing.assert_array_equal(getattr(found, name), expected)
    np.testing.assert_array_equal(found.post_drift, trace.post_drift[0].numpy())
    assert found.grid == trace.grid == found.drift.shape[1:]
    assert found.cost == gramloop.cost(12, (8, 9), 2)
    assert found.cost.blocks == loop.blocks_executed


def test_the_model_is_as_before(tiny, pixels):
    with torch.no_grad():
        before = tiny(pixels)[0]
        diagnose(tiny, pixels, REPLAY)
        assert torch.equal(before, tiny(pixels)[0])


def test_numbers_are_those_of_the_maps(tiny, pixels):
    found = diagnose(tiny, pixels, REPLAY)
    said = found.as_json()
    assert len(said["replays"]) == 2
    for step, drift, gate in zip(said["replays"], found.drift, found.gate, strict=True):
        exact = drift.astype(np.float64)
        assert step["drift"]["mean"] == pytest.approx(exact.mean(), rel=1e-12)
        assert step["drift"]["median"] == pytest.approx(np.median(exact), rel=1e-12)
        assert step["drift"]["low"] <= step["drift"]["median"] <= step["drift"]["high"] <= drift.max()
        assert step["mean_gate"] == pytest.approx(gate.astype(np.float64).mean(), rel=1e-12)
    left = found.post_drift.astype(np.float64).mean() / found.drift[-1].astype(np.float64).mean()
    assert said["share_of_drift_left"] == pytest.approx(left, rel=1e-12)
    assert said["multiplier"] == said["blocks"] / 12


def test_a_gate_that_measures_nothing_is_measured_too_and_costs_what_it_costs(tiny, pixels):
    found = diagnose(tiny, pixels, window=(8, 9), replays=1, gate="none")
    assert (found.gate == 1).all()
    assert found.cost.blocks == 14
    # everything is accepted, so what is left is the proposal's own drift, up to the rounding of another pass
    np.testing.assert_allclose(found.post_drift, found.drift[0], rtol=1e-4, atol=1e-9)


def test_any_call_and_any_model(tiny, pixels):
    by_name = diagnose(tiny.backbone.model, {"pixel_values": pixels}, REPLAY)
    by_call = diagnose(tiny.backbone, pixels, REPLAY, run=lambda given: tiny.backbone(given, [11]))
    vit = tiny.backbone.model
    described = diagnose(
        vit,
        pixels,
        REPLAY,
        blocks=list(vit.model.layer),
        norm=vit.norm,
        prefix=5,
        run=lambda x: vit(pixel_values=x),
    )
    for other in (by_call, described):
        np.testing.assert_array_equal(by_name.drift, other.drift)


def test_a_predictor_looks_as_its_task_does(tiny):
    image = scene(3, 96).image
    segmenter = Segmenter(tiny.segmentor(), SegmentConfig(mode="whole", short_side=96))
    found = diagnose_prediction(segmenter, image, REPLAY)
    direct = diagnose(tiny, normalise(torch.from_numpy(image.copy())[None]), REPLAY)
    assert found.drift.shape == direct.drift.shape
    # one window over the whole image: the same maps, but for the rounding of sums over a patch's pixels
    np.testing.assert_allclose(found.drift, direct.drift, rtol=1e-5)
    np.testing.assert_allclose(found.post_drift, direct.post_drift, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "batch", "words"),
    [
        ({"replays": 0}, 1, "nothing to diagnose"),
        ({}, 2, "2 images were given"),
        ({"grid": (2, 3)}, 1, "a grid of 2 x 3 does not hold"),
    ],
)
def test_what_cannot_be_diagnosed(tiny, pixels, changes, batch, words):
    with pytest.raises(GramLoopError, match=words):
        diagnose(tiny, pixels.repeat(batch, 1, 1, 1), read_replay(SUGGESTED), **changes)


def test_spread_leaves_out_what_is_not_finite():
    found = spread(np.array([1.0, 2.0, 3.0, np.nan, np.inf]))
    assert (found["mean"], found["median"], found["largest"]) == (2.0, 2.0, 3.0)
    assert np.isnan(spread(np.array([np.nan]))["mean"])
