"""Slurm, through submitit: an array of jobs, each with its share of the parts.

All nodes see the folders of weights, images and results under the same paths. The program that submits watches
for finished units; when it is stopped, so are the jobs, and starting it again submits what is missing. A job that
is preempted or runs out of time is queued again and resumes with the units that it has not stored.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import Job, cluster_package, cores_of
from gramloop.evaluate.plan import Part, Subject
from gramloop.evaluate.runner import Done, Missed, Runner
from gramloop.evaluate.store import Store

_POLL = 2.0  # seconds between looks at the folder
LOGS = "slurm"  # folder of submitit's files below that of the results


@dataclass(frozen=True)
class ShareOutcome:
    """What one job of the array did: how many parts it ran, and those that did not fit into its memory."""

    ran: int
    missed: tuple[Missed, ...]


@dataclass(frozen=True)
class Share:
    """What one job of the array does; it pickles, and skips what is stored when it is started again."""

    subject: Subject
    store: Store[Any]
    parts: tuple[Part, ...]
    prepare: int = 0

    def __call__(self) -> ShareOutcome:
        """Run what is missing."""
        left = self.store.missing(self.parts)
        if not left:
            return ShareOutcome(0, ())
        with Runner(self.subject, self.store, prepare=self.prepare) as runner:
            missed = tuple(one for one in runner.run(left) if isinstance(one, Missed))
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
    """Run the job's parts in an array of up to ``jobs`` jobs; ``settings`` are submitit's, such as partition."""
    if jobs < 1:
        raise GramLoopError(f"the number of jobs must be at least 1, not {jobs}")
    prepare = cores_of(job.subject, job.prepare) - job.subject.threads
    shares = [Share(job.subject, job.store, tuple(job.parts[first::jobs]), prepare) for first in range(jobs)]
    submitted = _submit(job, [share for share in shares if share.parts], dict(settings or {}), cluster)
    left = list(job.parts)
    try:
        while left:
            ended = all(
                each.done() for each in submitted
            )  # before looking, so that no last unit is overlooked
            for part in list(left):
                if not job.store.missing([part]):
                    left.remove(part)
                    job.on_images(len(part))
                    yield Done(part, _excluded(job.store, part))
            if left and ended:
                for number, missed in _missed(submitted, left):
                    left.remove(number)
                    yield missed
            if left and ended:
                raise GramLoopError(_why(submitted, len(left)))
            if left:
                time.sleep(_POLL)
    finally:
        for each in submitted:
            if not each.done():
                each.cancel()


def _submit(job: Job, shares: Sequence[Share], settings: dict[str, Any], cluster: str) -> list[Any]:
    submitit = cluster_package("submitit")
    try:
        executor = submitit.AutoExecutor(folder=job.store.folder / LOGS, cluster=cluster)
    except RuntimeError as error:
        raise GramLoopError(f"there is no Slurm on this machine: {error}") from error
    gpus = {"gpus_per_node": 1} if job.subject.device == "cuda" else {}
    wanted = {"name": "gramloop", "cpus_per_task": cores_of(job.subject, job.prepare) + 1, **gpus, **settings}
    try:
        executor.update_parameters(**wanted)
    except (TypeError, NameError, ValueError) as error:
        raise GramLoopError(f"submitit refuses the settings {wanted}: {error}") from error
    submitted: list[Any] = executor.submit_array(list(shares))
    return submitted


def _excluded(store: Store[Any], part: Part) -> int:
    """Images of a stored part that count for no method."""
    stored = [store.read(unit) for unit in part.units]
    return len({failure.position for unit in stored if unit is not None for failure in unit.failures})


def _missed(submitted: Sequence[Any], left: Sequence[Part]) -> Iterator[tuple[Part, Missed]]:
    """The parts that jobs report to be too large for their memory."""
    for each in submitted:
        for missed in each.result().missed if each.exception() is None else ():
            same = [
                part
                for part in left
                if (part.condition, part.images) == (missed.part.condition, missed.part.images)
            ]
            yield from ((part, missed) for part in same)


def _why(submitted: Sequence[Any], missing: int) -> str:
    """The first reason that a job gives: the message of a GramLoopError, or its last line."""
    for each in submitted:
        if (error := each.exception()) is not None:
            lines = str(error).strip().splitlines()
            sentences = [line for line in lines if "GramLoopError: " in line]
            reason = sentences[-1].partition("GramLoopError: ")[2] if sentences else lines[-1]
            return f"{missing} parts are missing after all jobs ended: {reason}"
    return f"{missing} parts are missing after all jobs ended; see {LOGS}/ among the results"
