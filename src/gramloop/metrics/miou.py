"""Mean intersection over union, from whole-number counts that are kept per image.

The counts of one image are three rows of K numbers: pixels on which prediction and truth agree, pixels of the
prediction, pixels of the truth. Counts of several images add up, so any subset, complement or resample of a set is a sum
away. Arrays of them have the shape (..., 3, K), and leading axes are carried along.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError

Stacked = NDArray[Any]  # (..., 3, K): intersection, prediction, label


def count_pixels(
    prediction: NDArray[Any], truth: NDArray[Any], classes: int, ignore: int = 255
) -> NDArray[np.int64]:
    """Count the pixels of one image.

    Args:
        prediction: class indices, (H, W).
        truth: class indices, (H, W).
        classes: how many there are.
        ignore: the value in ``truth`` of pixels that are left out.

    Returns:
        (3, classes): intersection, prediction and label; ignored pixels are in none of them.
    """
    _check_maps(prediction, truth)
    ignored = truth == ignore
    _check_classes("truth", truth, ignored, classes)
    side = classes + 1  # the last row and column take what is ignored
    cells = np.where(ignored, classes, truth).ravel().astype(np.intp)
    cells *= side
    cells += np.clip(prediction, 0, classes).ravel()
    table = np.bincount(cells, minlength=side * side).reshape(side, side)  # (truth, prediction)
    if table[:classes, classes].any() or prediction.min(initial=0) < 0:
        _check_classes("prediction", prediction, ignored, classes)
    scored = table[:classes, :classes]
    return np.stack([scored.diagonal(), scored.sum(axis=0), table[:classes].sum(axis=1)]).astype(np.int64)


def class_iou(counts: Stacked) -> NDArray[np.float64]:
    """Intersection over union of every class in percent, (..., K); NaN for a class in neither truth nor prediction."""
    if counts.ndim < 2 or counts.shape[-2] != 3:
        raise GramLoopError(f"counts have the shape (..., 3, classes), not {counts.shape}")
    intersection = counts[..., 0, :].astype(np.float64)
    union = (counts[..., 1, :] + counts[..., 2, :] - counts[..., 0, :]).astype(np.float64)
    share: NDArray[np.float64] = np.divide(
        intersection, union, out=np.full(union.shape, np.nan), where=union > 0
    )
    return 100 * share


def mean_iou(counts: Stacked) -> NDArray[np.float64] | np.float64:
    """The mean over classes that were seen, in percent, (...); NaN where none was."""
    mean = mean_of_known(class_iou(counts))
    return mean if mean.ndim else np.float64(mean)


def mean_of_known(values: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    """The mean along an axis without NaN; NaN where nothing is known."""
    known = ~np.isnan(values)
    total, number = np.where(known, values, 0).sum(axis=axis), known.sum(axis=axis)
    mean: NDArray[np.float64] = np.divide(
        total, number, out=np.full(np.shape(total), np.nan), where=number > 0
    )
    return mean


def _check_maps(prediction: NDArray[Any], truth: NDArray[Any]) -> None:
    if prediction.shape != truth.shape:
        raise GramLoopError(
            f"the prediction's shape is {prediction.shape}, but that of its truth is {truth.shape}"
        )
    for name, values in (("prediction", prediction), ("truth", truth)):
        if not np.issubdtype(values.dtype, np.integer):
            raise GramLoopError(f"the {name} holds {values.dtype}, not whole class numbers")


def _check_classes(name: str, values: NDArray[Any], ignored: NDArray[np.bool_], classes: int) -> None:
    unknown = values[((values < 0) | (values >= classes)) & ~ignored]
    if unknown.size:
        raise GramLoopError(f"the {name} holds the class {unknown[0]}; there are classes 0..{classes - 1}")
