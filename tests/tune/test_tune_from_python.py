"""``gramloop.tune`` called like a function, with a model in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import gramloop
from dense_folders import save_model
from gramloop import GramLoopError
from gramloop.mitigations import CalibrationStats
from gramloop.replay.config import read_replay
from gramloop.tasks import open_model
from gramloop.tune import Space, Tuning
from small_sets import write_semantic


def test_a_model_in_memory_is_tuned(tmp_path: Path) -> None:
    data = write_semantic(tmp_path / "data", 12)
    model = open_model(f"hf:{save_model('UperNet on Dinov2', tmp_path / 'model')}")
    few = {"conditions": ["fog", "contrast", "pixelate"], "budget": 200}
    space = Space({"window": [(2, 2), (3, 3)], "strength": [0.5]})
    found = gramloop.tune(model, data, suite="my-set-c", out=tmp_path / "out", space=space, **few)
    assert isinstance(found, Tuning)
    assert str(found) == found.sentence
    assert read_replay(tmp_path / "out" / "found.json") == found.config


def test_a_function_is_tuned_over_pixels_and_outputs(tmp_path: Path) -> None:
    data = write_semantic(tmp_path / "data", 22)

    def function(image: np.ndarray) -> np.ndarray:
        return image[..., 0].astype(np.int64) % 2

    few = {"conditions": ["impulse_noise", "contrast", "pixelate"], "budget": 250}
    found = gramloop.tune(function, data, suite="my-set-c", out=tmp_path / "out", **few)
    assert {stack[0].name for stack in found.search.candidates} == {
        "denoise",
        "median",
        "levels",
        "sharpen",
        "flip",
    }
    refused = dict(found.outcome.refused)
    assert "only scores can be averaged" in refused["flip"]
    assert set(found.about()["tried"]["left out"]) >= {"flip", "replay", "recentre:0.3"}
    assert CalibrationStats.read(tmp_path / "out" / "source.safetensors").means == {}
    with pytest.raises(GramLoopError, match="no transformer blocks that could be replayed"):
        gramloop.tune(
            function, data, suite="my-set-c", out=tmp_path / "no", space=Space({"window": [(1, 1)]}), **few
        )
