"""A cache that is keyed by content, bounded in bytes and shared by threads; what two ask for at once is made once."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import fields, is_dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np

T = TypeVar("T")
_SMALL = 64  # bytes that anything costs


class Cache:
    """Values by kind and key. The least recently used are forgotten first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.computed: Counter[str] = Counter()  # how often something of a kind was made
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._running: dict[Hashable, Future[Any]] = {}
        self._bytes = 0
        self._lock = Lock()

    @property
    def bytes(self) -> int:
        """What is kept, by `size_of`."""
        return self._bytes

    def get(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """The value, made if it is not there; a failure is told to all who wait for it, and is not kept."""
        place = (kind, key)
        with self._lock:
            if place in self._kept:
                self._kept.move_to_end(place)
                found: T = self._kept[place][0]
                return found
            waiting = self._running.get(place)
            if waiting is None:
                mine: Future[T] = Future()
                self._running[place] = mine
        if waiting is not None:
            made: T = waiting.result()
            return made
        return self._make(place, mine, make)

    def _make(self, place: tuple[str, Hashable], mine: Future[T], make: Callable[[], T]) -> T:
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                del self._running[place]
            mine.set_exception(error)
            raise
        size = size_of(value)
        with self._lock:
            self.computed[place[0]] += 1
            del self._running[place]
            if size <= self.limit:
                self._kept[place] = value, size
                self._bytes += size
            while self._bytes > self.limit:
                self._bytes -= self._kept.popitem(last=False)[1][1]
        mine.set_result(value)
        return value


def size_of(value: object) -> int:
    """Bytes that a value holds: of its arrays, texts and bytes, wherever they are inside it."""
    if isinstance(value, np.ndarray):
        return _SMALL + value.nbytes
    if isinstance(value, bytes | str):
        return _SMALL + len(value)
    if is_dataclass(value) and not isinstance(value, type):
        return _SMALL + sum(size_of(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return _SMALL + sum(size_of(key) + size_of(each) for key, each in value.items())
    if isinstance(value, tuple | list):
        return _SMALL + sum(map(size_of, value))
    return _SMALL
