"""What rows keep of segments and of instance masks.

Panoptic rows hold the statistics of `gramloop.metrics.panoptic` for every category; instance rows how masks and objects
were matched, as `gramloop.metrics.matching` does it. Pictures keep the segments themselves, numbered from 1 with the
category of each, or the masks that score enough to be shown.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from gramloop.data.masks import RunLengths, mask_area
from gramloop.data.truth import ObjectMasks, SegmentMap
from gramloop.evaluate.columns import flat, matrix, owners, rows_of
from gramloop.metrics.matching import ALL, AREAS, THRESHOLDS, Matches, match_masks
from gramloop.metrics.panoptic import STATISTICS, panoptic_statistics
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic, segment_map
from gramloop.tasks.semantic import labels_png

SHOWN = 0.4  # least score of a mask that a picture keeps
CATEGORIES = "_categories"  # ending of the column beside a picture of segments
PANOPTIC = {name: pa.list_(pa.float64() if name == STATISTICS[0] else pa.int32()) for name in STATISTICS}
INSTANCE = {
    "scores": pa.list_(pa.float32()),
    "labels": pa.list_(pa.int32()),
    "found": pa.list_(pa.uint16()),  # the four ranges of areas of one mask after the other
    "counted": pa.list_(pa.uint16()),
    "truth_labels": pa.list_(pa.int32()),
    "to_find": pa.list_(pa.uint8()),
}


def panoptic_columns(
    found: Panoptic, truth: SegmentMap, categories: Sequence[int]
) -> dict[str, NDArray[np.generic]]:
    """One image's statistics, a number for each category."""
    rows = panoptic_statistics(segment_map(found), truth, categories)
    return {
        name: row if name == STATISTICS[0] else row.astype(np.int32)
        for name, row in zip(STATISTICS, rows, strict=True)
    }


def instance_columns(
    found: InstanceMasks, truth: ObjectMasks, categories: Sequence[int]
) -> dict[str, NDArray[np.generic]]:
    """How the masks of one image were matched."""
    matches = match_masks(truth, found.masks, found.scores, found.labels, categories)
    return {
        "scores": matches.scores.astype(np.float32),
        "labels": matches.labels.astype(np.int32),
        "found": matches.found.ravel(),
        "counted": matches.counted.ravel(),
        "truth_labels": matches.true_labels.astype(np.int32),
        "to_find": matches.to_find,
    }


def qualities_of(tables: Sequence[Any], method: str) -> NDArray[np.float64]:  # → (images, 4, categories)
    """The panoptic statistics of every image under a method, in order of position."""
    table = rows_of(tables, method)
    return np.stack([matrix(table[name]).astype(np.float64) for name in STATISTICS], axis=1)


def matches_of(tables: Sequence[Any], method: str) -> tuple[Matches, int]:
    """How the masks of every image were matched under a method, and the number of images, in order of position."""
    table = rows_of(tables, method)
    places = np.arange(table.num_rows)
    matches = Matches(
        owners(table["scores"], places),
        flat(table["scores"]).astype(np.float64),
        flat(table["labels"]).astype(np.int64),
        flat(table["found"]).reshape(-1, len(AREAS)),
        flat(table["counted"]).reshape(-1, len(AREAS)),
        owners(table["truth_labels"], places),
        flat(table["truth_labels"]).astype(np.int64),
        flat(table["to_find"]),
    )
    return matches, table.num_rows


def kept_segments(found: SegmentMap, column: str = "picture") -> dict[str, object]:
    """A picture of segments, numbered from 1, and the category of each."""
    return {column: labels_png(found.places()), column + CATEGORIES: found.categories.astype(np.int32)}


def segments_of(row: Mapping[str, Any], column: str = "picture") -> SegmentMap | None:
    """The segments that a row keeps, in the size of the image, or None."""
    if row.get(column) is None:
        return None
    from PIL import Image

    ids = np.asarray(Image.open(io.BytesIO(row[column]))).astype(np.int32)
    categories = np.asarray(row[column + CATEGORIES], dtype=np.int64)
    return SegmentMap(ids, np.arange(1, len(categories) + 1), categories, np.zeros(len(categories), np.bool_))


def kept_masks(found: ObjectMasks, column: str = "picture") -> dict[str, object]:
    """Masks as JSON."""
    masks = [
        {"counts": mask["counts"], "category_id": int(label)}
        for mask, label in zip(found.masks, found.categories, strict=True)
    ]
    return {column: json.dumps({"size": list(found.size), "masks": masks}).encode()}


def masks_of(row: Mapping[str, Any], column: str = "picture") -> ObjectMasks | None:
    """The masks that a row keeps, or None."""
    if row.get(column) is None:
        return None
    content = json.loads(row[column])
    size = (int(content["size"][0]), int(content["size"][1]))
    masks: list[RunLengths] = [{"size": list(size), "counts": each["counts"]} for each in content["masks"]]
    return ObjectMasks(
        tuple(masks),
        np.array([each["category_id"] for each in content["masks"]], dtype=np.int64),
        np.array([mask_area(mask) for mask in masks], dtype=np.float64),
        np.zeros(len(masks), dtype=np.bool_),
        size,
    )


def map_of(row: Mapping[str, Any], task: str, column: str = "picture") -> SegmentMap | None:
    """What a row keeps as segments that do not overlap; of masks the best lies on top."""
    if task == "panoptic":
        return segments_of(row, column)
    masks = masks_of(row, column)
    return None if masks is None else masks.as_map()


def shown_f1(row: Mapping[str, Any]) -> float:
    """F1 of one image's masks that pictures show, the mean over COCO's thresholds of overlap."""
    sure = np.asarray(row["scores"]) >= SHOWN
    hits, seen = (
        _bits(row[name]).reshape(-1, len(AREAS), len(THRESHOLDS))[sure, ALL].sum(axis=0)
        for name in ("found", "counted")
    )
    many = seen + (np.asarray(row["to_find"], dtype=np.int64) & 1 << ALL > 0).sum()  # (thresholds,)
    return float(np.divide(2 * hits, many, out=np.ones(len(THRESHOLDS)), where=many > 0).mean())


def _bits(values: Any) -> NDArray[np.bool_]:  # (n,) → (n, thresholds)
    bits: NDArray[np.bool_] = (
        np.asarray(values, dtype=np.int64)[:, None] & 1 << np.arange(len(THRESHOLDS)) > 0
    )
    return bits
