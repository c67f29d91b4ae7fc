"""One unit's statistics as an Arrow table: a row for each image and method, from which every score follows.

Segmentation rows hold pixels per class (intersection, prediction, label), detection rows all boxes, scores
and labels together with the truth. Rows are complete in themselves: no score needs the images again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from gramloop.data.records import Task
from gramloop.metrics.boxes import Detections, Truth
from gramloop.metrics.miou import Counts

_COMMON = {"position": pa.int32(), "image_id": pa.string(), "method": pa.string(), "blocks": pa.int32()}
_DIAGNOSTICS = {"drift": pa.list_(pa.float32()), "gate": pa.list_(pa.float32())}  # means, one per replay
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
SCHEMAS: Mapping[Task, Any] = {
    "semantic": pa.schema({**_COMMON, **_SEMANTIC, **_DIAGNOSTICS}),
    "detection": pa.schema({**_COMMON, **_DETECTION, **_DIAGNOSTICS}),
}


@dataclass(frozen=True)
class Failure:
    """An image that could not be used, and why; it counts for no method."""

    position: int
    image_id: str
    reason: str


@dataclass
class Rows:
    """Statistics as they come in, and the table they become."""

    task: Task
    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, position: int, image_id: Any, method: str, found: Any, statistics: Mapping[str, Any]
    ) -> None:
        """One image under one method; ``found`` is its prediction, for blocks and the replay's maps."""
        row: dict[str, Any] = {
            "position": position,
            "image_id": str(image_id),
            "method": method,
            "blocks": found.blocks,
            "drift": [],
            "gate": [],
            **statistics,
        }
        if found.trace is not None:
            for name in _DIAGNOSTICS:
                maps = getattr(found.trace, name)  # (K, h, w)
                row[name] = maps.mean(axis=(1, 2), dtype=np.float64).astype(np.float32)
        self.rows.append(row)

    def table(self) -> Any:
        """The Arrow table, rows in order of image and method as they came."""
        return pa.Table.from_pylist(self.rows, schema=SCHEMAS[self.task])


def segmentation_row(counts: Counts) -> dict[str, Any]:
    """The statistics of one predicted label map."""
    return {"intersection": counts.intersection, "prediction": counts.prediction, "label": counts.label}


def detection_row(found: Any, truth: Any) -> dict[str, Any]:
    """The statistics of one image's boxes: a ``Detection`` and the ``Instances`` of its record."""
    return {
        "boxes": found.boxes.astype(np.float32).ravel(),
        "scores": found.scores.astype(np.float32),
        "labels": found.labels.astype(np.int32),
        "truth_boxes": truth.boxes.ravel(),
        "truth_labels": truth.categories.astype(np.int32),
        "truth_areas": truth.areas,
        "truth_crowd": truth.iscrowd,
    }


def counts_of(tables: Sequence[Any], method: str) -> NDArray[np.int64]:  # → (images, 3, classes)
    """The counts of every image under a method, in order of position."""
    table = _rows_of(tables, method)
    return np.stack([_matrix(table[name]) for name in _SEMANTIC], axis=1)


def boxes_of(tables: Sequence[Any], method: str, categories: Sequence[int]) -> tuple[Truth, Detections]:
    """Truth and detections of every image under a method; an image's number is its position."""
    table = _rows_of(tables, method)
    positions = table["position"].to_numpy()
    owners = {name: _owners(table[name], positions) for name in ("scores", "truth_labels")}
    truth = Truth(
        images=positions.tolist(),
        categories=sorted(categories),
        image_ids=owners["truth_labels"],
        boxes=_flat(table["truth_boxes"]).reshape(-1, 4),
        labels=_flat(table["truth_labels"]).astype(np.int64),
        areas=_flat(table["truth_areas"]),
        crowd=_flat(table["truth_crowd"]).astype(np.bool_),
    )
    found = Detections.from_corners(
        owners["scores"],
        _flat(table["boxes"]).reshape(-1, 4),
        _flat(table["scores"]),
        _flat(table["labels"]).astype(np.int64),
    )
    return truth, found


def content_digest(table: Any) -> str:
    """A checksum over the values, whatever the file around them looks like."""
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table[name]
        if pa.types.is_list(column.type):
            digest.update(column.combine_chunks().value_lengths().to_numpy(zero_copy_only=False).tobytes())
            digest.update(_flat(column).tobytes())
        else:
            digest.update("\n".join(map(str, column.to_pylist())).encode())
    return digest.hexdigest()


def _rows_of(tables: Sequence[Any], method: str) -> Any:
    import pyarrow.compute as pc  # type: ignore[import-untyped]

    table = pa.concat_tables(tables)
    chosen = table.filter(pc.equal(table["method"], method)).sort_by("position")
    return chosen.combine_chunks()


def _flat(column: Any) -> NDArray[Any]:
    flat: NDArray[Any] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat


def _matrix(column: Any) -> NDArray[np.int64]:  # → (rows, K)
    flat = _flat(column)
    return flat.reshape(len(column), -1) if len(column) else flat.reshape(0, 0)


def _owners(column: Any, positions: NDArray[Any]) -> NDArray[Any]:
    lengths = column.combine_chunks().value_lengths().to_numpy(zero_copy_only=False)
    return np.repeat(positions, lengths)
