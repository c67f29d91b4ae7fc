"""What a search may choose from: lists of values for any fields of `ReplayConfig`, and any mitigations.

Every combination of a replay's values is one candidate. Combinations that the configuration refuses are left out, and
of those that do the same on a given backbone one is kept, so that no budget is spent twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.stack import ordered, parse_mitigations
from gramloop.replay.config import (
    FIELDS,
    Field,
    ReplayConfig,
    ReplaySettings,
    Window,
    default_window,
    field_of,
    split_setting,
)
from gramloop.replay.cost import extra_blocks, route
from gramloop.tune.scan.files import read_ranking

LONGEST = 2  # blocks of a window, where nothing else is said
STRENGTHS = (0.15, 0.5, 1.0)
TAPPED_STRENGTHS = (0.25, 1.0)  # of a head on several blocks, which leaves more to choose
TAP = "tap"  # as a value of until: the first block from the window's end on that the head reads
_UNTIL = replace(FIELDS["until"], words=(TAP,))


@dataclass(frozen=True)
class Space:
    """Replays and other mitigations, such as ``Space({"window": [(3, 3)]}, ["recentre:0.3", "denoise"])``.

    values: of a replay, to try by field; every combination is a candidate. Without any, and without mitigations, the
        published replay is the only one.
    mitigations: as text or as objects; each is a candidate, alone or several joined by a plus.
    fitting: leave out what makes no sense for the predictor, in place of refusing it.
    """

    values: Mapping[str, Sequence[object]] = field(default_factory=dict)
    mitigations: Sequence[str | Sequence[Mitigation]] = ()
    fitting: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.mitigations, str):
            raise GramLoopError(f"the mitigations to try are a list, not the text {self.mitigations!r}")
        object.__setattr__(self, "mitigations", tuple(map(_stack, self.mitigations)))
        checked = {}
        for name, tried in self.values.items():
            known = _field(name)
            if isinstance(tried, str) or not isinstance(tried, Sequence) or not tried:
                raise GramLoopError(
                    f"the values of {name} to try are a list with at least one, not {tried!r}"
                )
            checked[name] = tuple(known.check(name, each) for each in tried)
        object.__setattr__(self, "values", checked)

    @classmethod
    def default(
        cls, depth: int, longest: int = LONGEST, taps: Sequence[int] = (), **values: Sequence[object]
    ) -> Space:
        """All windows up to a length, one replay, three strengths; ``values`` take the place of these.

        For a head on several ``taps``: two strengths, each shown to all of them or to the next one only.
        """
        usual: dict[str, Sequence[object]] = {"window": windows(depth, longest), "replays": (1,)}
        usual["strength"] = STRENGTHS
        if len(taps) > 1:
            usual |= {"strength": TAPPED_STRENGTHS, "until": (None, TAP)}
        return cls({**usual, **values})

    @property
    def stacks(self) -> tuple[tuple[Mitigation, ...], ...]:
        """The mitigations, as objects in the order in which they act."""
        return tuple(map(_stack, self.mitigations))

    @property
    def has_replays(self) -> bool:
        """Whether values of a replay are tried."""
        return bool(self.values) or not self.mitigations

    def candidates(
        self, depth: int, max_cost: float | None = None, taps: Sequence[int] = ()
    ) -> tuple[ReplayConfig, ...]:
        """Every replay that runs on ``depth`` blocks and costs at most ``max_cost`` ordinary forwards.

        taps: the blocks that the head reads, for combinations that end at one of them.
        """
        found: dict[ReplayConfig, None] = {}
        refusal: GramLoopError | None = None
        names = list(self.values)
        for combination in itertools.product(*self.values.values()):
            try:
                settings = dict(zip(names, combination, strict=True))
                at_tap = settings.get("until") == TAP
                config = ReplayConfig.from_json({**settings, "until": None} if at_tap else settings)
                if at_tap:
                    config = replace(config, until=_next_tap(config.window, taps, depth))
                config = plain(config, depth)
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
    scanned, ranking = read_ranking(path)
    if scanned != depth:
        raise GramLoopError(f"{path} is the scan of a backbone of {scanned} blocks, but this one has {depth}")
    return ranking[:top]


def _next_tap(window: Window | None, taps: Sequence[int], depth: int) -> int:
    if not taps:
        raise GramLoopError("until=tap needs a head that tells which blocks it reads; name the blocks")
    _, end = window or default_window(depth)
    return min((tap for tap in taps if tap >= end), default=depth - 1)


def plain(config: ReplayConfig, depth: int) -> ReplayConfig:
    """The same replay on this depth with its window spelled out, and without settings that have no effect."""
    found = route(config, depth)
    settings: ReplaySettings = {"window": (found.start, found.end)}
    if found.until == found.last:
        settings["until"] = None
    if config.gate == "none":
        settings["strength"] = ReplayConfig.strength
    if not config.measures_drift:
        settings |= {"gate_at": ReplayConfig.gate_at, "eps": ReplayConfig.eps}
    elif found.probe == found.last:
        settings["gate_at"] = "final"
    else:
        settings["gate_at"] = "end" if found.probe == found.end else found.probe
    return replace(config, **settings)


def multiplier(config: ReplayConfig, depth: int) -> float:
    """Blocks executed per block of the ordinary forward."""
    return (depth + extra_blocks(config, depth)) / depth


def read_values(texts: Iterable[str]) -> dict[str, tuple[object, ...]]:
    """Lists of values as written on a command line: ``strength=0.2,1``, ``window=3-3,2-4``, ``gate=gram``."""
    found = {}
    for text in texts:
        name, values = split_setting(text)
        found[name] = tuple(_value(name, part.strip()) for part in values.split(","))
    return found


def _stack(given: str | Sequence[Mitigation]) -> tuple[Mitigation, ...]:
    return parse_mitigations(given) if isinstance(given, str) else ordered(given)


def _value(name: str, text: str) -> object:
    value = _field(name).parse(name, text)
    # 1 is not 1.0 in a plan's hash: a search that was begun with it goes on
    return int(value) if isinstance(value, float) and text.isdecimal() else value


def _field(name: str) -> Field:
    return _UNTIL if name == "until" else field_of(name)
