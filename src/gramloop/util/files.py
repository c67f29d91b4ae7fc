"""Files and folders: whole or absent whatever interrupts a write, one run at a time, listed while others write."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gramloop.errors import GramLoopError

TEMPORARY = ".gramloop-"  # prefix of every unfinished file; random digits follow
LOCK = ".lock"
RESUME_HINT = "what was finished before is kept, and the same command resumes from there"
_DAY = 86400.0  # seconds: no write takes longer
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system that has none


class UnwritableError(GramLoopError):
    """A file or folder that cannot be written; code that skips unusable images must not skip this."""


def atomic_write(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file and create its folder; if that fails, what was there before stays.

    Args:
        path: the file; a link of that name is replaced, not followed.
        data: its content.
        durable: flush to the disk before returning, for files that a stopped run resumes from.
    """
    make_folder(path.parent)
    # Several machines may write to one shared folder: the name must be unique and hard to guess.
    temporary = path.with_name(f"{TEMPORARY}{secrets.token_hex(16)}")
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
        advice = f"; {RESUME_HINT}" if durable else ""
        raise UnwritableError(f"cannot write {path}: {error.strerror or error}{advice}") from error
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk, on systems that can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, unless it exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableError(f"cannot write to the folder {folder}: {error.strerror or error}") from error


def remove_leftovers(folder: Path, *, alone: bool = False) -> None:
    """Remove the unfinished files that killed processes left in a folder and below.

    Args:
        folder: a folder that files are written to.
        alone: no other process can be writing there; otherwise only files older than a day are removed.
    """
    for leftover in folder.rglob(f"{TEMPORARY}*"):
        with suppress(OSError):  # gone by now, or harmless
            if alone or time.time() - leftover.lstat().st_mtime > _DAY:
                leftover.unlink()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a second run out of a folder; the system releases the lock even when this process is killed."""
    from filelock import FileLock, Timeout

    make_folder(folder)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise GramLoopError(f"another gramloop is writing to {folder}") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise UnwritableError(f"cannot write to the folder {folder}: {error.strerror}") from error
    try:
        yield
    finally:
        lock.release()


def is_taken(folder: Path, *free: str) -> bool:
    """Whether a folder holds more than a lock, unfinished files and the names in ``free``."""
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else ()
    return any(name not in (LOCK, *free) and not name.startswith(TEMPORARY) for name in names)


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted; links to folders are not followed, and files that vanish meanwhile left out."""

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            raise GramLoopError(f"cannot list the folder {error.filename}: {error.strerror}") from error

    return sorted(Path(place, name) for place, _, names in os.walk(folder, onerror=refuse) for name in names)
