"""How a command ends when it is told to: Ctrl-C and SIGTERM alike, with a sentence, and nothing lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED, TERMINATED = 130, 143  # as shells count: 128 and the number of the signal


class Terminated(KeyboardInterrupt):
    """SIGTERM came: what hears Ctrl-C hears this too."""


@contextmanager
def hearing_sigterm() -> Iterator[None]:
    """Turn the first SIGTERM into `Terminated`; a second one ends the process at once, as ever."""
    try:
        before = signal.getsignal(signal.SIGTERM)
        if before is signal.SIG_IGN:  # whoever started us wants it so
            yield
            return
        signal.signal(signal.SIGTERM, _terminate)
    except ValueError:  # not in the main thread: signals are somebody else's
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise Terminated


def stop_code(stop: KeyboardInterrupt) -> int:
    """The exit code of a command that was stopped."""
    return TERMINATED if isinstance(stop, Terminated) else INTERRUPTED
