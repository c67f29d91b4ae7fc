"""The embedded model: shipped weights load and see, and the tool that makes them resumes exactly."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from gramloop.data.scenes import CLASSES, STUFF, THINGS, scene
from gramloop.errors import GramLoopError
from gramloop.models.tiny import WEIGHTS, TinyModel, load_tiny, pairwise_iou
from gramloop.tasks.semantic import SegmentConfig, Segmenter
from tiny_data import Scenes, cell_targets, render
from tiny_model import normalise, predict

pytest.importorskip("transformers")
TOOLS = Path(__file__).parents[2] / "tools"
UNSEEN = [scene(index, split="unseen") for index in range(12)]


@pytest.fixture(scope="module")
def model() -> TinyModel:
    return load_tiny()


@pytest.fixture(scope="module")
def pixels() -> torch.Tensor:
    return normalise(torch.from_numpy(np.stack([one.image for one in UNSEEN])))


@pytest.fixture
def trainer() -> Iterator[ModuleType]:
    import train_tiny

    threads = torch.get_num_threads()
    yield train_tiny
    torch.set_num_threads(threads)


def test_the_files_keep_their_promises(model: TinyModel) -> None:
    files = [path for path in WEIGHTS.rglob("*") if path.is_file()]
    assert (WEIGHTS / "MODEL_CARD.md") in files
    assert sum(path.stat().st_size for path in files) <= 16 * 2**20
    config = model.backbone.model.config
    assert 12 <= config.num_hidden_layers <= 16
    assert config.patch_size in (8, 16)
    assert config.num_register_tokens > 0
    assert sum(parameter.numel() for parameter in model.parameters()) <= 8_000_000
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model.training
    assert model.classes == CLASSES


def test_shapes_and_repeatability(model: TinyModel, pixels: torch.Tensor) -> None:
    with torch.inference_mode():
        logits, (scores, sides) = model(pixels[:2])
        again = model(pixels[:2])[0]
        alone = model(pixels[1:2])[0]
    assert logits.shape == (2, len(CLASSES), 24, 24)
    assert scores.shape == (2, len(THINGS), 24, 24)
    assert sides.shape == (2, 4, 24, 24)
    assert torch.equal(logits, again)
    # a batch of another size may sum in another order; float32 over 12 blocks
    assert torch.allclose(logits[1:], alone, atol=1e-3)


def test_other_sizes_run_and_odd_ones_are_refused(model: TinyModel) -> None:
    labels, _ = predict(model, torch.zeros(1, 3, 96, 128))
    assert labels.shape == (1, 96, 128)
    with pytest.raises(GramLoopError, match="multiples of 8"):
        predict(model, torch.zeros(1, 3, 100, 96))


def test_it_segments_unseen_scenes(model: TinyModel, pixels: torch.Tensor) -> None:
    predicted = predict(model, pixels)[0].numpy()
    true = np.stack([one.labels for one in UNSEEN]).astype(np.int64) - 1
    assert (predicted == true).mean() > 0.95


def test_it_finds_the_things_of_unseen_scenes(model: TinyModel, pixels: torch.Tensor) -> None:
    found, total = 0, 0
    for one, every_box, scores, kinds in zip(UNSEEN, *predict(model, pixels)[1], strict=True):
        boxes, classes = every_box[scores > 0.3].float(), kinds[scores > 0.3]
        corners = torch.from_numpy(np.concatenate([one.boxes[:, :2], one.boxes[:, :2] + one.boxes[:, 2:]], 1))
        match = pairwise_iou(corners.float(), boxes) > 0.5
        match &= torch.from_numpy(one.categories)[:, None] == classes[None, :]
        found, total = found + int(match.any(1).sum()), total + len(corners)
    assert found > 0.85 * total


def test_noise_hurts(model: TinyModel, pixels: torch.Tensor) -> None:
    true = torch.from_numpy(np.stack([one.labels for one in UNSEEN]).astype(np.int64)) - 1
    noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0))
    clean = (predict(model, pixels)[0] == true).float().mean()
    noisy = (predict(model, pixels + 1.2 * noise)[0] == true).float().mean()
    assert noisy < clean - 0.08


def test_transformers_itself_reads_the_backbone(model: TinyModel, pixels: torch.Tensor) -> None:
    from transformers import DINOv3ViTModel

    vit = DINOv3ViTModel.from_pretrained(WEIGHTS / "backbone", dtype=torch.float32).eval()
    with torch.inference_mode():
        theirs = vit(pixels[:1]).last_hidden_state
        ours = model.backbone(pixels[:1], [11])[0].tokens
    assert torch.equal(theirs, ours)


def test_the_segmentation_task_takes_it(model: TinyModel) -> None:
    segmenter = Segmenter(model.segmentor(), SegmentConfig("whole", short_side=192))
    one = UNSEEN[0]
    predicted = segmenter.predict(one.image).labels
    direct = predict(model, normalise(torch.from_numpy(one.image[None])))[0][0].numpy()
    assert (predicted == direct).mean() > 0.999  # ties at borders may round the other way


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(GramLoopError, match=r"cannot read .*tiny\.json"):
        load_tiny(tmp_path)


def training(tmp_path: Path, *extra: str) -> list[str]:
    common = "--scenes 6 --val-scenes 2 --processes 1 --threads 1 --batch 2 --log-every 1 --save-minutes 0"
    return ["--run", str(tmp_path / "run"), "--cache", str(tmp_path / "cache"), *common.split(), *extra]


@pytest.mark.slow
def test_training_resumes_to_the_same_weights(tmp_path: Path, trainer: ModuleType) -> None:
    args = trainer.parse(training(tmp_path, "--steps", "8"))
    args.run.mkdir()
    scenes = Scenes(render(args.cache, "train", args.scenes, 1))
    straight = trainer.Trainer(trainer.BACKBONE, args, 0)
    losses = [straight.advance(scenes) for _ in range(2)]
    straight.save()
    losses += [straight.advance(scenes) for _ in range(2)]
    resumed = trainer.Trainer(trainer.BACKBONE, args, 0)
    assert resumed.step == 2
    assert [resumed.advance(scenes) for _ in range(2)] == losses[2:]
    for name, value in straight.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_targets_describe_the_scene() -> None:
    for one in UNSEEN:
        owner = np.zeros(one.labels.shape, np.uint8)
        for number, mask in enumerate(one.masks, start=1):
            owner[mask] = number
        kinds = np.concatenate([[-1], one.categories])
        cell_class, cell_box = cell_targets(owner, kinds, 8)
        for row, column in np.argwhere(cell_class >= 0):
            y, x = 8 * row + 4, 8 * column + 4
            left, top, right, bottom = cell_box[row, column]
            box = [x - left, y - top, left + right, top + bottom]
            assert box == one.boxes[owner[y, x] - 1].tolist()
            assert one.labels[y, x] == len(STUFF) + 1 + cell_class[row, column]


def test_the_scorer_counts_the_thresholds_that_a_box_passes() -> None:
    pytest.importorskip("pycocotools")
    import score_tiny

    truth = [
        {"image_id": index + 1, "category_id": int(kind) + 1, "bbox": box, "score": 1.0}
        for index in range(6)
        for one in [scene(index, split=score_tiny.SPLIT)]
        for box, kind in zip(one.boxes.tolist(), one.categories, strict=True)
    ]
    assert score_tiny.average_precision(truth, 6) == pytest.approx(100)
    wide = [
        {**entry, "bbox": [*entry["bbox"][:2], entry["bbox"][2] * 1.5, entry["bbox"][3]]} for entry in truth
    ]
    # IoU 2/3 passes 4 of the 10 thresholds 0.50, 0.55, 0.60, 0.65, …
    assert score_tiny.average_precision(wide, 6) == pytest.approx(40)
    assert score_tiny.average_precision([], 6) == 0


def last_loss(run: Path, stage: str) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["stage"] == stage and "loss" in line]


@pytest.mark.slow
def test_a_killed_training_goes_on_and_learns(tmp_path: Path) -> None:
    words = training(tmp_path, "--steps", "60", "--head-steps", "3", "--batch", "4", "--scenes", "60")
    command = [sys.executable, str(TOOLS / "train_tiny.py"), *words]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    log = tmp_path / "run/log.jsonl"
    while not (log.exists() and len(log.read_text().splitlines()) >= 8):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
    losses = last_loss(tmp_path / "run", "backbone")
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])
    assert load_tiny(tmp_path / "run/weights").classes == CLASSES
