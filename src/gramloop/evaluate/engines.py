"""Engines run parts somewhere. Each takes a job and yields every part once, in the order in which they finish.

This one is the engine of this machine: one process per core or GPU, each with the model loaded once; a single worker is
this process. Every part goes to exactly one worker, which takes the next one as soon as images of it can be read, and
workers store their units themselves, so a stop at any moment loses no finished one.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Self

import torch

from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import Part, Workload
from gramloop.evaluate.runner import Done, Missed, Runner, make_runner
from gramloop.evaluate.store import Store
from gramloop.util.device import gpus_of
from gramloop.util.processes import (
    MOST_WORKERS,
    available_cores,
    process_context,
    process_pool,
    worker_count,
)

if TYPE_CHECKING:
    from gramloop.evaluate.results import Results

SILENCE = 60.0  # seconds without a finished part after which the user learns what is waited for
CLUSTER_PREPARE = 8  # processes that read images for each GPU of a cluster, where its nodes have the cores
PRELOADED = (  # by the fork server, so that workers start with everything they need in memory
    "gramloop.evaluate.engines",
    "gramloop.models.tiny",
    "gramloop.tasks.released",
    "transformers.models.dinov3_vit.modeling_dinov3_vit",
    "pandas",  # pyarrow imports it when it makes a table
)
_POLL = 0.2  # seconds between readings of the shared counter of images


class Listener:
    """Called as an evaluation proceeds, within a ``with`` block; nothing happens here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """The work is over."""

    def started(self, images: int, stored: int = 0) -> None:
        """There are so many images, of which some are stored already."""

    def images(self, number: int) -> None:
        """So many more images were predicted."""

    def message(self, text: str) -> None:
        """A stored file cannot be used, or nothing was finished for a while: what a cluster is waited for."""

    def outcome(self, outcome: Done | Missed) -> None:
        """A part was run and stored, or was not stored since an image of it did not fit into memory."""

    def scored(self, results: Results, name: str = "") -> None:
        """A condition is complete; ``name`` is its evaluation, where there are several."""


@dataclass(frozen=True)
class Job:
    """Parts that are still to be run."""

    workload: Workload
    store: Store[Any]  # where results go
    parts: Sequence[Part]
    listener: Listener = field(default_factory=Listener)
    device: str | None = None  # one of this machine's, of the workload's type; None takes all of them
    # processes that read images for each model process, 0 for a thread; None for as many as there are cores
    prepare: int | None = None

    @property
    def cluster_prepare(self) -> int:
        """Processes that read images for each model process on a cluster."""
        return self.prepare if self.prepare is not None else CLUSTER_PREPARE * (self.workload.device != "cpu")


Engine = Callable[[Job], Iterator[Done | Missed]]
RunParts = Callable[..., Iterator[Done | Missed]]


def preparing_processes(device: str, asked: int | None, models: int = 1) -> int:
    """Processes that read images for each of so many models on a machine.

    By default none on the CPU, whose cores all have a model, and for GPUs all cores, shared out.
    """
    if asked is not None:
        if not 0 <= asked <= MOST_WORKERS:
            raise GramLoopError(f"the number of preparing processes is 0 to {MOST_WORKERS}, not {asked}")
        return asked
    return 0 if torch.device(device).type == "cpu" else max(1, available_cores() // models)


# this machine


def default_workers(device: str, threads: int = 1, asked: int | None = None) -> int:
    """The GPUs that a name stands for, or as many processes of so many threads as the cores hold; one on MPS."""
    if asked is not None:
        return worker_count(asked)
    chosen = torch.device(device)
    return worker_count(None, threads) if chosen.type == "cpu" else max(1, len(gpus_of(chosen)))


def run_local(job: Job, workers: int | None = None) -> Iterator[Done | Missed]:
    """Run the job's parts on this machine; leaving the iterator early, or Ctrl-C, stops all workers."""
    if not job.parts:
        return
    many = default_workers(job.device or job.workload.device, job.workload.threads, workers)
    many = min(many, len(job.parts))
    with start_workers(job.workload, job.store, many, job.device, job.prepare) as started:
        yield from started(job.parts, job.listener.images)


@contextmanager
def start_workers(
    workload: Workload,
    store: Store[Any],
    workers: int | None = None,
    device: str | None = None,
    prepare: int | None = None,
) -> Iterator[RunParts]:
    """A function that has workers run and store parts, as often as needed; leaving the ``with`` block ends them.

    It takes parts, and what is called with the number of images that were predicted since the last call. Each part comes
    back once it is stored, in any order. The model is loaded when it is first needed, and the workload is pickled where
    there is more than one worker. ``device`` and ``prepare`` are those of a `Job`.
    """
    name = device or workload.device
    many = default_workers(name, workload.threads, workers)
    reading = preparing_processes(workload.device, prepare, many)
    if many == 1:
        load = cache(partial(make_runner, workload, store, device, reading))
        yield lambda *given: load().run(*given)
        return
    try:
        packed = pickle.dumps((workload, store))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise GramLoopError(
            f"the model or the data cannot be sent to other processes ({error}); give a function of a module that makes "
            "the predictor, or use one worker"
        ) from error
    context = process_context(*PRELOADED)
    results, sending = context.Pipe(duplex=False)
    images, started, taken = (context.Value("q", 0) for _ in range(3))
    devices = gpus_of(torch.device(name)) or (name,)
    shared = _Shared(packed, devices, reading, images, started, taken, context.Event(), sending)
    with process_pool(many, context, _start_worker, shared) as pool:
        try:
            yield partial(_run_shared, pool, many, results, shared)
        finally:
            shared.stop.set()


@dataclass(frozen=True)
class _Shared:
    """What every worker is given when it starts, and what all of them see."""

    packed: bytes  # workload and store
    devices: Sequence[str]  # handed out in turn
    prepare: int
    images: Any  # counters: images predicted,
    started: Any  # workers started
    taken: Any  # and parts taken so far
    stop: Any
    results: Any  # the end of a pipe


def _run_shared(
    pool: Executor,
    workers: int,
    results: Any,
    shared: _Shared,
    parts: Iterable[Part],
    on_images: Callable[[int], None] = lambda images: None,
) -> Iterator[Done | Missed]:
    """Run parts in the processes of a pool."""
    wanted = tuple(parts)
    shared.taken.value, before, left = 0, shared.images.value, len(wanted)
    running = [pool.submit(_work, wanted) for _ in range(min(workers, left))]
    try:
        while left:
            came = results.poll(_POLL)
            on_images(shared.images.value - before)
            before = shared.images.value
            if came:
                number, reason = results.recv()
                left -= 1
                yield Missed(wanted[number], reason) if reason else Done(wanted[number])
                continue
            ended = [future for future in running if future.done()]
            for future in ended:
                future.result()  # raises the error of a worker that failed
            if len(ended) == len(running) and not results.poll(0):
                raise GramLoopError(f"all workers ended, but {left} parts are missing")
        for future in running:
            future.result()
    except BaseException:
        shared.stop.set()
        raise


# of a worker process
_shared: _Shared | None = None
_device = ""
_runner: Runner | None = None


def _start_worker(shared: _Shared) -> None:
    global _shared, _device
    _shared, _device = shared, shared.devices[_next(shared.started) % len(shared.devices)]


def _work(parts: Sequence[Part]) -> None:
    """Take parts until there are none left."""
    global _runner
    shared = _shared
    assert shared is not None
    if shared.taken.value >= len(parts):
        return  # others were faster than this process could start
    if _runner is None:  # loaded here and not at the start, so that an error arrives as itself
        workload, store = pickle.loads(shared.packed)
        _runner = make_runner(workload, store, _device, shared.prepare)
    numbers = {part: number for number, part in enumerate(parts)}
    for outcome in _runner.run(_take(parts, shared), partial(_count, shared.images), shared.stop.is_set):
        # so short that the system writes it whole or not at all, even if this process is killed
        reason = outcome.reason[:1000] if isinstance(outcome, Missed) else ""
        shared.results.send((numbers[outcome.part], reason))


def _take(parts: Sequence[Part], shared: _Shared) -> Iterator[Part]:
    while (number := _next(shared.taken)) < len(parts):
        yield parts[number]


def _next(counter: Any) -> int:
    with counter.get_lock():
        number: int = counter.value
        counter.value += 1
        return number


def _count(counter: Any, steps: int) -> None:
    with counter.get_lock():
        counter.value += steps
