"""This machine: one process per core or GPU, each with the model loaded once.

A single worker runs in this process. Every unit goes to exactly one worker, and workers store their units
themselves, so a stop at any moment loses no finished one.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch

from gramloop.data.pool import available_cores
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Done, Job, do_unit
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.session import Session
from gramloop.evaluate.store import Store

_WARM = "gramloop.evaluate.engines.warm"
_POLL = 0.2  # seconds between looks at the shared counter of images


def default_workers(plan: Plan) -> int:
    """All GPUs, or as many processes of the plan's threads as the cores hold."""
    if plan.model.device == "cuda":
        return max(1, torch.cuda.device_count())
    return max(1, available_cores() // plan.model.threads)


def run_local(job: Job, workers: int | None = None) -> Iterator[Done]:
    """Run the job's units on this machine; leaving the iterator early, or Ctrl-C, stops all workers."""
    wanted = default_workers(job.plan) if workers is None else workers
    if wanted < 1:
        raise GramLoopError(f"the number of workers must be at least 1, not {wanted}")
    wanted = min(wanted, len(job.units))
    if wanted > 1:
        yield from _in_processes(job, wanted)
    elif wanted == 1:
        yield from _here(job)


def _here(job: Job) -> Iterator[Done]:
    session, store = Session(job.plan), Store(job.folder, job.plan)
    for unit in job.units:
        yield do_unit(session, store, unit, lambda: job.on_images(1))


def _in_processes(job: Job, workers: int) -> Iterator[Done]:
    context = _context()
    shared = _Shared(context.Value("q", 0), context.Value("q", 0), context.Event())
    pool = ProcessPoolExecutor(
        workers, context, _start_worker, (job.plan, Store(job.folder, job.plan), shared)
    )
    reported = 0
    try:
        pending: set[Future[Done]] = {pool.submit(_run_unit, unit) for unit in job.units}
        while pending:
            finished, pending = wait(pending, timeout=_POLL, return_when=FIRST_COMPLETED)
            images = shared.images.value
            job.on_images(images - reported)
            reported = images
            for future in finished:
                yield future.result()
    except BrokenProcessPool as error:
        raise GramLoopError(
            "a worker process was ended from outside (out of memory?); finished units are kept, "
            "and the same command goes on from there"
        ) from error
    finally:
        shared.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


def _context() -> Any:
    """Fresh processes, since forking one with threads can hang; cheap ones where the system has a fork server."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([_WARM])  # imported once, not by every worker
    return context


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
    import cv2

    cv2.setNumThreads(1)  # the cores are shared out over processes already
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and stops the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with shared.started.get_lock():
        number = shared.started.value
        shared.started.value += 1
    many = torch.cuda.device_count() if plan.model.device == "cuda" else 0
    _worker = _Worker(plan, store, shared, f"cuda:{number % many}" if many else plan.model.device)


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, and they would work on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_unit(unit: Unit) -> Done:
    worker = _worker
    assert worker is not None
    if worker.session is None:  # here and not at the start, so that an error arrives as itself
        worker.session = Session(worker.plan, worker.device)
    return do_unit(worker.session, worker.store, unit, _count_image, worker.shared.stop.is_set)


def _count_image() -> None:
    assert _worker is not None
    with _worker.shared.images.get_lock():
        _worker.shared.images.value += 1
