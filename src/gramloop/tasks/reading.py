"""What a model of one's own returns, read as a prediction."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import Prediction
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
