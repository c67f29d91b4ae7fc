"""The rows of a unit, made beside the model where it runs on a GPU: comparing and storing must not keep that waiting."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from gramloop.data.records import Record
from gramloop.data.truth import Truth
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.rows import Failure, Rows, comparable, statistics_of
from gramloop.metrics.depth import NoScoreError
from gramloop.tasks.prediction import Prediction

_TOGETHER = 4  # calls for which the thread is woken once: waking it costs more than most of them take
_WAITING = 4  # times so many that may wait
_SWITCH = 0.0005  # seconds after which a thread yields to the model's; Python's own 0.005 would be a third of a fast model

Given = ParamSpec("Given")
R = TypeVar("R")


class InTurn:
    """Runs calls one after the other: in a thread of its own, or, if not ``beside``, at once."""

    def __init__(self, beside: bool) -> None:
        self._pool = ThreadPoolExecutor(1, "gramloop-rows") if beside else None
        self._gathered: list[Callable[[], object]] = []
        self._pending: deque[Future[Any]] = deque()
        self._error: BaseException | None = None
        self._interval = sys.getswitchinterval()

    def __enter__(self) -> Self:
        if self._pool is not None:
            sys.setswitchinterval(_SWITCH)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)  # what is predicted is stored, also when the run is stopped
            sys.setswitchinterval(self._interval)

    def later(self, call: Callable[Given, object], *given: Given.args, **named: Given.kwargs) -> None:
        """Have it done, at the latest before the next `do`; an error of an earlier call is raised here."""
        if self._pool is None:
            call(*given, **named)
            return
        self._gathered.append(partial(call, *given, **named))
        if len(self._gathered) >= _TOGETHER:
            self._submit(_nothing)

    def do(self, call: Callable[Given, R], *given: Given.args, **named: Given.kwargs) -> Future[R]:
        """Have it done, after waiting where much is left to do; an error of an earlier call is raised here."""
        if self._pool is None:
            future: Future[R] = Future()
            future.set_result(call(*given, **named))
            return future
        return self._submit(partial(call, *given, **named))

    def _submit(self, last: Callable[[], R]) -> Future[R]:
        """Wake the thread for what was gathered."""
        assert self._pool is not None
        while self._pending and (self._pending[0].done() or len(self._pending) >= _WAITING):
            self._pending.popleft().result()
        gathered, self._gathered = self._gathered, []
        future = self._pool.submit(self._run, gathered, last)
        self._pending.append(future)
        return future

    def _run(self, gathered: Sequence[Callable[[], object]], last: Callable[[], R]) -> R:
        """Nothing is done after an error: a unit that lacks a row must not be stored."""
        if self._error is not None:
            raise self._error
        try:
            for call in gathered:
                call()
            return last()
        except BaseException as error:
            self._error = error
            raise


def _nothing() -> None:
    pass


class UnitScores:
    """What is known of the images of one unit so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._categories = plan, list(plan.categories)
        self._rows = Rows(plan.task, plan.diagnostics, plan.pictures, label_free=plan.label_free)
        self._failures: list[Failure] = []

    def leave_out(self, position: int, record: Record, reason: str) -> None:
        """An image that counts for no method."""
        self._failures.append(Failure(position, str(record.image_id), reason))

    def add(
        self, position: int, record: Record, found: Mapping[str, Prediction], truth: Truth | None
    ) -> None:
        """The rows of one image; or none, where a prediction cannot be scored."""
        compared = {}
        for name, prediction in found.items():
            try:
                prediction = comparable(prediction, truth, self._plan.alignment)
                compared[name] = prediction, statistics_of(prediction, truth, self._categories)
            except NoScoreError as error:
                self.leave_out(position, record, f"{name}: {error}")
                return
        for method in self._plan.methods:
            self._rows.add(position, record.image_id, method.name, *compared[method.name], truth)

    def table(self) -> Any:
        """All rows as an Arrow table."""
        return self._rows.table()

    @property
    def failures(self) -> tuple[Failure, ...]:
        """The images that were left out."""
        return tuple(self._failures)
