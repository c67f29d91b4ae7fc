"""One run at a time in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.io.atomic import TEMPORARY, UnwritableError, make_folder

LOCK = ".lock"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second run out of the folder; the system lets go of the lock even when we are killed."""
    make_folder(folder)
    try:
        handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise UnwritableError(f"cannot write to the folder {folder}: {error.strerror}") from error
    try:
        # Where system or file system have no such lock, two runs at once are the user's care.
        with suppress(ImportError, OSError):
            import fcntl

            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise GramLoopError(f"another gramloop is writing to {folder}") from None
        yield
    finally:
        os.close(handle)


def is_taken(folder: Path, *free: str) -> bool:
    """Whether a folder holds more than a lock, unfinished files and entries of the names that are ``free``."""
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return any(name not in (LOCK, *free) and not name.startswith(TEMPORARY) for name in names)
