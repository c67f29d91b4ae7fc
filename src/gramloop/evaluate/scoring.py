"""The rows of a unit, made beside the model where it runs on a GPU: comparing and storing must not keep that waiting."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from gramloop.data.labelled import Truth
from gramloop.data.records import Record
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.rows import Failure, Rows, comparable, statistics_of
from gramloop.metrics.depth import NoScoreError
from gramloop.tasks.prediction import Prediction

_WAITING = 16  # predictions that may wait to be compared
_SWITCH = 0.0005  # seconds after which a thread yields to the model's; Python's own 0.005 would be a third of a fast model

Given = ParamSpec("Given")
R = TypeVar("R")


class InTurn:
    """Runs calls one after the other: in a thread of its own, or, if not ``beside``, at once."""

    def __init__(self, beside: bool) -> None:
        self._pool = ThreadPoolExecutor(1, "gramloop-rows") if beside else None
        self._pending: deque[Future[Any]] = deque()
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

    def do(self, call: Callable[Given, R], *given: Given.args, **named: Given.kwargs) -> Future[R]:
        """Have it done, after waiting where much is left to do; an error of an earlier call is raised here."""
        future: Future[R] = Future()
        if self._pool is None:
            future.set_result(call(*given, **named))
            return future
        while self._pending and (self._pending[0].done() or len(self._pending) >= _WAITING):
            self._pending.popleft().result()
        future = self._pool.submit(call, *given, **named)
        self._pending.append(future)
        return future


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
