"""Files and folders: whole or absent whatever interrupts a write, one run at a time, listed while others write.

Checksums of files are cached while a file keeps its size, times and inode. The start of a run identifies weights and
images by content and reads each once: the checksums are saved next to its results, and the next start, or a worker, only
asks the file system whether a file changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.util.progress import tracked

TEMPORARY = ".gramloop-"  # prefix of every unfinished file; random digits follow
LOCK = ".lock"
RESUME_HINT = "what was finished before is kept, and the same command resumes from there"
_DAY = 86400.0  # seconds: no write takes longer
CHECKSUM_CACHE = "files.json"  # may be deleted: it only saves reading
_SETTLED = 2 * 10**9  # nanoseconds: a file written just now may be written again without a new time
_FEW = 64  # files that need neither threads nor a bar
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

    Only files older than a day are removed, unless no other process can be writing there (``alone``).
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


_State = tuple[int, ...]  # size, time of writing, time of any change, inode
_known: dict[str, tuple[_State, str]] = {}
_changed: set[str] = set()  # files that differ from their saved checksum


def sha256(data: bytes) -> str:
    """The checksum of some bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def read_digest(path: Path) -> str:
    """The sha256 of a file as it is now, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal; it is read once, and again when it changed."""
    try:
        name, state = str(path.absolute()), _state(path)
        before = _known.get(name)
        if before is not None and before[0] == state:
            return before[1]
        asked = time.time_ns()
        found = read_digest(path)
        if before is not None:
            (_changed.discard if before[1] == found else _changed.add)(name)
        settled = asked - max(state[1], state[2]) > _SETTLED and _state(path) == state
    except OSError as error:
        raise GramLoopError(f"cannot read the file {path}: {error.strerror or error}") from error
    _known[name] = (state if settled else (), found)
    return found


def file_digests(paths: Sequence[Path], what: str) -> list[str]:
    """The sha256 of every file; a progress bar names ``what`` they are where there are many."""
    if len(paths) <= _FEW:
        return [file_digest(path) for path in paths]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(tracked(pool.map(file_digest, paths), f"checksums of {what}", len(paths)))


def first_changed(paths: Iterable[Path]) -> Path | None:
    """The first file that was read by this process and differs from its saved checksum, if any."""
    return next((path for path in paths if str(path.absolute()) in _changed), None)


def load_checksums(folder: Path) -> None:
    """Take over what an earlier run saved in a folder; an unreadable cache counts as none."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        content = json.loads((folder / CHECKSUM_CACHE).read_bytes())
        entries = {
            str(name): (tuple(map(int, state)), str(found)) for name, (state, found) in content.items()
        }
        _known.update({name: entry for name, entry in entries.items() if name not in _known})


def save_checksums(folder: Path, places: Iterable[Path]) -> None:
    """Save in a folder what is known of these files, and of files below these folders, for the next start."""
    roots = {str(place.absolute()) for place in places}
    kept = {
        name: entry
        for name, entry in _known.items()
        if name in roots or any(str(above) in roots for above in Path(name).parents)
    }
    data = json.dumps(kept, separators=(",", ":")).encode()
    place = folder / CHECKSUM_CACHE
    if kept and not (place.is_file() and place.read_bytes() == data):
        atomic_write(place, data)


def _state(path: Path) -> _State:
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino
