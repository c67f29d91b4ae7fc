"""Fewer bits and other runtimes: a small convolution, whose outputs are known in torch, and filters as a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import gramloop
from exported import read_about, read_export
from gramloop.data import scene
from gramloop.errors import GramLoopError
from gramloop.export.exporting import filter_source
from gramloop.mitigations import apply, calibrate
from gramloop.mitigations.stack import read_stack
from gramloop.shifts import corrupt
from gramloop.tasks import open_model

SIZE = 64


class Edges(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 4, 3, padding=1))

    def forward(self, pixels: Tensor) -> Tensor:
        return self.layers(pixels)


@pytest.fixture(scope="module")
def model() -> Edges:
    return Edges().eval()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(6):
        Image.fromarray(scene(number, 64, "train").image).save(folder / f"{number}.png")
    return folder


@pytest.mark.parametrize(
    ("name", "precision", "allowed"),
    [
        ("x.xml", "fp32", 1e-5),
        ("x.onnx", "fp16", 4e-3),  # half a step of half precision is 5e-4, over a sum of 576 products
        ("x.xml", "fp16", 4e-3),
        ("x.onnx", "int8", 0.1),  # a step is 1/256 of the range, in weights and in two activations
        ("x.xml", "int8", 0.1),
    ],
)
def test_outputs_are_those_of_torch_to_the_bits(model, photos, tmp_path, name, precision, allowed) -> None:
    images = photos if precision == "int8" else ()
    out = gramloop.export(
        model, tmp_path / name, precision=precision, calibration_images=images, height=SIZE, width=SIZE
    )
    pixels = (torch.from_numpy(scene(9, SIZE, "val").image) / 255 - 0.45).div(0.225).permute(2, 0, 1)[None]
    with torch.no_grad():
        expected = model(pixels).numpy()
    found = read_export(out.path)(pixels.numpy())["output"]
    assert np.abs(found - expected).max() <= allowed * np.abs(expected).max()
    assert read_about(out.path).settings.get("precision", "fp32") == precision
    assert {each.name for each in tmp_path.iterdir()} == {name, *(each.name for each in out.companions)}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"precision": "int8"}, "calibration images belong to int8, which needs a few dozen"),
        (
            {"precision": "fp16", "calibration_images": "x"},
            "calibration images belong to int8.*precision is fp16",
        ),
        ({"precision": "int8", "calibration_images": "missing"}, "missing"),
        ({"precision": "fp8"}, "the precision is fp32, fp16, int8, not fp8"),
    ],
)
def test_a_precision_without_what_it_needs(model, tmp_path, given, words) -> None:
    with pytest.raises(GramLoopError, match=words):
        gramloop.export(model, tmp_path / "x.onnx", height=SIZE, width=SIZE, **given)
    assert not list(tmp_path.iterdir())


def test_half_precision_is_no_pt2(model, tmp_path) -> None:
    with pytest.raises(GramLoopError, match="fp16 is written as onnx or openvino, not as pt2"):
        gramloop.export(model, tmp_path / "x.pt2", precision="fp16", height=SIZE, width=SIZE)


@pytest.fixture(scope="module")
def stats():
    return calibrate(open_model("tiny"), [scene(i, 96, "train").image for i in range(8)])


@pytest.mark.parametrize(
    "text", ["median:5", "gaussian:0.7", "nlm:6", "denoise", "levels+sharpen", "denoise+levels"]
)
def test_filters_as_source_do_what_the_library_does(stats, text) -> None:
    stack, _ = read_stack(text)
    source = filter_source(stack, stats, "x.onnx")
    assert "import gramloop" not in source
    assert "from gramloop" not in source
    code: dict = {}
    exec(compile(source, "x.py", "exec"), code)
    for family in ("gaussian_noise", "impulse_noise", "contrast", "defocus_blur"):
        expected = given = corrupt(scene(0, 96, "val").image, family, 5)
        for each in stack:
            expected = each.filtered(expected, stats)
        np.testing.assert_array_equal(code["preprocess"](given), expected)


def test_a_users_code_is_not_replaced_and_old_filters_go(model, tmp_path) -> None:
    def write(method: str, name: str = "x") -> None:
        gramloop.export(model, tmp_path / f"{name}.pt2", mitigations=method, height=8, width=8)

    (tmp_path / "mine.py").write_text("answer = 42\n")
    with pytest.raises(GramLoopError, match=r"mine.py is code of yours"):
        write("median", "mine")
    assert (tmp_path / "mine.py").read_text() == "answer = 42\n"
    write("median")
    assert "preprocess" in (tmp_path / "x.py").read_text()
    write("")
    assert not (tmp_path / "x.py").exists(), "filters of the older file would be applied to the new one"


@pytest.mark.slow
def test_a_file_with_filters_predicts_what_the_library_predicts(stats, tmp_path) -> None:
    method = "denoise+levels+recentre:c=2"
    gramloop.export(open_model("tiny"), tmp_path / "x.onnx", mitigations=method, stats=stats)
    image = corrupt(scene(0, 192, "val").image, "contrast", 4)
    found = open_model(str(tmp_path / "x.onnx")).predict(image).labels
    expected = apply(method, open_model("tiny"), stats).predict(image).labels
    assert (found == expected).mean() > 0.999  # logits agree to 1e-4
    plain = open_model("tiny").predict(image).labels
    assert (plain == expected).mean() < 0.99, "the filters do something here"
