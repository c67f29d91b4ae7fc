"""One unit's rows as an Arrow table: the statistics of each image under one method, from which every score follows.

What a row holds of a task is the task's own (`gramloop.tasks.base.Task.columns`). The first images of a condition also
keep what a figure shows, so that no figure needs the model again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Unit, Workload
from gramloop.metrics.scores import NoScoreError
from gramloop.tasks.base import AnyTask, Rows
from gramloop.tasks.prediction import Prediction, ReplayMaps
from gramloop.tasks.predictor import per_patch

LONGEST = 64  # cells along the long side of a kept map
CLEAN_PREFIX = "clean_"  # of a picture's columns: what a prediction was compared with, where that is no label
_COMMON = {"position": pa.int32(), "image_id": pa.string(), "blocks": pa.int32()}
_MEASURED = {
    "drift": pa.list_(pa.float32()),  # with diagnostics: means over all patches, one per replay
    "gate": pa.list_(pa.float32()),
    "post_drift": pa.float32(),  # the mean of the state that was accepted in the end
}
_MAPS = {
    "map_size": pa.list_(pa.int32()),  # height and width
    "maps": pa.binary(),  # float32 (4, height, width), those of `KeptMaps`; nan for no map
}


@dataclass(frozen=True)
class Failure:
    """An image without a row, and why."""

    position: int
    image_id: str
    reason: str


@dataclass(frozen=True)
class Facts:
    """What a unit cost: for cost tables, and no part of the scores."""

    seconds: float  # of this method's calls, over all images; 0 where it came with those of `paired_with`
    paired_with: str  # the method predicted in the same calls, or nothing
    wall_seconds: float  # of the whole part, all methods and the handling of images included
    peak_memory: int  # bytes while the part ran, of the process, or of the GPU where one was used
    device: str
    host: str


@dataclass(frozen=True)
class KeptMaps:
    """A replay's maps of one image, a value per patch, or per cell of an image of more than 64 patches a side."""

    first_drift: NDArray[np.float32]  # (h, w), of the first proposal
    last_drift: NDArray[np.float32]  # (h, w), of the last one
    last_gate: NDArray[np.float32]  # (h, w), of the last replay
    post_drift: NDArray[np.float32] | None  # (h, w), of what was accepted in the end, where measured


def unit_schema(task: AnyTask, label_free: bool) -> Any:
    """The columns of a unit's table; without labels the pictures keep what they were compared with."""
    pictures = {name: _type(kind) for name, kind in task.picture_columns.items()}
    clean = {f"{CLEAN_PREFIX}{name}": kind for name, kind in pictures.items()} if label_free else {}
    statistics = {name: _type(kind) for name, kind in task.columns.items()}
    return pa.schema({**_COMMON, **statistics, **_MEASURED, **pictures, **clean, **_MAPS})


def _type(kind: str) -> Any:
    return pa.list_(pa.type_for_alias(kind[:-2])) if kind.endswith("[]") else pa.type_for_alias(kind)


def keeps_picture(workload: Workload, position: int, image_id: str) -> bool:
    """Whether an image keeps what figures show."""
    return position < workload.pictures or image_id in workload.keep


@dataclass
class UnitRows:
    """The rows of one unit as its images come in."""

    workload: Workload
    task: AnyTask
    unit: Unit
    numbers: Mapping[int, int] | None = None  # of the set by those of the model's classes, where they differ
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)  # images that count for no method
    refused: list[Failure] = field(default_factory=list)  # images that this method alone could not predict

    def add(self, position: int, image_id: str, prediction: Prediction, truth: object) -> None:
        """One image; an image whose prediction cannot be scored is left out for all methods."""
        task, workload = self.task, self.workload
        if not isinstance(prediction, task.prediction):
            raise GramLoopError(f"a {type(prediction).__name__} cannot be scored as {task.name}")
        if self.numbers:
            prediction = task.renumber(prediction, self.numbers)
        try:
            prediction = task.align(prediction, truth, workload.alignment)
            statistics = task.statistics(prediction, truth, workload.categories)
        except NoScoreError as error:
            self.failures.append(Failure(position, image_id, f"{self.unit.method.name}: {error}"))
            return
        row: dict[str, Any] = {
            "position": position,
            "image_id": image_id,
            "blocks": prediction.blocks,
            **{"drift": [], "gate": [], "map_size": []},
            **statistics,
        }
        if workload.diagnostics and prediction.trace is not None:
            row.update(_means(prediction.trace))
        if keeps_picture(workload, position, image_id):
            kept = task.encode(prediction)
            row.update(kept)
            if workload.label_free and kept:
                encoded = task.encode(task.as_prediction(truth))
                row.update({f"{CLEAN_PREFIX}{name}": value for name, value in encoded.items()})
            if prediction.trace is not None:
                row.update(_kept(prediction.trace))
        self.rows.append(row)

    def table(self) -> Any:
        """The Arrow table."""
        self.rows.sort(key=lambda row: row["position"])  # images of one size are predicted together
        return pa.Table.from_pylist(self.rows, schema=unit_schema(self.task, self.workload.label_free))


@dataclass(frozen=True)
class MethodRows:
    """The stored rows of one method on images of one condition, in order of position."""

    task: AnyTask
    table: Any  # pyarrow.Table with the columns of `unit_schema`
    failures: tuple[Failure, ...]
    refused: tuple[Failure, ...]
    facts: tuple[Facts, ...]  # of each unit

    @cached_property
    def rows(self) -> Rows:
        """The statistics, as `Task.score` and `Task.scorer` take them."""
        values: dict[str, NDArray[Any]] = {}
        lengths: dict[str, NDArray[np.int64]] = {}
        for name in self.task.columns:
            column = self.table[name].combine_chunks()
            if pa.types.is_list(column.type):
                lengths[name] = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
                column = column.flatten()
            values[name] = column.to_numpy(zero_copy_only=False)
        return Rows(self.table.num_rows, values, lengths)

    @property
    def positions(self) -> list[int]:
        """Of the images, rising."""
        return self.column("position")

    @property
    def image_ids(self) -> list[str]:
        """Of the images."""
        return self.column("image_id")

    @property
    def blocks(self) -> list[int]:
        """Transformer blocks executed for each image, per view."""
        return self.column("blocks")

    def column(self, name: str) -> list[Any]:
        """Any column, such as post_drift, as plain values."""
        found: list[Any] = self.table[name].to_pylist()
        return found

    def first(self, count: int, ids: Collection[str] = ()) -> list[dict[str, Any]]:
        """The rows of images at positions below ``count`` or with these ids, with what figures show of them."""
        named = zip(self.positions, self.image_ids, strict=True)
        few = [place for place, (position, name) in enumerate(named) if position < count or name in ids]
        found: list[dict[str, Any]] = self._take(few).to_pylist()
        return found

    def _take(self, places: Sequence[int]) -> Any:
        return self.table.take(pa.array(places, pa.int64()))

    def without(self, positions: set[int]) -> MethodRows:
        """The rows of all other images."""
        if positions.isdisjoint(self.positions):
            return self
        kept = [place for place, position in enumerate(self.positions) if position not in positions]
        return replace(self, table=self._take(kept))


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
    many = len(trace.maps) // 2  # replays
    after = trace.maps[2 * many :] if len(trace.maps) % 2 else np.full_like(trace.maps[:1], np.nan)
    kept = np.concatenate([trace.maps[[0, many - 1, 2 * many - 1]], after])
    maps = per_patch(kept, trace.cell, LONGEST).astype(np.float32)
    return {"map_size": maps.shape[1:], "maps": maps.tobytes()}


def maps_of(row: Mapping[str, Any]) -> KeptMaps | None:
    """The replay's maps that a row of `MethodRows.first` keeps, or None."""
    if row["maps"] is None:
        return None
    maps = np.frombuffer(row["maps"], dtype=np.float32).reshape(4, *row["map_size"])
    return KeptMaps(maps[0], maps[1], maps[2], None if np.isnan(maps[3]).all() else maps[3])


def content_digest(table: Any) -> str:
    """A checksum over the values, whatever the format of the file."""
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table[name]
        if pa.types.is_list(column.type):
            column = column.combine_chunks()
            digest.update(column.value_lengths().to_numpy(zero_copy_only=False).tobytes())
            digest.update(column.flatten().to_numpy(zero_copy_only=False).tobytes())
        elif pa.types.is_binary(column.type):
            for value in column.to_pylist():
                digest.update(b"-" if value is None else b"%d:%b" % (len(value), value))
        else:
            digest.update("\n".join(map(str, column.to_pylist())).encode())
    return digest.hexdigest()
