"""Released models in files, small ones with golden weights, and folders of transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from device_models import FOLDERS, RELEASED, Load


@pytest.fixture(scope="session")
def load_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Load]:
    """By name, a function that loads a predictor onto a device."""
    root = tmp_path_factory.mktemp("models")

    def find(name: str) -> Load:
        folder = root / name
        folder.mkdir(exist_ok=True)
        if name in RELEASED:
            return _released(name, folder)
        return _transformers(name, folder) if name in FOLDERS else _embedded(name)

    return find


def _embedded(task: str) -> Load:
    from gramloop.models.tiny import WEIGHTS
    from gramloop.tasks import load_predictor

    return lambda device: load_predictor(task, {"folder": str(WEIGHTS)}, None, device)  # type: ignore[arg-type]


def _transformers(name: str, folder: Path) -> Load:
    from dense_folders import save_model
    from gramloop.tasks import load_predictor

    if not any(folder.iterdir()):
        save_model(name, folder)
    return lambda device: load_predictor(FOLDERS[name], {"hf": str(folder)}, None, device)  # type: ignore[arg-type]


def _released(name: str, folder: Path) -> Load:
    from gramloop import tasks

    if name == "segmenter":
        sizes = tasks.SegmentConfig(short_side=64, crop=64, stride=40, scores=True)
        head = _segmentor(folder)
        return lambda device: tasks.load_head(None, head, "semantic", **vars(sizes), device=device)
    if name == "detector":
        boxes, files = tasks.DetectConfig(short_side=96, keep=40), _detector(folder)
        return lambda device: tasks.load_head(*files, **vars(boxes), device=device)
    if name == "depther":
        from golden import write_golden_depther

        pair = write_golden_depther(folder)
        config = tasks.DptDepthConfig(64)
        return lambda device: tasks.load_head(*pair, **vars(config), device=device)
    from golden import write_golden_pmt
    from gramloop.models import load_pmt

    backbone, file = write_golden_pmt(folder)
    classes = {number: f"class {number}" for number in range(1, 8)}
    if name == "panoptic":
        sure = tasks.QueryConfig(64, threshold=0.1, overlap=0.1)
        return lambda device: tasks.QuerySegmenter(
            load_pmt(file, backbone, device=device), "panoptic", sure, classes, [1, 2, 3, 4]
        )
    keep = tasks.QueryConfig(64, keep=10)
    return lambda device: tasks.QuerySegmenter(
        load_pmt(file, backbone, device=device), "instance", keep, classes
    )


def _segmentor(folder: Path) -> Path:
    from golden import load_golden

    torch.save(load_golden("segmentor").weights, folder / "segmentor.pth")
    return folder / "segmentor.pth"


def _detector(folder: Path) -> tuple[Path, Path]:
    from golden import load_golden
    from gramloop.models.detector import DETECTOR_BACKBONE as PREFIX

    weights = load_golden("detector").weights
    inner = {name.removeprefix(PREFIX): value for name, value in weights.items() if name.startswith(PREFIX)}
    torch.save(inner, folder / "backbone.pth")
    head = {name: value for name, value in weights.items() if not name.startswith(PREFIX)}
    torch.save({"model": head}, folder / "head.pth")
    return folder / "backbone.pth", folder / "head.pth"
