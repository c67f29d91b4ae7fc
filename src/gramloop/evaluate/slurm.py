"""Slurm: an array of jobs, each with its share of the parts.

All nodes see the folders of weights, images and results under the same paths. The program that submits watches for
finished units; when it is stopped, so are the jobs, and starting it again submits what is missing. Slurm itself queues a
preempted job or one of a lost node again, and it resumes with the parts that it has not stored. What is missing after
jobs reached their time limit is submitted again for as long as that brings new parts.
"""

from __future__ import annotations

import pickle
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import SILENCE, Job
from gramloop.evaluate.plan import Part, Workload
from gramloop.evaluate.runner import Done, Missed, make_runner
from gramloop.evaluate.store import Store
from gramloop.util.files import RESUME_HINT, atomic_write

LOGS = "slurm"  # folder of shares and logs below that of the results
_POLL = 2.0  # seconds between checks of the folder and the queue
_LATE = 10.0  # seconds that a shared file system may take to show what an ended job wrote
_UNREACHABLE = 1800.0  # seconds that the controller may be away while nothing finishes
_ANSWER = 120.0  # seconds for a command of Slurm
_SHARES = "shares.pickle"
_RUN = "import sys; from gramloop.evaluate.slurm import run_share; run_share(*sys.argv[1:])"
_WAITS = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
_WAITS |= {"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SPECIAL_EXIT", "REVOKED"}
# ends of jobs that may be submitted again
_AGAIN = {"TIMEOUT", "DEADLINE", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL"}
_NO_LAUNCH = "JobLaunchFailure"  # of a job whose node was lost as it started
_NEVER = re.compile(  # reasons for which a pending job never starts
    r"Partition(TimeLimit|NodeLimit|Config)|BadConstraints|DependencyNeverSatisfied|(Account|QOS)NotAllowed|Invalid(Account|QOS)"
    r"|\w*Max\w*PerJob\w*|AssocMaxJobsLimit|ReservationDeleted|JobHoldMaxRequeue"
    r"|launch failed requeued held|job requeued in held state"
)


Share = tuple[
    Workload, Store[Any], Sequence[Part], int
]  # what one job runs, and with how many preparing processes


def run_missing(share: Share) -> list[Missed]:
    """Run what is not stored of a share, which is nothing where a job is started again; what did not fit into memory."""
    workload, store, parts, prepare = share
    left = store.missing(parts)
    outcomes = make_runner(workload, store, prepare=prepare).run(left) if left else ()
    return [one for one in outcomes if isinstance(one, Missed)]


def run_share(folder: str, number: str) -> None:
    """What a job of Slurm executes: one of the shares in a folder; what it missed, or its error, is written next to it."""
    shares: list[Share] = pickle.loads(Path(folder, _SHARES).read_bytes())
    path = Path(folder, f"{number}.pickle")
    try:
        atomic_write(path, pickle.dumps(run_missing(shares[int(number)])))
    except Exception as error:
        reason = str(error) if isinstance(error, GramLoopError) else f"{type(error).__name__}: {error}"
        atomic_write(path, pickle.dumps(reason))
        raise


def run_slurm(job: Job, *, jobs: int = 8, settings: Sequence[str] = ()) -> Iterator[Done | Missed]:
    """Run the job's parts in an array of up to ``jobs`` jobs; ``settings`` are options of sbatch, as partition=gpu."""
    if shutil.which("sbatch") is None:
        raise GramLoopError("there is no Slurm on this machine: the command sbatch is not found")
    left = list(job.parts)
    while left:
        before = len(left)
        array = _submit(job, left, jobs, settings)
        try:
            yield from _watch(job, array, left)
        finally:
            array.cancel(job)
        if left:
            _check_ends(array, len(left), before - len(left))
            job.listener.message(
                f"{len(left)} parts are missing ({array.describe(ended=True)}) and submitted again"
            )


class _Array:
    """A submitted array: what Slurm says of its jobs, and what they left in their folder."""

    def __init__(self, number: str, folder: Path) -> None:
        self.number, self.folder = number, folder
        # state and reason of each job, the last that is known
        self.states = {number: ("PENDING", "just submitted")}
        self.trouble = ""  # why the controller does not answer
        self.answered = time.monotonic()

    @property
    def waiting(self) -> list[tuple[str, str]]:
        """State and reason of jobs that have not ended."""
        return [each for each in self.states.values() if each[0] in _WAITS]

    def update(self) -> None:
        """Ask Slurm for its jobs; those that it no longer knows and that had not ended are lost."""
        wanted = ("--noheader", "--array", "--states=all", "--format=%i|%T|%r", f"--jobs={self.number}")
        answer = _call("squeue", *wanted)
        self.trouble = "" if not answer.returncode or "Invalid job id" in answer.stderr else _message(answer)
        if self.trouble:
            return
        self.answered = time.monotonic()
        lines = [line.split("|", 2) for line in answer.stdout.splitlines()]
        found: dict[str, tuple[str, str]] = {}
        for name, state, reason in lines:  # an array that ended before it began is one job
            tasks = [each for each in self.states if each != name] if name == self.number else []
            found |= dict.fromkeys(tasks or [name], (state, reason))
        if found:
            self.states.pop(self.number, None)
        for name, (state, _) in self.states.items():
            found.setdefault(name, ("LOST", "") if state in _WAITS else self.states[name])
        self.states = found

    @property
    def hopeless(self) -> str:
        """The reason for which none of the jobs that are left will ever start, or nothing."""
        waiting = self.waiting
        never = [reason for state, reason in waiting if state == "PENDING" and _NEVER.fullmatch(reason)]
        return never[0] if waiting and len(never) == len(waiting) else ""

    def describe(self, *, ended: bool = False) -> str:
        """Jobs that are waited for and why, or those that ended and how."""
        if self.trouble:
            return f"Slurm does not answer ({self.trouble})"
        counted = Counter(each for each in self.states.values() if (each[0] in _WAITS) != ended)
        words = []
        for (state, reason), many in counted.most_common():
            known = reason not in ("None", "") and state not in ("TIMEOUT", "CANCELLED")
            words.append(f"{many} {state.lower().replace('_', ' ')}{f' ({reason})' if known else ''}")
        return ", ".join(words)

    def outcomes(self) -> list[list[Missed] | str]:
        """What ended jobs missed, or why they failed."""
        return [pickle.loads(path.read_bytes()) for path in sorted(self.folder.glob("[0-9]*.pickle"))]

    def cancel(self, job: Job) -> None:
        """Cancel what is left; where the controller is away, the user learns how to."""
        if self.waiting and (answer := _call("scancel", self.number)).returncode:
            job.listener.message(f"jobs may still run: scancel {self.number} failed ({_message(answer)})")


def _submit(job: Job, parts: Sequence[Part], jobs: int, settings: Sequence[str]) -> _Array:
    """Submit parts as an array of jobs; what was written is removed where Slurm refuses it."""
    prepare, many = job.cluster_prepare, min(jobs, len(parts))
    shares: list[Share] = [(job.workload, job.store, parts[first::many], prepare) for first in range(many)]
    folder = job.store.folder.resolve() / LOGS / secrets.token_hex(4)
    # sbatch would not understand every path of a log: the script redirects itself
    words = [
        "--parsable",
        "--requeue",
        "--job-name=gramloop",
        "--nodes=1",
        "--ntasks=1",
        "--output=/dev/null",
    ]
    words += [f"--array=0-{many - 1}", f"--cpus-per-task={job.workload.threads + prepare + 1}"]
    words += ["--gpus-per-node=1"] if job.workload.device == "cuda" else []
    for name, _, value in (text.partition("=") for text in settings):  # the last of two settings counts
        words.append(f"--{name.replace('_', '-')}{f'={value}' if value else ''}")
    command = shlex.join([sys.executable, "-u", "-c", _RUN, str(folder)])
    log = shlex.quote(str(folder / "job-"))
    script = (
        f'#!/bin/sh\nexec >>{log}"$SLURM_ARRAY_TASK_ID".log 2>&1\nexec {command} "$SLURM_ARRAY_TASK_ID"\n'
    )
    atomic_write(folder / _SHARES, pickle.dumps(shares))
    answer = _call("sbatch", *words, script=script)
    if answer.returncode:
        _remove(folder)
        raise GramLoopError(f"Slurm refuses the jobs: {_message(answer)}")
    return _Array(answer.stdout.strip().partition(";")[0], folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):  # logs of earlier jobs stay
        folder.parent.rmdir()


def _watch(job: Job, array: _Array, left: list[Part]) -> Iterator[Done | Missed]:
    """Yield parts as they are stored, and take them from ``left``, until nothing more can come."""
    heard = reported = time.monotonic()
    ended: float | None = None
    while left:
        array.update()
        for part in [part for part in left if not job.store.missing([part])]:
            left.remove(part)
            heard = reported = time.monotonic()
            job.listener.images(len(part))
            yield Done(part)
        now = time.monotonic()
        if not array.waiting:
            yield from _missed(array, left)
            ended = ended or now
            if now - ended > _LATE:
                return
        if array.hopeless or now - max(heard, array.answered) > _UNREACHABLE:
            return
        if now - reported >= SILENCE:
            reported = now
            job.listener.message(
                f"waiting for {len(left)} parts from Slurm's array {array.number}: {array.describe()}"
            )
        if left:
            time.sleep(_POLL)


def _check_ends(array: _Array, missing: int, finished: int) -> None:
    """Raise why parts are missing, unless jobs ended in a way that submitting them again may help."""
    states = array.states.values()
    ends = {"NODE_FAIL" if reason == _NO_LAUNCH else state for state, reason in states} - {"COMPLETED"}
    errors = [outcome for outcome in array.outcomes() if isinstance(outcome, str)]
    if errors:
        reason = errors[0]
    elif array.hopeless:
        reason = f"its jobs can never start ({array.hopeless}; see scontrol show job {array.number})"
        if not finished:
            _remove(array.folder)
    elif array.trouble or array.waiting:
        reason = array.describe()
    elif ends and ends <= _AGAIN:
        if finished:
            return
        reason = f"{array.describe(ended=True)} before one part was finished; ask for more time or use more --shards"
    else:
        reason = f"{array.describe(ended=True)}; see {array.folder}"
    raise GramLoopError(
        f"{missing} parts are missing from Slurm's array {array.number}: {reason}; {RESUME_HINT}"
    )


def _missed(array: _Array, left: list[Part]) -> Iterator[Missed]:
    """The parts that jobs report to be too large for their memory; they are taken from ``left``."""
    for outcome in array.outcomes():
        for missed in () if isinstance(outcome, str) else outcome:
            for part in [each for each in left if str(each) == str(missed.part)]:
                left.remove(part)
                yield missed


def _call(*words: str, script: str | None = None) -> subprocess.CompletedProcess[str]:
    """A command of Slurm; one that does not answer has failed."""
    try:
        how: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace", "timeout": _ANSWER}
        return subprocess.run(words, input=script, check=False, **how)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


def _message(answer: subprocess.CompletedProcess[str]) -> str:
    """What a command of Slurm wrote about its failure, in one line."""
    lines = [re.sub(r"^\w+: (error: )?", "", line).strip() for line in answer.stderr.splitlines()]
    return "; ".join(filter(None, lines)) or f"{answer.args[0]} ended with {answer.returncode}"
