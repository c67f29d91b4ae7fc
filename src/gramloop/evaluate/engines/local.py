"""This machine: one process per core or GPU, each with the model loaded once.

A single worker runs in this process. Every unit goes to exactly one worker, and workers store their units
themselves, so a stop at any moment loses no finished one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from typing import Any

import torch

from gramloop.evaluate.engines import Done, Job, do_unit
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.session import Session
from gramloop.evaluate.store import Store
from gramloop.io.pool import process_context, process_pool, worker_count

WARM = "gramloop.evaluate.engines.warm"  # what workers of a model need in memory
_POLL = 0.2  # seconds between looks at the shared counter of images


def default_workers(plan: Plan) -> int:
    """All GPUs, or as many processes of the plan's threads as the cores hold."""
    if plan.model.device == "cuda":
        return max(1, torch.cuda.device_count())
    return worker_count(None, plan.model.threads)


def run_local(job: Job, workers: int | None = None) -> Iterator[Done]:
    """Run the job's units on this machine; leaving the iterator early, or Ctrl-C, stops all workers."""
    wanted = default_workers(job.plan) if workers is None else worker_count(workers)
    wanted = min(wanted, len(job.units))
    if wanted > 1:
        yield from _in_processes(job, wanted)
    elif wanted == 1:
        yield from _here(job)


def _here(job: Job) -> Iterator[Done]:
    session, store = Session(job.plan, folder=job.folder), Store(job.folder, job.plan)
    for unit in job.units:
        yield do_unit(session, store, unit, lambda: job.on_images(1))


def _in_processes(job: Job, workers: int) -> Iterator[Done]:
    context = process_context(WARM)
    shared = _Shared(context.Value("q", 0), context.Value("q", 0), context.Event())
    store, reported = Store(job.folder, job.plan), 0
    with process_pool(workers, context, _start_worker, job.plan, store, shared) as pool:
        try:
            pending: set[Future[Done]] = {pool.submit(_run_unit, unit) for unit in job.units}
            while pending:
                finished, pending = wait(pending, timeout=_POLL, return_when=FIRST_COMPLETED)
                images = shared.images.value
                job.on_images(images - reported)
                reported = images
                for future in finished:
                    yield future.result()
        finally:
            shared.stop.set()


@dataclass(frozen=True)
class _Shared:
    """What all workers see: images predicted so far, workers started so far, and whether to stop."""

    images: Any
    started: Any
    stop: Any


@dataclass
class _Worker:
    plan: Plan
    store: Store
    shared: _Shared
    device: str
    session: Session | None = None


_worker: _Worker | None = None


def _start_worker(plan: Plan, store: Store, shared: _Shared) -> None:
    global _worker
    with shared.started.get_lock():
        number = shared.started.value
        shared.started.value += 1
    many = torch.cuda.device_count() if plan.model.device == "cuda" else 0
    _worker = _Worker(plan, store, shared, f"cuda:{number % many}" if many else plan.model.device)


def _run_unit(unit: Unit) -> Done:
    worker = _worker
    assert worker is not None
    if worker.session is None:  # here and not at the start, so that an error arrives as itself
        worker.session = Session(worker.plan, worker.device, worker.store.folder)
    return do_unit(worker.session, worker.store, unit, _count_image, worker.shared.stop.is_set)


def _count_image() -> None:
    assert _worker is not None
    with _worker.shared.images.get_lock():
        _worker.shared.images.value += 1
