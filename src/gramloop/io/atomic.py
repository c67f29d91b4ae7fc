"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gramloop.errors import GramLoopError

TEMPORARY = ".gramloop-"  # how the name of every unfinished file begins


@contextmanager
def becoming(path: Path) -> Iterator[Path]:
    """A path beside this one to write to; it takes the place of this one if nothing went wrong."""
    temporary = path.with_name(f"{TEMPORARY}{os.getpid()}-{path.name}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        with suppress(OSError):
            temporary.unlink()


def write_atomically(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Write a file; a durable one is on the disk, not on its way there, before it gets its name."""
    with becoming(path) as temporary, temporary.open("wb") as stream:
        stream.write(data)
        if durable:
            stream.flush()
            os.fsync(stream.fileno())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file and its folder, or say why that cannot be done."""
    make_folder(path.parent)
    try:
        write_atomically(path, data)
    except OSError as error:
        raise GramLoopError(f"{path} cannot be written: {error.strerror}") from error


def make_folder(folder: Path) -> None:
    """Create a folder with its parents, unless it is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise GramLoopError(f"the folder {folder} cannot be made: {error.strerror}") from error
