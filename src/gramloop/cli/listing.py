"""``gramloop list``: what can be named in other commands."""

from __future__ import annotations

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments."""
    parser.epilog = (
        "Packages offer models as entry points of the group gramloop.models: a name, and package.module:make."
    )
    parser.add_argument("what", choices=("models",), metavar="models", help="what --model takes")


def run(args: argparse.Namespace) -> int:
    """Print one line for each."""
    from gramloop.tasks.model_spec import FORMS, offered

    lines = [*FORMS, *((name, _said(entry)) for name, entry in sorted(offered().items()))]
    width = max(len(name) for name, _ in lines)
    for name, meaning in lines:
        print(f"{name:{width}}  {meaning}")
    return 0


def _said(entry: object) -> str:
    from importlib.metadata import EntryPoint

    assert isinstance(entry, EntryPoint)
    home = "" if entry.dist is None else f", of {entry.dist.name} {entry.dist.version}"
    return f"{entry.value}{home}"
