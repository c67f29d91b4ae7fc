"""Graphs of onnxruntime and OpenVINO as models: made here with known outputs, so that every prediction is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import gramloop
from gramloop.errors import GramLoopError
from gramloop.tasks.loading import model_files, open_model

IMAGE = np.random.default_rng(3).integers(0, 256, (40, 80, 3), dtype=np.uint8)


def write_constant(path: Path, outputs: dict[str, Any], size: int = 64, **metadata: str) -> Path:
    """A graph that takes images (1, 3, size, size) and always returns these arrays."""
    nodes, infos = [], []
    for name, values in outputs.items():
        array = np.asarray(values)
        zero = helper.make_node("Constant", [], [f"{name}_c"], value=numpy_helper.from_array(array))
        nodes += [zero, helper.make_node("Identity", [f"{name}_c"], [name])]
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        infos.append(helper.make_tensor_value_info(name, kind, array.shape))
    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, size, size])
    return save(path, nodes, [image], infos, metadata)


def save(path: Path, nodes: Any, inputs: Any, outputs: Any, metadata: dict[str, str]) -> Path:
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 9
    helper.set_model_props(model, metadata)
    onnx.save(model, path)
    return path


def write_identity(path: Path, channels: int = 3, **metadata: str) -> Path:
    """A graph whose output ``scores`` is its input: logits of three classes, one for each channel."""
    shape = [1, channels, 20, 40]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "scores")]
    return save(path, [helper.make_node("Identity", ["x"], ["scores"])], ends[:1], ends[1:], metadata)


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    # two boxes of one class that overlap by more than 0.7, and one of the other class; 40 x 80 lies in rows 16 to 48
    boxes = np.array([[32, 33, 32], [32, 32, 24], [20, 20, 16], [10, 10, 8]], np.float32)
    scores = np.array([[0.9, 0.8, 0.0], [0.0, 0.0, 0.7]], np.float32)
    return write_constant(
        tmp_path / "yolo.onnx",
        {"output0": np.concatenate([boxes, scores])[None]},
        names="{0: 'cat', 1: 'dog'}",
        task="detect",
        imgsz="[64, 64]",
    )


def test_ultralytics_boxes_come_back_from_the_letterbox(yolo: Path) -> None:
    model = open_model(str(yolo))
    found = model.predict(IMAGE)
    assert (model.task, dict(model.classes)) == ("detection", {0: "cat", 1: "dog"})
    assert found.labels.tolist() == [0, 1]
    # factor 0.8: x / 0.8, (y - 16) / 0.8
    np.testing.assert_allclose(found.boxes, [[27.5, 13.75, 52.5, 26.25], [30, 5, 50, 15]], atol=1e-4)


def test_detr_outputs_are_pixels_of_the_image(tmp_path: Path) -> None:
    outputs = {
        "labels": np.array([[16, 0]]),
        "boxes": np.array([[[1, 2, 300, 20], [4, 5, 6, 7]]], np.float32),
        "scores": np.array([[0.4, 0.6]], np.float32),
    }
    path = write_constant(tmp_path / "small_coco.onnx", outputs)
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("orig_target_sizes", TensorProto.INT64, [1, 2]))
    onnx.save(model, path)
    found = open_model(str(path)).predict(IMAGE)
    assert found.labels.tolist() == [0, 16]
    np.testing.assert_allclose(found.boxes, [[4, 5, 6, 7], [1, 2, 80, 20]])
    path.rename(tmp_path / "small.onnx")  # the name no longer says that the classes are COCO's
    with pytest.raises(GramLoopError, match=r"does not name its classes.*small\.json"):
        open_model(str(tmp_path / "small.onnx"))


def test_a_recipe_normalises_and_reads_logits(tmp_path: Path) -> None:
    path = write_identity(tmp_path / "logits.onnx")
    with pytest.raises(GramLoopError, match=r"does not say how to prepare images and read scores"):
        open_model(str(path))
    recipe = {"read": "logits", "mean": [0.5, 0.0, 0.0], "std": [0.1, 1, 1], "classes": ["a", "b", "c"]}
    path.with_suffix(".json").write_text(json.dumps(recipe))
    image = np.zeros((20, 40, 3), np.uint8)
    image[:, :20] = (150, 200, 10)  # (0.588 - 0.5) / 0.1 = 0.88 is more than 200 / 255
    image[:, 20:] = (130, 200, 10)
    found = open_model(str(path)).predict(image)
    assert (found.labels[:, :20] == 0).all()
    assert (found.labels[:, 20:] == 1).all()


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ({"read": "logits", "sizes": [3]}, "sizes"),
        ({"read": "masks"}, "read"),
        ({"read": "logits", "std": [0, 1, 1]}, "deviations above 0"),
        ({"read": "logits", "size": [10, 10]}, "takes 40 x 20 pixels"),
        ({"read": "boxes", "classes": ["a"]}, "boxes"),
    ],
    ids=["unknown setting", "unknown reading", "no deviation", "other size", "other outputs"],
)
def test_wrong_recipes_are_refused(tmp_path: Path, recipe: dict[str, Any], words: str) -> None:
    path = write_identity(tmp_path / "logits.onnx")
    path.with_suffix(".json").write_text(json.dumps(recipe))
    with pytest.raises(GramLoopError, match=words):
        open_model(str(path)).predict(IMAGE)


def test_python_functions_next_to_a_graph(tmp_path: Path) -> None:
    path = write_identity(tmp_path / "depths.onnx")
    path.with_suffix(".py").write_text(
        "import numpy as np\ntask = 'depth'\n"
        "def prepare(pixels):\n    return {'x': np.full((1, 3, 20, 40), pixels.mean(), np.float32)}\n"
        "def read(outputs, size):\n    return np.full(size, outputs['scores'].mean(), np.float32)\n"
    )
    model = open_model(str(path))
    assert model.task == "depth"
    np.testing.assert_allclose(model.predict(IMAGE).values, IMAGE.mean(), rtol=1e-6)
    assert set(model_files(str(path))) == {"graph", "recipe"}


def test_a_python_filter_next_to_a_graph_that_says_the_rest(tmp_path: Path) -> None:
    about = {"recipe": {"read": "logits"}, "classes": {"0": "red", "1": "green", "2": "blue"}}
    path = write_identity(tmp_path / "graph.onnx", gramloop=json.dumps(about))
    plain = open_model(str(path)).predict(IMAGE).labels
    path.with_suffix(".py").write_text("def preprocess(pixels):\n    return pixels[:, :, ::-1].copy()\n")
    np.testing.assert_array_equal(open_model(str(path)).predict(IMAGE[:, :, ::-1].copy()).labels, plain)


def test_a_graph_cannot_be_replayed_but_filtered(yolo: Path) -> None:
    model = open_model(str(yolo))
    with pytest.raises(GramLoopError, match=r"yolo\.onnx has no transformer blocks"):
        model.predict(IMAGE, gramloop.ReplayConfig())
    from gramloop.mitigations.mitigated import apply

    assert len(apply("median", model).predict(IMAGE).scores) == 2


def test_openvino_reads_the_same(yolo: Path, tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino")
    logits = write_identity(tmp_path / "logits.onnx")
    openvino.save_model(openvino.convert_model(logits), tmp_path / "ov.xml", compress_to_fp16=False)
    for stem in ("logits", "ov"):
        (tmp_path / f"{stem}.json").write_text('{"read": "logits", "classes": ["a", "b", "c"]}')
    first, second = (open_model(str(tmp_path / name)).predict(IMAGE) for name in ("logits.onnx", "ov.xml"))
    np.testing.assert_array_equal(first.labels, second.labels)
    assert set(model_files(str(tmp_path / "ov.xml"))) == {"graph", "weights", "recipe"}


@pytest.mark.filterwarnings("ignore")
def test_a_transformers_export_predicts_what_the_folder_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.MobileNetV2Config(num_labels=4, image_size=64, depth_multiplier=0.25)
    torch.manual_seed(1)
    model = transformers.MobileNetV2ForSemanticSegmentation(config).eval()
    model.save_pretrained(tmp_path)
    sides = {"height": 64, "width": 64}
    transformers.MobileNetV2ImageProcessor(size=sides, crop_size=sides).save_pretrained(tmp_path)
    torch.onnx.export(
        model,
        (torch.zeros(1, 3, 64, 64),),
        tmp_path / "model.onnx",
        input_names=["pixel_values"],
        output_names=["logits"],
        dynamo=False,
    )
    first, second = (
        open_model(spec).predict(IMAGE) for spec in (f"hf:{tmp_path}", str(tmp_path / "model.onnx"))
    )
    assert (first.labels == second.labels).mean() > 0.999  # float32 in another order
