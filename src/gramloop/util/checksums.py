"""Checksums of files, cached while a file keeps its size, times and inode.

The start of a run identifies weights and images by content and reads each once: the checksums are saved next to its
results, and the next start, or a worker, only asks the file system whether a file changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.util.files import atomic_write
from gramloop.util.progress import tracked

CHECKSUM_CACHE = "files.json"  # may be deleted: it only saves reading
_SETTLED = 2 * 10**9  # nanoseconds: a file written just now may be written again without a new time
_FEW = 64  # files that need neither threads nor a bar

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
