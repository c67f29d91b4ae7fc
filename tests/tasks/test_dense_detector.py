from __future__ import annotations

import numpy as np
import pytest
import torch

from gramloop import GramLoopError, ReplayConfig, cost, counting
from gramloop.models.backbone import Backbone, BackboneShape
from gramloop.models.tiny import DenseDetectConfig, DenseDetectHead
from gramloop.tasks.released import DenseDetector

REPLAY = ReplayConfig(window=(1, 2))


@pytest.fixture(scope="module")
def detector() -> DenseDetector:
    torch.manual_seed(0)
    shape = BackboneShape(
        depth=4,
        width=32,
        head_dim=16,
        hidden=64,
        gated=False,
        qkv_bias=True,
        local_cls_norm=False,
        registers=2,
        patch=8,
    )
    backbone = Backbone(shape)
    with torch.no_grad():
        for name, parameter in backbone.named_parameters():
            parameter.fill_(0.5) if "lambda1" in name else None
    head = DenseDetectHead(
        DenseDetectConfig(channels=32, classes=3, stride=8, width=16, least_score=0.0)
    ).eval()
    torch.nn.init.normal_(head.score.weight, std=0.5)
    return DenseDetector(backbone, head, tap=3, classes=dict.fromkeys([5, 7, 9]))


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (48, 64, 3), dtype=np.uint8)


def same(first, second) -> bool:
    return all(np.array_equal(getattr(first, k), getattr(second, k)) for k in ("boxes", "scores", "labels"))


def test_a_pair_is_two_separate_predictions_and_executes_what_the_formula_says(detector, image) -> None:
    with counting(detector.backbone.blocks) as counter:
        pair = detector.predict(image, REPLAY, paired=True)
    assert counter.blocks == pair.blocks == cost(4, (1, 2)).blocks
    assert same(pair.baseline, detector.predict(image))
    assert same(pair.replayed, detector.predict(image, REPLAY))
    assert not same(pair.baseline, pair.replayed)
    assert pair.replayed.trace.gate.shape == (2, 6, 8)


@pytest.mark.parametrize("paired", [False, True])
def test_an_ungated_replay_ends_where_its_proposal_is(detector, image, paired) -> None:
    ungated = ReplayConfig(window=(1, 2), replays=1, gate="none")
    found = detector.predict(image, ungated, paired=paired, trace=True)
    trace = found.replayed.trace if paired else found.trace
    # the same state, probed once by the replay and once in the host's own suffix
    np.testing.assert_allclose(trace.post_drift, trace.drift[0], rtol=1e-4, atol=1e-9)
    assert (trace.gate == 1).all()


def test_boxes_are_in_pixels_of_the_original(detector, image) -> None:
    found = detector.predict(image[:45, :61])  # shown as 48 x 64
    assert len(found.boxes)
    assert found.boxes.min() >= 0
    assert found.boxes[:, 2].max() <= 61
    assert found.boxes[:, 3].max() <= 45
    assert set(found.labels) <= {5, 7, 9}
    assert (np.diff(found.scores) <= 0).all()


def test_misuse(detector, image) -> None:
    with pytest.raises(GramLoopError, match="a paired prediction needs a replay"):
        detector.predict(image, paired=True)
    with pytest.raises(GramLoopError, match="2 categories were given for a head of 3 classes"):
        DenseDetector(detector.backbone, detector.head, tap=3, classes=dict.fromkeys([1, 2]))
    with pytest.raises(GramLoopError, match="taps must be different blocks"):
        DenseDetector(detector.backbone, detector.head, tap=4)
