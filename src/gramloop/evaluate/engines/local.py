"""This machine: one process per core or GPU, each with the model loaded once.

A single worker runs in this process. Every unit goes to exactly one worker, which takes the next one as soon as images
of it can be prepared, and workers store their units themselves, so a stop at any moment loses no finished one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Done, Job, do_units, preparing_processes
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.session import Missed, Session
from gramloop.evaluate.store import Store
from gramloop.util.device import gpus_of
from gramloop.util.processes import process_context, process_pool, worker_count

WARM = "gramloop.evaluate.engines.warm"  # what workers of a model need in memory
_POLL = 0.2  # seconds between looks at the shared counter of images


def default_workers(plan: Plan, device: str | None = None) -> int:
    """The GPUs that are named, or as many processes of the plan's threads as the cores hold; one on MPS."""
    chosen = torch.device(device or plan.model.device)
    if chosen.type == "cpu":
        return worker_count(None, plan.model.threads)
    return max(1, len(gpus_of(chosen)))


def run_local(job: Job, workers: int | None = None) -> Iterator[Done | Missed]:
    """Run the job's units on this machine; leaving the iterator early, or Ctrl-C, stops all workers."""
    wanted = default_workers(job.plan, job.device) if workers is None else worker_count(workers)
    wanted = min(wanted, len(job.units))
    if wanted < 1:
        return
    prepare = preparing_processes(job.plan, job.prepare, wanted)
    if wanted > 1:
        yield from _in_processes(job, wanted, prepare)
        return
    store = Store(job.folder, job.plan)
    with Session(job.plan, job.device, job.folder, prepare) as session:
        yield from do_units(session, store, job.units, lambda: job.on_images(1))


def _in_processes(job: Job, workers: int, prepare: int) -> Iterator[Done | Missed]:
    context = process_context(WARM)
    results, sender = context.Pipe(duplex=False)
    images, started, taken = (context.Value("q", 0) for _ in range(3))
    shared = _Shared(images, started, taken, context.Event(), context.Lock(), sender)
    device = job.device or job.plan.model.device
    share = _Share(
        job.plan, job.folder, tuple(job.units), gpus_of(torch.device(device)) or (device,), prepare, shared
    )
    reported, left, ended = 0, len(job.units), False
    with process_pool(workers, context, _start_worker, share) as pool:
        try:
            running: list[Future[None]] = [pool.submit(_work) for _ in range(workers)]
            sender.close()  # only workers write: when the last has ended, so has the pipe, even within a result
            while left:
                came = results.poll(_POLL)
                job.on_images(images.value - reported)
                reported = images.value
                try:
                    if came:
                        yield results.recv()
                        left -= 1
                except EOFError:
                    ended = True
                    wait(running)
                for future in [each for each in running if each.done()]:
                    running.remove(future)
                    future.result()
                if not running and left and (ended or not results.poll(0)):
                    raise GramLoopError(f"all workers ended, but {left} units are missing")
        finally:
            shared.stop.set()


@dataclass(frozen=True)
class _Shared:
    """What all workers see: images predicted, workers started and units taken so far, whether to stop, the way back."""

    images: Any
    started: Any
    taken: Any
    stop: Any
    sending: Any
    results: Connection[Any, Any]


@dataclass(frozen=True)
class _Share:
    """What every worker is told."""

    plan: Plan
    folder: Path
    units: Sequence[Unit]
    devices: Sequence[str]  # handed out in turn
    prepare: int
    shared: _Shared


_share: _Share | None = None
_device = ""


def _start_worker(share: _Share) -> None:
    global _share, _device
    _share, _device = share, share.devices[_next(share.shared.started) % len(share.devices)]


def _work() -> None:
    """Take units until there are none left; the model is loaded here, so that an error arrives as itself."""
    share = _share
    assert share is not None
    shared, store = share.shared, Store(share.folder, share.plan)
    if shared.taken.value >= len(share.units):
        return  # others were faster than this process could start
    with Session(share.plan, _device, share.folder, share.prepare) as session:
        for done in do_units(session, store, _take(share), _count_image, shared.stop.is_set):
            with shared.sending:
                shared.results.send(done)


def _take(share: _Share) -> Iterator[Unit]:
    while (number := _next(share.shared.taken)) < len(share.units):
        yield share.units[number]


def _next(counter: Any) -> int:
    with counter.get_lock():
        number: int = counter.value
        counter.value += 1
        return number


def _count_image() -> None:
    assert _share is not None
    _next(_share.shared.images)
