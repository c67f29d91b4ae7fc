"""Dense models as transformers saves them: the architecture decides the task, the folder's processor does the rest.

The image is prepared and the outputs are read by the image processor that lies beside the weights, with no threshold
on boxes, as average precision wants it. Classes are those of ``id2label``.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import refuse_unsound
from gramloop.tasks.class_names import COCO, Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.images import LARGEST, RGB, short_side_size
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.module_predictor import ModulePredictor, Size, Steps
from gramloop.tasks.padded import Masks, best_masks
from gramloop.tasks.panoptic import Panoptic, Segment
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation
from gramloop.tasks.user_models import read_prediction
from gramloop.util.json_files import checked, read_json

KEPT = 100  # masks of one image


def thing_numbers(classes: Classes) -> frozenset[int]:
    """The classes that COCO counts as things, by name; all of them where no name is COCO's."""
    names = set(COCO.values())
    known = frozenset(number for number, name in classes.items() if name in names)
    return known or frozenset(classes)


def read_segments(processor: Any, outputs: Any, size: Size, classes: Classes) -> Panoptic:
    """The segments of one image of ``size`` (height, width)."""
    _refuse_windows(processor)
    read, things = processor.post_process_panoptic_segmentation, thing_numbers(classes)
    none: dict[str, Any] = (
        {"label_ids_to_fuse": set()} if "label_ids_to_fuse" in inspect.signature(read).parameters else {}
    )
    found = read(outputs, target_sizes=[size], **none)[0]
    given = found["segmentation"].cpu().numpy()
    segments = np.zeros(size, np.int32)
    infos: list[Segment] = []
    stuff: dict[int, int] = {}
    for info in found["segments_info"]:
        mask, kind, score = given == info["id"], int(info["label_id"]), float(info["score"])
        if not mask.any():
            continue
        number = len(infos) + 1 if kind in things else stuff.setdefault(kind, len(infos) + 1)
        if number > len(infos):
            infos.append(Segment(number, kind, kind in things, score))
        elif score > infos[number - 1].score:
            infos[number - 1] = Segment(number, kind, False, score)
        segments[mask] = number
    return Panoptic(segments, tuple(infos))


def read_masks(processor: Any, outputs: Any, size: Size) -> InstanceMasks:
    """The masks of one image of ``size`` (height, width), best first."""
    _refuse_windows(processor)
    read = processor.post_process_instance_segmentation
    if "return_binary_maps" not in inspect.signature(read).parameters:
        return _from_queries(processor, outputs, size)
    shown = _on_cpu(outputs)
    found: Mapping[str, Any] = read(shown, threshold=0.0, target_sizes=[size], return_binary_maps=True)[0]
    infos = found["segments_info"]
    maps = found["segmentation"].cpu().numpy().reshape(-1, *size)[: len(infos)] > 0
    scores, labels = (np.array([info[key] for info in infos]) for key in ("score", "label_id"))
    return InstanceMasks.from_masks(maps, scores, labels)


def _on_cpu(outputs: Any) -> SimpleNamespace:
    """The queries, for processors that paint them into a map of the CPU wherever they are."""
    names = ("class_queries_logits", "masks_queries_logits")
    return SimpleNamespace(**{name: getattr(outputs, name).cpu() for name in names})


def _from_queries(processor: Any, outputs: Any, size: Size) -> InstanceMasks:
    """EoMT's: from the padded square back to the image, then the best pairs of query and class."""
    short, long = (processor.size.get(f"{which}_edge") for which in ("shortest", "longest"))
    if not short:
        raise GramLoopError(
            f"the image processor shows images in the size {dict(processor.size)}; masks of instances need shortest_edge, as "
            "the folders for instances have it"
        )
    square = (short, long or short)
    logits = F.interpolate(outputs.masks_queries_logits.float(), square, mode="bilinear", align_corners=False)
    whole = processor.unpad_image(logits, [size], processor.size)[0]  # (queries, H, W)
    masks = Masks(size, lambda chosen: whole[chosen], size[0] * size[1])
    return best_masks(outputs.class_queries_logits[0], masks, KEPT)


def _refuse_windows(processor: Any) -> None:
    if getattr(processor, "do_split_image", False):
        raise GramLoopError(
            "the image processor cuts images into windows (do_split_image), as for a class per pixel; segments and "
            "masks need a folder whose processor shows the whole image"
        )


_BLANK = np.full((64, 64, 3), 128, dtype=np.uint8)


def settle_missing(
    model: nn.Module, missing: Iterable[str], preprocess: Callable[[Any], Mapping[str, Any]], path: Path
) -> None:
    """Set missing weights to 0 where a look at a grey image does not depend on them, else refuse the model.

    Nothing that is read can be NaN and leave every output finite.
    """
    held = model.state_dict()
    lacking = [name for name in missing if name in held and held[name].is_floating_point()]
    if not lacking:
        return
    with torch.no_grad():
        for name in lacking:
            held[name].fill_(torch.nan)
        given = {name: _placed(value, model) for name, value in preprocess(_BLANK).items()}
        reads = any(not value.isfinite().all() for value in _tensors(model(**given)))
        for name in lacking:
            held[name].zero_()
    if reads:
        raise GramLoopError(
            f"{path} lacks {len(lacking)} of the model's weights, such as {lacking[0]}; its config.json and weights come "
            "from one save_pretrained of a whole model"
        )


def _placed(value: Any, model: nn.Module) -> Any:
    return value.to(next(model.parameters()).device) if isinstance(value, Tensor) else value


def _tensors(output: Any) -> Iterator[Tensor]:
    """Every floating-point tensor in a model's output."""
    if isinstance(output, Tensor):
        if output.is_floating_point():
            yield output
    elif isinstance(output, Mapping):
        for each in output.values():
            yield from _tensors(each)
    elif isinstance(output, list | tuple):
        for each in output:
            yield from _tensors(each)


Read = Callable[[Any, Any, list[Size]], Any]  # a processor, the model's outputs and the image's size


def _read_labels(processor: Any, outputs: Any, sizes: list[Size]) -> Any:
    return processor.post_process_semantic_segmentation(outputs, target_sizes=sizes)[0].long()


def _read_scores(outputs: Any, size: Size) -> Segmentation:
    """Labels with the probabilities of all classes, as the processor reads labels from logits."""
    logits = F.interpolate(outputs.logits.float(), size=size, mode="bilinear", align_corners=False)[0]
    scores = logits.softmax(0).cpu().numpy()
    return Segmentation(logits.argmax(0).int().cpu().numpy(), scores)


def _read_boxes(processor: Any, outputs: Any, sizes: list[Size]) -> Any:
    return processor.post_process_object_detection(outputs, threshold=0.0, target_sizes=sizes)[0]


def _read_depth(processor: Any, outputs: Any, sizes: list[Size]) -> Any:
    read = processor.post_process_depth_estimation
    # ZoeDepth cuts off the margin that it padded, and asks for the image's size to know how much
    padded = {"source_sizes": sizes} if "source_sizes" in inspect.signature(read).parameters else {}
    return read(outputs, target_sizes=sizes, **padded)[0]["predicted_depth"]


# by the kind of head in the name of the class: the task, and how the processor reads its outputs
UNIVERSAL = "ForUniversalSegmentation"  # for segments and masks too, where they are asked for
_HEADS: Mapping[str, tuple[Task, Read]] = {
    "ForSemanticSegmentation": ("semantic", _read_labels),
    UNIVERSAL: ("semantic", _read_labels),
    "ForObjectDetection": ("detection", _read_boxes),
    "ForDepthEstimation": ("depth", _read_depth),
}
_SAME_HEAD = {
    "DetrForSegmentation": UNIVERSAL,
    "MaskFormerForInstanceSegmentation": UNIVERSAL,
}
_READ_BY_TORCHVISION = {"ZoeDepthForDepthEstimation"}
_TEXT = "it takes words beside the image, and a prediction here has the image alone"
_REFUSED = {
    "OwlViTForObjectDetection": _TEXT,
    "Owlv2ForObjectDetection": _TEXT,
    "GroundingDinoForObjectDetection": _TEXT,
    "MMGroundingDinoForObjectDetection": _TEXT,
    "OmDetTurboForObjectDetection": _TEXT,
    "OneFormerForUniversalSegmentation": _TEXT,
    "VideomtForUniversalSegmentation": "it takes a video, and a prediction here has one image",
}


def load_transformers_model(
    folder: str | Path, task: Task | None = None, device: torch.device | str = "cpu"
) -> ModulePredictor[Prediction]:
    """The model of a folder that ``save_pretrained`` wrote, or that was downloaded from the hub.

    Args:
        folder: with config.json, weights and preprocessor_config.json. Nothing is fetched.
        task: refuse a model for another; models for universal segmentation predict a class per pixel, segments
            (panoptic) or masks (instance), and the first where nothing is said.
        device: where it runs. On "meta" no weight is read: the predictor tells about itself, but cannot predict.
    """
    path = Path(folder)
    name = architecture(path)
    found = chosen_task(name, path, task)
    with _opening(path):
        kind, processor = (
            _model_class(name, path),
            load_processor(path, name),
        )  # these may refuse, weights take long
        model, missing = _model(kind, path, torch.device(device))
    labels = {} if found == "depth" else model.config.id2label
    classes: Classes = {int(number): str(label) for number, label in labels.items()}
    taken = inspect.signature(model.forward).parameters

    def steps(processor: Any, scores: bool = False) -> Steps[Prediction]:
        def preprocess(pixels: RGB) -> Mapping[str, Any]:
            _refuse_huge(processor, pixels.shape[0], pixels.shape[1], name)
            given = processor(images=pixels, return_tensors="pt")
            return {key: value for key, value in given.items() if key in taken}

        plain = output_reader(name, found, processor, model.config, classes)

        def postprocess(outputs: object, size: Size) -> Prediction:
            return _read_scores(outputs, size) if scores else plain(outputs, size)

        return preprocess, postprocess

    preprocess, postprocess = steps(processor)
    with _opening(path):
        settle_missing(model, missing, preprocess, path)
    predictor = ModulePredictor(model, preprocess, postprocess, found, classes, name)
    patches = None if predictor.host is None else predictor.host.patch_embedding
    patch = 1 if patches is None else int(patches.stride[0])

    def variants(scale: float, scores: bool) -> Steps[Prediction] | None:
        changed = _scaled_processor(processor, scale, patch)
        scored = scores and name.endswith("ForSemanticSegmentation")
        return None if changed is processor and not scored else steps(changed, scored)

    predictor.variants, predictor.has_size = variants, bool(_sides(processor))
    predictor.things = thing_numbers(classes) if found == "panoptic" else frozenset()
    return predictor


def chosen_task(name: str, path: Path, asked: Task | None) -> Task:
    """What an architecture predicts: as asked, if it can, otherwise what its head is for."""
    found = _head(name, path)[0]
    if asked in ("panoptic", "instance") and _kind(name) == UNIVERSAL:
        found = asked
    if asked is not None and found != asked:
        raise GramLoopError(f"{path} holds {name}, a model for {found}, not for {asked}")
    return found


def output_reader(
    name: str, task: Task, processor: Any, config: Any, classes: Classes
) -> Callable[[Any, Size], Prediction]:
    """What turns the outputs of an architecture, and the image's size, into a prediction."""
    read = _HEADS[_kind(name) or UNIVERSAL][1]
    inverse = _is_inverse(name, config)

    def postprocess(outputs: Any, size: Size) -> Prediction:
        if task == "panoptic":
            return read_segments(processor, outputs, size, classes)
        if task == "instance":
            return read_masks(processor, outputs, size)
        prediction = read_prediction(read(processor, outputs, [size]), size, name)
        return replace(prediction, disparity=inverse) if isinstance(prediction, Depth) else prediction

    return postprocess


def _sides(processor: Any, of: str = "size") -> dict[str, int]:
    """The sides, in pixels, that a processor resizes or crops images to; empty if it leaves their size alone."""
    size = getattr(processor, of, None)
    if size is None or isinstance(size, int) or not getattr(processor, "do_resize", True):
        return {}
    return {key: int(side) for key, side in dict(size).items() if side and "pixels" not in key}


def _scaled_processor(processor: Any, factor: float, patch: int) -> Any:
    """A processor for images ``factor`` times as large, rounded to whole patches; itself if that is the same size."""

    def scaled(sides: Mapping[str, int]) -> dict[str, int]:
        return {key: max(1, int(side * factor / patch + 0.5)) * patch for key, side in sides.items()}

    sides = _sides(processor)
    if factor == 1 or scaled(sides) == sides:
        return processor
    changed = copy.copy(processor)
    changed.size = processor.size | scaled(sides)
    if getattr(processor, "do_center_crop", False) and (crop := _sides(processor, "crop_size")):
        changed.crop_size = processor.crop_size | scaled(crop)
    return changed


def _refuse_huge(processor: Any, height: int, width: int, name: str) -> None:
    """Refuse a strip that the processor would enlarge beyond any memory: by its short side, without a longest one."""
    size = getattr(processor, "size", None) or {}
    sides = {key: size[key] for key in ("shortest_edge", "longest_edge") if size.get(key)}
    if set(sides) == {"shortest_edge"} and getattr(processor, "do_resize", True):
        shown = short_side_size(height, width, int(sides["shortest_edge"]))
        if shown[0] * shown[1] > LARGEST:
            raise GramLoopError(
                f"an image of {width} x {height} is too narrow for {name}: its processor would enlarge it to "
                f"{shown[1]:,} x {shown[0]:,} pixels; cut it into pieces"
            )


def architecture(path: Path) -> str:
    """The class that a folder's config.json names."""
    file = path / "config.json"
    if not file.is_file():
        raise GramLoopError(
            f"{file} is missing; a transformers folder has it, with weights and an image processor"
        )
    names = read_config(path).get("architectures") or []
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise GramLoopError(
            f"{file} names no architecture, so the task is not known; save the whole model, not a part"
        )
    return names[0]


def read_config(path: Path) -> dict[str, Any]:
    """The config.json of a folder, as plain values."""
    file, what = path / "config.json", "a configuration that transformers wrote"
    return checked(read_json(file, what), dict[str, Any], str(file), what)


def _kind(name: str) -> str | None:
    return _SAME_HEAD.get(name) or next((head for head in _HEADS if name.endswith(head)), None)


def _head(name: str, path: Path) -> tuple[Task, Read]:
    kind = _kind(name)
    if name in _REFUSED:
        raise GramLoopError(f"{path} holds {name}, which cannot be evaluated: {_REFUSED[name]}")
    if kind is None:
        raise GramLoopError(
            f"{path} holds {name}, which predicts nothing that can be evaluated; there are models "
            f"{', '.join(_HEADS)}"
        )
    return _HEADS[kind]


def _is_inverse(name: str, config: Any) -> bool:
    """Whether depth is predicted as its inverse, in no unit: DPT as MiDaS trained it, and relative Depth Anything."""
    kind = getattr(config, "depth_estimation_type", None)
    return kind == "relative" or (kind is None and name.startswith("DPT"))


def _model_class(name: str, path: Path) -> Any:
    import transformers

    kind = getattr(transformers, name, None)
    if kind is None:
        raise GramLoopError(
            f"transformers {transformers.__version__} has no {name}, which {path / 'config.json'} names"
        )
    return kind


def _model(kind: Any, path: Path, device: torch.device) -> tuple[Any, list[str]]:
    """The model, and the names of weights that the folder does not hold."""
    if device.type == "meta":
        with torch.device("meta"):
            model = kind(kind.config_class.from_pretrained(path, local_files_only=True))
        return model.eval().requires_grad_(False), []
    model, told = kind.from_pretrained(
        path, local_files_only=True, dtype=torch.float32, output_loading_info=True
    )
    refuse_unsound(model, path)
    return model.to(device).eval().requires_grad_(False), sorted(told["missing_keys"])


def load_processor(path: Path, name: str) -> Any:
    """The image processor of a folder."""
    from transformers import AutoImageProcessor
    from transformers.utils import is_torchvision_available

    if not any((path / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
        raise GramLoopError(
            f"{path / 'preprocessor_config.json'} is missing: the image processor says how images are shown to the model"
        )
    if name in _READ_BY_TORCHVISION and not is_torchvision_available():
        raise GramLoopError(f"{path} holds {name}, whose outputs are read with torchvision; install that")
    try:
        return AutoImageProcessor.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise GramLoopError(
            f"{path} needs code of its own to prepare images, which is never run; wrap the model in a function of yours"
        ) from error


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """One sentence for what transformers says about a folder, and no bars while it reads weights."""
    from transformers.utils import logging

    shown, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError) as error:
        if isinstance(error, GramLoopError):
            raise
        if "ignore_mismatched_sizes" in str(error):
            raise GramLoopError(
                f"{path} holds weights of other shapes than its config.json tells; both come from one save_pretrained"
            ) from error
        words = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
        first = re.split(r"(?<=[.!?]) ", words)[0]
        raise GramLoopError(f"transformers cannot open {path}: {first}") from error
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
