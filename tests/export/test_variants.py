"""The embedded model replayed, adaptively replayed and recentred: files that predict what the library predicts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

import gramloop
from exported import read_about, read_export
from gramloop import Adaptive, ReplayConfig, attached
from gramloop.export import ExportedFile
from gramloop.mitigations import CalibrationStats, apply
from gramloop.models.tiny import SOURCE, load_tiny
from gramloop.tasks.loading import open_model
from tiny_model import normalise

HIGH, WIDE = 72, 104  # 9 x 13 patches: no power of two, nothing square
REPLAY = ReplayConfig(window=(10, 10), replays=1)
# sums of float32 in another order, through twelve blocks; logits have a scale of 10
NEAR = 1e-4


def images(count: int) -> np.ndarray:
    """Scenes of a kind: bright blocks on a gradient, the last of them noisy."""
    generator = np.random.default_rng(3)
    rows = np.linspace(40, 200, HIGH)[:, None, None] * np.ones((1, WIDE, 3))
    found = np.repeat(rows[None], count, axis=0)
    for each in found:
        top, left = generator.integers(0, HIGH // 2), generator.integers(0, WIDE // 2)
        each[top : top + 30, left : left + 40] = generator.integers(0, 255, 3)
    found[-1] += generator.normal(0, 40, found[-1].shape)
    return found.clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def segmenter():
    return open_model("tiny", "semantic", {"short_side": HIGH})


def logits_of(model: torch.nn.Module, batch: np.ndarray) -> Tensor:
    """What the embedded model says in torch, by its own classes."""
    tiny = model
    features = tiny.features(normalise(torch.from_numpy(batch)))
    return torch.nn.functional.interpolate(
        tiny.segment(features), size=batch.shape[1:3], mode="bilinear", align_corners=False
    )


@pytest.fixture(scope="module")
def replayed(segmenter, tmp_path_factory: pytest.TempPathFactory) -> ExportedFile:
    out = tmp_path_factory.mktemp("replayed") / "replayed.onnx"
    return gramloop.export(segmenter, out, mitigations=REPLAY, height=HIGH, width=WIDE, name="tiny")


@pytest.fixture(scope="module")
def recentred(segmenter, tmp_path_factory: pytest.TempPathFactory) -> ExportedFile:
    out = tmp_path_factory.mktemp("recentred") / "recentred.onnx"
    wanted = {"mitigations": "recentre:c=2", "stats": SOURCE}
    return gramloop.export(segmenter, out, height=HIGH, width=WIDE, **wanted)


def run(file: ExportedFile, batch: np.ndarray) -> dict[str, np.ndarray]:
    """What a stranger would do, without gramloop."""
    if file.format == "pt2":
        with torch.no_grad():
            found = torch.export.load(file.path).module()(torch.from_numpy(batch))
        return dict(zip(file.about.outputs, (each.numpy() for each in found), strict=True))
    session = onnxruntime.InferenceSession(str(file.path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(None, {"image": batch}), strict=True))


def agrees(file: ExportedFile, predictor, replay: ReplayConfig | None = None) -> None:
    image = images(1)
    expected = predictor.predict(image[0], replay)
    found = run(file, image)
    same = found["labels"][0] == expected.labels
    top = np.partition(found["logits"][0], -2, axis=0)[-2:]
    assert (same | (top[1] - top[0] < NEAR)).all()
    assert file.difference <= 1e-5, "a tenth of what is allowed"


def test_a_replayed_model_predicts_as_the_library_does(replayed: ExportedFile, segmenter) -> None:
    agrees(replayed, segmenter, REPLAY)
    with torch.no_grad(), attached(tiny := load_tiny(), REPLAY):
        expected = logits_of(tiny, images(1)).numpy()
    np.testing.assert_allclose(run(replayed, images(1))["logits"], expected, rtol=0, atol=NEAR)
    with torch.no_grad():
        plain = logits_of(load_tiny(), images(1)).numpy()
    assert np.abs(plain - expected).max() > 100 * NEAR, "the replay does something here"


@pytest.mark.slow
def test_a_recentred_model_predicts_as_the_library_does(recentred: ExportedFile, segmenter) -> None:
    agrees(recentred, apply("recentre:c=2", segmenter, CalibrationStats.read(SOURCE)))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["calm first", "noisy first"])
def test_an_adaptive_replay_decides_for_each_image_in_the_graph(
    adaptive: tuple[ExportedFile, ReplayConfig], order: tuple[int, int]
) -> None:
    file, rule = adaptive
    batch = np.ascontiguousarray(images(2)[list(order)])
    found = run(file, batch)["logits"]
    tiny = load_tiny()
    with torch.no_grad():
        plain = logits_of(tiny, batch).numpy()
        with attached(tiny, replace(rule, adaptive=None)):
            always = logits_of(tiny, batch).numpy()
    calm, noisy = order.index(0), order.index(1)
    np.testing.assert_allclose(found[calm], plain[calm], rtol=0, atol=NEAR)
    np.testing.assert_allclose(found[noisy], always[noisy], rtol=0, atol=NEAR)
    assert np.abs(plain - always)[calm].max() > 100 * NEAR, "a replay would have been seen"
    assert np.abs(plain - always)[noisy].max() > 100 * NEAR


@pytest.fixture(scope="module")
def adaptive(segmenter, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExportedFile, ReplayConfig]:
    """A switch between the signals of a calm and a noisy image."""
    tiny = load_tiny()
    probe = replace(REPLAY, adaptive=Adaptive("noise", 0.0, 1e6))
    with torch.no_grad(), attached(tiny, probe, trace=True) as loop:
        logits_of(tiny, images(2))
        calm, noisy = loop.trace.signal.tolist()
    middle = (calm + noisy) / 2
    nudge = 1e-6 if noisy > calm else -1e-6  # the way in which the signal rises under noise
    rule = replace(REPLAY, adaptive=Adaptive("noise", middle, middle + nudge))
    out = tmp_path_factory.mktemp("adaptive") / "adaptive.onnx"
    return gramloop.export(segmenter, out, mitigations=rule, height=HIGH, width=WIDE, batch=2), rule


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["adaptive", "recentred"])
def test_pt2_of_the_other_variants(segmenter, adaptive, tmp_path: Path, variant: str) -> None:
    rule = adaptive[1]
    wanted = (
        {"mitigations": rule} if variant == "adaptive" else {"mitigations": "recentre:c=2", "stats": SOURCE}
    )
    out = gramloop.export(segmenter, tmp_path / "x.pt2", height=HIGH, width=WIDE, **wanted)
    predictor = (
        segmenter
        if variant == "adaptive"
        else apply("recentre:c=2", segmenter, CalibrationStats.read(SOURCE))
    )
    agrees(out, predictor, rule if variant == "adaptive" else None)
    assert out.difference == 0.0, "the same operations in the same library"


@pytest.mark.slow
def test_pt2_of_a_replay_needs_no_gramloop(segmenter, tmp_path: Path) -> None:
    out = gramloop.export(segmenter, tmp_path / "x.pt2", mitigations=REPLAY, height=HIGH, width=WIDE)
    assert out.difference == 0.0, "the same operations in the same library"
    program = f"""
import sys, torch
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gramloop", "transformers"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
labels, logits = torch.export.load({str(out.path)!r}).module()(torch.full((1, {HIGH}, {WIDE}, 3), 7, dtype=torch.uint8))
print(float(logits.sum()), int(labels.sum()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    grey = np.full((1, HIGH, WIDE, 3), 7, dtype=np.uint8)
    found = read_export(out.path)(grey)
    total, labels = done.stdout.split()
    assert float(total) == pytest.approx(float(found["logits"].sum()), rel=1e-5)
    assert int(labels) == found["labels"].sum()


def test_the_file_says_what_it_is(replayed: ExportedFile, segmenter) -> None:
    stored = {each.key: each.value for each in onnx.load(str(replayed.path)).metadata_props}
    told = json.loads(stored["gramloop"])
    assert told["gramloop"] == gramloop.__version__
    assert told["model"] == "tiny"
    assert told["task"] == "semantic"
    assert ReplayConfig.from_json(told["settings"]["replay"]) == REPLAY
    assert told["mitigations"] == "replay:window=10-10,replays=1"
    assert told["classes"] == {str(number): name for number, name in segmenter.classes.items()}
    assert told["shape"] == [1, HIGH, WIDE, 3]
    assert list(told["outputs"]) == ["labels", "logits"]
    assert read_about(replayed.path) == replayed.about
    shown = str(replayed)
    assert "replay:window=10-10" in shown
    assert "uint8 RGB (1, 72, 104, 3)" in shown


@pytest.mark.slow
def test_a_detector_gives_the_boxes_of_the_library(tmp_path: Path) -> None:
    predictor = open_model("tiny", "detection")
    # every candidate is a step of the graph: fewer of them, for the test's time
    predictor.head.config = replace(predictor.head.config, candidates=24, keep=8, least_score=0.01)
    out = gramloop.export(predictor, tmp_path / "boxes.onnx", height=HIGH, width=WIDE)
    image = images(1)
    expected, found = predictor.predict(image[0]), read_export(out.path)(image)
    count = len(expected.scores)
    assert 0 < count <= 8
    np.testing.assert_allclose(found["scores"][0, :count], expected.scores, atol=1e-5)
    np.testing.assert_allclose(found["boxes"][0, :count], expected.boxes, atol=1e-2)  # pixels
    assert found["classes"][0, :count].tolist() == expected.labels.tolist()
    assert (found["scores"][0, count:] == 0).all()
    assert (found["classes"][0, count:] == -1).all()


@pytest.mark.slow
def test_depth_is_that_of_the_library(tmp_path: Path) -> None:
    predictor = open_model("tiny", "depth", {"short_side": HIGH, "flip": True})
    out = gramloop.export(predictor, tmp_path / "depth.onnx", mitigations=REPLAY, height=HIGH, width=WIDE)
    image = images(1)
    expected = predictor.predict(image[0], REPLAY).values
    np.testing.assert_allclose(read_export(out.path)(image)["depth"][0], expected, rtol=1e-4)


@pytest.mark.slow
def test_the_published_replay_of_an_early_window(segmenter, tmp_path: Path) -> None:
    replay = ReplayConfig(window=(2, 3))
    out = gramloop.export(segmenter, tmp_path / "x.onnx", mitigations=replay, height=HIGH, width=WIDE)
    agrees(out, segmenter, replay)
