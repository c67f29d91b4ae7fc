"""Threads that share a predictor get what each would get alone, to the bit, whatever the others do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from golden import load_golden
from gramloop import ReplayConfig
from gramloop.models.backbone import LinearHead, LinearSegmentor
from gramloop.models.detector import DETECTOR_BACKBONE
from gramloop.models.dino import load_backbone
from gramloop.tasks.loading import load_head
from gramloop.tasks.released import DetectConfig
from gramloop.tasks.semantic import SegmentConfig, Segmenter


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


def segmenter(folder: Path) -> Any:
    torch.save(load_golden("backbone_s").weights, folder / "backbone.pth")
    torch.manual_seed(0)
    head = LinearHead(64, 5, (1, 3, 5, 7)).eval()
    model = LinearSegmentor(load_backbone(folder / "backbone.pth"), head)
    return Segmenter(model, SegmentConfig(short_side=64, crop=64, stride=40, scores=True))


def detector(folder: Path) -> Any:
    weights = load_golden("detector").weights
    inside = {name: value for name, value in weights.items() if name.startswith(DETECTOR_BACKBONE)}
    torch.save(
        {name.removeprefix(DETECTOR_BACKBONE): v for name, v in inside.items()}, folder / "backbone.pth"
    )
    torch.save({"model": {name: weights[name] for name in weights.keys() - inside}}, folder / "head.pth")
    return load_head(folder / "backbone.pth", folder / "head.pth", **vars(DetectConfig(144, keep=40)))


# what a thread asks for in turn: ordinary, replayed in several ways, paired
ASKED: list[dict[str, Any]] = [
    {},
    {"replay": ReplayConfig((3, 4))},
    {"replay": ReplayConfig((2, 3), gate_at="end"), "paired": True},
    {},
    {"replay": ReplayConfig((3, 4), update_at="final"), "paired": True, "trace": True},
]


def same(a: Any, b: Any) -> bool:
    if is_dataclass(a):
        return all(same(getattr(a, field.name), getattr(b, field.name)) for field in fields(a))
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    return bool(a == b)


@pytest.mark.parametrize("build", [segmenter, detector])
def test_threads_on_one_predictor(build: Any, tmp_path: Path) -> None:
    predictor = build(tmp_path)
    pictures = [
        np.random.default_rng(side).integers(0, 256, (side, 90, 3), dtype=np.uint8) for side in (60, 75)
    ]
    alone = [[predictor.predict(picture, **asked) for picture in pictures] for asked in ASKED]

    def wrong(thread: int) -> int:
        turns = [((thread + turn) % len(ASKED), turn % 2) for turn in range(6)]
        return sum(not same(predictor.predict(pictures[j], **ASKED[i]), alone[i][j]) for i, j in turns)

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(wrong, range(4))) == 0
    assert not any(module._forward_hooks for module in predictor.backbone.modules())
