"""Images made ready ahead of the model: compared with their checksums, decoded, shifted, with their truth.

A thread does it beside a model that computes on the CPU, whose workers hold the cores already. Beside a GPU, processes
do it, for as long as a session lives; they are given a few images at a time, and pixels and label maps come back
through shared memory. Images arrive in the order in which they were asked for, and those that wait are bounded by count
and by bytes.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.heap import Arena
from typing import Generic, TypeVar, TypeVarTuple

from gramloop.data.records import LabelledImage, Record, Task
from gramloop.tasks.base import read_labelled
from gramloop.util.handover import Buffers, Packed, Ring, pack, shared_memory, unpack
from gramloop.util.processes import process_context, process_pool, worker_died

AHEAD = 4  # images that wait beside a thread
FAR_AHEAD = 256  # beside processes: enough for light shifts to make up for a heavy one
TOGETHER = 4  # that a process is given at once: sending one costs the model's process as much as sending four
BYTES = 256 << 20  # of images that wait; one always may
_TRUTH = {"semantic": 2, "depth": 4, "panoptic": 4}  # bytes per pixel of its map
_NICE = 5  # the model's process goes first: the moments that it needs keep a GPU busy
_MORE = 1 << 14  # bytes: boxes, and arrays that begin at even places

T = TypeVar("T")
R = TypeVar("R")
Given = TypeVarTuple("Given")
Prepared = (
    LabelledImage | str | MemoryError
)  # an image, why it cannot be used, or that memory did not suffice
_Arrived = Sequence[Prepared | Packed]


@dataclass(frozen=True)
class _Asked(Generic[T]):
    """An image that is asked for, and how much room it takes."""

    about: T
    record: Record
    size: int
    place: int | None  # in shared memory


@dataclass(frozen=True)
class _Waiting(Generic[T]):
    asked: _Asked[T]
    future: Future[_Arrived]
    turn: int  # among those that were sent together


class Preparing:
    """Prepares images of one task in ``processes`` of its own, or in a thread where that is 0."""

    def __init__(self, task: Task, labels: bool, processes: int = 0) -> None:
        self._task, self._labels, self.processes = task, labels, processes
        self._most = max(FAR_AHEAD, 2 * processes) if processes else AHEAD
        self._together = max(1, min(TOGETHER, self._most // (4 * processes))) if processes else 1
        self._arena = shared_memory(BYTES) if processes else None
        self._ring = Ring(self._arena.size) if self._arena is not None else None
        self._buffers = Buffers()
        self._stack = ExitStack()
        self._pool: Executor | None = None
        if processes:
            pool = process_pool(processes, process_context(__name__), _start, self._arena)
            started = self._pool = self._stack.enter_context(pool)
            for _ in range(processes):  # they start while the model is loaded
                started.submit(_nothing)

    def ahead(self, wanted: Iterable[tuple[T, Record]]) -> Generator[tuple[T, Prepared]]:
        """Every image in turn, with what was said about its record; the next records are asked for as there is room."""
        source = _Source(wanted)
        waiting: deque[_Waiting[T]] = deque()
        with ExitStack() as stack:
            pool = self._pool
            if pool is None:  # a thread of this run: it ends with it
                pool = stack.enter_context(ThreadPoolExecutor(1, "gramloop-images"))
            try:
                while True:
                    while len(waiting) <= self._most - self._together:
                        if not (asked := self._room_for(source, [each.asked for each in waiting])):
                            break
                        future = self._send(pool, asked)
                        waiting.extend(_Waiting(each, future, turn) for turn, each in enumerate(asked))
                    if not waiting:
                        return
                    yield waiting[0].asked.about, self._receive(waiting)
            except BrokenProcessPool as error:
                raise worker_died("a process that prepares images") from error
            finally:
                self._drop(waiting)

    def _room_for(self, source: _Source[T], waiting: Sequence[_Asked[T]]) -> list[_Asked[T]]:
        """The next few images, as far as those that wait leave room for them."""
        found: list[_Asked[T]] = []
        taken = sum(each.size for each in waiting)
        while len(found) < self._together and (upcoming := source.upcoming()) is not None:
            about, record = upcoming
            size = record.height * record.width * (3 + self._labels * _TRUTH.get(self._task, 0)) + _MORE
            others, place = bool(waiting or found), None
            if others and taken + size > BYTES:
                break
            if self._ring is not None and (place := self._ring.take(size)) is None and others:
                break
            taken += size
            found.append(_Asked(about, record, size, place))
            source.take()
        return found

    def _send(self, pool: Executor, asked: Sequence[_Asked[T]]) -> Future[_Arrived]:
        records = [each.record for each in asked]
        if pool is self._pool:
            places = [(each.place, each.size) for each in asked]
            return pool.submit(_prepare, records, places, self._task, self._labels)
        return pool.submit(_read, records, self._task, self._labels)

    def _receive(self, waiting: deque[_Waiting[T]]) -> Prepared:
        """The first of those that wait, and its place is free."""
        try:
            found = waiting[0].future.result()[waiting[0].turn]
            return unpack(found, self._arena, self._buffers) if isinstance(found, Packed) else found
        except MemoryError as error:
            return error
        finally:
            self._free(waiting.popleft())

    def _drop(self, waiting: deque[_Waiting[T]]) -> None:
        """Give up what waits; a place is free only when nobody writes there any more."""
        wait([each.future for each in waiting if not each.future.cancel()])
        while waiting:
            self._free(waiting.popleft())

    def _free(self, one: _Waiting[T]) -> None:
        if one.asked.place is not None and self._ring is not None:
            self._ring.give_back()

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


class _Source(Generic[T]):
    """What is wanted, one after the other; the next can be looked at before it is taken."""

    def __init__(self, wanted: Iterable[tuple[T, Record]]) -> None:
        self._left: Iterator[tuple[T, Record]] = iter(wanted)
        self._upcoming: tuple[T, Record] | None = None

    def upcoming(self) -> tuple[T, Record] | None:
        """The next one, or None at the end."""
        self._upcoming = self._upcoming or next(self._left, None)
        return self._upcoming

    def take(self) -> None:
        """Go on to the one after it."""
        self._upcoming = None


_arena: Arena | None = None


def _start(arena: Arena | None) -> None:
    global _arena
    _arena = arena
    if hasattr(os, "nice"):  # not on Windows
        os.nice(_NICE)


def _nothing() -> None:
    pass


def _prepare(
    records: Sequence[Record], places: Sequence[tuple[int | None, int]], task: Task, labels: bool
) -> _Arrived:
    def packed(record: Record, place: tuple[int | None, int]) -> Packed:
        return pack(read_labelled(record, task, labels), _arena, *place)

    return [_or_why(packed, record, place) for record, place in zip(records, places, strict=True)]


def _read(records: Sequence[Record], task: Task, labels: bool) -> _Arrived:
    return [_or_why(read_labelled, record, task, labels) for record in records]


def _or_why(call: Callable[[*Given], R], *given: *Given) -> R | MemoryError:
    """What a call returns; lack of memory is told of its image alone."""
    try:
        return call(*given)
    except MemoryError as error:
        return error
