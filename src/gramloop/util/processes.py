"""Worker processes of this machine, which end with the process that started them however it ends."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, TypeVarTuple

from gramloop.errors import GramLoopError
from gramloop.util.files import RESUME_HINT

MOST_WORKERS = 1024  # processes; each holds a model, or at least Python
_CGROUPS, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_SIGNAL = 0.2  # seconds: a signal to a whole process group ends workers, and arrives here too
_WAITING = 1024  # calls submitted ahead: more than any machine has cores
_FORKS = "forkserver" in multiprocessing.get_all_start_methods()

_Given = TypeVarTuple("_Given")
_R = TypeVar("_R")


def available_cores() -> int:
    """The cores that this process may use, by its affinity and by the quota of its container."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    place = None
    with suppress(OSError):
        place = re.search(r"^0::(.*)", _MEMBERSHIP.read_text("ascii", "replace"), re.MULTILINE)
    # inside a container the place may be that outside of it; its own limits are then at the root
    folder = _CGROUPS / (place[1].strip("/") if place else "")
    for each in (folder, *folder.parents) if place else ():
        with suppress(OSError, ValueError):  # there is none, or it is "max"
            quota, period = (each / "cpu.max").read_text("ascii").split()
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def worker_count(asked: int | None, threads: int = 1) -> int:
    """The requested number of processes, or as many of ``threads`` threads each as there are cores for."""
    count = max(1, available_cores() // threads) if asked is None else asked
    if count < 1:
        raise GramLoopError(f"the number of workers must be at least 1, not {count}")
    return count


class _Process(multiprocessing.get_context("forkserver" if _FORKS else "spawn").Process):  # type: ignore[misc]
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


class _Context(type(multiprocessing.get_context("forkserver" if _FORKS else "spawn"))):  # type: ignore[misc]
    Process = _Process


def _has_guard(file: str | None) -> bool:
    try:
        return file is None or "__name__" in Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError:  # not a file of Python, as in a notebook
        return True


def process_context(*preload: str) -> Any:
    """How processes are started: never forked from this one, since forking a process with threads can hang.

    A fork server, where the system has one, imports the modules of ``preload`` once for all.
    """
    context = _Context()
    if _FORKS:
        context.set_forkserver_preload(list(preload))
    return context


@contextmanager
def process_pool(
    workers: int, context: Any, start: Callable[[*_Given], None] | None = None, *given: *_Given
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


def in_order(
    function: Callable[[*_Given], _R], calls: Iterable[tuple[*_Given]], workers: int
) -> Iterator[_R]:
    """Every call's result, in the order of the calls; a single worker is this process."""
    if workers < 2 or (isinstance(calls, Sized) and len(calls) < 2):
        yield from (function(*call) for call in calls)
        return
    waiting = deque[Future[_R]]()
    with process_pool(workers, process_context(function.__module__)) as pool:
        for call in calls:
            waiting.append(pool.submit(function, *call))
            if len(waiting) >= _WAITING:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


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
