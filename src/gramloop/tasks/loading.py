"""Predictors from files: a small model's folder, or a backbone and a head."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch

from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.models.tiny import TINY_SHORT_SIDE, load_tiny, load_tiny_depth
from gramloop.tasks.dense_detect import DenseDetector
from gramloop.tasks.depth_estimator import DepthConfig, DepthEstimator
from gramloop.tasks.heads import Files, Sizes, config_of, load_head
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tasks.renumbering import numbered_as
from gramloop.tasks.segment import SegmentConfig, Segmenter

Precision = Literal["float32", "bfloat16"]  # of a backbone's weights; heads and drift are float32
_DTYPES: Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def load_predictor(
    task: Task | None,
    files: Files,
    sizes: Sizes | None = None,
    device: torch.device | str = "cpu",
    verify: bool = False,
    dtype: Precision = "float32",
) -> Predictor[Prediction]:
    """A predictor with its model frozen and in evaluation mode.

    Args:
        task: what is predicted; None as the model says: a head by its names; the embedded model segments.
        files: ``folder`` as `gramloop.models.tiny` reads it; or ``head``, with ``backbone`` unless the head's file
            holds it too; or ``hf``, a folder of transformers; or ``make``, ``FILE.py:NAME`` or ``package.module:NAME``; or
            ``object``, as `gramloop.tasks.held_models.hold_model` names one in memory.
        sizes: how images are shown to the model, where it is not as usual.
        device: where it runs. On "meta" no weight is read: the predictor tells about itself, but cannot predict.
        verify: compare weights with the sha256 in the names of their files.
        dtype: of the backbone's weights; bfloat16 halves their memory and rounds.
    """
    check_precision(dtype)
    if kind_of(files) not in ("tiny", "files"):
        _refuse_precision(files, dtype)
        return _any_model(task, files, sizes, device)
    if "folder" not in files:
        return load_head(task, files, sizes or {}, device, verify, _DTYPES[dtype])
    loaders: dict[Task, Callable[..., Predictor[Prediction]]] = {
        "semantic": segmenter_of,
        "detection": detector_of,
        "depth": depth_estimator_of,
    }
    task = task or "semantic"
    if task not in loaders:
        raise GramLoopError(
            f"{next(iter(files.values()))} is no model for the task {task}; that takes a PMT head on a backbone, hf:FOLDER of "
            "a universal model, or a function of your own such as examples/components.py:panoptic"
        )
    return loaders[task](files, sizes or {}, device, _DTYPES[dtype])


def load_numbered(
    task: Task,
    files: Files,
    sizes: Sizes | None,
    device: torch.device | str,
    categories: Mapping[int, str],
    dtype: Precision = "float32",
) -> Predictor[Prediction]:
    """A predictor as `load_predictor` gives it, whose classes are numbered as in a data set.

    Models from transformers and of one's own bring names; the released heads count as their data sets do.
    """
    predictor = load_predictor(task, files, sizes, device, dtype=dtype)
    return predictor if kind_of(files) in ("tiny", "files") else numbered_as(predictor, categories)


def kind_of(files: Files) -> str:
    """The kind of model that files make up, as a plan names it."""
    return next(
        (kind for kind in ("hf", "make", "object") if kind in files), "tiny" if "folder" in files else "files"
    )


def check_precision(dtype: str) -> None:
    """Refuse a precision that weights cannot have."""
    if dtype not in _DTYPES:
        raise GramLoopError(f"weights are {' or '.join(_DTYPES)}, not {dtype!r}")


def _refuse_precision(files: Files, dtype: Precision) -> None:
    if dtype != "float32":
        raise GramLoopError(
            f"{next(iter(files.values()))} has the precision that it was made with; {dtype} can be asked of a backbone "
            "with a released head, and of the embedded model"
        )


def _any_model(
    task: Task | None, files: Files, sizes: Sizes | None, device: torch.device | str
) -> Predictor[Prediction]:
    if sizes:
        raise GramLoopError(
            f"{next(iter(files.values()))} shows itself images as it was made to; leave out {', '.join(sizes)}"
        )
    if "hf" in files:
        from gramloop.tasks.transformers_models import load_transformers_model

        return load_transformers_model(files["hf"], task, device)
    if "object" in files:
        from gramloop.tasks.held_models import held_model

        return held_model(str(files["object"]))
    from gramloop.tasks.user_models import load_user_model

    return load_user_model(str(files["make"]), task, device)


def segmenter_of(
    files: Files, sizes: Sizes, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Segmenter:
    """The embedded model, or one like it, for segmentation."""
    model = load_tiny(files["folder"], device, dtype)
    config = config_of(SegmentConfig, {"mode": "whole", "short_side": TINY_SHORT_SIDE, **sizes})
    return Segmenter(model.segmentor(), config, names=dict(enumerate(model.classes)))


def detector_of(
    files: Files, sizes: Sizes, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> DenseDetector:
    """The embedded model, or one like it, for detection."""
    model = load_tiny(files["folder"], device, dtype)
    if sizes:
        raise GramLoopError(
            f"the embedded detector sees images in their own size; leave out {', '.join(sizes)}"
        )
    classes = dict(enumerate(model.things, start=1))
    return DenseDetector(model.backbone, model.detect, model.segment.taps[-1], classes)


def depth_estimator_of(
    files: Files, sizes: Sizes, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> DepthEstimator:
    """The embedded model, or one like it, for depth."""
    model, head = load_tiny(files["folder"], device, dtype), load_tiny_depth(files["folder"], device)
    config = config_of(DepthConfig, {"short_side": TINY_SHORT_SIDE, **sizes})
    return DepthEstimator(model.backbone, head, config)
