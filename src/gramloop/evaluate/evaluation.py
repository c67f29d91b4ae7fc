"""An evaluation from plan to results: what is stored is kept, the rest is run, everything is scored."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gramloop.evaluate.beginning import begin, check_folder
from gramloop.evaluate.engines import Done, Job, preparing_processes, summary
from gramloop.evaluate.engines.local import default_workers, run_local
from gramloop.evaluate.engines.order import mixed
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.results import Results, collect, write_results
from gramloop.evaluate.rows import Failure
from gramloop.evaluate.session import Missed
from gramloop.evaluate.sources import open_planned
from gramloop.evaluate.store import ForeignFile, Store, UnusableFile
from gramloop.evaluate.unchanged import refuse_other_origin, remember_files
from gramloop.metrics.miou import mean_iou
from gramloop.util.checksums import load_checksums
from gramloop.util.files import locked
from gramloop.util.progress import tracked
from gramloop.util.table import Shown, ShownTable

Engine = Callable[[Job], Iterator[Done | Missed]]
_NAMES_ALONE = (
    "was planned before images were known by their content; only their names and sizes are compared"
)


@dataclass
class Watcher:
    """Told about the work as it goes on; the methods do nothing here."""

    def found(self, done: Done) -> None:
        """A unit was stored before."""

    def rejected(self, sentence: str) -> None:
        """A stored file cannot be used, or something cannot be compared."""

    def images(self, number: int) -> None:
        """So many more images were predicted."""

    def finished(self, done: Done) -> None:
        """A unit was run and stored."""

    def missed(self, missed: Missed) -> None:
        """A unit was not stored, since an image of it did not fit into memory."""


@dataclass(frozen=True)
class StoreState:
    """What a folder holds of its plan."""

    stored: tuple[Done, ...]
    missing: tuple[Unit, ...]
    rejected: tuple[tuple[Unit, UnusableFile], ...]


@dataclass(frozen=True)
class EvaluationOutcome(Shown):
    """What an evaluation came to."""

    results: Results
    rejected: tuple[str, ...]
    failures: tuple[tuple[str, Failure], ...] = field(default=())  # condition and image
    missed: tuple[Missed, ...] = ()  # units that did not fit into memory: the next run tries them again

    def _shown(self) -> ShownTable:
        shown = self.results._shown()
        return replace(shown, notes=(*shown.notes, *self.rejected))


def look(store: Store) -> StoreState:
    """Read every stored unit of a plan."""
    stored, missing, rejected = [], [], []
    units = store.plan.units
    for unit in tracked(units, "reading units", len(units)):
        try:
            found = store.read(unit)
        except UnusableFile as problem:
            rejected.append((unit, problem))
            missing.append(unit)
            continue
        if found is None:
            missing.append(unit)
        else:
            stored.append(summary(store.plan, unit, found))
    return StoreState(tuple(stored), tuple(missing), tuple(rejected))


def evaluate(
    plan: Plan,
    folder: Path,
    *,
    workers: int | None = None,
    verify: bool = False,
    engine: Engine | None = None,
    engine_name: str = "local",
    order: Callable[[Iterable[Unit]], Iterable[Unit]] | None = None,
    watcher: Watcher | None = None,
    device: str | None = None,
    prepare: int | None = None,
) -> EvaluationOutcome:
    """Run what is missing of a plan and score the whole.

    ``order`` may rearrange the units to be run; ``verify`` compares every file of a written suite with its checksum.
    ``device`` names one of this machine's GPUs, ``prepare`` the processes that prepare images; see `Job`.
    """
    watcher = watcher or Watcher()
    load_checksums(folder)
    plan = check_folder(folder, plan)  # what is refused stays untouched: neither lock nor scratch
    store = Store(folder, plan)
    checked = any(not store.path(unit).is_file() for unit in plan.units)
    if checked:
        check_can_run(plan, verify)
    with locked(folder):
        store = begin(folder, plan)
        progress = look(store)
        if progress.missing and not checked:
            check_can_run(plan, verify)
        sentences = tuple(_put_right(store, unit, problem) for unit, problem in progress.rejected)
        for sentence in sentences:
            watcher.rejected(sentence)
        for done in progress.stored:
            watcher.found(done)
        missed: tuple[Missed, ...] = ()
        if progress.missing:
            if not plan.data.contents:
                watcher.rejected(f"{folder} {_NAMES_ALONE}")
            remember_files(plan, folder)
            job = Job(plan, folder, progress.missing, watcher.images, device, prepare)
            beside = preparing_processes(plan, prepare) > 0
            ordered = (
                order(job.units) if order is not None else mixed(plan, job.units) if beside else job.units
            )
            job = replace(job, units=tuple(ordered))
            store.note_start(_about_start(job, engine_name, workers))
            missed = _run(engine(job) if engine is not None else run_local(job, workers), watcher)
        results = collect(store)
        write_results(store, results)
    failures = tuple((one.condition, failure) for one in results.conditions for failure in one.failures)
    return EvaluationOutcome(results, sentences, failures, missed)


def missed_words(missed: Sequence[Missed]) -> str:
    """Which units are not stored for lack of memory, and what would help."""
    names = ", ".join(str(one.unit) for one in missed)
    many = "1 unit is" if len(missed) == 1 else f"{len(missed)} units are"
    reasons = "; ".join(dict.fromkeys(one.reason for one in missed))
    return (
        f"{many} not stored ({names}): {reasons}; all others are kept, and the same command tries these again"
    )


def _run(outcomes: Iterable[Done | Missed], watcher: Watcher) -> tuple[Missed, ...]:
    """Tell of every unit; those that were not stored."""
    missed = []
    for one in outcomes:
        if isinstance(one, Missed):
            missed.append(one)
            watcher.missed(one)
        else:
            watcher.finished(one)
    return tuple(missed)


def check_can_run(plan: Plan, verify: bool = False) -> None:
    """Refuse a plan whose versions, weights or images are not those that it was made with."""
    refuse_other_origin(plan)
    open_planned(plan, verify="full" if verify else "quick")


def _put_right(store: Store, unit: Unit, problem: UnusableFile) -> str:
    if isinstance(problem, ForeignFile):
        return f"{problem}; it is now {store.put_aside(unit).name}, and the unit is computed again"
    return f"{problem}; the unit is computed again"


def _about_start(job: Job, engine: str, workers: int | None) -> dict[str, object]:
    plan, here = job.plan, default_workers(job.plan, job.device) if workers is None else workers
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "host": platform.node(),
        "device": job.device or plan.model.device,
        "engine": engine,
        "workers": here if engine == "local" else None,
    }


class RunningGain:
    """The paired difference to the baseline of every condition, while its units come in."""

    def __init__(self, plan: Plan) -> None:
        self._names = [method.name for method in plan.methods]
        self._sums: dict[str, NDArray[np.int64]] = {}  # condition: (methods, 3, classes)

    def add(self, done: Done) -> None:
        """Take one more unit into account."""
        if done.counts is not None:
            key = done.unit.condition
            self._sums[key] = done.counts + self._sums.get(key, np.zeros_like(done.counts))

    def of(self, key: str) -> dict[str, float]:
        """mIoU points above the baseline on the images so far, by method; empty while nothing is known."""
        if key not in self._sums or BASELINE not in self._names:
            return {}
        scores = np.atleast_1d(mean_iou(self._sums[key]))  # (methods,)
        baseline = scores[self._names.index(BASELINE)]
        return {
            name: float(score - baseline)
            for name, score in zip(self._names, scores, strict=True)
            if name != BASELINE
        }
