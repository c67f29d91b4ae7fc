"""Images read ahead of the model: compared with their checksums, decoded, shifted, with their truth.

A thread reads ahead of a model on the CPU, whose workers hold the cores already. For a GPU, processes do; large arrays
come back through shared memory. Images arrive in the order in which they were asked for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from gramloop.data.records import LabelledImage, Record
from gramloop.tasks.base import AnyTask, read_labelled
from gramloop.util.processes import process_context, process_pool, worker_died

AHEAD = 4  # images that a thread reads ahead
FAR_AHEAD = 128  # that processes do: enough for light shifts to make up for a heavy one
BYTES = 256 << 20  # of images that wait; two for each process always may
_SMALL = 1 << 16  # bytes of an array that a pipe passes on at once
_NICE = 5  # the model's process goes first: the moments that it needs keep a GPU busy
_SHARED = "/dev/shm"

_T = TypeVar("_T")
Loaded = LabelledImage | str | MemoryError  # an image, why it cannot be used, or that memory did not suffice


@dataclass(frozen=True)
class Loader:
    """Reads images in so many processes of its own, or in a thread where that is 0."""

    load_task: Callable[[], AnyTask]  # in a process that may not have registered it yet
    labels: bool
    processes: int = 0

    def ahead(self, wanted: Iterable[tuple[_T, Record | LabelledImage]]) -> Generator[tuple[_T, Loaded]]:
        """Every image in turn, with what was given along with its record; records are taken as there is room."""
        waiting, room = deque[tuple[_T, Future[Loaded]]](), 0
        name = self.load_task().name
        with self._pool() as pool:
            try:
                for about, record in wanted:
                    room = room or self._room(record)
                    waiting.append((about, pool.submit(_read, record, name, self.labels)))
                    if len(waiting) > room:
                        about, found = waiting.popleft()
                        yield about, found.result()
                while waiting:
                    about, found = waiting.popleft()
                    yield about, found.result()
            except BrokenProcessPool as error:
                raise worker_died("a process that reads images") from error
            finally:
                pool.shutdown(cancel_futures=True)

    def _pool(self) -> AbstractContextManager[Executor]:
        if not self.processes:
            return ThreadPoolExecutor(1, "gramloop-images")
        return process_pool(self.processes, process_context(__name__), _start_reading, self.load_task)

    def _room(self, record: Record | LabelledImage) -> int:
        """How many images may wait, if all are as large as this one."""
        if not self.processes:
            return AHEAD
        if isinstance(record, LabelledImage):
            each = record.pixels.nbytes
        else:
            each = record.height * record.width * (3 + self.labels * self.load_task().truth_bytes) + _SMALL
        return max(2 * self.processes, min(FAR_AHEAD, BYTES // each))


def _read(record: Record | LabelledImage, task: str, labels: bool) -> Loaded:
    try:
        return read_labelled(record, task, labels)
    except MemoryError as error:
        return error


def _start_reading(load_task: Callable[[], AnyTask]) -> None:
    """What a process does first; large arrays go through shared memory if it has room."""
    if hasattr(os, "nice"):  # not on Windows
        os.nice(_NICE)
    if _shared_bytes() > 4 * BYTES:
        ForkingPickler.register(np.ndarray, _reduced)
    load_task()


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
