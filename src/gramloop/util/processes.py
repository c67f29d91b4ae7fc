"""Worker processes of this machine, which end with the process that started them however it ends."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.context import (
    BaseContext,
    ForkServerContext,
    ForkServerProcess,
    SpawnContext,
    SpawnProcess,
)
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import TypeVar, TypeVarTuple

from gramloop.errors import GramLoopError
from gramloop.util.files import RESUME_HINT

MOST_WORKERS = 1024  # processes; each holds a model, or at least Python
MOST_THREADS = max(256, os.cpu_count() or 1)  # more than the cores only slow each other down
_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_SIGNAL = 0.2  # seconds: a signal to a whole process group ends workers, and arrives here too
_WAITING = 1024  # calls submitted ahead: more than any machine has cores

_Given = TypeVarTuple("_Given")
_R = TypeVar("_R")


def available_cores() -> int:
    """The cores that this process may use, by its affinity and by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for read in _cgroup_files("cpu"):
        words = (read("cpu.max") or f"{read('cpu.cfs_quota_us')} {read('cpu.cfs_period_us')}").split()
        quota, period = words if len(words) == 2 else ("max", "")
        if quota.isdecimal() and period.isdecimal():  # else "max" or -1
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_memory() -> int:
    """Bytes of memory that are free, on the machine and below the limit of the container; half of all where unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        sysconf = getattr(os, "sysconf", None)  # not on Windows
        free = sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE") // 2 if sysconf else 8 * 10**9
    for read in _cgroup_files("memory"):
        limit = read("memory.max") or read("memory.limit_in_bytes")
        used = read("memory.current") or read("memory.usage_in_bytes")
        if limit.isdecimal() and used.isdecimal():
            # files that were read are given up when memory is needed
            files = re.search(r"^(?:total_)?inactive_file (\d+)", read("memory.stat"), re.MULTILINE)
            free = min(free, max(0, int(limit) - int(used) + (int(files[1]) if files else 0)))
    return free


def _cgroup_files(controller: str) -> Iterator[Callable[[str], str]]:
    """For this process's cgroup, and each around it, what reads a file of it; of version 2 and 1 alike."""
    try:
        lines = [line.split(":", 2) for line in _MEMBERSHIP.read_text(encoding="utf-8").splitlines()]
    except OSError:  # not Linux
        return
    for _, controllers, place in lines:
        if controller in controllers.split(",") or not controllers:
            root = _CGROUPS / controller if controllers else _CGROUPS
            # inside a container the place may be that outside of it; its own limits are then at the root
            folder = root / place.strip("/")
            for each in (folder, *folder.parents):
                if each.is_relative_to(root) and each.is_dir():
                    yield partial(_cgroup_value, each)


def _cgroup_value(folder: Path, name: str) -> str:
    try:
        return (folder / name).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


def worker_count(asked: int | None, threads: int = 1) -> int:
    """The requested number of processes, or as many of ``threads`` threads each as there are cores for."""
    count = max(1, available_cores() // threads) if asked is None else asked
    if count < 1:
        raise GramLoopError(f"the number of workers must be at least 1, not {count}")
    if count > MOST_WORKERS:
        raise GramLoopError(f"the number of workers must be at most {MOST_WORKERS}, not {count}")
    return count


def process_context(*preload: str | None) -> BaseContext:
    """How processes are started: never forked, since forking a process with threads can hang.

    Args:
        preload: modules that workers need; a fork server, where the system has one, imports them once for all.
    """
    wanted = [name for name in preload if name]
    if not wanted or "forkserver" not in multiprocessing.get_all_start_methods():
        return _SpawnContext()
    context = _ForkServerContext()
    context.set_forkserver_preload(wanted)
    return context


class _WithoutScript(BaseProcess):
    """A process that does not run the script of its parent again, unless the script guards itself against that.

    A process that is not forked imports the parent's script, for what is defined there. A script without
    ``if __name__ == "__main__":`` would begin its work anew in each.
    """

    def start(self) -> None:
        main = sys.modules["__main__"]
        if not _has_guard(getattr(main, "__file__", None)):
            sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main


def _has_guard(file: str | None) -> bool:
    try:
        return file is None or "__name__" in Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:  # not a file of Python, as in a notebook
        return True


class _SpawnProcess(_WithoutScript, SpawnProcess):
    pass


class _SpawnContext(SpawnContext):
    Process = _SpawnProcess


class _ForkServerProcess(_WithoutScript, ForkServerProcess):
    pass


class _ForkServerContext(ForkServerContext):
    Process = _ForkServerProcess


@contextmanager
def process_pool(
    workers: int, context: BaseContext, start: Callable[[*_Given], None] | None = None, *given: *_Given
) -> Iterator[ProcessPoolExecutor]:
    """A pool whose workers each call ``start(*given)`` first; leaving the block drops waiting calls and ends them."""
    pool = ProcessPoolExecutor(workers, context, _start_worker, (start, *given))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise worker_died("a worker process") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def worker_died(who: str) -> GramLoopError:
    """The error of a worker that died; waits for a signal that may have ended both, so that it is handled first."""
    time.sleep(_SIGNAL)
    return GramLoopError(f"{who} died (out of memory?); {RESUME_HINT}")


def run_unordered(
    pool: Executor, function: Callable[[*_Given], _R], calls: Iterable[tuple[*_Given]]
) -> Iterator[tuple[tuple[*_Given], _R]]:
    """Every call's arguments with its result, as they finish; leaving early drops the calls that wait."""
    finished: SimpleQueue[Future[_R]] = SimpleQueue()
    pending: dict[Future[_R], tuple[*_Given]] = {}
    try:
        for call in calls:
            future = pool.submit(function, *call)
            pending[future] = call
            future.add_done_callback(finished.put)
            while len(pending) >= _WAITING:
                yield pending.pop(done := finished.get()), done.result()
        while pending:
            yield pending.pop(done := finished.get()), done.result()
    finally:
        for future in pending:
            future.cancel()


def in_order(
    function: Callable[[*_Given], _R], calls: Sequence[tuple[*_Given]], workers: int
) -> Iterator[_R]:
    """Every call's result, in the order of the calls; a single worker is this process."""
    wanted = min(workers, len(calls))
    if wanted < 2:
        yield from (function(*call) for call in calls)
        return
    with process_pool(wanted, process_context(function.__module__)) as pool:
        yield from pool.map(_call, [function] * len(calls), calls)


def _call(function: Callable[[*_Given], _R], call: tuple[*_Given]) -> _R:
    return function(*call)


def _start_worker(start: Callable[[*_Given], None] | None, *given: *_Given) -> None:
    start_worker()
    if start is not None:
        start(*given)


def start_worker() -> None:
    """What every worker process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it and stops its workers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(ImportError):
        import cv2

        cv2.setNumThreads(1)  # the processes already share the cores


def _end_with_parent() -> None:
    """A killed parent cannot stop its workers, which would wait for work forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
