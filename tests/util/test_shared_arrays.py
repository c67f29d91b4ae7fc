"""Arrays arrive whole, writable and as they were, and two that wait never share a byte."""

import pickle
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.util.processes import process_context, process_pool
from gramloop.util.shared_arrays import Buffers, Packed, Ring, pack, shared_memory, unpack


@given(st.integers(256, 4096), st.lists(st.one_of(st.none(), st.integers(1, 1500)), max_size=60))
def test_places_of_a_ring_never_overlap_and_all_come_back(size, steps):
    ring, taken = Ring(size), deque()
    for step in steps:
        if step is None:
            if taken:
                taken.popleft()
                ring.give_back()
            continue
        place = ring.take(step)
        if place is None:
            assert taken or -(-step // 64) * 64 > size  # an empty ring refuses only what is too large
            continue
        assert 0 <= place <= size - step
        assert all(place + step <= begin or end <= place for begin, end in taken)
        taken.append((place, place + step))
    while taken:
        taken.popleft()
        ring.give_back()
    assert ring.take(size // 64 * 64) == 0


def test_what_does_not_fit_goes_into_the_pickle():
    thing = np.arange(10_000, dtype=np.int32)
    arena = shared_memory(4 << 20)
    for packed in (pack(thing, None, None, 0), pack(thing, arena, None, 0), pack(thing, arena, 0, 39_999)):
        assert not packed.sizes
        assert np.array_equal(unpack(packed, arena, Buffers()), thing)


@given(
    st.lists(st.tuples(st.integers(60_000, 200_000), st.integers(0, 5)), max_size=40), st.sampled_from("abc")
)
def test_memory_is_used_again_but_never_while_anything_made_of_it_is_held(steps, held_as):
    buffers, held = Buffers(), {}
    for number, (size, place) in enumerate(steps):
        array = buffers.take(size)
        assert array.size == size
        array[:] = number % 251
        head = pickle.dumps(np.empty(size, np.uint8), protocol=5, buffer_callback=lambda _: None)
        made = pickle.loads(head, buffers=[array])
        held[place] = (
            number % 251,
            {"a": made, "b": made[1:-1:2].reshape(1, -1), "c": memoryview(made)}[held_as],
        )
        del array, made
        for value, each in held.values():
            assert (np.asarray(each) == value).all()


def test_one_array_after_the_other_needs_one_piece_of_memory():
    buffers, places = Buffers(), set()
    for _ in range(10):
        places.add(buffers.take(100_000).ctypes.data)
    assert len(places) == 1


def test_no_shared_memory_where_there_is_hardly_any(monkeypatch):
    import os

    state = os.statvfs_result(
        (4096, 4096, 4096, 1024, 1024, 0, 0, 0, 0, 255)
    )  # 4 MB free, of which a quarter
    monkeypatch.setattr("gramloop.util.shared_arrays.os.statvfs", lambda path: state)
    assert shared_memory(1 << 30) is None


_arena = None


def _learn(arena):
    global _arena
    _arena = arena


def _send(place: int, room: int) -> Packed:
    return pack(_things(), _arena, place, room)


def _things():
    rng = np.random.default_rng(3)
    pixels = rng.integers(0, 256, (48, 64, 3), np.uint8)
    return {
        "pixels": pixels,
        "turned": pixels.transpose(1, 0, 2),
        "every other": pixels[::2, ::3],
        "empty": np.zeros((0, 4)),
        "text": "ä",
    }


def test_arrays_of_another_process_are_the_same_and_writable():
    arena = shared_memory(4 << 20)
    if arena is None:
        pytest.skip("this system shares no memory")
    with process_pool(1, process_context(), _learn, arena) as pool:
        packed = pool.submit(_send, 128, 1 << 16).result()
    assert packed.place == 128
    assert len(packed.head) + sum(packed.sizes) < 3 * len(pickle.dumps(_things()["pixels"]))
    found = unpack(packed, arena, Buffers())
    arena.buffer[:] = bytes(arena.size)  # the place is given to another
    for name, expected in _things().items():
        assert np.array_equal(found[name], expected), name
    found["pixels"][0, 0] = 7
