"""Exported files, read back and run."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gramloop.export import About
from gramloop.export.formats import open_program
from gramloop.tasks.graphs import METADATA, Graph


def read_about(path: Path) -> About:
    """What a file says of itself."""
    if path.suffix == ".pt2":
        with zipfile.ZipFile(path) as archive:
            [member] = [each for each in archive.namelist() if each.endswith("/extra/gramloop.json")]
            text = archive.read(member).decode()
    else:
        text = Graph(path).metadata[METADATA]
    found = json.loads(text)
    return About(**{**found, "shape": tuple(found["shape"])})


def read_export(path: Path) -> Callable[[Any], dict[str, Any]]:
    """What runs a file on an array of its input, and gives arrays by name."""
    return open_program(path, read_about(path))  # type: ignore[return-value]
