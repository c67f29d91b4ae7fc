"""The methods that are compared: the plain model, the published replay, and any other replay by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gramloop.core.config import ReplayConfig, route
from gramloop.core.cost import extra_blocks
from gramloop.core.settings import parse_replay, read_replay
from gramloop.errors import GramLoopError

BASELINE, GRAMLOOP = "baseline", "gramloop"
REPLAYS: Mapping[str, ReplayConfig] = {
    GRAMLOOP: ReplayConfig(),
    "ungated": ReplayConfig(gate="none"),
    "uniform": ReplayConfig(gate="uniform", strength=0.5),
    "matched": ReplayConfig(gate="uniform", strength="matched"),
    "loop-loop": ReplayConfig(gate_at="end"),
    "final-final": ReplayConfig(update_at="final"),
}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Method:
    """A name in tables, and the replay behind it; None is the model as it is."""

    name: str
    replay: ReplayConfig | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise GramLoopError(
                f"{self.name!r} is no name for a method; use letters, digits, dots and hyphens"
            )
        if (self.name == BASELINE) != (self.replay is None):
            raise GramLoopError(f"the method without a replay, and only that one, is called {BASELINE}")

    def with_window(self, depth: int) -> Method:
        """The same with its window spelled out, so that no later default can change what was run."""
        if self.replay is None:
            return self
        place = route(self.replay, depth)
        return replace(self, replay=replace(self.replay, window=(place.start, place.end)))

    def as_json(self) -> dict[str, Any] | None:
        """The replay's settings, or None."""
        return None if self.replay is None else self.replay.as_json()

    @classmethod
    def from_json(cls, name: str, settings: object) -> Method:
        """The method of a plan file."""
        return cls(name, None if settings is None else ReplayConfig.from_json(settings))


def parse_method(text: str) -> Method:
    """A method of the table, ``NAME:setting=value,…`` with the settings of `ReplayConfig`, or ``NAME:FILE.json``.

    ``late:window=30-32,replays=3`` replays blocks 30 to 32 three times; what is not given is as published. The
    file is one that ``gramloop tune`` writes. The names of the table keep their settings.
    """
    name, _, rest = text.partition(":")
    table = {BASELINE: None, **REPLAYS}
    if not rest:
        if name not in table:
            raise GramLoopError(
                f"there is no method {name!r}; there are {', '.join(table)}, or NAME:window=5-7,replays=3"
            )
        return Method(name, table[name])
    if name == BASELINE:
        raise GramLoopError("the baseline has no settings; name the method otherwise")
    if name in REPLAYS:
        raise GramLoopError(f"{name} has its settings already; give a method with others another name")
    if rest.endswith(".json"):
        return Method(name, read_replay(rest))
    return Method(name, parse_replay(rest))


def read_methods(texts: Sequence[str], replay: str | None = None) -> list[Method]:
    """The methods of texts; with a settings file ``gramloop`` is as that has it, and last where it was not named."""
    methods = [parse_method(text) for text in texts]
    if replay is not None:
        tuned = Method(GRAMLOOP, read_replay(replay))
        methods = [tuned if method.name == GRAMLOOP else method for method in methods]
        methods += [tuned] if tuned not in methods else []
    check_methods(methods)
    return methods


def check_methods(methods: Sequence[Method]) -> None:
    """Refuse an empty list, and two methods of one name."""
    names = [method.name for method in methods]
    if not names:
        raise GramLoopError("an evaluation needs at least one method, such as baseline")
    if twice := [name for name in names if names.count(name) > 1]:
        raise GramLoopError(f"the method {twice[0]} is given twice")


def blocks_per_view(methods: Sequence[Method], depth: int, traced: bool = False) -> int:
    """Blocks executed for all methods on one view of an image; the baseline rides on the first replay.

    With a trace, a replay that would measure no drift is probed like one with the Gram gate.
    """
    replays = [method.replay for method in methods if method.replay is not None]
    if not replays:
        return depth
    if traced:
        replays = [replace(each, gate="gram", strength=1.0) for each in replays]
    return sum(depth + extra_blocks(replay, depth) for replay in replays)
