"""The methods that are compared: the plain model, replays, and any other mitigations, each by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import sha256_of
from gramloop.mitigations.replay import REPLAYS, Replay
from gramloop.mitigations.stack import (
    names_mitigations,
    parse_mitigations,
    read_mitigations,
    replay_alone,
    replay_of,
    stack_from_json,
    stack_json,
    stack_scales,
)
from gramloop.replay.config import FIELDS, ReplayConfig, parse_replay, read_replay, split_setting
from gramloop.replay.cost import extra_blocks, route

BASELINE, GRAMLOOP = "baseline", "gramloop"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Method:
    """A name in tables, and the replay or the mitigations it stands for; without either, the model as it is."""

    name: str
    replay: ReplayConfig | None = None
    mitigations: tuple[Mitigation, ...] = ()  # a replay beside others is among them
    source: Path | None = field(
        default=None, compare=False
    )  # about ordinary images, of the file it came from

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise GramLoopError(
                f"{self.name!r} is no name for a method; use letters, digits, dots and hyphens"
            )
        if (self.name == BASELINE) != (self.replay is None and not self.mitigations):
            raise GramLoopError(
                f"the method without a replay or another mitigation, and only that one, is called {BASELINE}"
            )
        if self.replay is not None and self.mitigations:
            raise GramLoopError(f"the replay of {self.name} belongs among its mitigations")

    def with_window(self, depth: int) -> Method:
        """The same with its window spelled out, so that no later default can change what was run."""
        stack = tuple(
            Replay(_with_window(each.config, depth)) if isinstance(each, Replay) else each
            for each in self.mitigations
        )
        return replace(
            self, replay=None if self.replay is None else _with_window(self.replay, depth), mitigations=stack
        )

    def blocks(self, depth: int) -> int:
        """Blocks executed for one view of an image, over all looks at it."""
        replay = self.replay or replay_of(self.mitigations)
        one = depth + (0 if replay is None else extra_blocks(replay, depth))
        return one * len(stack_scales(self.mitigations))

    def as_json(self) -> dict[str, Any] | None:
        """The replay's settings, or None; of mitigations their text, with a replay's settings beside it."""
        if not self.mitigations:
            return None if self.replay is None else self.replay.as_json()
        return stack_json(self.mitigations)

    @classmethod
    def from_json(cls, name: str, settings: object) -> Method:
        """The method of a plan file."""
        if isinstance(settings, dict) and "mitigations" in settings:
            return cls(name, None, stack_from_json(settings))
        return cls(name, None if settings is None else ReplayConfig.from_json(settings))


def parse_method(text: str) -> Method:
    """A method of the table, a replay ``NAME:setting=value,…`` or ``NAME:FILE.json``, or ``NAME=MITIGATIONS``.

    ``late:window=30-32,replays=3`` replays blocks 30 to 32 three times; what is not given is as published. The
    file is one that ``gramloop tune`` writes. The names of the table keep their settings. Mitigations are as
    `gramloop.mitigations.parse_mitigations` reads them, ``both=recentre:0.3+gramloop``; without a name,
    ``recentre:0.3`` is called recentre-0.3.
    """
    if (mark := re.search("[=:+]", text)) and mark[0] == "=":
        return _mitigated(*text.split("=", 1))
    name, _, rest = text.partition(":")
    table = {BASELINE: None, **REPLAYS}
    of_a_replay = rest.endswith(".json") or split_setting(rest.split(",")[0])[0] in FIELDS
    known = names_mitigations(text)
    if ("+" in text and (known or not of_a_replay)) or (known and name not in table and not of_a_replay):
        return _mitigated(re.sub("[:+,]", "-", text.replace("=", "")), text)
    if not rest:
        if name not in table:
            raise GramLoopError(
                f"there is no method {name!r}; there are {', '.join(table)}, or NAME:window=5-7,replays=3, "
                "or mitigations such as recentre:0.3 and both=recentre:0.3+gramloop"
            )
        return Method(name, table[name])
    if name == BASELINE:
        raise GramLoopError("the baseline has no settings; name the method otherwise")
    if name in REPLAYS:
        raise GramLoopError(f"{name} has its settings already; give a method with others another name")
    if rest.endswith(".json"):
        stored = read_mitigations(rest)
        if not stored.stack or replay_alone(stored.stack) is not None:
            return Method(name, read_replay(rest))
        return Method(name, None, stored.stack, stored.calibration)
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


def with_found_source(files: Mapping[str, str], methods: Sequence[Method]) -> Mapping[str, str]:
    """The model's files with what the methods' own files say about ordinary images; there is one such file at most."""
    given = [Path(files["source"])] if "source" in files else []
    given += [method.source for method in methods if method.source is not None]
    if len({sha256_of(each) for each in given}) > 1:
        raise GramLoopError(f"{given[0]} and {given[-1]} differ, and one evaluation has one source; run two")
    return files if not given else {**files, "source": str(given[0].resolve())}


def blocks_per_view(methods: Sequence[Method], depth: int, traced: bool = False) -> int:
    """Blocks executed for all methods on one view of an image; the baseline rides on the first replay.

    With a trace, a replay that would measure no drift is probed like one with the Gram gate.
    """
    replays = [method.replay for method in methods if method.replay is not None]
    others = sum(method.blocks(depth) for method in methods if method.mitigations)
    if not replays:
        return others + (depth if any(method.name == BASELINE for method in methods) else 0)
    if traced:
        replays = [replace(each, gate="gram", strength=1.0) for each in replays]
    return others + sum(depth + extra_blocks(replay, depth) for replay in replays)


def _with_window(replay: ReplayConfig, depth: int) -> ReplayConfig:
    found = route(replay, depth)
    return replace(replay, window=(found.start, found.end))


def _mitigated(name: str, text: str) -> Method:
    """The method of mitigations; a replay alone is one as it always was."""
    stack = parse_mitigations(text)
    config = replay_alone(stack)
    return Method(name, None, stack) if config is None else Method(name, config)
