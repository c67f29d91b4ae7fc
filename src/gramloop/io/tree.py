"""The files below a folder, while others may be writing and deleting there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gramloop.errors import GramLoopError


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted; links to folders are not followed. What vanishes meanwhile is not there."""
    return sorted(_walk(folder))


def _walk(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder, onerror=_tell):
        yield from (Path(place, name) for name in names)


def _tell(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise GramLoopError(f"cannot look into the folder {error.filename}: {error.strerror}") from error
