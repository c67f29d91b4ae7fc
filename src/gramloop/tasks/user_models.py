"""Models of one's own: a function ``make`` in a file or a package returns one, in any of three forms.

A `Predictor` is taken as it is. A torch module has ``preprocess`` (pixels -> what it is called with) and
``postprocess`` (what it returned, the image's size -> a prediction); it is replayed where one ViT is inside. Any
other callable takes pixels (H, W, 3) uint8 and returns a prediction; it cannot be replayed. ``task`` and ``classes``
are attributes of what is returned, or of ``make``.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError, UserCodeError, user_code
from gramloop.replay.cost import Cost
from gramloop.tasks.base import task_names, task_of
from gramloop.tasks.class_names import Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import RGB
from gramloop.tasks.module_predictor import ModulePredictor
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import ImagePredictor, Predictor, Replay, Tracing, check_replay
from gramloop.tasks.semantic import Segmentation

_BOXES = ("boxes", "scores", "labels")


def read_prediction(found: object, size: tuple[int, int], name: str) -> Prediction:
    """A prediction of an image of ``size`` (height, width), from one of the forms below.

    A `Prediction` is taken as it is. A class for every pixel is an integer array (H, W). Boxes in pixels (left, top,
    right, bottom) come with scores and labels, as a mapping with these names or a tuple in this order. Distances in
    metres are a floating-point array (H, W); inverse ones need ``Depth(values, disparity=True)``.
    """
    if isinstance(found, Prediction):
        return found
    if isinstance(found, Mapping) and set(_BOXES) <= set(found):
        found = tuple(found[part] for part in _BOXES)
    if isinstance(found, tuple) and len(found) == 3:
        return _detection(*(_array(part) for part in found), name=name)
    values = _array(found)
    if values.ndim == 2 and np.issubdtype(values.dtype, np.integer):
        _check_size(values, size, name)
        return Segmentation(values.astype(np.int32))
    if values.ndim == 2 and np.issubdtype(values.dtype, np.floating):
        _check_size(values, size, name)
        return Depth(values.astype(np.float32))
    raise GramLoopError(
        f"{name} returned {_said(found)}; it is an integer array (H, W) with a class for every pixel, boxes, scores and "
        "labels, or a floating-point array (H, W) with a distance in metres for every pixel"
    )


def read_classes(given: object, name: str) -> Classes:
    """Numbers and names of classes: names in order, or names by number; none where nothing is given."""
    if given is None:
        return {}
    pairs = (
        given.items()
        if isinstance(given, Mapping)
        else enumerate(given if isinstance(given, list | tuple) else ())
    )
    classes = {number: None if label is None else str(label) for number, label in pairs}
    if not classes or not all(isinstance(number, int) and number >= 0 for number in classes):
        raise GramLoopError(
            f"the classes of {name} are {given!r}; they are a list of names, or names by number"
        )
    return classes


def _detection(
    boxes: NDArray[np.generic], scores: NDArray[np.generic], labels: NDArray[np.generic], *, name: str
) -> Detection:
    many = len(scores) if scores.ndim == 1 else -1
    if (many and boxes.shape != (many, 4)) or labels.shape != (many,):
        raise GramLoopError(
            f"{name} returned boxes {boxes.shape}, scores {scores.shape} and labels {labels.shape}; they are (n, 4), "
            "(n,) and (n,)"
        )
    best = np.argsort(-scores.astype(np.float64), kind="stable")
    corners = boxes.reshape(many, 4)[best].astype(np.float32)
    return Detection(corners, scores[best].astype(np.float32), labels[best].astype(np.int64))


def _check_size(values: NDArray[np.generic], size: tuple[int, int], name: str) -> None:
    if values.shape != size:
        raise GramLoopError(
            f"{name} returned {values.shape[1]} x {values.shape[0]} pixels for an image of {size[1]} x {size[0]}; a "
            "prediction has the size of its image"
        )


def _array(value: object) -> NDArray[np.generic]:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _said(found: object) -> str:
    if isinstance(found, np.ndarray | Tensor):
        return f"{found.dtype} {tuple(found.shape)}"
    return type(found).__name__


Function = Callable[[RGB], object]
_TRIAL = 64  # side of the grey image that shows the task of a model


class FunctionPredictor(ImagePredictor[Prediction]):
    """A function from pixels to a prediction. It can be shown shifted images, and nothing inside it is replayed."""

    blocks: Sequence[nn.Module] = ()
    host = None
    taps: tuple[int, ...] = ()
    things: frozenset[int] = frozenset()  # of a panoptic model: the classes that are counted, unlike stuff

    def __init__(
        self, function: Function, task: Task | None = None, classes: object = None, name: str = "the function"
    ) -> None:
        """Without a ``task`` the function is shown a grey image, and what it returns tells."""
        self.function, self.name = function, name
        self.classes = read_classes(classes, name)
        self.task: Any = task
        if task is None:
            grey = np.full((_TRIAL, _TRIAL, 3), 128, np.uint8)
            with user_code(f"{name} failed on a grey trial image of {_TRIAL} x {_TRIAL} pixels"):
                self.task = task_of(read_prediction(function(grey), grey.shape[:2], name)).name

    def cost(self, replay: Replay = None, paired: bool = False) -> Cost:
        """A model without blocks counts as one."""
        return Cost(1, 1)

    def _versions(self, pixels: RGB, replay: Replay, paired: bool, trace: Tracing) -> list[Prediction]:
        if replay is not None:
            check_replay(self, replay)
        found = read_prediction(self.function(pixels.copy()), (pixels.shape[0], pixels.shape[1]), self.name)
        if task_of(found).name != self.task:
            raise GramLoopError(
                f"{self.name} returned a {type(found).__name__}, although its task is {self.task}"
            )
        return [found]


def load_user_model(
    spec: str, task: Task | None = None, device: torch.device | str = "cpu"
) -> Predictor[Prediction]:
    """What ``FILE.py:make`` or ``package.module:make`` returns, as a predictor.

    ``make`` is called with ``device=…`` if it takes that, and without arguments otherwise.
    """
    make = find_make(spec)
    # somebody's own code cannot be asked to read no weights
    place = torch.device("cpu" if str(device) == "meta" else device)
    with user_code(f"{spec} failed"):
        takes = "device" in inspect.signature(make).parameters
        made = make(device=place) if takes else make()
    found = as_predictor(
        made, task or getattr(make, "task", None), getattr(make, "classes", None), spec, place
    )
    if task is not None and found.task != task:
        raise GramLoopError(f"{spec} is a model for {found.task}, not for {task}")
    return found


def as_predictor(
    made: object,
    task: Task | None = None,
    classes: object = None,
    name: str | None = None,
    device: torch.device | None = None,
) -> Predictor[Prediction]:
    """A predictor, a torch module with ``preprocess`` and ``postprocess``, or a function, as a predictor."""
    if isinstance(made, Predictor):
        return made
    name = name or str(getattr(made, "__name__", type(made).__name__))
    task = getattr(made, "task", task)
    if task not in (None, *task_names()):
        raise GramLoopError(f"the task of {name} is {task!r}; it is one of {', '.join(task_names())}")
    classes = getattr(made, "classes", classes)
    found: ModulePredictor[Prediction] | FunctionPredictor
    if isinstance(made, nn.Module):
        found = _of_module(made if device is None else made.to(device), task, classes, name)
        found.things = frozenset(getattr(made, "things", ()))
        return found
    if not callable(made):
        raise GramLoopError(
            f"{name} returned {type(made).__name__}; it is a Predictor, a torch module with preprocess and postprocess, "
            "or a function from an image to a prediction"
        )
    found = FunctionPredictor(made, task, classes, name)
    found.things = frozenset(getattr(made, "things", ()))
    return found


def _of_module(
    module: nn.Module, task: Task | None, classes: object, name: str
) -> ModulePredictor[Prediction]:
    steps = {part: getattr(module, part, None) for part in ("preprocess", "postprocess")}
    if missing := [part for part, step in steps.items() if not callable(step)]:
        raise GramLoopError(
            f"{name} returned the torch module {type(module).__name__} without {' and '.join(missing)}: preprocess takes "
            "pixels (H, W, 3) uint8, postprocess what the module returned and the image's (height, width)"
        )
    before, after = steps.values()
    assert callable(before)
    assert callable(after)

    def postprocess(outputs: object, size: tuple[int, int]) -> Prediction:
        return read_prediction(after(outputs, size), size, name)

    predictor = ModulePredictor(
        module, before, postprocess, task or "semantic", read_classes(classes, name), name
    )
    if task is None:
        with user_code(f"{name} failed on a grey trial image of {_TRIAL} x {_TRIAL} pixels"):
            found: Any = task_of(predictor.predict(np.full((_TRIAL, _TRIAL, 3), 128, np.uint8))).name
        predictor.task = found
    return predictor


def find_make(spec: str) -> Callable[..., object]:
    """The function behind ``FILE.py:NAME`` or ``package.module:NAME``."""
    place, _, attribute = spec.rpartition(":")
    if not place or not attribute:
        raise GramLoopError(f"{spec!r} names no function; it is my_models.py:make or package.module:make")
    found: object = import_code(place)
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise GramLoopError(f"{place} has no function {attribute}")
    return found


def import_code(place: str) -> ModuleType:
    """The module of ``FILE.py`` or ``package.module``."""
    try:
        return _of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except GramLoopError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and place.startswith(error.name):
            raise GramLoopError(f"there is no module {error.name}, which {place} names") from error
        raise GramLoopError(f"{place} needs the package {error.name!r}, which is not installed") from error
    except Exception as error:  # of user-provided code
        raise UserCodeError.of(f"{place} cannot be imported: it failed", error) from error


def _of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise GramLoopError(f"{path} does not exist; a model of your own is FILE.py:make")
    identity = hashlib.sha256(str(path.resolve()).encode() + path.read_bytes()).hexdigest()[:16]
    name = f"_gramloop_{path.stem}_{identity}"
    if name in sys.modules:  # executed once, so that the classes it defines stay the same ones
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent.resolve()) not in sys.path:
        sys.path.append(str(path.parent.resolve()))  # what lies beside it can be imported, as for a script
    sys.modules[name] = module  # classes of it can be pickled, and dataclasses look themselves up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
