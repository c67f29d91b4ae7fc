"""``gramloop list``: what can be named in other commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gramloop.cli.options import option
from gramloop.cli.output import Ended
from gramloop.cli.shared import EXAMPLES

KEYS = {
    "what": "models, suites, shifts, methods or hosts",
    "entries": "what can be named: name, meaning",
}
EPILOG = (
    "Packages offer models as entry points of the group gramloop.models: a name, and package.module:make."
    f"{EXAMPLES}  gramloop list methods\n  gramloop list shifts --json"
)
Lines = Iterable[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to list."""

    what: Literal["models", "suites", "shifts", "methods", "hosts"] = option("what to list", positional=True)


def run(options: Options) -> Ended:
    """Print one line for each."""
    lines = list(_LISTS[options.what]())
    width = max(len(name) for name, _ in lines)
    for name, meaning in lines:
        print(f"{name:{width}}  {meaning}".rstrip())
    entries = [{"name": name, "meaning": meaning} for name, meaning in lines]
    return Ended(0, lambda: {"what": options.what, "entries": entries})


def _models() -> Lines:
    from gramloop.tasks.loading import FORMS, offered

    return [*FORMS, *((name, _described(entry)) for name, entry in sorted(offered().items()))]


def _described(entry: object) -> str:
    from importlib.metadata import EntryPoint

    assert isinstance(entry, EntryPoint)
    home = "" if entry.dist is None else f", of {entry.dist.name} {entry.dist.version}"
    return f"{entry.value}{home}"


def _shifts() -> Lines:
    from gramloop.data.suites import SHIFT_GROUPS
    from gramloop.shifts import CORRUPTIONS, EXTRA_CORRUPTIONS, PERTURBATIONS

    yield from ((name, "corruption") for name in CORRUPTIONS)
    yield from ((name, "corruption, in no suite but by name") for name in EXTRA_CORRUPTIONS)
    yield from ((name, "perturbation") for name in PERTURBATIONS)
    for kind, groups in SHIFT_GROUPS.items():
        for name, members in groups.items():
            listed = ", ".join(members) if len(members) < 6 else f"{len(members)} of the above"
            yield name, f"group of -{kind} suites: {listed}"


def _suites() -> Lines:
    from gramloop.data.suites import SUITES

    for name, suite in SUITES.items():
        yield name, f"{len(suite.conditions)} condition{'s' * (len(suite.conditions) > 1)}"
    yield "scenes, scenes-c, scenes-p", "the same over procedural scenes, with nothing to download"
    yield "NAME, NAME-c, NAME-p", "the same over a set of your own; with --truth clean, over any photographs"


def _methods() -> Lines:
    from gramloop.evaluate.methods import BASELINE
    from gramloop.mitigations.replay import REPLAYS
    from gramloop.mitigations.stack import KINDS
    from gramloop.replay.config import describe_replay

    yield BASELINE, "the model as it is"
    yield from ((name, describe_replay(replay)) for name, replay in REPLAYS.items())
    for name, kind in KINDS.items():
        if name not in REPLAYS:
            yield name, (kind.__doc__ or "").splitlines()[0]


def _hosts() -> Lines:
    from gramloop.replay.vit import FAMILIES

    for name, family in FAMILIES.items():
        yield name, f"blocks at {family.blocks}"
    yield "any other ViT", "by blocks=, norm= and prefix= of gramloop.attach"


_LISTS: dict[str, Callable[[], Lines]] = {
    "models": _models,
    "suites": _suites,
    "shifts": _shifts,
    "methods": _methods,
    "hosts": _hosts,
}
