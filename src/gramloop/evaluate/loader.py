"""Images read ahead of the model: compared with their checksums, decoded, shifted, with their truth.

A thread reads ahead of a model on the CPU, whose workers hold the cores already. For a GPU, the processes of torch's
DataLoader do; large arrays come back through shared memory. Images arrive in the order in which they were asked for.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

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


@dataclass(frozen=True)
class Loader:
    """Reads images in so many processes of its own, or in a thread where that is 0."""

    load_task: Callable[[], AnyTask]  # in a process that may not have registered it yet
    labels: bool
    processes: int = 0

    def ahead(self, wanted: Iterable[tuple[_T, Record | LabelledImage]]) -> Generator[tuple[_T, Loaded]]:
        """Every image in turn, with what was given along with its record; records are taken as there is room."""
        yield from self._with_processes(wanted) if self.processes else self._with_thread(wanted)

    def _with_thread(self, wanted: Iterable[tuple[_T, Any]]) -> Generator[tuple[_T, Loaded]]:
        read, waiting = ReadImages(self.load_task, self.labels), deque[tuple[_T, Any]]()
        with ThreadPoolExecutor(1, "gramloop-images") as pool:
            try:
                for about, record in wanted:
                    waiting.append((about, pool.submit(read.__getitem__, record)))
                    if len(waiting) > AHEAD:
                        yield _received(waiting[0][0], waiting.popleft()[1].result())
                while waiting:
                    yield _received(waiting[0][0], waiting.popleft()[1].result())
            finally:
                pool.shutdown(cancel_futures=True)

    def _with_processes(self, wanted: Iterable[tuple[_T, Any]]) -> Generator[tuple[_T, Loaded]]:
        waiting, stream = deque[_T](), iter(wanted)
        first = next(stream, None)
        if first is None:
            return

        def records() -> Iterator[Any]:
            for about, record in itertools.chain([first], stream):
                waiting.append(about)
                yield record

        each = self._bytes(first[1])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create")  # as many as were asked for
            images = DataLoader(
                ReadImages(self.load_task, self.labels),
                batch_size=None,
                sampler=_Records(records()),
                num_workers=self.processes,
                collate_fn=_as_it_is,
                prefetch_factor=max(2, min(FAR_AHEAD, BYTES // each) // self.processes),
                multiprocessing_context=process_context(__name__),
                worker_init_fn=partial(_start, _shared_bytes() > 8 * self.processes * each),
            )
            arriving = iter(images)
        while True:
            try:
                found = next(arriving, None)
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise worker_died("a process that reads images") from error
            if found is None:
                return
            yield _received(waiting.popleft(), found)

    def _bytes(self, record: Record | LabelledImage) -> int:
        if isinstance(record, LabelledImage):
            return record.pixels.nbytes
        return record.height * record.width * (3 + self.labels * self.load_task().truth_bytes) + _SMALL


class ReadImages(Dataset[Any]):
    """What processes read: an image for a record, or the error."""

    def __init__(self, load_task: Callable[[], AnyTask], labels: bool) -> None:
        self._load_task, self._labels = load_task, labels

    def __getitem__(self, record: Record | LabelledImage) -> LabelledImage | str | Exception:
        try:
            return read_labelled(record, self._load_task().name, self._labels)
        except Exception as error:  # raised by the process that receives it: torch would rewrite it
            return error


class _Records:
    """Records that come one after the other, as a sampler of DataLoader."""

    def __init__(self, records: Iterator[Any]) -> None:
        self._records = records

    def __iter__(self) -> Iterator[Any]:
        return self._records


def _received(about: _T, found: Any) -> tuple[_T, Loaded]:
    if isinstance(found, Exception) and not isinstance(found, MemoryError):
        raise found
    return about, found


def _as_it_is(found: _T) -> _T:
    return found


def _shared_bytes() -> int:
    """What shared memory has left; containers often give little."""
    try:
        state = os.statvfs(_SHARED)
        return state.f_bavail * state.f_frsize
    except (OSError, AttributeError):  # not on this system, whose shared memory is elsewhere
        return 0


def _start(shares: bool, number: int) -> None:
    """Begin a process that reads images; its large arrays are sent through shared memory where there is enough."""
    start_worker()
    if hasattr(os, "nice"):  # not on Windows
        os.nice(_NICE)
    if shares:
        ForkingPickler.register(np.ndarray, _reduced)


def _reduced(array: NDArray[Any]) -> Any:
    if array.nbytes > _SMALL and array.flags.c_contiguous and array.dtype.kind in "uif":
        return _array, (torch.from_numpy(array),)
    return array.__reduce__()


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    return tensor.numpy()
