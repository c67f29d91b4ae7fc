"""Checksums of files, remembered while a file is the one that was read: same size, same times, same place on the disk.

A start of a run knows weights and images by their content, and reads them once: what it found lies beside its results,
and the next start, or a worker, only asks the file system whether a file was touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.io.atomic import atomic_write
from gramloop.io.progress import tracked

REMEMBERED = "files.json"  # may be deleted: it only spares reading
_SETTLED = 2 * 10**9  # nanoseconds: a file written just now may be written again without a new time
_FEW = 64  # files that need neither threads nor a bar

State = tuple[int, ...]  # size, time of writing, time of any change, number on its disk
_known: dict[str, tuple[State, str]] = {}
_other: set[str] = set()  # files that are not what was remembered of them


def file_digest(path: Path) -> str:
    """The sha256 of a file, in hexadecimal."""
    try:
        return _digest(path)
    except OSError as error:
        raise GramLoopError(f"cannot read the file {path}: {error.strerror or error}") from error


def _digest(path: Path) -> str:
    name, state = str(path.absolute()), _state(path)
    before = _known.get(name)
    if before is not None and before[0] == state:
        return before[1]
    asked = time.time_ns()
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if before is not None:
        (_other.discard if before[1] == found else _other.add)(name)
    settled = asked - max(state[1], state[2]) > _SETTLED and _state(path) == state
    _known[name] = (state if settled else (), found)
    return found


def file_digests(paths: Sequence[Path], what: str) -> list[str]:
    """The sha256 of every file; ``what`` they are is shown while many are read."""
    if len(paths) <= _FEW:
        return [file_digest(path) for path in paths]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        return list(tracked(pool.map(file_digest, paths), f"checksums of {what}", len(paths)))


def touched(paths: Iterable[Path]) -> Path | None:
    """The first file that was read here and is not what an earlier run remembered of it, if one is known."""
    return next((path for path in paths if str(path.absolute()) in _other), None)


def recall(folder: Path) -> None:
    """Take over what an earlier run in a folder remembered; a file that nobody can read is as good as none."""
    try:
        content = json.loads((folder / REMEMBERED).read_bytes())
        entries = {
            str(name): (tuple(int(number) for number in state), str(found))
            for name, (state, found) in content.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return
    for name, entry in entries.items():
        _known.setdefault(name, entry)


def remember(folder: Path, places: Iterable[Path]) -> None:
    """Keep in a folder what is known of these files and of those below, for the next start and for workers."""
    roots = {str(place.absolute()) for place in places}
    kept = {
        name: entry
        for name, entry in _known.items()
        if name in roots or any(str(above) in roots for above in Path(name).parents)
    }
    data = json.dumps(kept, separators=(",", ":")).encode()
    place = folder / REMEMBERED
    if kept and not (place.is_file() and place.read_bytes() == data):
        atomic_write(place, data)


def _state(path: Path) -> State:
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino
