"""Numbers that no command can work with, refused before anything is opened, drawn or written."""

from __future__ import annotations

import argparse

from gramloop.errors import GramLoopError
from gramloop.util.processes import MOST_THREADS, MOST_WORKERS

_MANY = 10**9
_LIMITS = {
    "images": (1, _MANY),
    "workers": (1, MOST_WORKERS),
    "threads": (1, MOST_THREADS),
    "prepare": (0, MOST_WORKERS),
    "batch": (1, _MANY),
    "jobs": (1, _MANY),
    "shards": (1, _MANY),
    "pictures": (0, _MANY),
    "limit": (1, _MANY),
    "scenes": (1, _MANY),
    "count": (1, _MANY),
    "budget": (1, _MANY),
}  # by the name of the option: the least and the most


def check_numbers(args: argparse.Namespace) -> None:
    """Refuse a count that is out of range."""
    for name, (least, most) in _LIMITS.items():
        value = getattr(args, name, None)
        if isinstance(value, int) and not least <= value <= most:
            bound = f"{least} or more" if most == _MANY else f"{least} to {most}"
            raise GramLoopError(f"--{name} is {value}; it is {bound}")
