"""The methods that are compared: the plain model, replays, and any other mitigations, each by name."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from gramloop.errors import GramLoopError, did_you_mean, short_repr, then
from gramloop.mitigations.stack import (
    KINDS,
    REPLAYS,
    Replay,
    Stack,
    names_mitigations,
    parse_mitigations,
    read_mitigations,
    replay_alone,
    replay_of,
    stack_from_json,
    stack_json,
    stack_scales,
)
from gramloop.replay.config import FIELDS, ReplayConfig, extra_blocks, parse_replay, route, split_setting
from gramloop.util.files import file_digest
from gramloop.util.json_files import refuse_unknown

BASELINE, GRAMLOOP = "baseline", "gramloop"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Method:
    """A name in tables, and the mitigations it stands for; without any, the model as it is.

    calibration: the sha256 of the statistics of in-distribution images that it uses, empty where it uses none.
    calibration_file: such a file that came with its settings.
    """

    name: str
    stack: Stack = ()
    calibration: str = ""
    calibration_file: Path | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise GramLoopError(
                f"{self.name!r} is no name for a method; use letters, digits, dots and hyphens"
            )
        if (self.name == BASELINE) != (not self.stack):
            raise GramLoopError(
                f"the method without a replay or another mitigation, and only that one, is called {BASELINE}"
            )

    @cached_property
    def replay(self) -> ReplayConfig | None:
        """The replay of a method that does nothing else."""
        return replay_alone(self.stack)

    @property
    def uses_calibration(self) -> bool:
        """Whether statistics of in-distribution images can change its predictions."""
        return any(each.stage in ("pixels", "features") for each in self.stack)

    @cached_property
    def hash(self) -> str:
        """Sixteen hexadecimal digits over its settings."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def with_window(self, depth: int) -> Method:
        """The same with its window resolved, so that no later default can change what was run."""
        stack = list(self.stack)
        for place, each in enumerate(stack):
            if isinstance(each, Replay):
                found = route(each.config, depth)
                stack[place] = Replay(replace(each.config, window=(found.start, found.end)))
        return replace(self, stack=tuple(stack))

    def blocks(self, depth: int) -> int:
        """Blocks executed for one image, over all views of it."""
        replay = replay_of(self.stack)
        one = depth + (0 if replay is None else extra_blocks(replay, depth))
        return one * len(stack_scales(self.stack))

    def as_json(self) -> dict[str, Any]:
        """The mitigations as `stack_json` writes them, and the calibration."""
        used = {"calibration": self.calibration} if self.calibration else {}
        return {**stack_json(self.stack), **used}

    @classmethod
    def from_json(cls, name: str, settings: object) -> Method:
        """The method of a plan file."""
        if not isinstance(settings, dict):
            raise GramLoopError(f"the method {name} is {short_repr(settings)}; it is an object")
        refuse_unknown(settings, dict.fromkeys(("mitigations", "replay", "calibration")), name, "a method")
        return cls(name, stack_from_json(settings), str(settings.get("calibration", "")))


def parse_method(text: str) -> Method:
    """Read a method from text.

    Args:
        text: a name of the table (``baseline``, ``gramloop``, …); a replay ``NAME:setting=value,…``, where settings that
            are not given are as published, or ``NAME:FILE.json`` as ``gramloop tune`` writes it; or mitigations,
            ``NAME=recentre:0.3+gramloop``, or without a name ``recentre:0.3``, which is then called recentre-0.3.
    """
    if (mark := re.search("[=:+]", text)) and mark[0] == "=":
        name, rest = text.split("=", 1)
        return Method(name, parse_mitigations(rest))
    name, _, rest = text.partition(":")
    table: dict[str, Stack] = {BASELINE: (), **{key: (Replay(each),) for key, each in REPLAYS.items()}}
    of_a_replay = rest.endswith(".json") or split_setting(rest.split(",")[0])[0] in FIELDS
    known = names_mitigations(text)
    if ("+" in text and (known or not of_a_replay)) or (known and name not in table and not of_a_replay):
        return Method(re.sub("[:+,]", "-", text.replace("=", "")), parse_mitigations(text))
    if not rest:
        if name not in table:
            wrong = f"there is no method {name!r}{did_you_mean(name, [*table, *KINDS])}"
            others = "or NAME:window=5-7,replays=3, or mitigations such as recentre:0.3 and both=recentre:0.3+gramloop"
            raise GramLoopError(then(wrong, f"there are {', '.join(table)}, {others}"))
        return Method(name, table[name])
    if name == BASELINE:
        raise GramLoopError("the baseline has no settings; name the method otherwise")
    if name in REPLAYS:
        raise GramLoopError(f"{name} has its settings already; give a method with others another name")
    if rest.endswith(".json"):
        stack, calibration = read_mitigations(rest)
        return Method(name, stack or (Replay(ReplayConfig(replays=0)),), calibration_file=calibration)
    return Method(name, (Replay(parse_replay(rest)),))


def read_methods(texts: Sequence[str]) -> list[Method]:
    """The methods of texts, as `parse_method` reads them."""
    methods = [parse_method(text) for text in texts]
    check_methods(methods)
    return methods


def check_methods(methods: Sequence[Method]) -> None:
    """Refuse an empty list, and two methods of one name."""
    names = [method.name for method in methods]
    if not names:
        raise GramLoopError("an evaluation needs at least one method, such as baseline")
    if twice := [name for name in names if names.count(name) > 1]:
        raise GramLoopError(f"the method {twice[0]} is given twice")


def calibration_of(given: str | Path | None, methods: Sequence[Method]) -> Path | None:
    """The file with statistics of in-distribution images: the one given, or that of the methods' own settings files."""
    files = [Path(given)] if given is not None else []
    files += [method.calibration_file for method in methods if method.calibration_file is not None]
    if len({file_digest(each) for each in files}) > 1:
        raise GramLoopError(
            f"{files[0]} and {files[-1]} differ, and one evaluation has one calibration; run two"
        )
    return files[0].resolve() if files else None


def prediction_calls(methods: Sequence[Method]) -> list[tuple[Method, ...]]:
    """Which methods one call predicts: the baseline comes with the first replay that runs all its blocks, others alone.

    Where there is none, it comes with the first replay, whose count of blocks is then larger by the baseline's own.
    """
    baseline = next((method for method in methods if method.name == BASELINE), None)
    replays = [(method, method.replay) for method in methods if method.replay is not None]
    if baseline is None or not replays:
        return [(method,) for method in methods]
    whole = [method for method, replay in replays if _runs_whole(replay)]
    paired = baseline, [*whole, replays[0][0]][0]
    return [paired, *((method,) for method in methods if method not in paired)]


def _runs_whole(replay: ReplayConfig) -> bool:
    """Whether a replay runs the last block of the baseline pass for its own sake."""
    return replay.update_at == "final" or (replay.measures_drift and replay.gate_at == "final")


def blocks_per_view(methods: Sequence[Method], depth: int, traced: bool = False) -> int:
    """Blocks executed for all methods on one view of an image; the baseline comes with the first replay.

    With a trace, a replay that would measure no drift is probed like one with the Gram gate.
    """
    replays = [method.replay for method in methods if method.replay is not None]
    others = sum(method.blocks(depth) for method in methods if method.stack and method.replay is None)
    if not replays:
        return others + (depth if any(method.name == BASELINE for method in methods) else 0)
    if traced:
        replays = [
            each if each.measures_drift else replace(each, gate="gram", strength=1.0) for each in replays
        ]
    return others + sum(depth + extra_blocks(replay, depth) for replay in replays)


def with_companions(methods: Sequence[Method]) -> list[Method]:
    """The methods and the trajectories that diagnostics compare the first Gram-gated one with: NAME-raw, NAME-matched."""
    first = next((method for method in methods if _companions(method.replay)), methods[0])
    present = [method.replay for method in methods]
    missing = [
        Method(f"{first.name}-{kind}", (Replay(replay),))
        for kind, replay in _companions(first.replay).items()
        if replay not in present
    ]
    return [*methods, *missing]


def companions_of(methods: Sequence[Method]) -> Mapping[str, tuple[str, str, str]]:
    """Names of trajectories that belong together, raw, uniform and gated, by the name of the gated one."""
    names = {method.replay: method.name for method in reversed(methods) if method.replay is not None}
    found = {}
    for method in methods:
        replays = _companions(method.replay)
        if replays and all(replay in names for replay in replays.values()):
            found[method.name] = (names[replays["raw"]], names[replays["matched"]], method.name)
    return found


def _companions(replay: ReplayConfig | None) -> dict[str, ReplayConfig]:
    """Of a replay with the Gram gate at full strength: every step accepted whole, and the gate's mean step everywhere."""
    if replay is None or replay.gate != "gram" or replay.strength != 1:
        return {}
    raw = replace(replay, gate="none", strength=1.0, adaptive=None)
    return {"raw": raw, "matched": replace(replay, gate="uniform", strength="matched")}
