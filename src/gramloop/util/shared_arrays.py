"""Large arrays from one process to another of this machine: through shared memory, where the system has some to give.

A pipe passes on 64 KB at a time, each time waking both sides. Here the sender pickles an object without its arrays,
writes these into a place that the receiver chose, and sends what is left. Places are handed out in a ring, since they
are given back in the order in which they were taken. The memory belongs to no name: it is gone with the last process
that knows it, however that ends.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from dataclasses import dataclass
from multiprocessing.heap import Arena
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SHARED = "/dev/shm"
_LEAST = 4 << 20  # bytes; less is no help
_EVEN = 64  # bytes that every array begins at a multiple of
_SMALL = 1 << 16  # bytes of an array: smaller ones are cheap
_LARGE = 1 << 24  # larger ones are rare, and expensive to keep
_KEPT = 8  # arrays between these whose memory is kept

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Packed:
    """An object on its way: a pickle, and the sizes of the arrays that lie in shared memory from ``place`` on."""

    head: bytes
    place: int = 0
    sizes: tuple[int, ...] = ()


def shared_memory(wanted: int) -> Arena | None:
    """Memory that is sent along when a process is started; less than wanted where others need it, or None."""
    try:
        state = os.statvfs(_SHARED)
        size = min(wanted, state.f_bavail * state.f_frsize // 4)  # several workers, and other programs
        if size < _LEAST:
            return None
        arena = Arena(size)
        os.posix_fallocate(arena.fd, 0, size)  # or a full file system would kill whoever writes
    except (OSError, AttributeError):  # not on this system
        return None
    return arena


class Ring:
    """Hands out places of a piece of memory, to be given back in the same order."""

    def __init__(self, size: int) -> None:
        self._size, self._next = size, 0
        self._taken: deque[tuple[int, int]] = deque()  # beginning and end, oldest first

    def take(self, size: int) -> int | None:
        """Where so many bytes are free in one piece, or None."""
        size = _rounded(size)
        if not self._taken:
            self._next = 0
        place = self._next
        oldest = self._taken[0][0] if self._taken else None
        if oldest is None or place > oldest:  # free: from here to the end, and before the oldest
            if place + size > self._size:
                place = 0
                if oldest is None or size >= oldest:  # never up to it: full and empty would be the same
                    return None
        elif place + size >= oldest:
            return None
        self._next = place + size
        self._taken.append((place, place + size))
        return place

    def give_back(self) -> None:
        """The oldest place is free again."""
        self._taken.popleft()


def pack(thing: object, arena: Arena | None, place: int | None, room: int) -> Packed:
    """An object with its arrays written to its place in shared memory; all in the pickle where they do not fit."""
    if arena is None or place is None:
        return Packed(pickle.dumps(thing, protocol=5))
    found: list[pickle.PickleBuffer] = []
    head = pickle.dumps(thing, protocol=5, buffer_callback=found.append)
    parts = [each.raw() for each in found]
    if sum(_rounded(part.nbytes) for part in parts) > room:
        return Packed(pickle.dumps(thing, protocol=5))
    at = place
    for part in parts:
        arena.buffer[at : at + part.nbytes] = part
        at += _rounded(part.nbytes)
    return Packed(head, place, tuple(part.nbytes for part in parts))


class Buffers:
    """Memory for arrays that arrive, used again when no array holds it any more: fresh pages cost more than the copy."""

    def __init__(self) -> None:
        self._kept: list[_Bytes] = [np.empty(0, np.uint8)]
        self._alone = self._references(0)

    def _references(self, place: int) -> int:
        """How many there are to a piece of memory; arrays that are views of it, of any kind, all count."""
        return sys.getrefcount(self._kept[place])

    def take(self, size: int) -> _Bytes:
        """So many bytes that nothing else uses; they are free again when the last array made of them is gone."""
        if not _SMALL < size <= _LARGE:
            return np.empty(size, np.uint8)
        for place in range(len(self._kept)):
            if self._references(place) == self._alone and size <= self._kept[place].size <= 2 * size:
                self._kept.append(self._kept.pop(place))
                break
        else:
            self._kept = [*self._kept[1 - _KEPT :], np.empty(size, np.uint8)]
        return self._kept[-1][:size]


def unpack(packed: Packed, arena: Arena | None, buffers: Buffers) -> Any:
    """The object again, with arrays of its own: the place can be given back."""
    if arena is None or not packed.sizes:
        return pickle.loads(packed.head)
    arrays, at = [], packed.place
    for size in packed.sizes:
        array = buffers.take(size)
        array[:] = np.frombuffer(arena.buffer, np.uint8, size, at)
        arrays.append(array)
        at += _rounded(size)
    return pickle.loads(packed.head, buffers=arrays)


def _rounded(size: int) -> int:
    return -(-size // _EVEN) * _EVEN
