from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from golden import load_golden
from gramloop import attached
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, BackboneShape, LinearHead, LinearSegmentor
from gramloop.models.dino import load_backbone
from gramloop.models.mask2former import load_segmentor
from gramloop.replay.config import ReplayConfig, cost
from gramloop.tasks.images import SATELLITE, WEB
from gramloop.tasks.loading import load_head
from gramloop.tasks.semantic import Canvas, SegmentConfig, Segmenter, crop_grid
from gramloop.util.forward_patch import counting

SMALL = SegmentConfig(short_side=64, crop=64, stride=40, scores=True)
PAPER = ReplayConfig(window=(21, 23))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    torch.save(load_golden("segmentor").weights, folder / "segmentor.pth")
    torch.save(load_golden("backbone_s").weights, folder / "backbone_s.pth")
    linear_head().save(folder / "linear.safetensors")
    return folder


def linear_head(width=64, taps=(1, 3, 5, 7)):
    torch.manual_seed(0)
    return LinearHead(width, 5, taps).eval()


@pytest.fixture(scope="module")
def released(files):
    return Segmenter(load_segmentor(files / "segmentor.pth"), SMALL)


@pytest.fixture(scope="module")
def linear(files):
    backbone = load_backbone(files / "backbone_s.pth")
    return Segmenter(LinearSegmentor(backbone, linear_head()), SMALL)


@pytest.fixture(params=["released", "linear"])
def segmenter(request):
    return request.getfixturevalue(request.param)


def noise(height=70, width=150, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_sliding_is_the_reference(released):
    golden = load_golden("segmentor")
    expected = golden.values["slide.scores"][0]
    [[canvas]], _, _ = released._through_crops(golden.values["slide.x"], None, paired=False)
    scores = torch.nn.functional.interpolate(canvas.mean()[None], (50, 80), mode="bilinear")[0].softmax(0)
    bfloat16 = 2e-2  # the reference multiplies classes and masks in bfloat16
    assert (scores - expected).abs().max() <= bfloat16
    top = expected.topk(2, dim=0).values
    sure = top[0] - top[1] > bfloat16
    assert sure.any()
    assert torch.equal(scores.argmax(0)[sure], expected.argmax(0)[sure])


def test_labels_are_the_best_scores_in_the_original_size(segmenter):
    result = segmenter.predict(noise())
    assert result.labels.shape == (70, 150)
    assert result.scores.shape == (segmenter.model.classes, 70, 150)
    assert np.allclose(result.scores.sum(0), 1, atol=1e-5)
    best = np.take_along_axis(result.scores, result.labels[None].astype(int), 0)[0]
    assert np.allclose(best, result.scores.max(0), atol=1e-6)
    alone = Segmenter(segmenter.model, replace(SMALL, scores=False)).predict(noise())
    assert alone.scores is None
    assert np.array_equal(alone.labels, result.labels)


@pytest.mark.parametrize(
    "replay",
    [
        ReplayConfig(window=(3, 4)),
        ReplayConfig(window=(0, 2), replays=1),
        ReplayConfig(window=(5, 7)),
        ReplayConfig(window=(3, 4), gate_at="end"),
        ReplayConfig(window=(3, 4), update_at="final"),
        ReplayConfig(window=(3, 4), gate="none"),
        ReplayConfig(window=(3, 4), replays=0),
    ],
    ids=[
        "method",
        "no prefix",
        "no suffix",
        "end",
        "final",
        "ungated",
        "no replay",
    ],
)
def test_a_pair_is_two_separate_predictions_bit_for_bit(segmenter, replay):
    image = noise()
    both = segmenter.predict(image, replay, paired=True)
    plain = segmenter.predict(image)
    replayed = segmenter.predict(image, replay)
    assert np.array_equal(both.baseline.scores, plain.scores)
    assert np.array_equal(both.baseline.labels, plain.labels)
    assert np.array_equal(both.replayed.scores, replayed.scores)
    assert np.array_equal(both.replayed.labels, replayed.labels)
    assert np.array_equal(plain.scores, replayed.scores) == (replay.replays == 0)


def test_a_prediction_leaves_the_model_as_it_was(linear):
    image = noise()
    before = linear.predict(image).scores
    linear.predict(image, ReplayConfig(window=(3, 4)), paired=True)
    assert not any(block._forward_hooks for block in linear.model.backbone.blocks)
    assert np.array_equal(linear.predict(image).scores, before)


def forty_blocks():
    torch.manual_seed(0)
    backbone = Backbone(BackboneShape(40, 16, head_dim=8))
    return Segmenter(LinearSegmentor(backbone, linear_head(16, (9, 19, 29, 39))), SMALL)


@pytest.mark.parametrize(
    ("replay", "paired", "blocks"), [(None, False, 40), (PAPER, False, 94), (PAPER, True, 94)]
)
def test_the_paper_setting_executes_as_many_blocks_as_it_says(replay, paired, blocks):
    segmenter = forty_blocks()
    image = noise(64, 64)  # one crop
    with counting(list(segmenter.model.backbone.blocks)) as counter:
        result = segmenter.predict(image, replay, paired=paired)
    assert counter.blocks == blocks
    assert result.blocks == blocks
    assert cost(40).blocks == 94


def test_several_images_at_once_change_nothing_but_rounding(segmenter):
    images, replay = [noise(), noise()[:, ::-1].copy()], ReplayConfig(window=(3, 4))
    many = segmenter.predict_batch(images, replay, paired=True)
    bfloat16 = 2e-2 if segmenter.model.classes == 7 else 1e-4
    for image, found in zip(images, many, strict=True):
        one = segmenter.predict(image, replay, paired=True)
        assert np.abs(one.baseline.scores - found.baseline.scores).max() <= bfloat16
        assert np.abs(one.replayed.scores - found.replayed.scores).max() <= bfloat16
        assert np.allclose(one.replayed.trace.gate, found.replayed.trace.gate, atol=1e-4)


def test_whole_image_mode(segmenter):
    whole = Segmenter(segmenter.model, SegmentConfig(mode="whole", short_side=64))
    result = whole.predict(noise(), ReplayConfig(window=(3, 4)), paired=True)
    assert result.baseline.labels.shape == (70, 150)
    assert result.replayed.trace.drift.shape[1:] == (64, 128 if segmenter.model.granularity == 32 else 144)


def test_whole_equals_slide_on_a_single_crop(linear):
    whole = Segmenter(linear.model, replace(SMALL, mode="whole"))
    image = noise(64, 64)
    assert np.array_equal(whole.predict(image).scores, linear.predict(image).scores)


def test_the_trace_shows_drift_and_gate_over_the_image(linear):
    result = linear.predict(noise(64, 64), ReplayConfig(window=(3, 4), replays=3))
    trace = result.trace
    assert trace.drift.shape == trace.gate.shape == (3, 64, 64)
    assert (trace.drift >= 0).all()
    assert ((trace.gate > 0) & (trace.gate <= 1)).all()
    # one number per patch of 16 pixels, and the gate falls where the drift rises
    patches = trace.drift.reshape(3, 4, 16, 4, 16)
    assert (patches == patches[:, :, :1, :, :1]).all()
    median = np.median(trace.drift[0, ::16, ::16])
    assert np.allclose(trace.gate[0], np.exp(-trace.drift[0] / max(median, 1e-6)), atol=1e-5)


def test_a_trace_only_where_something_is_measured(linear):
    image = noise(64, 64)
    assert linear.predict(image).trace is None
    assert linear.predict(image, ReplayConfig(window=(3, 4)), trace=False).trace is None
    ungated = ReplayConfig(window=(3, 4), gate="none")
    assert linear.predict(image, ungated).trace is None
    assert (linear.predict(image, ungated, trace=True).trace.gate == 1).all()


@pytest.mark.parametrize("replays", [1, 2])
@pytest.mark.parametrize(("gate", "strength"), [("none", 1.0), ("uniform", 1.0), ("uniform", 0.3)])
def test_drift_before_and_after_gating_comes_whatever_the_gate(segmenter, gate, strength, replays):
    """A loop that accepts everything ends where its last proposal is; one that accepts less ends closer."""
    replay = ReplayConfig(window=(3, 4), gate=gate, strength=strength, replays=replays)
    for paired in (False, True):
        found = segmenter.predict(noise(), replay, paired=paired, trace=True)
        trace = found.replayed.trace if paired else found.trace
        assert trace.drift.shape == (replays, *trace.post_drift.shape)
        assert trace.cell == 16
        if strength == 1.0:
            # the same state, probed once by the replay and once in the host's own suffix
            np.testing.assert_allclose(trace.post_drift, trace.drift[-1], rtol=1e-4, atol=1e-9)
        else:
            assert 0 < trace.post_drift.mean() < trace.drift[-1].mean()


def test_drift_after_gating_is_averaged_where_crops_overlap(linear):
    replay = ReplayConfig(window=(3, 4))
    trace = linear.predict(noise(64, 100), replay).trace
    pixels = linear.prepare(noise(64, 100))
    total, seen = np.zeros((64, 100)), np.zeros((64, 100))
    for crop in crop_grid(64, 100, 64, 40):
        with torch.no_grad(), attached(linear.model.backbone.model, replay, trace=True) as loop:
            linear.model.backbone(crop.of(pixels), [7])
        columns = slice(crop.left, crop.left + 64)
        total[:, columns] += np.kron(loop.trace.post_drift[0].numpy(), np.ones((16, 16)))
        seen[:, columns] += 1
    assert seen.max() == 2
    np.testing.assert_allclose(trace.post_drift, total / seen, rtol=1e-5)


def test_drift_after_gating_is_absent_where_it_is_not_measured(linear):
    """The update at the last block leaves no state at an earlier probe to measure."""
    early = ReplayConfig(window=(3, 4), gate_at=5, update_at="final")
    trace = linear.predict(noise(64, 64), early).trace
    assert trace.drift.shape == (2, 64, 64)
    assert trace.post_drift is None


@given(st.integers(1, 300), st.integers(1, 300), st.integers(20, 200), st.data())
@settings(max_examples=60, deadline=None)
def test_crops_cover_the_image_and_stay_inside(height, width, crop, data):
    stride = data.draw(st.integers(crop // 3 + 1, crop))
    covered = np.zeros((height, width), int)
    crops = crop_grid(height, width, crop, stride)
    for each in crops:
        assert 0 <= each.top <= each.top + each.height <= height
        assert 0 <= each.left <= each.left + each.width <= width
        assert (each.height, each.width) == (min(crop, height), min(crop, width))
        covered[each.top : each.top + each.height, each.left : each.left + each.width] += 1
    assert covered.min() >= 1
    assert len(set(crops)) == len(crops)


def test_released_crops_of_a_wide_image():
    """1200 wide: two windows, the second shifted back; 896 + 596 = 1492 wide: exactly two."""
    assert [crop.left for crop in crop_grid(896, 1200, 896, 596)] == [0, 304]
    assert [crop.left for crop in crop_grid(896, 1492, 896, 596)] == [0, 596]
    assert [crop.left for crop in crop_grid(896, 1493, 896, 596)] == [0, 596, 597]


def test_a_canvas_averages():
    canvas = Canvas(2, 3)
    first, second = crop_grid(2, 3, 2, 1)
    canvas.add(first, torch.ones(1, 2, 2))
    canvas.add(second, torch.full((1, 2, 2), 3.0))
    assert canvas.mean().tolist() == [[[1, 2, 3], [1, 2, 3]]]


def test_labels_of_many_classes_are_those_of_one_argmax(files, monkeypatch):
    """Labels are found a few classes at a time where the image is large."""
    monkeypatch.setattr("gramloop.tasks.semantic._SCORES_AT_ONCE", 8 * 64 * 64)
    torch.manual_seed(1)
    head = LinearHead(64, 21, [7]).eval()
    segmenter = Segmenter(LinearSegmentor(load_backbone(files / "backbone_s.pth"), head), SMALL)
    result = segmenter.predict(noise(64, 64))
    assert set(np.unique(result.labels // 8)) == {0, 1, 2}
    best = np.take_along_axis(result.scores, result.labels[None].astype(int), 0)[0]
    assert np.allclose(best, result.scores.max(0), atol=1e-6)


def test_segmenters_from_files(files, tmp_path):
    released = load_head(None, files / "segmentor.pth", "semantic", **vars(SMALL))
    assert (released.model.classes, released.normalisation) == (7, WEB)
    linear = load_head(files / "backbone_s.pth", files / "linear.safetensors", "semantic", **vars(SMALL))
    assert (linear.model.classes, linear.model.taps) == (5, (1, 3, 5, 7))
    satellite = tmp_path / "dinov3_vitl16_pretrain_sat493m-eadcf0ff.pth"
    satellite.write_bytes((files / "backbone_s.pth").read_bytes())
    assert (
        load_head(satellite, files / "linear.safetensors", "semantic", **vars(SMALL)).normalisation
        == SATELLITE
    )
    with pytest.raises(GramLoopError, match="backbone must be given"):
        load_head(None, files / "linear.safetensors")


def test_a_path_and_its_array_are_the_same(linear, tmp_path):
    Image.fromarray(noise()).save(tmp_path / "a.png")
    assert np.array_equal(linear.predict(tmp_path / "a.png").labels, linear.predict(noise()).labels)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "tiles"}, "'slide', 'even' or 'whole'"),
        ({"stride": 0}, "positive"),
        ({"stride": 900}, "stride <= crop <= short_side"),
        ({"crop": 960}, "stride <= crop <= short_side"),
    ],
)
def test_impossible_settings(settings, words):
    with pytest.raises(GramLoopError, match=words):
        SegmentConfig(**settings)


def test_settings_that_do_not_fit_the_model(released, linear):
    with pytest.raises(GramLoopError, match="multiples of 32, not 48"):
        Segmenter(released.model, SegmentConfig(short_side=48, crop=48, stride=40))
    Segmenter(linear.model, SegmentConfig(short_side=48, crop=48, stride=40))
    with pytest.raises(GramLoopError, match="multiples of 16, not 50"):
        Segmenter(linear.model, SegmentConfig(mode="whole", short_side=50))


def test_mistakes_are_named(linear):
    with pytest.raises(GramLoopError, match="paired prediction needs a replay"):
        linear.predict(noise(), paired=True)
    with pytest.raises(GramLoopError, match="window"):
        linear.predict(noise(), ReplayConfig(window=(7, 9)))
