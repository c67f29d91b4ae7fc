"""One unit's statistics as an Arrow table: a row for each image and method, from which every score follows.

Segmentation rows hold pixels per class (intersection, prediction, label), detection rows all boxes, scores
and labels together with the truth, depth rows the numbers of their image; `segment_rows` has those of segments and
masks. Rows are complete in themselves: no score needs the images again. Those of a condition's first images also keep
what a figure shows, so that no figure needs the model again.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from gramloop.data.records import ImageId, Task
from gramloop.data.truth import DepthMap, Instances, ObjectMasks, PixelLabels, SegmentMap, Truth
from gramloop.errors import GramLoopError
from gramloop.evaluate.columns import compute, flat, matrix, owners, rows_of
from gramloop.evaluate.segment_rows import (
    CATEGORIES,
    INSTANCE,
    PANOPTIC,
    SHOWN,
    instance_columns,
    kept_masks,
    kept_segments,
    panoptic_columns,
)
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from gramloop.metrics.depth import Alignment, aligned_depth, depth_scores
from gramloop.metrics.miou import count_pixels
from gramloop.tasks.depth import DEPTH_STEPS, Depth, depth_png
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import InstanceMasks, object_masks
from gramloop.tasks.panoptic import Panoptic, segment_map
from gramloop.tasks.prediction import Prediction, ReplayMaps
from gramloop.tasks.semantic import Segmentation, labels_png

Statistics = Mapping[str, NDArray[np.generic] | np.float64]  # by column
LONGEST = 64  # cells along the long side of a kept map
_COMMON = {"position": pa.int32(), "image_id": pa.string(), "method": pa.string(), "blocks": pa.int32()}
_DIAGNOSTICS = {
    "drift": pa.list_(pa.float32()),  # means over all patches, one per replay
    "gate": pa.list_(pa.float32()),
    "post_drift": pa.float32(),  # the mean of the state that was accepted in the end
}
_KEPT = {
    "picture": pa.binary(),  # the predicted label map, depth in metres as `depth_png` writes it, or segments, a PNG; masks as JSON
    "map_size": pa.list_(pa.int32()),  # height and width
    "map_scales": pa.list_(pa.float32()),  # the largest value of each map of `KeptMaps`; nan for no map
    "maps": pa.binary(),  # float16 (4, height, width), divided by the scales
}
KEPT = tuple(_KEPT)
CLEAN_PICTURE = "clean_picture"  # the clean prediction as a PNG, where it is the truth of a label map
_OF_SEGMENTS = {"picture" + CATEGORIES: pa.list_(pa.int32())}
_SEMANTIC = {name: pa.list_(pa.int64()) for name in ("intersection", "prediction", "label")}
_DETECTION = {
    "boxes": pa.list_(pa.float32()),  # left, top, right, bottom of one box after the other
    "scores": pa.list_(pa.float32()),
    "labels": pa.list_(pa.int32()),
    "truth_boxes": pa.list_(pa.float64()),  # left, top, width, height, as COCO writes them
    "truth_labels": pa.list_(pa.int32()),
    "truth_areas": pa.list_(pa.float64()),
    "truth_crowd": pa.list_(pa.bool_()),
}
DEPTH = ("delta1", "delta2", "delta3", "AbsRel", "RMSE", "log10", "SILog")  # as `DepthScores` lists them
_DEPTH = {name: pa.float64() for name in DEPTH}
SCHEMAS: Mapping[Task, Any] = {
    "semantic": pa.schema({**_COMMON, **_SEMANTIC, **_DIAGNOSTICS, **_KEPT}),
    "detection": pa.schema({**_COMMON, **_DETECTION, **_DIAGNOSTICS, **_KEPT}),
    "depth": pa.schema({**_COMMON, **_DEPTH, **_DIAGNOSTICS, **_KEPT}),
    "panoptic": pa.schema({**_COMMON, **PANOPTIC, **_DIAGNOSTICS, **_KEPT, **_OF_SEGMENTS}),
    "instance": pa.schema({**_COMMON, **INSTANCE, **_DIAGNOSTICS, **_KEPT}),
}


def schema_of(task: Task, label_free: bool) -> Any:
    """The columns of a unit's table; without labels the pictures keep what they were compared with."""
    schema = SCHEMAS[task]
    if label_free:
        schema = schema.append(pa.field(CLEAN_PICTURE, pa.binary()))
    if label_free and task == "panoptic":
        schema = schema.append(pa.field(CLEAN_PICTURE + CATEGORIES, pa.list_(pa.int32())))
    return schema


@dataclass(frozen=True)
class Failure:
    """An image that could not be used, and why; it counts for no method."""

    position: int
    image_id: str
    reason: str


@dataclass(frozen=True)
class KeptMaps:
    """A replay's maps of one image, a value per patch, or per cell of an image of more than 64 patches a side."""

    first_drift: NDArray[np.float32]  # (h, w), of the first proposal
    last_drift: NDArray[np.float32]  # (h, w), of the last one
    last_gate: NDArray[np.float32]  # (h, w), of the last replay
    post_drift: NDArray[np.float32] | None  # (h, w), of what was accepted in the end, where measured


@dataclass
class Rows:
    """Statistics as they come in, and the table they become.

    diagnostics: store the means of what replays measured. pictures: so many first images keep their pictures.
    """

    task: Task
    diagnostics: bool = False
    pictures: int = 0
    rows: list[dict[str, object]] = field(default_factory=list)
    label_free: bool = False

    def add(
        self,
        position: int,
        image_id: ImageId,
        method: str,
        found: Prediction,
        statistics: Statistics,
        truth: Truth | None = None,
    ) -> None:
        """One image under one method; ``found`` is its prediction, for blocks and the replay's maps.

        ``truth`` is what it was compared with, for the pictures of a run without labels.
        """
        row: dict[str, object] = {
            "position": position,
            "image_id": str(image_id),
            "method": method,
            "blocks": found.blocks,
            "drift": [],
            "gate": [],
            "map_size": [],
            "map_scales": [],
            **statistics,
        }
        if self.diagnostics and found.trace is not None:
            row.update(_means(found.trace))
        if position < self.pictures:
            row.update(_picture(found))
            if self.label_free and truth is not None:
                row.update(_clean_picture(truth))
            if found.trace is not None:
                row.update(_kept(found.trace))
        self.rows.append(row)

    def table(self) -> Any:
        """The Arrow table, rows in order of image and method as they came."""
        return pa.Table.from_pylist(self.rows, schema=schema_of(self.task, self.label_free))


def _picture(found: Prediction) -> dict[str, object]:
    """What a figure shows of a prediction; boxes are in its row anyway."""
    if isinstance(found, Segmentation):
        return {"picture": labels_png(found.labels)}
    if isinstance(found, Depth):
        return {"picture": depth_png(found.values)}
    if isinstance(found, Panoptic):
        return kept_segments(segment_map(found))
    return kept_masks(object_masks(found, SHOWN)) if isinstance(found, InstanceMasks) else {}


def _clean_picture(truth: Truth) -> dict[str, object]:
    """What a figure shows of a clean prediction in place of labels."""
    if isinstance(truth, PixelLabels):
        return {CLEAN_PICTURE: labels_png(truth.indices.astype(np.int32))}
    if isinstance(truth, DepthMap):
        return {CLEAN_PICTURE: depth_png(truth.metres)}
    if isinstance(truth, SegmentMap):
        return kept_segments(truth, CLEAN_PICTURE)
    return kept_masks(truth, CLEAN_PICTURE) if isinstance(truth, ObjectMasks) else {}


def _means(trace: ReplayMaps) -> dict[str, object]:
    def mean(maps: NDArray[np.float32]) -> object:  # (..., h, w)
        return maps.mean(axis=(-2, -1), dtype=np.float64).astype(np.float32)

    after = trace.post_drift
    return {
        "drift": mean(trace.drift),
        "gate": mean(trace.gate),
        "post_drift": None if after is None else mean(after),
    }


def _kept(trace: ReplayMaps) -> dict[str, object]:
    from gramloop.tasks.maps import per_patch

    after = np.full_like(trace.gate[-1], np.nan) if trace.post_drift is None else trace.post_drift
    kept = np.stack([trace.drift[0], trace.drift[-1], trace.gate[-1], after])
    maps = per_patch(kept, trace.cell, LONGEST)
    scales = np.array([_scale(each) for each in maps], dtype=np.float32)
    return {
        "map_size": maps.shape[1:],
        "map_scales": scales,
        "maps": (maps / scales[:, None, None]).astype(np.float16).tobytes(),
    }


def _scale(values: NDArray[np.float32]) -> float:
    """What float16 is to see as 1; nan where there is no map."""
    finite = values[np.isfinite(values)]
    return float(finite.max() or 1.0) if finite.size else np.nan


def first_rows(tables: Sequence[Any], method: str, count: int) -> list[dict[str, Any]]:
    """The rows of a condition's first ``count`` images under a method, as `picture_of` and `maps_of` take them."""
    table = rows_of(tables, method)
    chosen: list[dict[str, Any]] = table.filter(compute().less(table["position"], count)).to_pylist()
    return chosen


def picture_of(row: Mapping[str, Any], column: str = "picture") -> NDArray[np.int32] | None:
    """The predicted label map (H, W) that a row keeps, in the size of the image, or None."""
    if row.get(column) is None:
        return None
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(row[column]))).astype(np.int32)


def depth_of(row: Mapping[str, Any], column: str = "picture") -> NDArray[np.float32] | None:
    """The predicted depth (H, W) in metres that a row keeps, aligned as it was scored, or None."""
    stored = picture_of(row, column)
    return None if stored is None else stored.astype(np.float32) / np.float32(DEPTH_STEPS)


def maps_of(row: Mapping[str, Any]) -> KeptMaps | None:
    """The replay's maps that a row keeps, or None."""
    if row["maps"] is None:
        return None
    scales = np.asarray(row["map_scales"], dtype=np.float32)
    stored = np.frombuffer(row["maps"], dtype=np.float16).reshape(len(scales), *row["map_size"])
    maps = stored.astype(np.float32) * scales[:, None, None]
    return KeptMaps(maps[0], maps[1], maps[2], None if np.isnan(scales[3]) else maps[3])


def comparable(found: Prediction, truth: Truth | None, alignment: Alignment = "auto") -> Prediction:
    """The prediction as it is compared with its truth: depth in metres and aligned, all else as it is."""
    if not isinstance(found, Depth) or not isinstance(truth, DepthMap):
        return found
    metres = aligned_depth(found.values, truth, alignment, disparity=found.disparity)
    return replace(found, values=metres.astype(np.float32), disparity=False)


def statistics_of(found: Prediction, truth: Truth | None, categories: Sequence[int]) -> Statistics:
    """What is stored of one image's prediction, made `comparable`, beside its truth: the columns of its task."""
    if isinstance(found, Segmentation) and isinstance(truth, PixelLabels):
        counts = count_pixels(found.labels, truth.indices, len(categories), truth.ignored)
        return dict(zip(_SEMANTIC, counts, strict=True))
    if isinstance(found, Detection) and isinstance(truth, Instances):
        return {
            "boxes": found.boxes.astype(np.float32).ravel(),
            "scores": found.scores.astype(np.float32),
            "labels": found.labels.astype(np.int32),
            "truth_boxes": truth.boxes.ravel(),
            "truth_labels": truth.categories.astype(np.int32),
            "truth_areas": truth.areas,
            "truth_crowd": truth.iscrowd,
        }
    if isinstance(found, Depth) and isinstance(truth, DepthMap):
        return {
            name: np.float64(value)
            for name, value in zip(DEPTH, depth_scores(found.values, truth), strict=True)
        }
    if isinstance(found, Panoptic) and isinstance(truth, SegmentMap):
        return panoptic_columns(found, truth, categories)
    if isinstance(found, InstanceMasks) and isinstance(truth, ObjectMasks):
        return instance_columns(found, truth, categories)
    raise GramLoopError(f"a {type(found).__name__} cannot be compared with {type(truth).__name__}")


def counts_of(tables: Sequence[Any], method: str) -> NDArray[np.int64]:  # → (images, 3, classes)
    """The counts of every image under a method, in order of position."""
    table = rows_of(tables, method)
    return np.stack([matrix(table[name]) for name in _SEMANTIC], axis=1)


def boxes_of(
    tables: Sequence[Any], method: str, categories: Sequence[int]
) -> tuple[GroundTruthBoxes, BoxPredictions]:
    """True and found boxes of every image under a method; an image's number is its position."""
    table = rows_of(tables, method)
    positions = table["position"].to_numpy()
    owner = {name: owners(table[name], positions) for name in ("scores", "truth_labels")}
    truth = GroundTruthBoxes(
        images=positions.tolist(),
        categories=sorted(categories),
        image_ids=owner["truth_labels"],
        boxes=flat(table["truth_boxes"]).reshape(-1, 4),
        labels=flat(table["truth_labels"]).astype(np.int64),
        areas=flat(table["truth_areas"]),
        crowd=flat(table["truth_crowd"]).astype(np.bool_),
    )
    found = BoxPredictions.from_corners(
        owner["scores"],
        flat(table["boxes"]).reshape(-1, 4),
        flat(table["scores"]),
        flat(table["labels"]).astype(np.int64),
    )
    return truth, found


def depth_scores_of(tables: Sequence[Any], method: str) -> NDArray[np.float64]:  # → (images, len(DEPTH))
    """The numbers of every image under a method, in order of position."""
    table = rows_of(tables, method)
    return np.stack([table[name].to_numpy() for name in DEPTH], axis=1)


def content_digest(table: Any) -> str:
    """A checksum over the values, whatever the file around them looks like."""
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table[name]
        if pa.types.is_list(column.type):
            digest.update(column.combine_chunks().value_lengths().to_numpy(zero_copy_only=False).tobytes())
            digest.update(flat(column).tobytes())
        elif pa.types.is_binary(column.type):
            for value in column.to_pylist():
                digest.update(b"-" if value is None else b"%d:%b" % (len(value), value))
        else:
            digest.update("\n".join(map(str, column.to_pylist())).encode())
    return digest.hexdigest()
