"""Dense models as transformers saves them: the architecture decides the task, the folder's processor does the rest.

The folder's image processor prepares the image and reads the outputs, with no threshold on boxes, as average precision
needs it. Classes are those of ``id2label``. Python code in a folder runs only where the user trusts it; nothing is asked
on the terminal.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import refuse_unsound
from gramloop.tasks.class_names import COCO, Classes
from gramloop.tasks.custom import (
    GREY,
    ModulePredictor,
    Postprocess,
    Preprocess,
    moved,
    read_prediction,
    tensors_of,
)
from gramloop.tasks.depth import Depth
from gramloop.tasks.images import MOST_PIXELS, RGB, short_side_size
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.released import Masks, best_masks, join_segments
from gramloop.tasks.segments import InstanceMasks, Panoptic
from gramloop.tasks.semantic import Segmentation
from gramloop.util.json_files import checked, read_json

KEPT = 100  # masks of one image
_UNIVERSAL = "ForUniversalSegmentation"  # for segments and masks too, where they are asked for
# by the kind of head in the name of the class: the task
_HEADS: Mapping[str, Task] = {
    "ForSemanticSegmentation": "semantic",
    _UNIVERSAL: "semantic",
    "ForObjectDetection": "detection",
    "ForDepthEstimation": "depth",
}
_SAME_HEAD = {"DetrForSegmentation": _UNIVERSAL, "MaskFormerForInstanceSegmentation": _UNIVERSAL}
_MORE_THAN_AN_IMAGE = ("Owl", "GroundingDino", "MMGroundingDino", "OmDetTurbo", "OneFormer", "Videomt")


def load_transformers_model(
    folder: str | Path,
    task: Task | None = None,
    device: torch.device | str = "cpu",
    *,
    trust_remote_code: bool = False,
) -> ModulePredictor:
    """The model of a folder that ``save_pretrained`` wrote, or that was downloaded from the hub; nothing is fetched.

    Another model than one for the ``task`` is refused. Models for universal segmentation predict a class per pixel,
    segments (panoptic) or masks (instance), and the first where nothing is said. On the device "meta" no weight is read.
    """
    path = Path(folder)
    name = architecture(path)
    found = chosen_task(name, path, task)
    with _opening(path):  # class and processor may refuse, and weights take long
        kind = _model_class(name, path, trust_remote_code)
        processor = load_processor(path, trust_remote_code=trust_remote_code)
        model, missing = _model(kind, path, torch.device(device))
        predictor = TransformersPredictor(model, processor, found, name)
        settle_missing(model, missing, predictor.preprocess, path)
    return predictor


class TransformersPredictor(ModulePredictor):
    """A model of transformers between the two steps of its image processor."""

    def __init__(self, model: Any, processor: Any, task: Task, name: str) -> None:
        self.model, self._processor, self._scale, self._scores = model, processor, 1.0, False
        classes = named_classes(task, model.config.id2label)
        super().__init__(model, *self._steps(processor, task, classes, name), task, classes, name)
        self.has_size = bool(_sides(processor))  # whether the size of its input can be set
        self.things = thing_numbers(classes) if task == "panoptic" else frozenset()

    def scaled(self, factor: float) -> Self:
        """The same model with an input ``factor`` times as large; itself if that is not set, or rounds to the same."""
        return self._changed(self._scale * factor, self._scores)

    def with_scores(self) -> Self:
        """The same model with scores of all classes in its predictions; itself if it gives none."""
        return self._changed(self._scale, True)

    def _changed(self, scale: float, scores: bool) -> Self:
        embedding = None if self.host is None else self.host.patch_embedding
        patch = 1 if embedding is None else int(embedding.stride[0])
        processor = _scaled_processor(self._processor, scale, patch)
        scores = scores and self.name.endswith("ForSemanticSegmentation")
        if processor is self._processor and not scores:
            return self
        changed = copy.copy(self)
        changed._scale, changed._scores = scale, scores
        changed.preprocess, read = self._steps(processor, self.task, self.classes, self.name)
        changed.postprocess = _read_scores if scores else read
        return changed

    def _steps(
        self, processor: Any, task: Task, classes: Classes, name: str
    ) -> tuple[Preprocess, Postprocess]:
        taken = inspect.signature(self.model.forward).parameters

        def preprocess(pixels: RGB) -> Mapping[str, Any]:
            _refuse_huge(processor, pixels.shape[0], pixels.shape[1], name)
            given = processor(images=pixels, return_tensors="pt")
            return {key: value for key, value in given.items() if key in taken}

        return preprocess, output_reader(name, task, processor, self.model.config, classes)


# the folder


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


def chosen_task(name: str, path: Path, asked: Task | None) -> Task:
    """What an architecture predicts: as asked, if it can, otherwise what its head is for."""
    kind = _SAME_HEAD.get(name) or next((head for head in _HEADS if name.endswith(head)), None)
    if name.startswith(_MORE_THAN_AN_IMAGE):
        raise GramLoopError(f"{path} holds {name}, which takes more than one image: words, or a video")
    if kind is None:
        raise GramLoopError(
            f"{path} holds {name}, which predicts nothing that can be evaluated; there are models {', '.join(_HEADS)}"
        )
    found = _HEADS[kind]
    if asked in ("panoptic", "instance") and kind == _UNIVERSAL:
        found = asked
    if asked is not None and found != asked:
        raise GramLoopError(f"{path} holds {name}, a model for {found}, not for {asked}")
    return found


def named_classes(task: Task, labels: Mapping[Any, object]) -> Classes:
    """The classes of ``id2label``; none of depth."""
    return {} if task == "depth" else {int(number): str(label) for number, label in labels.items()}


def thing_numbers(classes: Classes) -> frozenset[int]:
    """The classes that COCO counts as things, by name; all of them where no name is COCO's."""
    names = set(COCO.values())
    known = frozenset(number for number, name in classes.items() if name in names)
    return known or frozenset(classes)


def _model_class(name: str, path: Path, trusted: bool) -> Any:
    import transformers
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.utils import is_torchvision_available

    if name.startswith("ZoeDepth") and not is_torchvision_available():
        raise GramLoopError(f"{path} holds {name}, whose outputs are read with torchvision; install that")
    places = read_config(path).get("auto_map", {}).values()
    own = [place for place in places if str(place).endswith(f".{name}")]
    if own and trusted:
        return get_class_from_dynamic_module(own[0], path, local_files_only=True)
    if not hasattr(transformers, name):
        lacks = f"transformers {transformers.__version__} has no {name}, which {path / 'config.json'} names"
        raise GramLoopError(_untrusted(path, name) if own else lacks)
    return getattr(transformers, name)


def _untrusted(path: Path, what: str) -> str:
    return (
        f"{path} has Python code of its own for {what}, which does not run unless you trust it: read it, then give "
        "--trust-remote-code (in Python trust_remote_code=True)"
    )


def _model(kind: Any, path: Path, device: torch.device) -> tuple[Any, list[str]]:
    """The model, and the names of weights that the folder does not hold."""
    if device.type == "meta":
        with torch.device("meta"):
            model = kind(kind.config_class.from_pretrained(path, local_files_only=True))
        return model.eval().requires_grad_(False), []
    how = {"local_files_only": True, "dtype": torch.float32, "output_loading_info": True}
    model, info = kind.from_pretrained(path, **how)
    refuse_unsound(model, path)
    return model.to(device).eval().requires_grad_(False), sorted(info["missing_keys"])


def load_processor(path: Path, *, trust_remote_code: bool = False) -> Any:
    """The image processor of a folder."""
    from transformers import AutoImageProcessor

    if not any((path / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
        raise GramLoopError(
            f"{path / 'preprocessor_config.json'} is missing: the image processor resizes and normalises images"
        )
    how = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    try:
        return AutoImageProcessor.from_pretrained(path, **how)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise GramLoopError(_untrusted(path, "its image processor")) from error


@contextmanager
def _opening(path: Path) -> Iterator[None]:
    """One-line errors for what transformers raises about a folder, and no progress bars while it reads weights."""
    from transformers.utils import logging

    had_bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, TypeError) as error:
        if isinstance(error, GramLoopError):
            raise
        if "ignore_mismatched_sizes" in str(error):
            raise GramLoopError(
                f"{path} holds weights of other shapes than its config.json says; both come from one save_pretrained"
            ) from error
        words = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
        first = re.split(r"(?<=[.!?]) ", words)[0]
        raise GramLoopError(f"transformers cannot open {path}: {first}") from error
    finally:
        logging.set_verbosity(level)
        if had_bars:
            logging.enable_progress_bar()


def settle_missing(model: nn.Module, missing: Iterable[str], preprocess: Preprocess, path: Path) -> None:
    """Set missing weights to 0 where the outputs for a grey image do not depend on them, else refuse the model.

    Nothing that is read can be NaN and leave every output finite.
    """
    held = model.state_dict()
    lacking = [name for name in missing if name in held and held[name].is_floating_point()]
    if not lacking:
        return
    with torch.no_grad():
        for name in lacking:
            held[name].fill_(torch.nan)
        outputs = model(**moved(preprocess(GREY), next(model.parameters()).device))
        reads = any(not each.isfinite().all() for each in tensors_of(outputs) if each.is_floating_point())
        for name in lacking:
            held[name].zero_()
    if reads:
        raise GramLoopError(
            f"{path} lacks {len(lacking)} of the model's weights, such as {lacking[0]}; its config.json and weights come "
            "from one save_pretrained of a whole model"
        )


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
    sides = _sides(processor)
    high, wide = short_side_size(height, width, sides.get("shortest_edge", 1))
    if set(sides) == {"shortest_edge"} and high * wide > MOST_PIXELS:
        raise GramLoopError(
            f"an image of {width} x {height} is too narrow for {name}: its processor would enlarge it to "
            f"{wide:,} x {high:,} pixels; cut it into pieces"
        )


# outputs


def output_reader(
    name: str, task: Task, processor: Any, config: Any, classes: Classes
) -> Callable[[Any, tuple[int, int]], Prediction]:
    """What turns the outputs of an architecture, and the image's size, into a prediction."""
    kind = getattr(config, "depth_estimation_type", None)
    # DPT as MiDaS trained it, and relative Depth Anything, predict depth as its inverse, in no unit
    inverse = kind == "relative" or (kind is None and name.startswith("DPT"))

    def postprocess(outputs: Any, size: tuple[int, int]) -> Prediction:
        if task == "panoptic":
            return read_segments(processor, outputs, size, classes)
        if task == "instance":
            return read_masks(processor, outputs, size)
        if task == "depth":
            return Depth(_read_depth(processor, outputs, size), disparity=inverse)
        if task == "detection":
            read = processor.post_process_object_detection
            found = read(outputs, threshold=0.0, target_sizes=[size])[0]
        else:
            found = processor.post_process_semantic_segmentation(outputs, target_sizes=[size])[0].long()
        return read_prediction(found, size, name)

    return postprocess


def _read_scores(outputs: Any, size: tuple[int, int]) -> Segmentation:
    """Labels with the probabilities of all classes, as the processor reads labels from logits."""
    logits = F.interpolate(outputs.logits.float(), size=size, mode="bilinear", align_corners=False)[0]
    return Segmentation(logits.argmax(0).int().cpu().numpy(), logits.softmax(0).cpu().numpy())


def _read_depth(processor: Any, outputs: Any, size: tuple[int, int]) -> Any:
    read = processor.post_process_depth_estimation
    # ZoeDepth cuts off the margin that it padded, and asks for the image's size to know how much
    padded = {"source_sizes": [size]} if "source_sizes" in inspect.signature(read).parameters else {}
    found: Tensor = read(outputs, target_sizes=[size], **padded)[0]["predicted_depth"]
    return found.float().cpu().numpy()


def read_segments(processor: Any, outputs: Any, size: tuple[int, int], classes: Classes) -> Panoptic:
    """The segments of one image of ``size`` (height, width)."""
    _refuse_windows(processor)
    read = processor.post_process_panoptic_segmentation
    fuses = "label_ids_to_fuse" in inspect.signature(read).parameters
    found = read(outputs, target_sizes=[size], **({"label_ids_to_fuse": set()} if fuses else {}))[0]
    given = found["segmentation"].cpu().numpy()
    infos = found["segments_info"]
    masks = ((given == info["id"], int(info["label_id"]), float(info["score"])) for info in infos)
    return join_segments(masks, size, thing_numbers(classes))


def read_masks(processor: Any, outputs: Any, size: tuple[int, int]) -> InstanceMasks:
    """The masks of one image of ``size`` (height, width), best first."""
    _refuse_windows(processor)
    read = processor.post_process_instance_segmentation
    if "return_binary_maps" not in inspect.signature(read).parameters:
        return _from_queries(processor, outputs, size)
    # processors paint queries into a map of the CPU wherever they are
    names = ("class_queries_logits", "masks_queries_logits")
    on_cpu = SimpleNamespace(**{name: getattr(outputs, name).cpu() for name in names})
    found = read(on_cpu, threshold=0.0, target_sizes=[size], return_binary_maps=True)[0]
    infos = found["segments_info"]
    maps = found["segmentation"].cpu().numpy().reshape(-1, *size)[: len(infos)] > 0
    scores, labels = (np.array([info[key] for info in infos]) for key in ("score", "label_id"))
    return InstanceMasks.from_masks(maps, scores, labels)


def _from_queries(processor: Any, outputs: Any, size: tuple[int, int]) -> InstanceMasks:
    """EoMT's: from the padded square back to the image, then the best pairs of query and class."""
    short, long = (processor.size.get(f"{which}_edge") for which in ("shortest", "longest"))
    if not short:
        raise GramLoopError(
            f"the image processor shows images in the size {dict(processor.size)}; masks of instances need shortest_edge"
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
