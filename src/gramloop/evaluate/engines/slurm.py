"""Slurm, through submitit: an array of jobs, each with its share of the units.

All nodes see the folders of weights, images and results under the same paths. The program that submits watches
for finished units; when it is stopped, so are the jobs, and starting it again submits what is missing. A job that
is preempted or runs out of time is queued again and goes on with the units that it has not stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Done, Job, cluster_package, cores_of, do_units, summary
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.session import Missed, Session
from gramloop.evaluate.store import Store, UnusableFile

_POLL = 2.0  # seconds between looks at the folder
LOGS = "slurm"  # folder of submitit's files below that of the results


@dataclass(frozen=True)
class ShareOutcome:
    """What one job of the array did: how many units it stored, and those that did not fit into its memory."""

    ran: int
    missed: tuple[Missed, ...]


@dataclass(frozen=True)
class Share:
    """What one job of the array does; it pickles, and skips what is stored when it is started again."""

    plan: Plan
    folder: Path
    units: tuple[Unit, ...]
    prepare: int = 0

    def __call__(self) -> ShareOutcome:
        """Run the units that are missing."""
        store = Store(self.folder, self.plan)
        left = [unit for unit in self.units if _stored(store, unit) is None]
        if not left:
            return ShareOutcome(0, ())
        with Session(self.plan, folder=self.folder, prepare=self.prepare) as session:
            missed = tuple(one for one in do_units(session, store, left) if isinstance(one, Missed))
        return ShareOutcome(len(left) - len(missed), missed)

    def checkpoint(self) -> Any:
        """Called by submitit when the job is about to be stopped from outside."""
        return cluster_package("submitit").helpers.DelayedSubmission(self)


def run_slurm(
    job: Job,
    *,
    jobs: int = 8,
    settings: Mapping[str, Any] | None = None,
    cluster: str = "slurm",
) -> Iterator[Done | Missed]:
    """Run the job's units in an array of up to ``jobs`` jobs; ``settings`` are submitit's, such as partition."""
    if jobs < 1:
        raise GramLoopError(f"the number of jobs must be at least 1, not {jobs}")
    prepare = cores_of(job.plan, job.prepare) - job.plan.model.threads
    shares = [
        Share(job.plan, job.folder.resolve(), tuple(job.units[first::jobs]), prepare) for first in range(jobs)
    ]
    submitted = _submit(job, [share for share in shares if share.units], dict(settings or {}), cluster)
    store, missing = Store(job.folder, job.plan), list(job.units)
    try:
        while missing:
            ended = all(
                each.done() for each in submitted
            )  # before looking, so that no last unit is overlooked
            for unit in list(missing):
                if (done := _stored(store, unit)) is not None:
                    missing.remove(unit)
                    job.on_images(len(unit))
                    yield done
            if missing and ended:
                for missed in _missed(submitted):
                    missing.remove(missed.unit)
                    yield missed
            if missing and ended:
                raise GramLoopError(_why(submitted, len(missing)))
            if missing:
                time.sleep(_POLL)
    finally:
        for each in submitted:
            if not each.done():
                each.cancel()


def _submit(job: Job, shares: Sequence[Share], settings: dict[str, Any], cluster: str) -> list[Any]:
    submitit = cluster_package("submitit")
    try:
        executor = submitit.AutoExecutor(folder=job.folder / LOGS, cluster=cluster)
    except RuntimeError as error:
        raise GramLoopError(f"there is no Slurm on this machine: {error}") from error
    gpus = {"gpus_per_node": 1} if job.plan.model.device == "cuda" else {}
    wanted = {"name": "gramloop", "cpus_per_task": cores_of(job.plan, job.prepare) + 1, **gpus, **settings}
    try:
        executor.update_parameters(**wanted)
    except (TypeError, NameError, ValueError) as error:
        raise GramLoopError(f"submitit refuses the settings {wanted}: {error}") from error
    submitted: list[Any] = executor.submit_array(list(shares))
    return submitted


def _stored(store: Store, unit: Unit) -> Done | None:
    try:
        found = store.read(unit)
    except UnusableFile:  # it was put right before the start, so it is about to be replaced
        return None
    return None if found is None else summary(store.plan, unit, found)


def _missed(submitted: Sequence[Any]) -> Iterator[Missed]:
    """The units that jobs report to be too large for their memory."""
    for each in submitted:
        if each.exception() is None:
            yield from each.result().missed


def _why(submitted: Sequence[Any], missing: int) -> str:
    """The first reason that a job gives; GramLoop's own sentence is its last line."""
    for each in submitted:
        if (error := each.exception()) is not None:
            lines = str(error).strip().splitlines()
            sentences = [line for line in lines if "GramLoopError: " in line]
            reason = sentences[-1].partition("GramLoopError: ")[2] if sentences else lines[-1]
            return f"{missing} units are missing after all jobs ended: {reason}"
    return f"{missing} units are missing after all jobs ended; see {LOGS}/ among the results"
