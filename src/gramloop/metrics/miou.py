"""Mean intersection over union, from whole-number counts that are kept per image.

The counts of one image are three rows of K numbers: pixels on which prediction and truth agree, pixels of the
prediction, pixels of the truth. Counts of several images add up, so any subset, complement or resample of a
set is a sum away. Arrays of them have the shape (..., 3, K), and leading axes are carried along.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.metrics.means import mean_of_known

Stacked = NDArray[Any]  # (..., 3, K): intersection, prediction, label


@dataclass(frozen=True)
class Counts:
    """Pixels per class; ignored pixels are in none of them."""

    intersection: NDArray[np.int64]  # (K,)
    prediction: NDArray[np.int64]  # (K,)
    label: NDArray[np.int64]  # (K,)

    def __post_init__(self) -> None:
        shapes = {self.intersection.shape, self.prediction.shape, self.label.shape}
        if len(shapes) != 1 or self.label.ndim != 1:
            raise GramLoopError(
                f"counts need one number per class in each row, not rows of shapes {sorted(shapes)}"
            )

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(self.stacked() + other.stacked()))

    def stacked(self) -> NDArray[np.int64]:
        """The three rows as one array, (3, K)."""
        return np.stack([self.intersection, self.prediction, self.label])


def count(prediction: NDArray[Any], truth: NDArray[Any], classes: int, ignore: int = 255) -> Counts:
    """Count one image: label maps (H, W) of class indices; pixels whose truth is ``ignore`` are left out."""
    _check_maps(prediction, truth)
    ignored = truth == ignore
    _refuse_strangers("truth", truth, ignored, classes)
    side = classes + 1  # the last row and column take what is ignored
    cells = np.where(ignored, classes, truth).ravel().astype(np.intp)
    cells *= side
    cells += np.clip(prediction, 0, classes).ravel()
    table = np.bincount(cells, minlength=side * side).reshape(side, side)  # (truth, prediction)
    if table[:classes, classes].any() or prediction.min(initial=0) < 0:
        _refuse_strangers("prediction", prediction, ignored, classes)
    scored = table[:classes]
    return Counts(
        scored.diagonal().astype(np.int64),
        scored.sum(axis=0)[:classes].astype(np.int64),
        scored.sum(axis=1).astype(np.int64),
    )


def merge(counts: Iterable[Counts]) -> Counts:
    """The counts of several images together."""
    rows = [each.stacked() for each in counts]
    if not rows:
        raise GramLoopError("no counts were given to merge")
    if len({row.shape for row in rows}) > 1:
        raise GramLoopError("counts of different numbers of classes cannot be merged")
    intersection, prediction, label = np.sum(np.stack(rows), axis=0)
    return Counts(intersection, prediction, label)


def class_iou(counts: Counts | Stacked) -> NDArray[np.float64]:
    """Intersection over union of every class in percent, (..., K); NaN for a class never seen.

    A class is seen where the truth or the prediction holds it.
    """
    stacked = _stacked(counts)
    intersection = stacked[..., 0, :].astype(np.float64)
    union = (stacked[..., 1, :] + stacked[..., 2, :] - stacked[..., 0, :]).astype(np.float64)
    share: NDArray[np.float64] = np.divide(
        intersection, union, out=np.full(union.shape, np.nan), where=union > 0
    )
    return 100 * share


def mean_iou(counts: Counts | Stacked) -> NDArray[np.float64] | np.float64:
    """The mean over classes that were seen, in percent, (...); NaN where none was."""
    mean = mean_of_known(class_iou(counts))
    return mean if mean.ndim else np.float64(mean)


def _stacked(counts: Counts | Stacked) -> Stacked:
    if isinstance(counts, Counts):
        return counts.stacked()
    if counts.ndim < 2 or counts.shape[-2] != 3:
        raise GramLoopError(f"stacked counts have the shape (..., 3, classes), not {counts.shape}")
    return counts


def _check_maps(prediction: NDArray[Any], truth: NDArray[Any]) -> None:
    if prediction.shape != truth.shape:
        raise GramLoopError(
            f"the prediction's shape is {prediction.shape}, but that of its truth is {truth.shape}"
        )
    for name, values in (("prediction", prediction), ("truth", truth)):
        if not np.issubdtype(values.dtype, np.integer):
            raise GramLoopError(f"the {name} holds {values.dtype}, not whole class numbers")


def _refuse_strangers(name: str, values: NDArray[Any], ignored: NDArray[np.bool_], classes: int) -> None:
    strangers = values[((values < 0) | (values >= classes)) & ~ignored]
    if strangers.size:
        raise GramLoopError(f"the {name} holds the class {strangers[0]}; there are classes 0..{classes - 1}")
