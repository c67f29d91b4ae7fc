"""Images read ahead of the model: compared with their checksums, decoded, shifted, with their truth.

A thread reads ahead of a model on the CPU, whose workers hold the cores already. For a GPU, processes do, for as long
as the loader lives; they are given a few images at a time, and pixels and label maps come back through shared memory.
Images arrive in the order in which they were asked for, and those that wait are bounded by count and by bytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from multiprocessing.heap import Arena
from typing import Generic, TypeVar

from gramloop.data.records import LabelledImage, Record
from gramloop.tasks.base import AnyTask, read_labelled
from gramloop.util.processes import process_context, process_pool, worker_died
from gramloop.util.shared_arrays import Buffers, Packed, Ring, pack, shared_memory, unpack

AHEAD = 4  # images that a thread reads ahead
FAR_AHEAD = 256  # that processes do: enough for light shifts to make up for a heavy one
TOGETHER = 4  # that a process is given at once: sending one costs the model's process as much as sending four
BYTES = 256 << 20  # of images that wait; one always may
_NICE = 5  # the model's process goes first: the moments that it needs keep a GPU busy
_MORE = 1 << 14  # bytes: boxes, and arrays that begin at even places

_T = TypeVar("_T")
Loaded = LabelledImage | str | MemoryError  # an image, why it cannot be used, or that memory did not suffice
_Arrived = Sequence[Loaded | Packed]


@dataclass(frozen=True)
class _Waiting(Generic[_T]):
    """An image that was asked for."""

    about: _T
    size: int
    place: int | None  # in shared memory
    future: Future[_Arrived]
    turn: int  # among those that were sent together


class Loader:
    """Reads images in ``processes`` of its own, or in a thread where that is 0."""

    def __init__(self, load_task: Callable[[], AnyTask], labels: bool, processes: int = 0) -> None:
        self.task, self._labels, self.processes = load_task(), labels, processes
        self._most = max(FAR_AHEAD, 2 * processes) if processes else AHEAD
        self._together = max(1, min(TOGETHER, self._most // (4 * processes))) if processes else 1
        self._arena = shared_memory(BYTES) if processes else None
        self._ring = Ring(self._arena.size) if self._arena is not None else None
        self._buffers, self._stack = Buffers(), ExitStack()
        self._pool: Executor | None = None
        if processes:
            pool = process_pool(processes, process_context(__name__), _start, self._arena, load_task, labels)
            started = self._pool = self._stack.enter_context(pool)
            for _ in range(processes):  # they start while the model is loaded
                started.submit(_nothing)

    def close(self) -> None:
        """End the processes."""
        self._stack.close()

    def ahead(self, wanted: Iterable[tuple[_T, Record | LabelledImage]]) -> Generator[tuple[_T, Loaded]]:
        """Every image in turn, with what was given along with its record; records are taken as there is room."""
        source, waiting = _Peekable(wanted), deque[_Waiting[_T]]()
        with ExitStack() as stack:
            pool = self._pool
            if pool is None:  # a thread of this run: it ends with it
                pool = stack.enter_context(ThreadPoolExecutor(1, "gramloop-images"))
            try:
                while True:
                    while len(waiting) <= self._most - self._together and self._send(pool, source, waiting):
                        pass
                    if not waiting:
                        return
                    yield waiting[0].about, self._receive(waiting)
            except BrokenProcessPool as error:
                raise worker_died("a process that reads images") from error
            finally:  # a place is free only when no process writes there any more
                wait([each.future for each in waiting if not each.future.cancel()])
                while waiting:
                    self._free(waiting.popleft())

    def _send(self, pool: Executor, source: _Peekable[_T], waiting: deque[_Waiting[_T]]) -> bool:
        """Ask for the next few images, as far as those that wait leave room for them."""
        records: list[Record | LabelledImage] = []
        rooms: list[tuple[_T, int, int | None]] = []
        taken = sum(each.size for each in waiting)
        while len(records) < self._together and (upcoming := source.peek()) is not None:
            about, record = upcoming
            size, others = self._bytes(record), bool(waiting or records)
            place = None
            if others and taken + size > BYTES:
                break
            if self._ring is not None and (place := self._ring.take(size)) is None and others:
                break
            taken += size
            records.append(record)
            rooms.append((about, size, place))
            source.take()
        if not records:
            return False
        if pool is self._pool:
            future = pool.submit(_load_packed, records, [(place, size) for _, size, place in rooms])
        else:
            future = pool.submit(_load, records, self.task, self._labels)
        waiting.extend(_Waiting(*room, future, turn) for turn, room in enumerate(rooms))
        return True

    def _receive(self, waiting: deque[_Waiting[_T]]) -> Loaded:
        """The first of those that wait, whose place is free then."""
        try:
            found = waiting[0].future.result()[waiting[0].turn]
            return unpack(found, self._arena, self._buffers) if isinstance(found, Packed) else found
        except MemoryError as error:
            return error
        finally:
            self._free(waiting.popleft())

    def _free(self, one: _Waiting[_T]) -> None:
        if one.place is not None and self._ring is not None:
            self._ring.give_back()

    def _bytes(self, record: Record | LabelledImage) -> int:
        if isinstance(record, LabelledImage):
            return 0  # in memory already
        return record.height * record.width * (3 + self._labels * self.task.truth_bytes) + _MORE


class _Peekable(Generic[_T]):
    """What is wanted, one after the other; the next can be seen before it is taken."""

    def __init__(self, wanted: Iterable[tuple[_T, Record | LabelledImage]]) -> None:
        self._left: Iterator[tuple[_T, Record | LabelledImage]] = iter(wanted)
        self._next: list[tuple[_T, Record | LabelledImage]] = []

    def peek(self) -> tuple[_T, Record | LabelledImage] | None:
        self._next = self._next or list(islice(self._left, 1))
        return self._next[0] if self._next else None

    def take(self) -> None:
        self._next = []


# of a process that reads images
_arena: Arena | None = None
_load_task: Callable[[], AnyTask] | None = None
_labels = True


def _start(arena: Arena | None, load_task: Callable[[], AnyTask], labels: bool) -> None:
    global _arena, _load_task, _labels
    _arena, _load_task, _labels = arena, load_task, labels
    if hasattr(os, "nice"):  # not on Windows
        os.nice(_NICE)


def _nothing() -> None:
    pass


def _load_packed(
    records: Sequence[Record | LabelledImage], places: Sequence[tuple[int | None, int]]
) -> _Arrived:
    assert _load_task is not None
    task = _load_task()
    found: list[Packed | MemoryError] = []
    for record, place in zip(records, places, strict=True):
        try:
            found.append(pack(read_labelled(record, task.name, _labels), _arena, *place))
        except MemoryError as error:  # of this image alone
            found.append(error)
    return found


def _load(records: Sequence[Record | LabelledImage], task: AnyTask, labels: bool) -> _Arrived:
    try:
        return [read_labelled(record, task.name, labels) for record in records]
    except MemoryError as error:
        return [error] * len(records)
