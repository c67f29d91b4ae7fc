"""Dense models of transformers, from a folder to a prediction, and to a pair that equals two predictions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from dense_folders import DEPTH, LABELS, MODELS, save_model
from gramloop import GramLoopError, ReplayConfig, counting
from gramloop.evaluate.provenance import file_checksums
from gramloop.tasks import Depth, Detection, Segmentation, open_model
from gramloop.tasks.loading import model_files
from gramloop.tasks.transformers_models import load_processor

PIXELS = np.random.default_rng(0).integers(0, 256, (50, 70, 3), np.uint8)
AT_END = ReplayConfig(window=(1, 2), gate_at="end")
DETECTORS = {"Detr", "DeformableDetr", "Yolos", "LwDetr", "RTDetr", "Deimv2"}
WITHOUT_REPLAY = {"Segformer", "Mask2Former", "MaskFormer", "Detr", "DeformableDetr", "RTDetr"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {}


@pytest.fixture(params=list(MODELS))
def saved(request: pytest.FixtureRequest, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    name = request.param
    if name not in folders:
        folders[name] = save_model(name, tmp_path_factory.mktemp("model"))
    return name, folders[name]


def same(one: Segmentation | Detection, other: Segmentation | Detection) -> bool:
    parts = ("labels",) if isinstance(one, Segmentation) else ("boxes", "scores", "labels")
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in parts)


def test_predicts_in_the_size_of_the_image(saved: tuple[str, Path]) -> None:
    name, folder = saved
    predictor = open_model(f"hf:{folder}")
    assert predictor.task == ("detection" if name in DETECTORS else "semantic")
    assert predictor.classes == LABELS
    found = predictor.predict(PIXELS)
    assert found.blocks == (len(predictor.blocks) or 1)
    if isinstance(found, Segmentation):
        assert found.labels.shape == PIXELS.shape[:2]
        assert set(np.unique(found.labels)) <= set(LABELS)
    else:
        assert isinstance(found, Detection)
        assert len(found.boxes) == len(found.scores) > 0
        assert (np.diff(found.scores) <= 0).all()
        assert set(found.labels.tolist()) <= set(LABELS)
    described = open_model(f"hf:{folder}", device="meta")
    assert len(described.blocks) == len(predictor.blocks)
    assert described.classes == predictor.classes


def test_a_pair_equals_two_predictions(saved: tuple[str, Path]) -> None:
    name, folder = saved
    predictor = open_model(f"hf:{folder}")
    if name in WITHOUT_REPLAY:
        with pytest.raises(GramLoopError, match="has no transformer blocks that could be replayed"):
            predictor.predict(PIXELS, AT_END)
        return
    with counting(predictor.blocks) as counter:
        pair = predictor.predict(PIXELS, AT_END, paired=True)
    assert counter.blocks == pair.blocks == predictor.cost(AT_END, paired=True).blocks
    assert same(pair.baseline, predictor.predict(PIXELS))
    alone = predictor.predict(PIXELS, AT_END)
    assert same(pair.replayed, alone)
    assert alone.blocks == predictor.cost(AT_END).blocks
    if name != "EomtDinov3":  # whose random queries all vote for one class
        assert not same(pair.replayed, pair.baseline)


def test_eomt_is_replayed_before_its_queries_only(tmp_path: Path) -> None:
    predictor = open_model(f"hf:{save_model('Eomt', tmp_path)}")
    with pytest.raises(GramLoopError, match="inserts mask queries"):
        predictor.predict(PIXELS, ReplayConfig(window=(1, 2)))


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (
            {"architectures": ["OwlViTForObjectDetection"]},
            "OwlViTForObjectDetection.*takes more than one image",
        ),
        ({"architectures": ["VideomtForUniversalSegmentation"]}, "words, or a video"),
        ({"architectures": ["ViTForImageClassification"]}, "predicts nothing that can be evaluated"),
        ({"architectures": ["WonderForObjectDetection"]}, "transformers .* has no WonderForObjectDetection"),
        ({}, "names no architecture"),
        (None, "config.json is missing"),
    ],
    ids=["words", "video", "classifier", "unknown", "no name", "no config"],
)
def test_what_cannot_be_evaluated_is_refused(tmp_path: Path, config: object, sentence: str) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(GramLoopError, match=sentence) as told:
        open_model(f"hf:{tmp_path}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "processor"),
    [
        ("ZoeDepthForDepthEstimation", "ZoeDepthImageProcessorPil"),
        ("Sapiens2ForSemanticSegmentation", "Sapiens2ImageProcessor"),
        ("Tipsv2DptForDepthEstimation", "Tipsv2DptImageProcessor"),
        ("RfDetrForObjectDetection", "RfDetrImageProcessor"),
        ("CHMv2ForDepthEstimation", "CHMv2ImageProcessor"),
        ("DepthProForDepthEstimation", "DepthProImageProcessor"),
    ],
)
def test_what_needs_torchvision_says_so(tmp_path: Path, name: str, processor: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": "dpt"}))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": processor}))
    with pytest.raises(GramLoopError, match="torchvision") as told:
        open_model(f"hf:{tmp_path}")
    assert str(tmp_path) in str(told.value)
    assert "\n" not in str(told.value)


def test_weights_of_other_shapes_are_refused(tmp_path: Path) -> None:
    config = save_model("DPT", tmp_path) / "config.json"
    config.write_text(config.read_text().replace('"intermediate_size": 64', '"intermediate_size": 48'))
    with pytest.raises(GramLoopError, match="weights of other shapes than its config"):
        open_model(f"hf:{tmp_path}")


def test_slips_are_told(tmp_path: Path) -> None:
    folder = save_model("Segformer", tmp_path / "model")
    with pytest.raises(GramLoopError, match="a model for semantic, not for detection"):
        open_model(f"hf:{folder}", "detection")
    with pytest.raises(GramLoopError, match="leave out short_side"):
        open_model(f"hf:{folder}", sizes={"short_side": 100})
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(GramLoopError, match=r"preprocessor_config\.json is missing"):
        open_model(f"hf:{folder}")
    with pytest.raises(GramLoopError, match="is no folder, and no name of the hub"):
        open_model("hf:/no/such/folder")


@pytest.mark.parametrize("name", DEPTH)
def test_depth_in_the_size_of_the_image(name: str, tmp_path: Path) -> None:
    predictor = open_model(f"hf:{save_model(name, tmp_path)}")
    found = predictor.predict(PIXELS)
    assert isinstance(found, Depth)
    assert predictor.task == "depth"
    assert found.values.shape == PIXELS.shape[:2]
    assert found.disparity == (name != "GLPN")
    if name == "GLPN":
        assert not predictor.blocks
        return
    pair = predictor.predict(PIXELS, AT_END, paired=True)
    assert np.array_equal(pair.baseline.values, found.values)
    assert np.array_equal(pair.replayed.values, predictor.predict(PIXELS, AT_END).values)
    assert not np.array_equal(pair.replayed.values, found.values)


def changed(folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    shutil.copytree(folder, to)
    weights = load_file(to / "model.safetensors")
    change(weights)
    save_file(weights, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_weights_that_are_missing_or_not_finite(tmp_path: Path) -> None:
    whole = save_model("DPT", tmp_path / "whole")
    read = "dpt.encoder.layer.1.layernorm_before.weight"
    lacking = changed(whole, tmp_path / "lacking", lambda weights: weights.pop(read))
    with pytest.raises(GramLoopError, match=rf"lacks 1 of the model's weights, such as {read}"):
        open_model(f"hf:{lacking}")
    broken = changed(whole, tmp_path / "broken", lambda weights: weights[read].fill_(float("nan")))
    with pytest.raises(GramLoopError, match=r"is damaged or was never finished: .* holds NaN"):
        open_model(f"hf:{broken}")
    unread = (
        "neck.fusion_stage.layers.0.residual_layer1.convolution1.weight"  # which the released folders lack
    )
    harmless = changed(whole, tmp_path / "harmless", lambda weights: weights.pop(unread))
    assert same(open_model(f"hf:{harmless}").predict(PIXELS), open_model(f"hf:{whole}").predict(PIXELS))


def test_code_that_a_folder_ships_is_never_run(tmp_path: Path) -> None:
    """Neither run nor asked about: a processor known by its own code alone is refused."""
    (tmp_path / "own.py").write_text("raise SystemExit('ran')\n")
    (tmp_path / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "own.Config"}}')
    content = '{"auto_map": {"AutoImageProcessor": "own.Processor"}, "image_processor_type": "Processor"}'
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(GramLoopError, match="code of its own"):
        load_processor(tmp_path)


OWN_CODE = """
from torch import nn
from transformers import BeitConfig, PreTrainedModel
from transformers.modeling_outputs import SemanticSegmenterOutput
class MineForSemanticSegmentation(PreTrainedModel):
    config_class = BeitConfig
    def __init__(self, config):
        super().__init__(config)
        self.head = nn.Conv2d(3, config.num_labels, 1)
        self.post_init()
    def forward(self, pixel_values):
        return SemanticSegmenterOutput(logits=self.head(pixel_values))
"""


def test_code_of_a_folder_runs_where_it_is_trusted(tmp_path: Path) -> None:
    """A class of the folder's own: refused, then opened with its weights, and known as trusted in a plan."""
    folder, name = save_model("Beit", tmp_path / "mine"), "MineForSemanticSegmentation"
    (folder / "own.py").write_text(OWN_CODE)
    config = json.loads((folder / "config.json").read_text())
    own = {"architectures": [name], "auto_map": {"AutoModelForSemanticSegmentation": f"own.{name}"}}
    (folder / "config.json").write_text(json.dumps({**config, **own}))
    weights = {"head.weight": torch.ones(len(config["id2label"]), 3, 1, 1)}
    weights["head.bias"] = torch.arange(len(weights["head.weight"])).float()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(GramLoopError, match="--trust-remote-code"):
        open_model(f"hf:{folder}")
    found = open_model(f"hf:{folder}", trust_remote_code=True).predict(PIXELS)
    assert (found.labels == len(weights["head.bias"]) - 1).all()
    trusted = file_checksums(model_files(f"hf:{folder}", trust_remote_code=True))
    assert set(trusted) - set(file_checksums(model_files(f"hf:{folder}"))) == {"hf/own.py", "trusted code"}
    with pytest.raises(GramLoopError, match="not in tiny"):
        open_model("tiny", trust_remote_code=True)
