"""Jobs spread over processes of this machine, each with the model loaded once; one worker needs no process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.tune.search.bench import Bench, Trial
from gramloop.tune.search.split import Sample
from gramloop.tune.search.subject import Subject
from gramloop.util.processes import process_context, process_pool, run_unordered, worker_count


class Workers:
    """Runs trials; results come as they are finished, in any order."""

    def __init__(self, subject: Subject, pool: Executor | None) -> None:
        self.subject, self._pool = subject, pool
        self._bench: Bench | None = None

    def run(self, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
        """The result of every trial."""
        if self._pool is None:
            yield from self._here(trials)
            return
        for _, result in run_unordered(self._pool, _run, ((trial,) for trial in trials)):
            yield result

    def calibrate(self, samples: Sequence[Sample], path: str) -> dict[str, Any]:
        """Have one process learn what ordinary images look like; see `Bench.calibrate`."""
        if self._pool is not None:
            return self._pool.submit(_calibrate, samples, path).result()
        from gramloop.evaluate.predicting import deterministic

        with deterministic(self.subject.threads):
            return self._own_bench().calibrate(samples, path)

    def _own_bench(self) -> Bench:
        if self._bench is None:
            self._bench = Bench(self.subject)
        return self._bench

    def _here(self, trials: Sequence[Trial]) -> Iterator[dict[str, Any]]:
        from gramloop.evaluate.predicting import deterministic

        for trial in trials:
            with deterministic(
                self.subject.threads
            ):  # not around the yield: the caller's threads are its own
                result = self._own_bench().run(trial)
            yield result


@contextmanager
def start_workers(subject: Subject, workers: int | None = None) -> Iterator[Workers]:
    """As many processes as asked for, or as the cores hold; leaving ends them."""
    many = worker_count(workers, subject.threads)
    if many == 1:
        yield Workers(subject, None)
        return
    from gramloop.evaluate.engines.local import PRELOADED

    try:
        packed = pickle.dumps(replace(subject, sketch=None))  # each process makes a predictor of its own
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise GramLoopError(
            f"the predictor or the data cannot be sent to other processes ({error}); give a function of a "
            "module that makes the predictor, or use one worker"
        ) from error
    with process_pool(many, process_context(*PRELOADED), _start, packed) as pool:
        yield Workers(subject, pool)


_packed = b""
_bench: Bench | None = None


def _start(packed: bytes) -> None:
    global _packed
    _packed = packed


def _run(trial: Trial) -> dict[str, Any]:
    from gramloop.evaluate.predicting import deterministic

    bench = _this_bench()
    with deterministic(bench.subject.threads):
        return bench.run(trial)


def _calibrate(samples: Sequence[Sample], path: str) -> dict[str, Any]:
    from gramloop.evaluate.predicting import deterministic

    bench = _this_bench()
    with deterministic(bench.subject.threads):
        return bench.calibrate(samples, path)


def _this_bench() -> Bench:
    global _bench
    from gramloop.evaluate.predicting import deterministic

    if _bench is None:  # here and not at the start, so that an error arrives as itself
        subject: Subject = pickle.loads(_packed)
        with deterministic(subject.threads):
            _bench = Bench(subject)
    return _bench
