"""The detection task on the golden detector, which is tiny: 64 channels, 8 blocks, 12 queries."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from golden import load_golden
from gramloop import GramLoopError, ReplayConfig, attached, cost, counting
from gramloop.models.detector import DETECTOR_BACKBONE
from gramloop.tasks.images import WEB
from gramloop.tasks.loading import load_head
from gramloop.tasks.released import DetectConfig, Detector, input_size

REPLAY = ReplayConfig(window=(3, 4))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("golden detector")
    weights = load_golden("detector").weights
    inner = {
        name.removeprefix(DETECTOR_BACKBONE): value
        for name, value in weights.items()
        if name.startswith(DETECTOR_BACKBONE)
    }
    torch.save(inner, folder / "backbone.pth")
    head = {name: value for name, value in weights.items() if not name.startswith(DETECTOR_BACKBONE)}
    torch.save({"model": head}, folder / "head.pth")
    return folder / "backbone.pth", folder / "head.pth"


@pytest.fixture(scope="module")
def detector(files):
    return load_head(*files, **vars(DetectConfig(short_side=144, keep=40)))


@pytest.fixture(scope="module")
def picture():
    generator = np.random.default_rng(0)
    coarse = generator.integers(0, 255, (6, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((150, 100), Image.Resampling.BICUBIC))


def same(one, two):
    return all(
        np.array_equal(getattr(one, name), getattr(two, name)) for name in ("boxes", "scores", "labels")
    )


def test_an_image_that_needs_no_resizing_is_shown_as_it_is(detector):
    exact = load_golden("detector").values["x"]
    mean, std = torch.tensor(WEB.mean)[:, None, None], torch.tensor(WEB.std)[:, None, None]
    pixels = ((exact * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    found = detector.predict(pixels)
    normalised = (torch.from_numpy(pixels).permute(2, 0, 1) - 255 * mean) / (255 * std)
    with torch.no_grad():
        logits, boxes = detector.model(normalised[None])
    scores = logits[0].sigmoid().flatten()
    order = scores.argsort(descending=True)[:40]
    cx, cy, w, h = boxes[0, order // 91].unbind(-1)
    corners = torch.stack((cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2), -1)
    np.testing.assert_allclose(found.scores, scores[order].numpy(), atol=1e-4)
    np.testing.assert_allclose(found.boxes, corners.clamp(min=0).numpy(), atol=2e-2)
    assert found.labels.tolist() == (order % 91).tolist()


def test_boxes_are_in_pixels_of_the_original_image(detector, picture):
    large = np.asarray(Image.fromarray(picture).resize((432, 288), Image.Resampling.BILINEAR))
    small = np.asarray(Image.fromarray(large).resize((216, 144), Image.Resampling.BILINEAR))
    # 216 is no multiple of 16: both are shown as 144 x 208 or 144 x 224, from different originals
    found = detector.predict(large)
    assert found.boxes.shape == (40, 4)
    assert (found.boxes >= 0).all()
    assert (found.boxes[:, [0, 2]] <= 432).all()
    assert (found.boxes[:, [1, 3]] <= 288).all()
    assert found.boxes[:, 2].max() > 216  # uses the large image's right half
    assert detector.predict(small).boxes[:, 2].max() <= 216
    assert (np.diff(found.scores) <= 0).all()
    assert set(found.labels) <= set(range(91))


def test_scaling_back_follows_each_side_on_its_own(detector):
    """A flat image looks the same at every size, so boxes of two sizes differ by the scale of each side alone."""
    one = detector.predict(np.full((144, 208, 3), 90, np.uint8))
    two = detector.predict(np.full((300, 430, 3), 90, np.uint8))  # also shown as 144 x 208
    assert input_size(300, 430, detector.config) == (144, 208)
    scale = np.array([430 / 208, 300 / 144] * 2)
    np.testing.assert_allclose(two.boxes, one.boxes * scale, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    "replay",
    [
        REPLAY,
        ReplayConfig(window=(1, 1), replays=3),  # a tap of the detector is the window's end
        ReplayConfig(window=(2, 5)),  # and one lies inside it
        ReplayConfig(window=(3, 4), gate="none"),
        ReplayConfig(window=(3, 4), gate="uniform", strength=0.4),
        ReplayConfig(window=(3, 4), gate_at="end"),
        ReplayConfig(window=(3, 4), gate_at="final", update_at="final"),
        ReplayConfig(window=(3, 4), replays=0),
    ],
    ids=lambda replay: (
        f"{replay.window} {replay.gate} {replay.gate_at} {replay.update_at} K={replay.replays}"
    ),
)
def test_a_paired_prediction_is_two_predictions_bit_by_bit(detector, picture, replay):
    both = detector.predict(picture, replay, paired=True)
    assert same(both.baseline, detector.predict(picture))
    assert same(both.replayed, detector.predict(picture, replay))


def test_a_replay_changes_the_detections(detector, picture):
    both = detector.predict(picture, REPLAY, paired=True)
    assert not same(both.baseline, both.replayed)


def test_a_paired_prediction_executes_the_blocks_of_the_formula(detector, picture):
    views = 10
    with counting(detector.model.backbone.blocks) as counter:
        both = detector.predict(picture, REPLAY, paired=True)
    assert both.blocks == cost(8, (3, 4), 2).blocks
    assert counter.blocks == views * both.blocks
    assert both.baseline.blocks == 8


def test_the_trace_is_what_the_replay_measures_in_each_view(detector, picture):
    found = detector.predict(picture, REPLAY)
    assert found.trace is not None
    shown = input_size(*picture.shape[:2], detector.config)
    rows, columns = shown[0] // 16, shown[1] // 16
    assert found.trace.drift.shape == found.trace.gate.shape == (2, rows, columns)
    pixels = detector.prepare(picture)
    layout = detector.model.layout(pixels)
    top, left = layout.rows[0][1], layout.columns[0][1]
    with torch.no_grad(), attached(detector.model.backbone.model, REPLAY, trace=True) as loop:
        detector.model.backbone(
            pixels[..., :top, left : layout.columns[1][1]], (7,)
        )  # second window, first row
        expected = loop.trace.drift[1][0]
    piece = found.trace.drift[1, : top // 16, left // 16 : layout.columns[1][1] // 16]
    assert np.array_equal(piece, expected.numpy())
    assert detector.predict(picture).trace is None
    assert detector.predict(picture, REPLAY, trace=False).trace is None


@pytest.mark.parametrize("gate", ["none", "uniform"])
def test_drift_after_gating_comes_whatever_the_gate(detector, picture, gate):
    """With one replay that accepts everything, the state in the end is the proposal, in every view."""
    replay = ReplayConfig(window=(3, 4), replays=1, gate=gate)
    trace = detector.predict(picture, replay, paired=True, trace=True).replayed.trace
    # the same state, probed once by the replay and once in the host's own suffix
    np.testing.assert_allclose(trace.post_drift, trace.drift[0], rtol=1e-4, atol=1e-9)
    gated = detector.predict(picture, REPLAY).trace
    assert 0 < gated.post_drift.mean() < trace.post_drift.mean()
    assert detector.predict(picture, replay).trace is None


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((480, 640), (2048, 2736)),  # 2730.67 is nearer to 2736 than to 2720
        ((640, 480), (2736, 2048)),
        ((427, 640), (2048, 3072)),
        ((2048, 2048), (2048, 2048)),
        ((2, 2), (2048, 2048)),
        ((100, 5000), (320, 16384)),  # 327.7 pixels, nearer to 320 than to 336
        ((2, 60_000), (16, 16384)),
    ],
)
def test_input_sizes(size, shown):
    assert input_size(*size) == shown


@given(st.integers(2, 4000), st.integers(2, 4000))
def test_input_sides_are_within_half_a_patch_of_the_scaled_ones(height, width):
    rows, columns = input_size(height, width)
    scale = min(2048 / min(height, width), 16_384 / max(height, width))
    assert rows % 16 == columns % 16 == 0
    assert abs(rows - height * scale) <= 8 or rows == 16
    assert abs(columns - width * scale) <= 8 or columns == 16


@pytest.mark.parametrize("size", [(8, 8), (5, 300), (64, 64)])
def test_images_too_small_for_three_windows_are_cut_into_fewer(files, size):
    detector = load_head(*files, **vars(DetectConfig(short_side=16, keep=5)))
    pixels = np.random.default_rng(0).integers(0, 255, (*size, 3), dtype=np.uint8)
    both = detector.predict(pixels, REPLAY, paired=True)
    assert np.isfinite(both.replayed.boxes).all()


def test_path_pil_and_array_are_the_same_image(detector, picture, tmp_path):
    Image.fromarray(picture).save(tmp_path / "a.png")
    expected = detector.predict(picture)
    assert same(detector.predict(tmp_path / "a.png"), expected)
    assert same(detector.predict(Image.fromarray(picture)), expected)


def test_misuse_is_answered_in_one_sentence(detector, picture):
    with pytest.raises(GramLoopError, match="needs a replay"):
        detector.predict(picture, paired=True)
    with pytest.raises(GramLoopError, match="8 blocks"):
        detector.predict(picture, ReplayConfig(window=(21, 23)))
    with pytest.raises(GramLoopError, match="positive"):
        DetectConfig(short_side=0)


def test_nothing_stays_attached(detector, picture):
    before = detector.predict(picture)
    with pytest.raises(GramLoopError):
        detector.predict_batch([picture, "missing.png"], REPLAY)
    detector.predict(picture, REPLAY)
    assert same(detector.predict(picture), before)
    assert isinstance(detector, Detector)
