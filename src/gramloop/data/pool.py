"""Running a suite's writer over all cores, in an order that keeps every core busy to the end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

import cv2

from gramloop.data.manifest import Manifest
from gramloop.data.opening import OpenSuite
from gramloop.data.suites import Condition
from gramloop.data.writing import SuiteWriter, Written, begin
from gramloop.errors import GramLoopError
from gramloop.io.lock import locked

CHUNK = 8  # images per task: small enough to share out, large enough that sending it costs nothing
AHEAD = 3  # tasks waiting per worker

Chunk = tuple[Condition, int, int]


@dataclass
class WriteOutcome:
    """What a run did."""

    manifest: Manifest
    made: int = 0  # images generated now
    found: int = 0  # images of unfinished conditions that an earlier run had written
    skipped: list[Condition] = field(default_factory=list)  # finished before
    finished: list[Condition] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def write_suite(
    opened: OpenSuite,
    target: Path,
    *,
    workers: int | None = None,
    on_chunk: Callable[[Condition, int], None] | None = None,
    on_finished: Callable[[Condition], None] | None = None,
) -> WriteOutcome:
    """Write all opened conditions to ``target``; what an earlier run finished is kept.

    ``on_chunk(condition, images)`` and ``on_finished(condition)`` are called as the work goes on.
    """
    workers = workers if workers is not None else available_cores()
    if workers < 1:
        raise GramLoopError(f"the number of workers must be at least 1, not {workers}")
    writer = SuiteWriter(opened, target)
    try:
        return _write(writer, workers, on_chunk or _nothing, on_finished or _nothing)
    except OSError as error:
        raise GramLoopError(f"cannot go on writing to {target}: {error}") from error


def _write(
    writer: SuiteWriter,
    workers: int,
    on_chunk: Callable[[Condition, int], None],
    on_finished: Callable[[Condition], None],
) -> WriteOutcome:
    opened, target = writer.opened, writer.target
    with locked(target):
        outcome = WriteOutcome(begin(opened, target))
        wanted = opened.conditions
        outcome.skipped = [each for each in wanted if writer.is_finished(each, outcome.manifest)]
        todo = [each for each in wanted if each not in outcome.skipped]
        for condition in outcome.skipped:
            on_chunk(condition, len(writer.clean))
        parts: dict[Condition, dict[int, Written]] = {condition: {} for condition in todo}
        chunks = _chunks(todo, len(writer.clean))
        per_condition = -(-len(writer.clean) // CHUNK)
        for (condition, start, _), written in _results(writer, chunks, workers):
            parts[condition][start] = written
            outcome.made, outcome.found = outcome.made + written.made, outcome.found + written.found
            on_chunk(condition, written.made + written.found + len(written.failures))
            if len(parts[condition]) == per_condition:
                _finish(writer, condition, parts.pop(condition), outcome)
                on_finished(condition)
    return outcome


def _nothing(*_: object) -> None:
    pass


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _finish(
    writer: SuiteWriter, condition: Condition, parts: dict[int, Written], outcome: WriteOutcome
) -> None:
    whole = Written()
    for start in sorted(parts):
        whole.add(parts[start])
    if whole.failures:
        outcome.failures += [f"{condition}: {failure}" for failure in whole.failures]
        return
    outcome.manifest = outcome.manifest.with_condition(condition.key, writer.finish(condition, whole))
    outcome.manifest.write(writer.target)
    outcome.finished.append(condition)


def _chunks(conditions: list[Condition], images: int) -> Iterator[Chunk]:
    for condition in conditions:
        for start in range(0, images, CHUNK):
            yield condition, start, min(start + CHUNK, images)


def _results(writer: SuiteWriter, chunks: Iterator[Chunk], workers: int) -> Iterator[tuple[Chunk, Written]]:
    if workers == 1:
        for chunk in chunks:
            yield chunk, writer.write_images(*chunk)
        return
    context = multiprocessing.get_context("spawn")  # forking a process with threads can hang
    pool = ProcessPoolExecutor(workers, context, _start_worker, (writer,))
    try:
        pending: dict[Future[Written], Chunk] = {}
        for chunk in chunks:
            pending[pool.submit(_run_chunk, *chunk)] = chunk
            if len(pending) >= workers * (1 + AHEAD):
                yield from _take_finished(pending)
        while pending:
            yield from _take_finished(pending)
    except BrokenProcessPool as error:
        raise GramLoopError(
            "a worker process was ended from outside (out of memory?); run the same command again to go on"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _take_finished(pending: dict[Future[Written], Chunk]) -> Iterator[tuple[Chunk, Written]]:
    finished, _ = wait(pending, return_when=FIRST_COMPLETED)
    for future in finished:
        yield pending.pop(future), future.result()


_writer: SuiteWriter | None = None


def _start_worker(writer: SuiteWriter) -> None:
    global _writer
    _writer = writer
    cv2.setNumThreads(1)  # the cores are shared out over processes already
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and stops the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, and they would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_chunk(condition: Condition, start: int, stop: int) -> Written:
    assert _writer is not None
    return _writer.write_images(condition, start, stop)
