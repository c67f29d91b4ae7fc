"""Images read ahead of the model: compared with their checksums, decoded, shifted, with their truth.

A thread reads ahead of a model on the CPU, whose workers hold the cores already. For a GPU, processes do, each asked by
a thread of its own; large arrays come back through shared memory. Images arrive in the order in which they were asked
for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gramloop.data.records import LabelledImage, Record
from gramloop.tasks.base import AnyTask, read_labelled
from gramloop.util.processes import process_context, start_worker, worker_died

AHEAD = 4  # images that a thread reads ahead
FAR_AHEAD = 128  # that processes do: enough for light shifts to make up for a heavy one
BYTES = 256 << 20  # of images that wait; two for each process always may
_SMALL = 1 << 16  # bytes of an array that a pipe passes on at once
_NICE = 5  # the model's process goes first: the moments that it needs keep a GPU busy
_SHARED = "/dev/shm"

_T = TypeVar("_T")
Loaded = LabelledImage | str | MemoryError  # an image, why it cannot be used, or that memory did not suffice
_Read = Callable[[Any], LabelledImage | str | Exception]


class _Died(Exception):  # noqa: N818 - the state of a process
    """A process that reads images is gone."""


@dataclass(frozen=True)
class Loader:
    """Reads images in so many processes of its own, or in a thread where that is 0."""

    load_task: Callable[[], AnyTask]  # in a process that may not have registered it yet
    labels: bool
    processes: int = 0

    def ahead(self, wanted: Iterable[tuple[_T, Record | LabelledImage]]) -> Generator[tuple[_T, Loaded]]:
        """Every image in turn, with what was given along with its record; records are taken as there is room."""
        waiting, room = deque[tuple[_T, Future[Any]]](), 0
        with self._reader() as read, ThreadPoolExecutor(self.processes or 1, "gramloop-images") as pool:
            try:
                for about, record in wanted:
                    room = room or self._room(record)
                    waiting.append((about, pool.submit(read, record)))
                    if len(waiting) > room:
                        yield _received(*waiting.popleft())
                while waiting:
                    yield _received(*waiting.popleft())
            finally:
                pool.shutdown(cancel_futures=True)

    @contextmanager
    def _reader(self) -> Iterator[_Read]:
        """What reads an image: here, or in whichever process is free."""
        if not self.processes:
            yield partial(_read, self.load_task().name, self.labels)
            return
        context, free = process_context(__name__), SimpleQueue[Connection]()
        running = []
        try:
            for _ in range(self.processes):
                ours, theirs = context.Pipe()
                free.put(ours)
                # only the process itself holds its end, so that the pipe ends with it
                with theirs:
                    running.append(context.Process(target=_serve, args=(theirs, self), daemon=True))
                    running[-1].start()
            yield partial(_ask, free)
        finally:
            while not free.empty():
                free.get().close()  # which ends the process
            for process in running:
                process.join()

    def _room(self, record: Record | LabelledImage) -> int:
        """How many images may wait, if all are as large as this one."""
        if not self.processes:
            return AHEAD
        if isinstance(record, LabelledImage):
            each = record.pixels.nbytes
        else:
            each = record.height * record.width * (3 + self.labels * self.load_task().truth_bytes) + _SMALL
        return max(2 * self.processes, min(FAR_AHEAD, BYTES // each))


def _read(task: str, labels: bool, record: Record | LabelledImage) -> LabelledImage | str | Exception:
    try:
        return read_labelled(record, task, labels)
    except Exception as error:  # raised where it is received
        return error


def _received(about: _T, future: Future[Any]) -> tuple[_T, Loaded]:
    try:
        found = future.result()
    except _Died as error:
        raise worker_died("a process that reads images") from error
    if isinstance(found, Exception) and not isinstance(found, MemoryError):
        raise found
    return about, found


def _ask(free: SimpleQueue[Connection], record: Record | LabelledImage) -> Any:
    """Have a process read an image."""
    connection = free.get()
    try:
        connection.send(record)
        return connection.recv()
    except (EOFError, OSError) as error:
        raise _Died from error
    finally:
        free.put(connection)


def _serve(connection: Connection, loader: Loader) -> None:
    """What a process does: read the images that it is asked for; large arrays go through shared memory if it has room."""
    start_worker()
    if hasattr(os, "nice"):  # not on Windows
        os.nice(_NICE)
    if _shared_bytes() > 4 * BYTES:
        ForkingPickler.register(np.ndarray, _reduced)
    name = loader.load_task().name
    while True:
        try:
            connection.send(_read(name, loader.labels, connection.recv()))
        except EOFError:
            return


def _shared_bytes() -> int:
    """What shared memory has left; containers often give little."""
    try:
        state = os.statvfs(_SHARED)
        return state.f_bavail * state.f_frsize
    except (OSError, AttributeError):  # not on this system, whose shared memory is elsewhere
        return 0


def _reduced(array: NDArray[Any]) -> Any:
    if array.nbytes > _SMALL and array.flags.c_contiguous and array.dtype.kind in "uif":
        return _array, (torch.from_numpy(array),)
    return array.__reduce__()


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.numpy()
