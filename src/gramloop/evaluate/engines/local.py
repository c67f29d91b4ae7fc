"""This machine: one process per core or GPU, each with the model loaded once; a single worker is this process.

Every part goes to exactly one worker, which takes the next one as soon as images of it can be read, and workers store
their units themselves, so a stop at any moment loses no finished one.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import torch

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Job, preparing_processes
from gramloop.evaluate.plan import Part, Subject
from gramloop.evaluate.predicting import deterministic
from gramloop.evaluate.runner import Done, Missed, Runner, make_runner
from gramloop.evaluate.store import Store
from gramloop.util.device import gpus_of
from gramloop.util.processes import process_context, process_pool, worker_count

PRELOADED = (  # by the fork server, so that workers start with everything they need in memory
    "gramloop.evaluate.engines.local",
    "gramloop.models.tiny",
    "gramloop.tasks.detect",
    "transformers.models.dinov3_vit.modeling_dinov3_vit",
    "pandas",  # pyarrow looks for it when it makes a table
)
_POLL = 0.2  # seconds between looks at the shared counter of images


def default_workers(device: str, threads: int = 1) -> int:
    """The GPUs that a name stands for, or as many processes of so many threads as the cores hold; one on MPS."""
    chosen = torch.device(device)
    return worker_count(None, threads) if chosen.type == "cpu" else max(1, len(gpus_of(chosen)))


def run_local(job: Job, workers: int | None = None) -> Iterator[Done | Missed]:
    """Run the job's parts on this machine; leaving the iterator early, or Ctrl-C, stops all workers."""
    subject = job.subject
    wanted = default_workers(job.device or subject.device, subject.threads) if workers is None else workers
    if not job.parts:
        return
    wanted = min(worker_count(wanted), len(job.parts))
    with start_workers(subject, job.store, wanted, job.device, job.prepare) as started:
        yield from started.run(job.parts, job.on_images)


@contextmanager
def start_workers(
    subject: Subject,
    store: Store[Any],
    workers: int | None = None,
    device: str | None = None,
    prepare: int | None = None,
) -> Iterator[Workers]:
    """Workers that run any number of parts, one call of ``run`` after the other; leaving the ``with`` block ends them.

    Args:
        subject: what is run; it is pickled where there is more than one worker.
        store: where they store units.
        workers: processes; one per core or GPU by default.
        device: one of this machine's, such as cuda:1.
        prepare: processes that read images for each worker; see `Job`.
    """
    name = device or subject.device
    many = default_workers(name, subject.threads) if workers is None else worker_count(workers)
    reading = preparing_processes(subject.device, prepare, many)
    if many == 1:
        here = Workers(subject, store, device, reading)
        try:
            yield here
        finally:
            here.close()
        return
    try:
        packed = pickle.dumps((subject, store))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise GramLoopError(
            f"the model or the data cannot be sent to other processes ({error}); give a function of a module that makes "
            "the predictor, or use one worker"
        ) from error
    context = process_context(*PRELOADED)
    results, sending = context.Pipe(duplex=False)
    images, started, taken = (context.Value("q", 0) for _ in range(3))
    shared = _Shared(images, started, taken, context.Event(), sending)
    start = _Start(packed, gpus_of(torch.device(name)) or (name,), reading, shared)
    with process_pool(many, context, _start_worker, start) as pool:
        try:
            yield _Processes(pool, many, results, shared)
        finally:
            shared.stop.set()


class Workers:
    """One worker: this process. The model is loaded when it is first needed."""

    def __init__(self, subject: Subject, store: Store[Any], device: str | None, prepare: int) -> None:
        self._make: Callable[[], Runner] = lambda: make_runner(subject, store, device, prepare)
        self._runner: Runner | None = None

    def run(
        self, parts: Iterable[Part], on_images: Callable[[int], None] = lambda images: None
    ) -> Iterator[Done | Missed]:
        """Run parts and store them; each comes back once it is stored, in any order."""
        yield from self.runner.run(parts, on_images)

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        """What ``function(runner, *args)`` returns, in one of the processes."""
        with deterministic(self.runner.subject.threads):
            return function(self.runner, *args)

    @property
    def runner(self) -> Runner:
        """The runner of this process."""
        self._runner = self._runner or self._make()
        return self._runner

    def close(self) -> None:
        """End what the runner started."""
        if self._runner is not None:
            self._runner.close()


@dataclass(frozen=True)
class _Shared:
    """What all workers see: images predicted, workers started and parts taken so far, whether to stop, where results go."""

    images: Any
    started: Any
    taken: Any
    stop: Any
    results: Connection[Any, Any]


@dataclass(frozen=True)
class _Start:
    """What every worker is given when it starts."""

    packed: bytes
    devices: Sequence[str]  # handed out in turn
    prepare: int
    shared: _Shared


class _Processes(Workers):
    """Several workers, each a process."""

    def __init__(self, pool: Executor, workers: int, results: Any, shared: _Shared) -> None:
        self._pool, self._workers, self._results, self._shared = pool, workers, results, shared

    def run(
        self, parts: Iterable[Part], on_images: Callable[[int], None] = lambda images: None
    ) -> Iterator[Done | Missed]:
        wanted = tuple(parts)
        self._shared.taken.value, before, left = 0, self._shared.images.value, len(wanted)
        running = [self._pool.submit(_work, wanted) for _ in range(min(self._workers, left))]
        try:
            while left:
                came = self._results.poll(_POLL)
                on_images(self._shared.images.value - before)
                before = self._shared.images.value
                if came:
                    number, outcome = self._results.recv()
                    left -= 1
                    part = wanted[number]
                    yield Missed(part, outcome) if isinstance(outcome, str) else Done(part, outcome)
                    continue
                running = _without_ended(running)
                if left and not running and not self._results.poll(0):
                    raise GramLoopError(f"all workers ended, but {left} parts are missing")
            for future in running:
                future.result()
        except BaseException:
            self._shared.stop.set()
            raise

    def call(self, function: Callable[..., Any], *args: object) -> Any:
        return self._pool.submit(_call, function, args).result()


def _without_ended(running: Sequence[Future[None]]) -> list[Future[None]]:
    """The workers that still run; the error of one that failed is raised."""
    for future in running:
        if future.done():
            future.result()
    return [future for future in running if not future.done()]


# of a worker process
_started: _Start | None = None
_device = ""
_loaded: Runner | None = None


def _start_worker(start: _Start) -> None:
    global _started, _device
    _started, _device = start, start.devices[_next(start.shared.started) % len(start.devices)]


def _runner() -> Runner:
    """The runner of this process; loaded here and not at the start, so that an error arrives as itself."""
    global _loaded
    assert _started is not None
    if _loaded is None:
        subject, store = pickle.loads(_started.packed)
        _loaded = make_runner(subject, store, _device, _started.prepare)
        Finalize(None, _loaded.close, exitpriority=10)
    return _loaded


def _work(parts: Sequence[Part]) -> None:
    """Take parts until there are none left."""
    assert _started is not None
    shared = _started.shared
    if shared.taken.value >= len(parts):
        return  # others were faster than this process could start
    numbers = {id(part): number for number, part in enumerate(parts)}
    outcomes = _runner().run(_take(parts, shared), lambda _: _count(shared), shared.stop.is_set)
    for outcome in outcomes:
        # so short that the system writes it whole or not at all, even if this process is killed
        said = outcome.reason[:1000] if isinstance(outcome, Missed) else outcome.excluded
        shared.results.send((numbers[id(outcome.part)], said))


def _call(function: Callable[..., Any], args: tuple[object, ...]) -> Any:
    runner = _runner()
    with deterministic(runner.subject.threads):
        return function(runner, *args)


def _take(parts: Sequence[Part], shared: _Shared) -> Iterator[Part]:
    while (number := _next(shared.taken)) < len(parts):
        yield parts[number]


def _count(shared: _Shared) -> None:
    _next(shared.images)


def _next(counter: Any) -> int:
    with counter.get_lock():
        number: int = counter.value
        counter.value += 1
        return number
