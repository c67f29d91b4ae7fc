"""``gramloop list``: what can be named in other commands."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from gramloop.cli.options import CommandResult, command, option

_Lines = Iterator[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class ListOptions:
    """What to list."""

    what: Literal["models", "suites", "shifts", "methods", "hosts"] = option("what to list", positional=True)


@command(
    ListOptions,
    "Packages offer models as entry points of the group gramloop.models: a name, and package.module:make.",
    [
        "gramloop list methods",
        "gramloop list shifts --json",
    ],
    {
        "what": "models, suites, shifts, methods or hosts",
        "entries": "what can be named: name, meaning",
    },
)
def list_command(options: ListOptions) -> CommandResult:
    """Print one line for each."""
    lines = list(_LISTS[options.what]())
    width = max(len(name) for name, _ in lines) + 2
    for name, meaning in lines:
        first, *more = textwrap.wrap(meaning, 80 - width, break_long_words=False) or [""]
        print(f"{name:{width}}{first}".rstrip(), *(" " * width + line for line in more), sep="\n")
    entries = [{"name": name, "meaning": meaning} for name, meaning in lines]
    return 0, {"what": options.what, "entries": entries}


def _models() -> _Lines:
    from gramloop.tasks.loading import FORMS, offered

    yield from FORMS
    for name, entry in sorted(offered().items()):
        home = "" if entry.dist is None else f", of {entry.dist.name} {entry.dist.version}"
        yield name, f"{entry.value}{home}"


def _shifts() -> _Lines:
    from gramloop.data.suites import SHIFT_GROUPS
    from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS

    yield from ((name, "corruption") for name in CORRUPTIONS)
    yield from ((name, "corruption, in no suite but by name") for name in EXTRA_CORRUPTIONS)
    yield from ((name, "perturbation") for name in PERTURBATIONS)
    for kind, groups in SHIFT_GROUPS.items():
        for name, members in groups.items():
            listed = ", ".join(members) if len(members) < 6 else f"{len(members)} of the above"
            yield name, f"group of -{kind} suites: {listed}"


def _suites() -> _Lines:
    from gramloop.data.suites import SUITES

    for name, suite in SUITES.items():
        yield name, f"{len(suite.conditions)} condition{'s' * (len(suite.conditions) > 1)}"
    yield "scenes, scenes-c, scenes-p", "the same over procedural scenes, with nothing to download"
    yield "NAME, NAME-c, NAME-p", "the same over a set of your own; with --truth clean, over any photographs"


def _methods() -> _Lines:
    from gramloop.evaluate.methods import BASELINE
    from gramloop.mitigations.replay import REPLAYS
    from gramloop.mitigations.stack import KINDS
    from gramloop.replay.config import describe_replay

    yield BASELINE, "the model as it is"
    yield from ((name, describe_replay(replay)) for name, replay in REPLAYS.items())
    for name, kind in KINDS.items():
        if name not in REPLAYS:
            yield name, (kind.__doc__ or "").splitlines()[0]


def _hosts() -> _Lines:
    from gramloop.replay.vit import FAMILIES

    for name, family in FAMILIES.items():
        yield name, f"blocks at {family.blocks}"
    yield "any other ViT", "by blocks=, norm= and prefix= of gramloop.attach"


_LISTS: dict[str, Callable[[], _Lines]] = {
    "models": _models,
    "suites": _suites,
    "shifts": _shifts,
    "methods": _methods,
    "hosts": _hosts,
}
