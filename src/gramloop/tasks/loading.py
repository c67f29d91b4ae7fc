"""Predictors from files: the embedded model, a backbone with a head, and every other model that ``--model`` names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError, did_you_mean, then
from gramloop.models.backbone import Backbone, LinearHead, LinearSegmentor
from gramloop.models.checkpoint import HEAD_NAMES, HeadKind, head_classes, head_kind
from gramloop.models.depther import load_depther
from gramloop.models.detector import load_windowed_detector
from gramloop.models.dino import load_backbone
from gramloop.models.mask2former import load_segmentor
from gramloop.models.pmt import load_pmt, trained_side
from gramloop.models.tiny import DEPTH_HEAD, TINY_SHORT_SIDE, WEIGHTS, DenseDepthHead, load_tiny
from gramloop.tasks.class_names import COCO, COCO_PANOPTIC, coco_classes
from gramloop.tasks.custom import load_user_model
from gramloop.tasks.depth import DepthConfig, DepthEstimator, DptDepthConfig, DptDepthEstimator
from gramloop.tasks.graphs import RUNTIMES, first_line, graph_files, is_dinov3_graph, load_graph
from gramloop.tasks.identity import held_model
from gramloop.tasks.images import WEB, normalisation_of
from gramloop.tasks.predictor import AnyPredictor
from gramloop.tasks.released import DenseDetector, DetectConfig, Detector, QueryConfig, QuerySegmenter
from gramloop.tasks.semantic import SegmentConfig, Segmenter
from gramloop.tasks.transformers_models import load_transformers_model

Files = Mapping[str, str] | Mapping[str, Path]
Sizes = Mapping[str, object]  # how images are resized and cut: settings of the task's configuration
WeightPrecision = Literal["float32", "bfloat16"]  # of a backbone's weights; heads and drift are float32
Config = TypeVar("Config")
INPUT_SIZE = "input size"  # of a head, where the name of its folder decides it
TRUSTED = "trusted code"  # the entry of a transformers folder's files that lets its own code run
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
_TASKS: dict[HeadKind, tuple[Task, ...]] = {
    "mask2former": ("semantic",),
    "plain-detr": ("detection",),
    "pmt": ("semantic", "panoptic", "instance"),
    "depther": ("depth",),
    "linear": ("semantic",),
}


def open_model(
    spec: str,
    task: Task | None = None,
    sizes: Sizes | None = None,
    device: torch.device | str = "cpu",
    *,
    trust_remote_code: bool = False,
) -> AnyPredictor:
    """A predictor, frozen and in evaluation mode.

    Args:
        spec: "tiny", "hf:FOLDER", "model.onnx", "my_models.py:make", or "package.module:make".
        task: what is predicted; needed only where a model has several tasks, as the embedded one.
        sizes: how images are resized and cut, where that can be chosen.
        device: where it runs.
        trust_remote_code: let a transformers folder run Python code of its own.
    """
    return load_predictor(task, model_files(spec, trust_remote_code), sizes, device)


def load_predictor(
    task: Task | None,
    files: Files,
    sizes: Sizes | None = None,
    device: torch.device | str = "cpu",
    dtype: WeightPrecision = "float32",
) -> AnyPredictor:
    """A predictor with its model frozen and in evaluation mode.

    Args:
        task: what is predicted; None as the model says: a head by its names; the embedded model segments.
        files: ``folder`` as `gramloop.models.tiny` reads it; or ``head``, with ``backbone`` unless the head's file
            holds it too; or ``hf``, ``graph`` or ``make``; or ``object``, as `gramloop.tasks.identity.hold_model` returns it.
        sizes: how images are resized and cut, where it differs from the default.
        device: where it runs. On "meta" no weight is read: the predictor describes itself, but cannot predict.
        dtype: of the backbone's weights; bfloat16 halves their memory and rounds.
    """
    check_precision(dtype)
    kind, given = kind_of(files), dict[str, Any](sizes or {})
    common: Any = {"device": device, "dtype": getattr(torch, dtype)}
    if kind == "tiny":
        return _load_embedded(files["folder"], task, given, **common)
    if kind == "files":
        predictor: AnyPredictor = load_head(files.get("backbone"), files["head"], task, **common, **given)
        return predictor
    name = next(iter(files.values()))
    if dtype != "float32":
        raise GramLoopError(
            f"{name} has the precision that it was made with; {dtype} can be asked of a backbone with a released head, "
            "and of the embedded model"
        )
    if given:
        raise GramLoopError(f"{name} resizes images itself; leave out {', '.join(given)}")
    if kind == "hf":
        return load_transformers_model(files["hf"], task, device, trust_remote_code=TRUSTED in files)
    if kind == "graph":
        return load_graph(files, task, device)
    if kind == "object":
        return held_model(str(files["object"]))
    return load_user_model(str(files["make"]), task, device)


def kind_of(files: Files) -> str:
    """The kind of model that files make up, as a plan names it."""
    own = next((name for name in ("hf", "graph", "make", "object") if name in files), "files")
    return "tiny" if "folder" in files else own


def check_precision(dtype: str) -> None:
    """Refuse a precision that weights cannot have."""
    if dtype not in get_args(WeightPrecision):
        raise GramLoopError(f"weights are {' or '.join(get_args(WeightPrecision))}, not {dtype!r}")


def _load_embedded(
    folder: str | Path, task: Task | None, sizes: Sizes, device: torch.device | str, dtype: torch.dtype
) -> AnyPredictor:
    """The embedded model, or one like it: for semantic segmentation, detection or depth."""
    if task in ("panoptic", "instance"):
        raise GramLoopError(
            f"{folder} is no model for the task {task}; that takes a PMT head on a backbone, hf:FOLDER of a universal "
            "model, or a function of your own such as examples/components.py:panoptic"
        )
    model = load_tiny(folder, device, dtype)
    if task == "depth":
        config = config_of(DepthConfig, {"short_side": TINY_SHORT_SIDE, **sizes})
        head = DenseDepthHead.load(Path(folder) / DEPTH_HEAD, device=device)
        return DepthEstimator(model.backbone, head, config)
    if task == "detection":
        if sizes:
            raise GramLoopError(
                f"the embedded detector sees images in their own size; leave out {', '.join(sizes)}"
            )
        classes = dict(enumerate(model.things, start=1))
        return DenseDetector(model.backbone, model.detect, model.segment.taps[-1], classes)
    segment_config = config_of(SegmentConfig, {"mode": "whole", "short_side": TINY_SHORT_SIDE, **sizes})
    return Segmenter(model.segmentor(), segment_config, names=dict(enumerate(model.classes)))


def load_head(
    backbone: str | Path | Backbone | None,
    head: str | Path,
    task: Task | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    **sizes: object,
) -> Any:
    """A predictor from a backbone and a head of Mask2Former, Plain-DETR, DPT, PMT, or a linear one, known by its names.

    Args:
        backbone: its weights, or the backbone itself; None where the head's file holds it, too.
        head: its weights.
        task: what is predicted, where the head has several tasks; by default what it was trained for.
        dtype: of the backbone's weights.
        device: where it runs.
        sizes: settings of `SegmentConfig`, `DetectConfig`, `DptDepthConfig` or `QueryConfig`.
    """
    kind, task = head_kind(head), head_task(head, task)
    common: Any = {"dtype": dtype, "device": device}
    if backbone is None and kind in ("pmt", "depther", "linear"):
        raise GramLoopError(f"{head} is a head alone; its backbone must be given too")
    normalisation = normalisation_of(backbone) if isinstance(backbone, str | Path) else WEB
    given: Any = backbone
    try:
        if kind == "plain-detr":
            detector = load_windowed_detector(head, given, **common)
            return Detector(detector, config_of(DetectConfig, sizes), normalisation)
        if kind == "depther":
            loaded = load_depther(given, head, **common)
            return DptDepthEstimator(*loaded, config_of(DptDepthConfig, sizes), normalisation)
        if kind == "pmt":
            return _load_pmt(given, head, task, sizes, common)
        vit: Any = load_backbone(given, **common) if isinstance(given, str | Path) else given
        if kind == "mask2former":
            model: Any = load_segmentor(head, vit, **common)
        else:
            model = LinearSegmentor(vit, LinearHead.load(head, device=device))
        return Segmenter(model, config_of(SegmentConfig, sizes), normalisation)
    except GramLoopError:
        raise
    except (ArithmeticError, AssertionError, LookupError, ValueError) as error:  # of sizes that no head has
        raise GramLoopError(f"{head} is no {kind} head that can be built: {error}") from error


def _load_pmt(backbone: Any, head: str | Path, task: Task, sizes: Sizes, common: Mapping[str, Any]) -> Any:
    """PMT's heads see images in squares of the side in the name of their folder."""
    side, model = trained_side(head), load_pmt(head, backbone, **common)
    usual: dict[str, object] = {"side": side} if side else {}
    if task in ("panoptic", "instance"):
        return QuerySegmenter(model, task, config_of(QueryConfig, {**usual, **sizes}))
    config = config_of(SegmentConfig, {"mode": "even", "short_side": side or 512, **sizes})
    return Segmenter(model, config, names=dict(enumerate(coco_classes(model.classes).values())))


def head_task(head: str | Path, asked: Task | None = None) -> Task:
    """What a head predicts: as asked, if it can, otherwise what it was trained for."""
    kind = head_kind(head)
    if asked is not None and asked not in _TASKS[kind]:
        able = " or ".join(_TASKS[kind])
        raise GramLoopError(f"{head} is {HEAD_NAMES[kind]}, for the task {able}, not for {asked}")
    if asked is not None or kind != "pmt":
        return asked or _TASKS[kind][0]
    return {len(COCO_PANOPTIC): "panoptic", len(COCO): "instance"}.get(head_classes(head), "semantic")


def config_of(kind: Callable[..., Config], sizes: Sizes) -> Config:
    """A task's configuration with these settings, all of which it must have."""
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if strange := [name for name in sizes if name not in known]:
        raise GramLoopError(f"this model has no setting {strange[0]}; its settings are {', '.join(known)}")
    return kind(**sizes)


def name_conclusions(files: Files) -> dict[str, str]:
    """What the names of a model's files decide, where it differs from the usual, and whether its own code runs."""
    found = {}
    if "backbone" in files and normalisation_of(files["backbone"]) != WEB:
        found["normalisation"] = "of satellite images (sat493m)"
    if "head" in files and (side := trained_side(files["head"])) is not None:
        found[INPUT_SIZE] = f"{side} pixels"
    if "graph" in files and is_dinov3_graph(files["graph"]):
        found["normalisation"] = "of DINOv3"
    if TRUSTED in files:
        found[TRUSTED] = "of the transformers folder"
    return found


# what --model takes


def model_files(spec: str, trust_remote_code: bool = False) -> dict[str, str]:
    """The files of a model, given as to `open_model`, by what they are; all paths are absolute."""
    if trust_remote_code and not spec.startswith("hf:"):
        raise GramLoopError(f"code of its own is trusted in a transformers folder, hf:FOLDER, not in {spec}")
    if spec == "tiny":
        return {"folder": str(WEIGHTS)}
    if spec.startswith("hf:"):
        folder = _transformers_folder(spec.removeprefix("hf:"), trust_remote_code)
        return {"hf": str(folder), **({TRUSTED: "yes"} if trust_remote_code else {})}
    path = Path(spec).expanduser()
    if path.suffix.lower() in RUNTIMES:
        return {name: str(each) for name, each in graph_files(path.resolve()).items()}
    place, colon, name = spec.rpartition(":")
    if colon:
        return {"make": f"{Path(place).expanduser().resolve()}:{name}" if place.endswith(".py") else spec}
    if (path / "config.json").is_file():
        raise GramLoopError(f"{spec} is a transformers folder; write --model hf:{spec}")
    if path.suffix == ".py" and path.is_file():
        raise GramLoopError(f"{spec} is a Python file; name its function too, as in --model {spec}:make")
    if not path.exists() and "/" not in spec:
        wrong = f"there is no model {spec!r}{did_you_mean(spec, ['tiny'])}"
        forms = "there are tiny, folders, hf:FOLDER, FILE.onnx, FILE.py:make and package.module:make"
        raise GramLoopError(then(wrong, forms))
    return {"folder": str(path.resolve())}


def _transformers_folder(name: str, with_code: bool) -> Path:
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.exists() or not _HUB_NAME.fullmatch(name):
        raise GramLoopError(
            f"{name} is no folder, and no name of the hub either, such as facebook/mask2former"
        )
    wanted = [*_FETCHED, *(["*.py"] if with_code else [])]
    try:
        from huggingface_hub import snapshot_download

        fetched = Path(snapshot_download(name, allow_patterns=wanted))
        if not any(fetched.glob("*.safetensors")):
            fetched = Path(snapshot_download(name, allow_patterns=[*wanted, "*.bin"]))
    except (OSError, ValueError, RuntimeError) as error:
        raise GramLoopError(
            f"{name} is no folder here, and the hub does not give it: {first_line(error)}"
        ) from error
    return fetched.resolve()
