"""Images made ready ahead of the model: compared with their checksums, decoded, shifted, with their truth.

A thread does it beside a model that computes on the CPU, whose workers hold the cores already. Beside a GPU, processes
do it, for as long as a session lives; pixels and label maps come back through shared memory. Images arrive in the order
in which they were asked for, and those that wait are bounded by count and by bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.heap import Arena
from typing import Generic, TypeVar

from gramloop.data.labelled import LabelledImage, read_labelled
from gramloop.data.records import Record, Task
from gramloop.io.handover import Packed, Ring, pack, shared_memory, unpack
from gramloop.io.pool import ended_from_outside, process_context, process_pool

AHEAD = 4  # images that wait beside a thread
FAR_AHEAD = 64  # beside processes: enough for a light shift to make up for a heavy one
BYTES = 128 << 20  # of images that wait; one always may
_TRUTH = {"semantic": 2, "depth": 4, "panoptic": 4}  # bytes per pixel of its map
_MORE = 1 << 14  # bytes: boxes, and arrays that begin at even places

T = TypeVar("T")
Prepared = (
    LabelledImage | str | MemoryError
)  # an image, why it cannot be used, or that memory did not suffice


@dataclass(frozen=True)
class _Waiting(Generic[T]):
    about: T
    future: Future[LabelledImage | str | Packed]
    size: int
    place: int | None  # in shared memory


class Preparing:
    """Prepares images of one task in ``processes`` of its own, or in a thread where that is 0."""

    def __init__(self, task: Task, labels: bool, processes: int = 0) -> None:
        self._task, self._labels, self.processes = task, labels, processes
        self._most = max(FAR_AHEAD, 2 * processes) if processes else AHEAD
        self._arena = shared_memory(BYTES) if processes else None
        self._ring = Ring(self._arena.size) if self._arena is not None else None
        self._stack = ExitStack()
        self._pool: Executor | None = None
        if processes:
            pool = process_pool(processes, process_context(__name__), _start, self._arena)
            started = self._pool = self._stack.enter_context(pool)
            for _ in range(processes):  # they start while the model is loaded
                started.submit(_nothing)

    def ahead(self, wanted: Iterable[tuple[T, Record]]) -> Generator[tuple[T, Prepared]]:
        """Every image in turn, with what was said about its record; the next records are asked for as there is room."""
        source, upcoming = iter(wanted), None
        waiting: deque[_Waiting[T]] = deque()
        with ExitStack() as stack:
            pool = self._pool
            if pool is None:  # a thread of this run: it ends with it
                pool = stack.enter_context(ThreadPoolExecutor(1, "gramloop-images"))
            try:
                while True:
                    while len(waiting) < self._most:
                        upcoming = upcoming or next(source, None)
                        if upcoming is None or not self._send(pool, upcoming, waiting):
                            break
                        upcoming = None
                    if not waiting:
                        return
                    yield waiting[0].about, self._receive(waiting)
            except BrokenProcessPool as error:
                raise ended_from_outside("a process that prepares images") from error
            finally:
                self._drop(waiting)

    def _send(self, pool: Executor, wanted: tuple[T, Record], waiting: deque[_Waiting[T]]) -> bool:
        """Have an image prepared; False where those that wait leave no room for it."""
        about, record = wanted
        size = record.height * record.width * (3 + self._labels * _TRUTH.get(self._task, 0)) + _MORE
        place = None
        if waiting and sum(each.size for each in waiting) + size > BYTES:
            return False
        if self._ring is not None and (place := self._ring.take(size)) is None and waiting:
            return False
        future: Future[LabelledImage | str | Packed]
        if pool is self._pool:
            future = pool.submit(_prepare, record, self._task, self._labels, place, size)
        else:
            future = pool.submit(read_labelled, record, self._task, self._labels)
        waiting.append(_Waiting(about, future, size, place))
        return True

    def _receive(self, waiting: deque[_Waiting[T]]) -> Prepared:
        """The first of those that wait, and its place is free."""
        try:
            found = waiting[0].future.result()
            return unpack(found, self._arena) if isinstance(found, Packed) else found
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
        if one.place is not None and self._ring is not None:
            self._ring.give_back()

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


_arena: Arena | None = None


def _start(arena: Arena | None) -> None:
    global _arena
    _arena = arena


def _nothing() -> None:
    pass


def _prepare(record: Record, task: Task, labels: bool, place: int | None, room: int) -> Packed:
    return pack(read_labelled(record, task, labels), _arena, place, room)
