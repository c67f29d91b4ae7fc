"""Semantic and panoptic segmentation: mIoU and PQ, from statistics that are kept per image and add up.

The counts of one image are three rows of K numbers: pixels on which prediction and truth agree, pixels of the
prediction, pixels of the truth. Counts of several images add up, so any subset, complement or resample of a set is a sum
away. Arrays of them have the shape (..., 3, K), and leading axes are carried along.

Panoptic quality is PQ = SQ x RQ. A predicted segment finds a true one of its category where their intersection is more
than half of their union; so each finds at most one. Pixels without a true segment (void) are left out of the union. A true
crowd is neither found nor missed, and a prediction that finds nothing is forgiven if more than half of it lies in void and
in crowds of its own category. The statistics of one image are four rows of K numbers: the sum of the intersections over
union of segments that were found, their number, that of predictions that found nothing, and that of true segments that
were missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.truth import SegmentMap
from gramloop.errors import GramLoopError

Stacked = NDArray[Any]  # (..., 3, K): intersection, prediction, label
Chosen = NDArray[np.bool_] | slice  # of the K categories
EVERY: Chosen = slice(None)
STATISTICS = ("overlap", "found", "wrong", "missed")
QUALITIES = ("PQ", "SQ", "RQ")


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


def panoptic_statistics(
    found: SegmentMap, truth: SegmentMap, categories: Sequence[int]
) -> NDArray[np.float64]:  # (4, K)
    """The statistics of one image; segments of categories that are not listed are left out."""
    if found.ids.shape != truth.ids.shape:
        raise GramLoopError(
            f"the predicted segments have the shape {found.ids.shape}, but that of their truth is {truth.ids.shape}"
        )
    table = _overlaps(truth, found)
    both, void, union = table[1:, 1:], table[0, 1:], _union(table)
    same = truth.categories[:, None] == found.categories[None]
    match = _match(truth, found, table)
    forgiven = void + (both * (same & truth.crowd[:, None])).sum(axis=0)
    hit = match.any(axis=1)
    wrong = ~match.any(axis=0) & (2 * forgiven <= table[:, 1:].sum(axis=0))
    missed = ~hit & ~truth.crowd
    overlap = np.divide(both, union, out=np.zeros(both.shape), where=match).sum(axis=1)
    true, predicted = (
        each.categories[:, None] == np.asarray(categories, dtype=np.int64)[None] for each in (truth, found)
    )  # (segments, K)
    rows = ((overlap, true), (hit, true), (wrong, predicted), (missed, true))
    return np.stack([values.astype(np.float64) @ listed for values, listed in rows])


def found_segments(found: SegmentMap, truth: SegmentMap) -> NDArray[np.bool_]:  # (true,)
    """Which true segments are found by a predicted one."""
    return np.asarray(_match(truth, found, _overlaps(truth, found)).any(axis=1))


def _match(truth: SegmentMap, found: SegmentMap, table: NDArray[np.int64]) -> NDArray[np.bool_]:
    same = truth.categories[:, None] == found.categories[None]
    match: NDArray[np.bool_] = same & ~truth.crowd[:, None] & (2 * table[1:, 1:] > _union(table))
    return match


def _union(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Pixels in either of two segments, less those of the predicted one that are void."""
    areas = table[1:].sum(axis=1)[:, None] + table[:, 1:].sum(axis=0)[None]
    union: NDArray[np.int64] = areas - table[1:, 1:] - table[0, 1:][None]
    return union


def _overlaps(truth: SegmentMap, found: SegmentMap) -> NDArray[np.int64]:  # (1 + true, 1 + found)
    """Pixels that each true segment shares with each predicted one; the first of each stands for void."""
    across = len(found.numbers) + 1
    cells = truth.places().astype(np.int64) * across + found.places()
    table = np.bincount(cells.ravel(), minlength=(len(truth.numbers) + 1) * across)
    return table.reshape(-1, across).astype(np.int64)


def class_quality(stacked: NDArray[Any]) -> NDArray[np.float64]:  # (..., 3, K)
    """PQ, SQ and RQ of every category in percent; NaN for a category that neither truth nor prediction holds."""
    if stacked.ndim < 2 or stacked.shape[-2] != len(STATISTICS):
        raise GramLoopError(f"stacked statistics have the shape (..., 4, categories), not {stacked.shape}")
    overlap, found, wrong, missed = np.moveaxis(stacked.astype(np.float64), -2, 0)
    size = found + (wrong + missed) / 2
    seen = size > 0
    quality = np.divide(overlap, size, out=np.full(size.shape, np.nan), where=seen)
    recognition = np.divide(found, size, out=np.full(size.shape, np.nan), where=seen)
    segmentation = np.where(
        seen, np.divide(overlap, found, out=np.zeros(size.shape), where=found > 0), np.nan
    )
    return 100 * np.stack([quality, segmentation, recognition], axis=-2)


def mean_quality(stacked: NDArray[Any], chosen: Chosen = EVERY) -> NDArray[np.float64]:  # (..., 3)
    """The means over the chosen categories that were seen; NaN where none was."""
    return mean_of_known(class_quality(stacked)[..., chosen])


def pq_score(stacked: NDArray[Any]) -> Callable[[NDArray[np.int64]], NDArray[np.float64]]:
    """The PQ of one method, from statistics per image, (images, 4, K)."""
    if stacked.ndim != 3:
        raise GramLoopError(f"statistics have the shape (images, 4, categories), not {stacked.shape}")
    return lambda weights: mean_quality(np.tensordot(weights, stacked, axes=1))[:, 0]
