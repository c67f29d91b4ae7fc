"""One unit's rows as an Arrow table: the statistics of each image under one method, from which every score follows.

What a row holds of a task is the task's own (`gramloop.tasks.base.Task.columns`). The first images of a condition also
keep what a figure shows, so that no figure needs the model again.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Subject, Unit
from gramloop.metrics.depth import NoScoreError
from gramloop.tasks.base import AnyTask, Rows
from gramloop.tasks.prediction import Prediction, ReplayMaps
from gramloop.tasks.predictor import per_patch

LONGEST = 64  # cells along the long side of a kept map
CLEAN_PREFIX = (
    "clean_"  # of a picture's columns: what the prediction was compared with, where that is no label
)
_TOGETHER = 4  # calls for which the thread is woken once: waking it costs more than most of them take
_WAITING = 4  # times so many that may wait
_SWITCH = 0.0005  # seconds after which a thread yields to the model's; Python's own 0.005 would be a third of a fast model
_COMMON = {"position": pa.int32(), "image_id": pa.string(), "blocks": pa.int32()}
_MEASURED = {
    "drift": pa.list_(pa.float32()),  # with diagnostics: means over all patches, one per replay
    "gate": pa.list_(pa.float32()),
    "post_drift": pa.float32(),  # the mean of the state that was accepted in the end
    "signals": pa.string(),  # of the baseline pass, by name and block, as JSON; where the subject asks for them
}
_MAPS = {
    "map_size": pa.list_(pa.int32()),  # height and width
    "map_scales": pa.list_(pa.float32()),  # the largest value of each map of `KeptMaps`; nan for no map
    "maps": pa.binary(),  # float16 (4, height, width), divided by the scales
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
    blocks: int  # transformer blocks executed in these calls, counted
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


class UnitRows:
    """The rows of one unit as its images come in.

    failures: images that count for no method. refused: images that this method alone could not predict.
    """

    def __init__(self, subject: Subject, task: AnyTask, unit: Unit) -> None:
        self.subject, self.task, self.unit = subject, task, unit
        self.rows: list[dict[str, object]] = []
        self.failures: list[Failure] = []
        self.refused: list[Failure] = []

    def add(
        self,
        position: int,
        image_id: str,
        prediction: Prediction,
        truth: object,
        signals: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """One image; an image whose prediction cannot be scored is left out for all methods."""
        task, subject = self.task, self.subject
        if not isinstance(prediction, task.prediction):
            raise GramLoopError(f"a {type(prediction).__name__} cannot be scored as {task.name}")
        try:
            prediction = task.align(prediction, truth, subject.alignment)
            statistics = task.statistics(prediction, truth, subject.categories)
        except NoScoreError as error:
            self.failures.append(Failure(position, image_id, f"{self.unit.method.name}: {error}"))
            return
        row: dict[str, object] = {
            "position": position,
            "image_id": image_id,
            "blocks": prediction.blocks,
            "signals": None if signals is None else json.dumps(signals),
            **{"drift": [], "gate": [], "map_size": [], "map_scales": []},
            **statistics,
        }
        if subject.diagnostics and prediction.trace is not None:
            row.update(_means(prediction.trace))
        if subject.keeps(position, image_id):
            row.update(task.encode(prediction))
            if subject.label_free:
                row.update({f"{CLEAN_PREFIX}{name}": v for name, v in task.encode_truth(truth).items()})
            if prediction.trace is not None:
                row.update(_kept(prediction.trace))
        self.rows.append(row)

    def table(self) -> Any:
        """The Arrow table."""
        return pa.Table.from_pylist(self.rows, schema=unit_schema(self.task, self.subject.label_free))


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
        found: list[int] = self.table["position"].to_pylist()
        return found

    @property
    def image_ids(self) -> list[str]:
        """Of the images."""
        found: list[str] = self.table["image_id"].to_pylist()
        return found

    @property
    def blocks(self) -> list[int]:
        """Transformer blocks executed for each image, per view."""
        found: list[int] = self.table["blocks"].to_pylist()
        return found

    def column(self, name: str) -> list[Any]:
        """Any column, such as post_drift or signals, as plain values."""
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
        return MethodRows(self.task, self._take(kept), self.failures, self.refused, self.facts)


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


def maps_of(row: Mapping[str, Any]) -> KeptMaps | None:
    """The replay's maps that a row of `MethodRows.first` keeps, or None."""
    if row["maps"] is None:
        return None
    scales = np.asarray(row["map_scales"], dtype=np.float32)
    stored = np.frombuffer(row["maps"], dtype=np.float16).reshape(len(scales), *row["map_size"])
    maps = stored.astype(np.float32) * scales[:, None, None]
    return KeptMaps(maps[0], maps[1], maps[2], None if np.isnan(scales[3]) else maps[3])


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


class Background:
    """Runs calls one after the other: in a thread of its own, so that a GPU does not wait for them, or at once.

    Nothing is run after a call that raised: a unit that lacks a row must not be stored.
    """

    def __init__(self, threaded: bool) -> None:
        self._pool = ThreadPoolExecutor(1, "gramloop-rows") if threaded else None
        self._gathered: list[Callable[[], object]] = []
        self._pending: deque[Future[Any]] = deque()
        self._error: BaseException | None = None
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> Self:
        if self._pool is not None:
            sys.setswitchinterval(_SWITCH)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)  # what is predicted is stored, also when the run is stopped
            sys.setswitchinterval(self._interval)

    def later(self, function: Callable[..., object], *args: object) -> None:
        """Have it run before the next `call`; an error of an earlier one is raised here."""
        if self._pool is None:
            function(*args)
            return
        self._gathered.append(partial(function, *args))
        if len(self._gathered) >= _TOGETHER:
            self.call(lambda: None)

    def call(self, function: Callable[..., Any], *args: object) -> Future[Any]:
        """Have it run, after waiting where much is left to do; an error of an earlier one is raised here."""
        if self._pool is None:
            future: Future[Any] = Future()
            future.set_result(function(*args))
            return future
        while self._pending and (self._pending[0].done() or len(self._pending) >= _WAITING):
            self._pending.popleft().result()
        gathered, self._gathered = self._gathered, []
        future = self._pool.submit(self._run, [*gathered, partial(function, *args)])
        self._pending.append(future)
        return future

    def _run(self, calls: Sequence[Callable[[], object]]) -> object:
        if self._error is not None:
            raise self._error
        try:
            return [call() for call in calls][-1]
        except BaseException as error:
            self._error = error
            raise
