"""What a command says: to people, to nobody (``--quiet``), or to a script (``--json``).

People read standard output and, for what only matters meanwhile, standard error. A script gets one JSON document on
standard output and nothing else there, whatever a library prints.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENVELOPE = {
    "command": "the command's name",
    "version": "of gramloop",
    "exit_code": "as the process ends",
    "notes": "warnings, which people see as notes",
}  # keys of every document; an "error" holds the sentence where a command was refused

_silent = False


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, and what makes the document of ``--json``, by the keys that its module names."""

    code: int
    document: Callable[[], Mapping[str, Any]]


def note(text: str) -> None:
    """A line that only matters meanwhile."""
    if not _silent:
        print(text, file=sys.stderr)


def is_quiet() -> bool:
    """Whether nothing but errors is asked for."""
    return _silent


@contextmanager
def speaking(quiet: bool, document: bool) -> Iterator[None]:
    """Keep from people what they did not ask for, and from a script what is not its document."""
    global _silent
    with ExitStack() as stack:
        if quiet:
            from gramloop.util.progress import no_bars

            stack.enter_context(no_bars())
            _silent = True
        if quiet or document:
            stack.enter_context(_without_output())
        try:
            yield
        finally:
            _silent = False


@contextmanager
def _without_output() -> Iterator[None]:
    """Throw away what is printed, and what libraries and worker processes write past Python."""
    sys.stdout.flush()
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        try:
            kept = os.dup(1)
        except OSError:  # nobody gave us a standard output
            yield
            return
        os.dup2(nowhere.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def print_document(name: str, version: str, code: int, notes: Sequence[str], more: Mapping[str, Any]) -> None:
    """The one document of a command."""
    content = {"command": name, "version": version, "exit_code": code, "notes": list(notes), **more}
    print(json.dumps(plain(content), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """A value as JSON has it: paths as texts, and null in place of a number that is none."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "item"):  # a number of numpy
        return plain(value.item())
    raise TypeError(f"a {type(value).__name__} is no value of JSON")
