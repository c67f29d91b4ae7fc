"""Predictors from files: a small model's folder, or a backbone and a head."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError, did_you_mean, then
from gramloop.models.heads import HEAD_NAMES, HeadKind, head_classes, head_kind
from gramloop.models.pmt import trained_side
from gramloop.models.tiny import TINY_SHORT_SIDE, WEIGHTS, load_tiny, load_tiny_depth
from gramloop.tasks.class_names import COCO, COCO_PANOPTIC
from gramloop.tasks.depth import DepthConfig, DepthEstimator, DptDepthConfig, load_depth_estimator
from gramloop.tasks.detect import DenseDetector, DetectConfig, load_detector
from gramloop.tasks.graph_runtime import RUNTIMES, graph_files, is_dinov3_graph
from gramloop.tasks.images import WEB, normalisation_of
from gramloop.tasks.padded import (
    InstanceConfig,
    PanopticConfig,
    load_instances,
    load_panoptic,
)
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, numbered_as
from gramloop.tasks.segment import SegmentConfig, Segmenter, load_segmenter, pmt_windows

Files = Mapping[str, str] | Mapping[str, Path]
Sizes = Mapping[str, object]  # how images are shown: settings of the task's configuration
Config = TypeVar("Config")
INPUT_SIZE = "input size"  # of a head, where the name of its folder decides it

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
            raise GramLoopError(f"{head} is {HEAD_NAMES[kind]}, for the task {able}, not for {asked}")
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
    side = {"side": trained} if (trained := trained_side(head)) else {}
    if task == "panoptic":
        return load_panoptic(backbone, head, config=config_of(PanopticConfig, {**side, **sizes}), **given)
    return load_instances(backbone, head, config=config_of(InstanceConfig, {**side, **sizes}), **given)


def name_conclusions(files: Files) -> dict[str, str]:
    """What the names of files and folders decide about a model's input, which their content does not contain.

    Args:
        files: the model, as `gramloop.tasks.load_predictor` takes it.

    Returns:
        Each decision that differs from the usual one, by what it is about.
    """
    found = {}
    if "backbone" in files and normalisation_of(files["backbone"]) != WEB:
        found["normalisation"] = "of satellite images (sat493m)"
    if "head" in files and (side := trained_side(files["head"])) is not None:
        found[INPUT_SIZE] = f"{side} pixels"
    if "graph" in files and is_dinov3_graph(files["graph"]):
        found["normalisation"] = "of DINOv3"
    return found


def config_of(kind: Callable[..., Config], sizes: Sizes) -> Config:
    """A task's configuration with these settings, all of which it must have."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if strange := [name for name in sizes if name not in known]:
        raise GramLoopError(
            f"this model has no setting {strange[0]}; how it is shown images is said by {', '.join(known)}"
        )
    return kind(**sizes)


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
            holds it too; or ``hf``, a folder of transformers; or ``graph``, an ONNX or OpenVINO file; or ``make``,
            ``FILE.py:NAME`` or ``package.module:NAME``; or ``object``, as `gramloop.tasks.identity.hold_model` names one
            in memory.
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
        (kind for kind in ("hf", "graph", "make", "object") if kind in files),
        "tiny" if "folder" in files else "files",
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
    if "graph" in files:
        from gramloop.tasks.onnx_models import load_graph

        return load_graph(files, task, device)
    if "object" in files:
        from gramloop.tasks.identity import held_model

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


GROUP = "gramloop.models"
FORMS = (
    ("tiny", "the embedded model, or a folder like it"),
    ("hf:FOLDER", "any dense model that transformers saved; hf:NAME downloads it from the hub"),
    (
        "FILE.onnx, FILE.xml",
        "a graph for onnxruntime or OpenVINO, with FILE.json or FILE.py where its outputs are not recognised",
    ),
    ("FILE.py:make", "a function of your own that returns a model"),
    ("package.module:make", "the same, in an installed package"),
)
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FETCHED = ("*.json", "*.safetensors", "*.txt")


def open_model(
    spec: str, task: Task | None = None, sizes: Sizes | None = None, device: torch.device | str = "cpu"
) -> Predictor[Prediction]:
    """A predictor, frozen and in evaluation mode.

    Args:
        spec: "tiny", "hf:FOLDER", "model.onnx", "my_models.py:make", "package.module:make", or a name of `offered`.
        task: what is predicted; needed only where a model has several tasks, as the embedded one.
        sizes: how images are shown to the model, where that can be chosen.
        device: where it runs.
    """
    return load_predictor(task, model_files(spec), sizes, device)


def model_files(spec: str) -> dict[str, str]:
    """The files of a model by what they are, as a plan keeps them; all paths are absolute."""
    if spec == "tiny":
        return {"folder": str(WEIGHTS)}
    if spec.startswith("hf:"):
        return {"hf": str(_transformers_folder(spec.removeprefix("hf:")))}
    if Path(spec).suffix.lower() in RUNTIMES:
        found = graph_files(Path(spec).expanduser().resolve())
        return {name: str(path) for name, path in found.items()}
    if spec in offered():
        return {"make": offered()[spec].value}
    place, colon, name = spec.rpartition(":")
    if not colon:
        return {"folder": str(_tiny_folder(spec))}
    return {"make": f"{Path(place).expanduser().resolve()}:{name}" if place.endswith(".py") else spec}


def offered() -> dict[str, EntryPoint]:
    """Models that installed packages offer, by name."""
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _tiny_folder(spec: str) -> Path:
    path, known = Path(spec).expanduser(), ["tiny", *offered()]
    if (path / "config.json").is_file():
        raise GramLoopError(f"{spec} is a transformers folder; write --model hf:{spec}")
    if path.suffix == ".py" and path.is_file():
        raise GramLoopError(f"{spec} is a Python file; name its function too, as in --model {spec}:make")
    if not path.exists() and "/" not in spec:
        forms = "folders, hf:FOLDER, FILE.onnx, FILE.py:make and package.module:make"
        wrong = f"there is no model {spec!r}{did_you_mean(spec, known)}"
        raise GramLoopError(then(wrong, f"there are {', '.join(known)}, {forms}"))
    return path.resolve()


def _transformers_folder(name: str) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists() or not _HUB_NAME.fullmatch(name):
        raise GramLoopError(
            f"{name} is no folder, and no name of the hub either, such as facebook/mask2former"
        )
    try:
        from huggingface_hub import snapshot_download

        fetched = Path(snapshot_download(name, allow_patterns=list(_FETCHED)))
        if not any(fetched.glob("*.safetensors")):
            fetched = Path(snapshot_download(name, allow_patterns=[*_FETCHED, "*.bin"]))
    except (OSError, ValueError, RuntimeError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise GramLoopError(f"{name} is no folder here, and the hub does not give it: {first}") from error
    return fetched.resolve()
