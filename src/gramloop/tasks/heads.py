"""A predictor from a backbone and a head: the names in the head's file decide what it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.models.released_names import HEADS, HeadKind, head_classes, head_kind
from gramloop.tasks.class_names import COCO, COCO_PANOPTIC
from gramloop.tasks.detect import DetectConfig, load_detector
from gramloop.tasks.dpt_depth import DptDepthConfig, load_depth_estimator
from gramloop.tasks.padded import (
    InstanceConfig,
    PanopticConfig,
    load_instances,
    load_panoptic,
    side_of,
)
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.segment import SegmentConfig, load_segmenter, pmt_windows

Files = Mapping[str, str] | Mapping[str, Path]
Sizes = Mapping[str, object]  # how images are shown: settings of the task's configuration
Config = TypeVar("Config")

_TASKS: dict[HeadKind, tuple[Task, ...]] = {
    "mask2former": ("semantic",),
    "plain-detr": ("detection",),
    "pmt": ("semantic", "panoptic", "instance"),
    "depther": ("depth",),
    "linear": ("semantic",),
}
_NEEDS_BACKBONE: tuple[HeadKind, ...] = ("pmt", "depther")


def head_task(head: str | Path, asked: Task | None = None) -> Task:
    """What a head predicts: as asked, if it can, otherwise what it was trained for."""
    kind = head_kind(head)
    if asked is not None:
        if asked not in _TASKS[kind]:
            able = " or ".join(_TASKS[kind])
            raise GramLoopError(f"{head} is {HEADS[kind]}, for the task {able}, not for {asked}")
        return asked
    if kind != "pmt":
        return _TASKS[kind][0]
    trained: dict[int, Task] = {len(COCO_PANOPTIC): "panoptic", len(COCO): "instance"}
    return trained.get(head_classes(head), "semantic")


def load_head(
    task: Task | None,
    files: Files,
    sizes: Sizes,
    device: torch.device | str = "cpu",
    verify: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Predictor[Prediction]:
    """The predictor of a head's file with its backbone, as `gramloop.tasks.load_predictor` takes them."""
    head, backbone = files["head"], files.get("backbone")
    kind, task = head_kind(head), head_task(head, task)
    if kind in _NEEDS_BACKBONE and backbone is None:
        raise GramLoopError(f"{head} is a head alone; its backbone must be given too")
    given: dict[str, Any] = {"device": device, "verify": verify, "dtype": dtype}
    if task == "semantic":
        usual = vars(pmt_windows(head)) if kind == "pmt" else {}
        return load_segmenter(backbone, head, config=config_of(SegmentConfig, {**usual, **sizes}), **given)
    if task == "detection":
        return load_detector(backbone, head, config=config_of(DetectConfig, sizes), **given)
    assert backbone is not None
    if task == "depth":
        return load_depth_estimator(backbone, head, config=config_of(DptDepthConfig, sizes), **given)
    if task == "panoptic":
        shown = config_of(PanopticConfig, {**side_of(head), **sizes})
        return load_panoptic(backbone, head, config=shown, **given)
    return load_instances(
        backbone, head, config=config_of(InstanceConfig, {**side_of(head), **sizes}), **given
    )


def config_of(kind: Callable[..., Config], sizes: Sizes) -> Config:
    """A task's configuration with these settings, all of which it must have."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if strange := [name for name in sizes if name not in known]:
        raise GramLoopError(
            f"this model has no setting {strange[0]}; how it is shown images is said by {', '.join(known)}"
        )
    return kind(**sizes)
