"""Predictors from files: a small model's folder, or a backbone and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.models.tiny import TINY_SHORT_SIDE, load_tiny
from gramloop.tasks.dense_detect import DenseDetector
from gramloop.tasks.detect import DetectConfig, load_detector
from gramloop.tasks.prediction import Detection, Prediction
from gramloop.tasks.predictor import Predictor, ViTPredictor
from gramloop.tasks.segment import SegmentConfig, Segmenter, load_segmenter

Files = Mapping[str, str] | Mapping[str, Path]
Sizes = Mapping[str, object]  # how images are shown: settings of `SegmentConfig` or `DetectConfig`
Config = TypeVar("Config")


def load_predictor(
    task: Task,
    files: Files,
    sizes: Sizes | None = None,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> Predictor[Prediction]:
    """A predictor with its model frozen and in evaluation mode.

    Args:
        task: what is predicted.
        files: ``folder`` as `gramloop.models.tiny` reads it; or ``head``, with ``backbone`` unless the head's file
            holds it too.
        sizes: how images are shown to the model, where it is not as usual.
        device: where it runs. On "meta" no weight is read: the predictor tells about itself, but cannot predict.
        verify: compare weights with the sha256 in the names of their files.
    """
    load = segmenter_of if task == "semantic" else detector_of
    return load(files, sizes or {}, device, verify)


def segmenter_of(
    files: Files, sizes: Sizes, device: torch.device | str = "cpu", verify: bool = False
) -> Segmenter:
    """`load_predictor` for segmentation."""
    if "folder" not in files:
        config = _config(SegmentConfig, sizes)
        return load_segmenter(
            files.get("backbone"), files["head"], config=config, device=device, verify=verify
        )
    model = load_tiny(files["folder"], device)
    config = _config(SegmentConfig, {"mode": "whole", "short_side": TINY_SHORT_SIDE, **sizes})
    return Segmenter(model.segmentor(), config, names=dict(enumerate(model.classes)))


def detector_of(
    files: Files, sizes: Sizes, device: torch.device | str = "cpu", verify: bool = False
) -> ViTPredictor[Detection]:
    """`load_predictor` for detection."""
    if "folder" not in files:
        config = _config(DetectConfig, sizes)
        return load_detector(
            files.get("backbone"), files["head"], config=config, device=device, verify=verify
        )
    model = load_tiny(files["folder"], device)
    if sizes:
        raise GramLoopError(
            f"the embedded detector sees images in their own size; leave out {', '.join(sizes)}"
        )
    classes = dict(enumerate(model.things, start=1))
    return DenseDetector(model.backbone, model.detect, model.segment.taps[-1], classes)


def _config(kind: Callable[..., Config], sizes: Sizes) -> Config:
    return kind(**sizes)
