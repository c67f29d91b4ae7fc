"""Backbones whose weights are bfloat16, in every predictor that can have them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gramloop.data.scenes import SceneFiles, draw_scenes
from gramloop.errors import GramLoopError
from gramloop.models.tiny import WEIGHTS
from gramloop.replay.attach import attached
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.loading import load_predictor

TINY = {"folder": WEIGHTS}
REPLAY = ReplayConfig((3, 4))


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = draw_scenes(tmp_path_factory.mktemp("scenes"), SceneFiles(1))
    return min((folder / "images").rglob("*.png"))


def both(task):
    return [load_predictor(task, TINY, dtype=dtype) for dtype in ("float32", "bfloat16")]


@pytest.mark.parametrize("task", ["semantic", "detection", "depth"])
def test_only_the_backbone_is_rounded(task):
    predictor = both(task)[1]
    blocks = {each.dtype for block in predictor.blocks for each in block.parameters()}
    assert blocks == {torch.bfloat16}
    head = predictor.model.head if task == "semantic" else predictor.head
    assert {each.dtype for each in head.parameters()} == {torch.float32}
    assert {each.dtype for each in predictor.backbone.norm.parameters()} == {torch.float32}


def test_a_rounded_backbone_segments_almost_alike(scene):
    exact, rounded = (each.predict(scene, REPLAY, paired=True) for each in both("semantic"))
    for version in ("baseline", "replayed"):
        same = getattr(exact, version).labels == getattr(rounded, version).labels
        assert 0.97 < same.mean() <= 1.0  # three digits leave borders in doubt, and nothing else
    assert rounded.replayed.trace is not None


def test_drift_of_a_rounded_backbone_is_measured_in_float32():
    predictor = both("semantic")[1]
    x = torch.randn(1, 3, 192, 192)
    seen = []
    norm = predictor.host.final_norm
    forward = norm.forward

    def watched(tokens):
        seen.append(tokens.dtype)
        return forward(tokens)

    norm.forward = watched
    with torch.no_grad(), attached(predictor.backbone.model, REPLAY, trace=True) as loop:
        taps = predictor.backbone(x, predictor.taps)
    assert set(seen) == {torch.float32}
    assert all(tap.tokens.dtype == torch.float32 for tap in taps)
    drift = loop.trace.drift[0]
    assert drift.dtype == torch.float32
    assert (
        len(drift.unique()) > 0.9 * drift.numel()
    )  # bfloat16 tells about 256 numbers apart between two powers of two


def test_depth_and_boxes_of_a_rounded_backbone(scene):
    exact, rounded = (each.predict(scene) for each in both("depth"))
    assert np.median(np.abs(rounded.values / exact.values - 1)) < 0.02
    boxes, fewer = (each.predict(scene) for each in both("detection"))
    assert abs(len(boxes.scores) - len(fewer.scores)) <= 2
    assert np.abs(boxes.scores[:3] - fewer.scores[:3]).max() < 0.05


@pytest.mark.parametrize("files", [{"hf": "some/folder"}, {"make": "models.py:make"}, {"object": "mine"}])
def test_models_that_bring_their_own_precision_are_refused(files):
    with pytest.raises(
        GramLoopError, match="has the precision that it was made with; bfloat16 can be asked of"
    ):
        load_predictor(None, files, dtype="bfloat16")
