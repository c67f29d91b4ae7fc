"""The cache keeps what fits, makes what two ask for once, and forgets the least recently used."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest

from gramloop.app.cache import Cache, size_of


@dataclass(frozen=True)
class Holder:
    pixels: np.ndarray
    name: str


def test_sizes_are_those_of_what_is_inside() -> None:
    pixels = np.zeros((100, 10), np.float32)
    assert size_of(pixels) - size_of(np.zeros(0)) == 4000
    inside = size_of([Holder(pixels, "abc"), {"key": b"12345"}])
    assert 4000 + 3 + 5 < inside < 4000 + 1000


def test_the_bound_holds_and_the_oldest_goes_first() -> None:
    cache = Cache(10_000)
    for number in range(5):
        cache.get("array", number, lambda: np.zeros(3000, np.uint8))
        assert cache.bytes <= cache.limit
    assert cache.computed["array"] == 5
    cache.get("array", 4, lambda: pytest.fail("the newest is there"))
    cache.get("array", 2, lambda: pytest.fail("three of them fit"))
    cache.get("array", 5, lambda: np.zeros(3000, np.uint8))  # 3 was used least recently
    cache.get("array", 2, lambda: pytest.fail("it was used since"))
    cache.get("array", 3, lambda: np.zeros(3000, np.uint8))
    assert cache.computed["array"] == 7


def test_what_is_too_large_is_given_and_not_kept() -> None:
    cache = Cache(1000)
    small = cache.get("array", "small", lambda: b"1")
    assert len(cache.get("array", "large", lambda: b"2" * 5000)) == 5000
    assert cache.get("array", "small", lambda: b"other") is small
    assert cache.get("array", "large", lambda: b"again") == b"again"


def test_threads_that_ask_at_once_wait_for_one() -> None:
    cache, ready, go = Cache(1000), threading.Barrier(8), threading.Event()
    made: list[int] = []
    found: list[object] = []

    def make() -> object:
        made.append(1)
        assert go.wait(60)
        return object()

    def ask() -> None:
        ready.wait(60)
        found.append(cache.get("thing", "key", make))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(60)
    assert len(made) == 1
    assert len(found) == 8
    assert len({id(each) for each in found}) == 1


def test_a_failure_is_told_to_all_and_tried_again() -> None:
    cache, begun, go = Cache(1000), threading.Event(), threading.Event()
    heard: list[str] = []

    def fail() -> None:
        begun.set()
        assert go.wait(60)
        raise ValueError("torn")

    def ask() -> None:
        try:
            cache.get("thing", "key", fail)
        except ValueError as error:
            heard.append(str(error))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go.set()
    for thread in threads:
        thread.join(60)
    assert heard == ["torn"] * 3
    assert cache.get("thing", "key", lambda: 7) == 7
    assert cache.computed["thing"] == 1
