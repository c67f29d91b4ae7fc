"""Jobs spread over processes of this machine, each with the model loaded once; one worker needs no process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

from gramloop.data.pool import available_cores
from gramloop.errors import GramLoopError
from gramloop.tune.search.subject import Bench, Subject, Trial

_WARM = "gramloop.evaluate.engines.warm"


class Workers:
    """Runs trials; results come as they are finished, in any order."""

    def __init__(self, subject: Subject, pool: ProcessPoolExecutor | None) -> None:
        self.subject, self._pool = subject, pool
        self._bench: Bench | None = None

    def run(self, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
        """The result of every trial."""
        if self._pool is None:
            yield from self._here(trials)
            return
        waiting = [self._pool.submit(_run, trial) for trial in trials]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BrokenProcessPool as error:
            raise GramLoopError(
                "a worker process was ended from outside (out of memory?); finished trials are kept, "
                "and the same command goes on from there"
            ) from error
        finally:
            for each in waiting:
                each.cancel()

    def _here(self, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
        from gramloop.evaluate.session import deterministic

        for trial in trials:
            with deterministic(
                self.subject.threads
            ):  # not around the yield: the caller's threads are its own
                if self._bench is None:
                    self._bench = Bench(self.subject)
                result = self._bench.run(trial)
            yield result


@contextmanager
def start_workers(subject: Subject, workers: int | None = None) -> Iterator[Workers]:
    """As many processes as asked for, or as the cores hold; leaving ends them."""
    many = max(1, available_cores() // subject.threads) if workers is None else workers
    if many < 1:
        raise GramLoopError(f"the number of workers must be at least 1, not {many}")
    if many == 1:
        yield Workers(subject, None)
        return
    try:
        packed = pickle.dumps(subject)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise GramLoopError(
            f"the predictor or the data cannot be sent to other processes ({error}); give a function of a "
            "module that makes the predictor, or use one worker"
        ) from error
    pool = ProcessPoolExecutor(many, _context(), _start, (packed,))
    try:
        yield Workers(subject, pool)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _context() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")  # forking a process with threads can hang
    context.set_forkserver_preload([_WARM])  # imported once, not by every worker
    return context


_packed = b""
_bench: Bench | None = None


def _start(packed: bytes) -> None:
    global _packed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it and stops the pool
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _packed = packed


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, and they would work on for nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(trial: Trial) -> dict[str, Any]:
    global _bench
    from gramloop.evaluate.session import deterministic

    if _bench is None:  # here and not at the start, so that an error arrives as itself
        import cv2

        cv2.setNumThreads(1)  # the cores are shared out over processes already
        subject: Subject = pickle.loads(_packed)
        with deterministic(subject.threads):
            _bench = Bench(subject)
    with deterministic(_bench.subject.threads):
        return _bench.run(trial)
