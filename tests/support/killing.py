"""Processes that are started, and hit by a signal once they have come so far."""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gramloop.evaluate.engines import PRELOADED

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for orphans in /proc")


def children(process: int) -> list[int]:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


def descendants(process: int) -> list[int]:
    below = children(process)
    return below + [each for child in below for each in descendants(child)]


def hit(
    target: Callable[..., None],
    given: tuple[object, ...],
    number: signal.Signals,
    is_time: Callable[[], bool],
    *,
    group: bool = False,
) -> int:
    """Start a process, send it a signal once it is time, see every process of it end; the exit code.

    With ``group`` the processes that it started get the signal too, as from a terminal or a batch system.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(target=target, args=given)
    process.start()
    while process.is_alive() and not is_time():
        time.sleep(0.002)
    below = descendants(process.pid)
    for each in (process.pid, *(below if group else ())):
        with contextlib.suppress(ProcessLookupError):  # it may have come to its end meanwhile
            os.kill(each, number)
    process.join(60)
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{each}").exists() for each in below):  # orphans end by themselves
        assert time.monotonic() < deadline, f"processes {below} outlived their parent"
        time.sleep(0.02)
    return process.exitcode


def command(arguments: list[str], said: Path) -> None:
    """The command line in a process of its own; what it says on standard error goes to a file."""
    from gramloop.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background may ignore it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with said.open("w") as stream, contextlib.redirect_stderr(stream):
        code = main(arguments)
    sys.exit(code)
