"""Models of one's own, in each of the forms that ``make`` may return."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from gramloop import GramLoopError, ReplayConfig
from gramloop.errors import UserCodeError
from gramloop.tasks import (
    Depth,
    Detection,
    FunctionPredictor,
    ModulePredictor,
    Panoptic,
    Segment,
    Segmentation,
    as_predictor,
    open_model,
)

PIXELS = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
MODULE = """
import torch
from torch import nn
from transformers import DINOv3ViTBackbone, DINOv3ViTConfig

class Mine(nn.Module):
    classes = ["dark", "light", "red"]

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        config = DINOv3ViTConfig(hidden_size=32, num_hidden_layers=4, num_attention_heads=2, intermediate_size=64,
                                 patch_size=16, out_indices=[2, 4])
        self.vit, self.head = DINOv3ViTBackbone(config), nn.Conv2d(64, 3, 1)
        for weight in self.parameters():
            if weight.ndim > 1 and weight.numel():
                nn.init.normal_(weight, std=weight[0].numel() ** -0.5)

    def preprocess(self, image):
        return torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255

    def forward(self, pixels):
        return self.head(torch.cat(self.vit(pixels).feature_maps, 1))

    def postprocess(self, logits, size):
        return nn.functional.interpolate(logits, size, mode="bilinear")[0].argmax(0)

def make():
    return Mine()
"""


def write(folder: Path, text: str) -> str:
    file = folder / "my_models.py"
    file.write_text(text)
    return f"{file}:make"


FUNCTIONS = {
    "labels": ("lambda image: (image.mean(2) > 128).astype(int)", Segmentation, "semantic"),
    "mapping": (
        "lambda image: dict(boxes=[[0, 0, 9, 9], [1, 1, 5, 5]], scores=[0.2, 0.9], labels=[1, 2])",
        Detection,
        "detection",
    ),
    "tuple": ("lambda image: (np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))", Detection, "detection"),
    "depth": ("lambda image: image.mean(2) + 1", Depth, "depth"),
}


@pytest.mark.parametrize(("code", "kind", "task"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_function_is_a_model(tmp_path: Path, code: str, kind: type, task: str) -> None:
    predictor = open_model(write(tmp_path, f"import numpy as np\ndef make(): return {code}\n"))
    assert isinstance(predictor, FunctionPredictor)
    assert predictor.task == task
    found = predictor.predict(PIXELS)
    assert isinstance(found, kind)
    assert found.blocks == 1
    if kind is Segmentation:
        assert np.array_equal(found.labels, PIXELS.mean(2) > 128)
    if code.startswith("lambda image: dict"):
        assert found.scores.tolist() == [np.float32(0.9), np.float32(0.2)]
        assert found.labels.tolist() == [2, 1]
    with pytest.raises(GramLoopError, match="make has no transformer blocks that could be replayed"):
        predictor.predict(PIXELS, ReplayConfig(), paired=True)


def test_a_module_with_a_vit_is_replayed(tmp_path: Path) -> None:
    predictor = open_model(write(tmp_path, MODULE))
    assert isinstance(predictor, ModulePredictor)
    assert predictor.task == "semantic"
    assert predictor.classes == {0: "dark", 1: "light", 2: "red"}
    assert len(predictor.blocks) == 4
    replay = ReplayConfig(window=(1, 2))
    pair = predictor.predict(PIXELS, replay, paired=True)
    assert np.array_equal(pair.baseline.labels, predictor.predict(PIXELS).labels)
    alone = predictor.predict(PIXELS, replay)
    assert np.array_equal(pair.replayed.labels, alone.labels)
    assert alone.trace is not None
    assert alone.trace.drift.shape == (2, 2, 3)
    assert pair.blocks == predictor.cost(replay, paired=True).blocks == 4 + 2 * 3 + 1


def test_a_package_is_imported_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_package_of_mine.py").write_text(
        "def make(): return lambda image: image[..., 0].astype(int)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = open_model("some_package_of_mine:make").predict(PIXELS)
    assert np.array_equal(found.labels, PIXELS[..., 0])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def other(): pass", "has no function make"),
        ("def make(): return 3", "returned int; it is a Predictor"),
        ("def make(): return {}['weights']", "failed with KeyError: 'weights'"),
        ("def make(): return lambda image: 'a cat'", "returned str; it is an integer array"),
        (
            "def make(): return lambda image: image[..., 0].astype(int)[:5]",
            "a prediction has the size of its image",
        ),
        ("def make(): return lambda image: ([[1, 2, 3]], [1], [1])", r"they are \(n, 4\)"),
        ("import torch\ndef make(): return torch.nn.ReLU()", "ReLU without preprocess and postprocess"),
        ("import no_such_package_at_all", "needs the package 'no_such_package_at_all'"),
        ("1 / 0", "cannot be imported: it failed with ZeroDivisionError"),
        (
            "def make():\n def f(image): return image[..., 0] > 3\n f.task = 'sing'\n return f",
            "'sing'; it is one of semantic, detection, depth",
        ),
    ],
)
def test_slips_are_told_in_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(GramLoopError, match=sentence) as told:
        open_model(write(tmp_path, text))
    assert "\n" not in str(told.value)


def test_names_that_are_no_model() -> None:
    for spec, sentence in {
        "/no/such/my_models.py:make": "does not exist",
        "no_such_package_at_all.models:make": "there is no module no_such_package_at_all",
        "teeny": r"there is no model 'teeny'; did you mean tiny\? there are tiny",
    }.items():
        with pytest.raises(GramLoopError, match=sentence):
            open_model(spec)


def test_the_error_of_a_model_comes_with_its_own_traceback(tmp_path: Path) -> None:
    spec = write(tmp_path, "def make():\n    return lambda image: image.no_such_attribute\n")
    with pytest.raises(UserCodeError, match="failed on a grey trial image of 64 x 64") as failed:
        open_model(spec)
    lines = failed.value.details.splitlines()
    assert lines[1].endswith('my_models.py", line 2, in <lambda>')
    assert lines[-1].startswith("AttributeError: ")
    assert not any("gramloop/tasks" in line for line in lines)
    again = pickle.loads(pickle.dumps(failed.value))
    assert (str(again), again.details) == (str(failed.value), failed.value.details)


def test_a_panoptic_function_says_its_things() -> None:
    def halves(image: np.ndarray) -> Panoptic:
        segments = np.ones(image.shape[:2], np.int32)
        segments[image.shape[0] // 2 :] = 2
        return Panoptic(segments, (Segment(1, 9, False, 0.9), Segment(2, 1, True, 0.8)))

    halves.classes, halves.things = {1: "cat", 9: "sky"}, [1]  # type: ignore[attr-defined]
    predictor = as_predictor(halves)
    assert predictor.task == "panoptic"
    assert predictor.things == {1}  # type: ignore[attr-defined]
    assert as_predictor(lambda image: image[..., 0].astype(int)).things == frozenset()  # type: ignore[attr-defined]
