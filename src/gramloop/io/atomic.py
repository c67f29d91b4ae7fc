"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import platform
import re
import secrets
import time
from contextlib import suppress
from pathlib import Path

from gramloop.errors import GramLoopError

TEMPORARY = (
    ".gramloop-"  # how the name of every unfinished file begins; its host, process and random digits follow
)
GOES_ON = "what was finished before is kept, and the same command goes on from there"
_HOST = re.sub(r"[^\w.-]", "_", platform.node(), flags=re.ASCII)[:64]
_DAY = 86400.0  # seconds: a write that takes longer belongs to nobody


class UnwritableError(GramLoopError):
    """A file or folder that cannot be written: whoever skips what cannot be used must not skip this."""


def atomic_write(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file, and the folder it is in; a failure is one sentence, and what was there before stays.

    Args:
        path: the file; a link of that name is replaced, not followed.
        durable: for files that a stopped run goes on from: they are on the disk, and not on their way there, when
            this returns.
    """
    make_folder(path.parent)
    # Several machines write to one shared folder, and others may too: a name that nobody can have taken or guessed.
    temporary = path.with_name(f"{TEMPORARY}{_HOST}-{os.getpid()}-{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        handle = os.open(temporary, flags, 0o666)  # less the umask, as for any new file
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
                if durable:
                    stream.flush()
                    os.fsync(handle)
            os.replace(temporary, path)
        except BaseException:  # Ctrl-C too
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        advice = f"; {GOES_ON}" if durable else ""
        raise UnwritableError(f"cannot write {path}: {error.strerror or error}{advice}") from error
    if durable:
        _keep_names(path.parent)


def _keep_names(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system knows how."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableError(f"cannot write to the folder {folder}: {error.strerror or error}") from error


def remove_leftovers(folder: Path, *, alone: bool = False) -> None:
    """Remove the unfinished files that killed processes left in a folder and below.

    Args:
        folder: a folder that files are written to.
        alone: nobody else can be writing there, so every unfinished file is a leftover. Otherwise those go whose
            process on this machine has ended, and those that are older than a day.
    """
    for leftover in folder.rglob(f"{TEMPORARY}*"):
        with suppress(OSError):  # it is gone by now, or harms nobody
            if alone or _is_dead(leftover.name) or time.time() - leftover.lstat().st_mtime > _DAY:
                leftover.unlink()


def _is_dead(name: str) -> bool:
    """Whether the process that a temporary file is named after was here and has ended."""
    named = re.fullmatch(r"(.+)-(\d{1,9})-[0-9a-f]{16}", name.removeprefix(TEMPORARY))
    if named is None or named[1] != _HOST or os.name != "posix":
        return False
    try:
        os.kill(int(named[2]), 0)  # asks, and sends nothing
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    return False
