"""Warnings of ours as a user of the command line reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gramloop.errors import GramLoopWarning


@contextmanager
def notes_in_a_line(quiet: bool = False) -> Iterator[list[str]]:
    """Show a warning without the place in the code that it was raised at, which tells such a user nothing.

    The list holds what was shown, or would have been.
    """
    usual, notes = warnings.formatwarning, list[str]()

    def in_a_line(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> str:
        if issubclass(category, GramLoopWarning):
            notes.append(str(message))
            return "" if quiet else f"gramloop: note: {message}\n"
        return usual(message, category, *rest, **more)

    warnings.formatwarning = in_a_line
    try:
        yield notes
    finally:
        warnings.formatwarning = usual
