"""The settings that a search may choose from: lists of values for any fields of `ReplayConfig`.

Every combination is one candidate. Combinations that the configuration refuses are left out, and of those that
do the same on a given backbone one is kept, so that no budget is spent twice.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

from gramloop.core.config import Adaptive, ReplayConfig, Window, default_window, route
from gramloop.core.cost import extra_blocks
from gramloop.errors import GramLoopError

LONGEST = 2  # blocks of a window, where nothing else is said
STRENGTHS = (0.15, 0.5, 1.0)
TAPPED_STRENGTHS = (0.25, 1.0)  # of a head on several blocks, which leaves more to choose
TAP = "tap"  # as a value of until: the first block from the window's end on that the head reads
_FIELDS = {field.name: field for field in fields(ReplayConfig)}
_OF_THE_PROBE = ("gate_at", "trust", "eps")  # mean nothing where no drift is measured


@dataclass(frozen=True)
class Space:
    """Values to try by field, such as ``Space({"window": [(3, 3), (2, 3)], "strength": [0.2, 1.0]})``."""

    values: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        for name, tried in self.values.items():
            if name not in _FIELDS:
                raise GramLoopError(f"a replay has no setting {name!r}; it has {', '.join(_FIELDS)}")
            if isinstance(tried, str) or not isinstance(tried, Sequence) or not tried:
                raise GramLoopError(
                    f"the values of {name} to try are a list with at least one, not {tried!r}"
                )
        object.__setattr__(self, "values", {name: tuple(tried) for name, tried in self.values.items()})

    @classmethod
    def default(
        cls, depth: int, longest: int = LONGEST, taps: Sequence[int] = (), **values: Sequence[Any]
    ) -> Space:
        """All windows up to a length, one replay, three strengths; ``values`` take the place of these.

        For a head on several ``taps``: two strengths, each shown to all of them or to the next one only.
        """
        usual: dict[str, Sequence[Any]] = {"window": windows(depth, longest), "replays": (1,)}
        if len(taps) > 1:
            usual |= {"strength": TAPPED_STRENGTHS, "until": (None, TAP)}
        else:
            usual["strength"] = STRENGTHS
        return cls({**usual, **values})

    def candidates(
        self, depth: int, max_cost: float | None = None, taps: Sequence[int] = ()
    ) -> tuple[ReplayConfig, ...]:
        """Every combination that runs on ``depth`` blocks and costs at most ``max_cost`` ordinary forwards.

        taps: the blocks that the head reads, for combinations that end at one of them.
        """
        found: dict[ReplayConfig, None] = {}
        refusal: GramLoopError | None = None
        names = list(self.values)
        for combination in itertools.product(*self.values.values()):
            try:
                settings = dict(zip(names, combination, strict=True))
                if settings.get("until") == TAP:
                    settings["until"] = _next_tap(settings.get("window"), taps, depth)
                config = plain(ReplayConfig(**settings), depth)
            except GramLoopError as error:
                refusal = refusal or error
                continue
            if config.replays and (max_cost is None or multiplier(config, depth) <= max_cost + 1e-9):
                found[config] = None
        if not found:
            if refusal is not None:
                raise GramLoopError(f"no combination of the values to try can run: {refusal}")
            raise GramLoopError(f"no candidate costs at most {max_cost} times the ordinary forward")
        return tuple(found)


def windows(depth: int, longest: int = LONGEST) -> tuple[Window, ...]:
    """Every window of 1 to ``longest`` blocks, short ones first."""
    if not 1 <= longest <= depth:
        raise GramLoopError(f"the longest window has 1 to {depth} blocks on this backbone, not {longest}")
    return tuple(
        (start, start + length - 1) for length in range(1, longest + 1) for start in range(depth - length + 1)
    )


def scanned_windows(path: Path, depth: int, top: int) -> tuple[Window, ...]:
    """The first windows in the ranking of a file that ``gramloop scan`` wrote for a backbone of this depth."""
    if top < 1:
        raise GramLoopError(f"at least 1 window of a scan is tried, not {top}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        scanned, ranking = record["depth"], [tuple(row["window"]) for row in record["ranking"]]
    except OSError as error:
        raise GramLoopError(f"cannot read the scan {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise GramLoopError(f"{path} is not a scan that gramloop scan wrote") from error
    if scanned != depth:
        raise GramLoopError(f"{path} is the scan of a backbone of {scanned} blocks, but this one has {depth}")
    return tuple(ranking[:top])


def _next_tap(window: Window | None, taps: Sequence[int], depth: int) -> int:
    if not taps:
        raise GramLoopError("until=tap needs a head that tells which blocks it reads; name the blocks")
    _, end = window or default_window(depth)
    return min((tap for tap in taps if tap >= end), default=depth - 1)


def plain(config: ReplayConfig, depth: int) -> ReplayConfig:
    """The same replay on this depth with its window spelled out, and without settings that have no effect."""
    place = route(config, depth)
    settings: dict[str, Any] = {"window": (place.start, place.end)}
    if place.until == place.last:
        settings["until"] = None
    if config.gate == "none":
        settings["strength"] = _FIELDS["strength"].default
    if config.measures_drift:
        settings["gate_at"] = "final" if place.probe == place.last else place.probe
        if place.probe == place.end != place.last:
            settings["gate_at"] = "end"
    else:
        settings |= {name: _FIELDS[name].default for name in _OF_THE_PROBE if name in _FIELDS}
    return replace(config, **settings)


def multiplier(config: ReplayConfig, depth: int) -> float:
    """Blocks executed per block of the ordinary forward."""
    return (depth + extra_blocks(config, depth)) / depth


def read_values(texts: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Lists of values as written on a command line: ``strength=0.2,1``, ``window=3-3,2-4``, ``gate=gram``."""
    found: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in _FIELDS:
            raise GramLoopError(
                f"{text!r} is no list of values; write one of {', '.join(_FIELDS)} as NAME=V,V,…"
            )
        found[name] = tuple(_value(name, part.strip()) for part in rest.split(","))
    return found


def _value(name: str, text: str) -> Any:
    if name == "window":
        ends = text.split("-")
        if len(ends) != 2 or not all(end.isdecimal() for end in ends):
            raise GramLoopError(f"{text!r} is no window; write the first and the last block, such as 3-4")
        return int(ends[0]), int(ends[1])
    if text.lower() == "none" and _FIELDS[name].default is None:
        return None
    if name == "adaptive":
        return _rule(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _rule(text: str) -> Adaptive:
    signal, *ends = text.split(":")
    try:
        off, full = (float(end) for end in ends)
    except ValueError:
        raise GramLoopError(
            f"{text!r} is no rule for single images; write SIGNAL:OFF:FULL, such as step:0.2:0.4, or none"
        ) from None
    return Adaptive(cast(Any, signal), off, full)
