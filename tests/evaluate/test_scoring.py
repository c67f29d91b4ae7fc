"""Calls beside the model run in their order, a few at a time, and none runs after one that failed."""

import sys
import threading
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gramloop.evaluate.scoring import InTurn


@given(st.lists(st.booleans(), max_size=40), st.booleans())
def test_calls_run_once_each_and_in_their_order(steps: list[bool], beside: bool):
    done: list[int] = []
    with InTurn(beside) as in_turn:
        for number, wait in enumerate(steps):
            if wait:
                assert in_turn.do(lambda number=number: done.append(number) or number).result() == number
                assert done == list(range(number + 1))  # all that were put off, too
            else:
                in_turn.later(done.append, number)
        in_turn.do(lambda: None)
    assert done == list(range(len(steps)))


@pytest.mark.parametrize("number", range(9))
def test_nothing_is_done_after_an_error_and_it_is_raised(number: int):
    """A unit that lacks the row of one image must never be stored."""
    done: list[int] = []

    def row(each: int) -> None:
        if each == number:
            raise ValueError("no row")
        done.append(each)

    def run() -> Future[None]:
        for each in range(9):
            in_turn.later(row, each)
        return in_turn.do(done.append, -1)

    with InTurn(beside=True) as in_turn, pytest.raises(ValueError, match="no row"):
        run().result()
    assert done == list(range(number))


def test_the_model_waits_where_many_predictions_would_pile_up():
    go_on, made = threading.Event(), threading.Semaphore(0)

    def model() -> None:
        for _ in range(100):
            in_turn.later(go_on.wait)
            made.release()

    with InTurn(beside=True) as in_turn:
        thread = threading.Thread(target=model)
        thread.start()
        for _ in range(19):  # four times four wait, and three are gathered
            assert made.acquire(timeout=20)
        assert not made.acquire(timeout=0.2)
        go_on.set()
        thread.join()


def test_the_switch_interval_is_given_back():
    before = sys.getswitchinterval()
    with InTurn(beside=True):
        assert sys.getswitchinterval() < before
    assert sys.getswitchinterval() == before
