"""Running a suite's writer over all cores, in an order that keeps every core busy to the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gramloop.data.manifest import Manifest
from gramloop.data.opening import OpenSuite
from gramloop.data.suites import Condition
from gramloop.data.verifying import note_written
from gramloop.data.writing import SuiteWriter, Written, begin, check_target
from gramloop.errors import GramLoopError
from gramloop.util.files import locked
from gramloop.util.processes import process_context, process_pool, run_unordered, worker_count

CHUNK = 8  # images per task: small enough to share out, large enough that sending it costs nothing

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
    replaced: list[str] = field(default_factory=list)  # files that were there and not right, made again


def write_suite(
    opened: OpenSuite,
    target: Path,
    *,
    workers: int | None = None,
    verify: bool = False,
    on_chunk: Callable[[Condition, int], None] | None = None,
    on_finished: Callable[[Condition], None] | None = None,
) -> WriteOutcome:
    """Write all opened conditions to ``target``; what an earlier run finished is kept, and made good where it is damaged.

    Finished conditions are compared with their checksums by size and a sample of their files, or with ``verify`` by every
    file.

    ``on_chunk(condition, images)`` and ``on_finished(condition)`` are called as the work goes on.
    """
    workers = worker_count(workers)
    writer = SuiteWriter(opened, target)
    try:
        return _write(writer, workers, verify, on_chunk or _nothing, on_finished or _nothing)
    except OSError as error:
        raise GramLoopError(f"cannot go on writing to {target}: {error}") from error


def _write(
    writer: SuiteWriter,
    workers: int,
    verify: bool,
    on_chunk: Callable[[Condition, int], None],
    on_finished: Callable[[Condition], None],
) -> WriteOutcome:
    opened, target = writer.opened, writer.target
    outcome = WriteOutcome(check_target(opened, target))  # what is refused stays untouched
    with locked(target):
        begin(target, outcome.manifest)
        wanted = opened.conditions
        outcome.skipped = [each for each in wanted if writer.is_finished(each, outcome.manifest, verify)]
        todo = [each for each in wanted if each not in outcome.skipped]
        for condition in outcome.skipped:
            on_chunk(condition, len(writer.clean))
        parts: dict[Condition, dict[int, Written]] = {condition: {} for condition in todo}
        chunks = _chunks(todo, len(writer.clean))
        per_condition = -(-len(writer.clean) // CHUNK)
        for (condition, start, _), written in _results(writer, chunks, workers):
            parts[condition][start] = written
            note_written(target / condition.key, written.checksums)
            outcome.made, outcome.found = outcome.made + written.made, outcome.found + written.found
            on_chunk(condition, written.made + written.found + len(written.failures))
            if len(parts[condition]) == per_condition:
                _finish(writer, condition, parts.pop(condition), outcome)
                on_finished(condition)
    return outcome


def _nothing(*_: object) -> None:
    pass


def _finish(
    writer: SuiteWriter, condition: Condition, parts: dict[int, Written], outcome: WriteOutcome
) -> None:
    whole = Written()
    for start in sorted(parts):
        whole.add(parts[start])
    if whole.failures:
        outcome.failures += [f"{condition}: {failure}" for failure in whole.failures]
        return
    recorded = outcome.manifest.conditions.get(condition.key)
    outcome.manifest = outcome.manifest.with_condition(
        condition.key, *writer.finish(condition, whole, recorded)
    )
    outcome.replaced += whole.replaced
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
    with process_pool(workers, process_context(), _start_worker, writer) as pool:
        yield from run_unordered(pool, _run_chunk, chunks)


_writer: SuiteWriter | None = None


def _start_worker(writer: SuiteWriter) -> None:
    global _writer
    _writer = writer


def _run_chunk(condition: Condition, start: int, stop: int) -> Written:
    assert _writer is not None
    return _writer.write_images(condition, start, stop)
