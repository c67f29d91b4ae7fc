"""Exported files, read back and run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gramloop.export import read_about
from gramloop.export.formats import open_program


def read_export(path: Path) -> Callable[[Any], dict[str, Any]]:
    """What runs a file on an array of its input, and gives arrays by name."""
    _, about = read_about(path)
    return open_program(path, about)  # type: ignore[return-value]
