"""The settings of a replay: what each may be, as Python values, as text and as a file.

A text is a list such as ``window=5-7,eps=1e-6,until=none``. A file is what `gramloop tune` writes, and what attach,
evaluate and predict take. A value is checked once, where a `ReplayConfig` is made, with the same message whether it
came from Python, a file, a command line or a list of settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from gramloop.errors import GramLoopError, short_repr
from gramloop.util.files import atomic_write
from gramloop.util.json_files import read_json
from gramloop.util.table import Table, TableRepr, settings_table

Window = tuple[int, int]
Gate = Literal["gram", "uniform", "none"]
Strength = float | Literal["matched"]
GateAt = Literal["final", "end"] | int
UpdateAt = Literal["end", "final"]
Signal = Literal["length", "spread", "noise"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)

PAPER_DEPTH = 40
PAPER_WINDOW: Window = (21, 23)
FLOAT32_MAX, FLOAT32_MIN = 3.4028234663852886e38, 1.1754943508222875e-38  # models compute in float32
_MOST = 1000  # replays or substeps; a typo must not run for years
KIND = "gramloop replay"
MITIGATIONS_KIND = "gramloop mitigations"  # more than a replay; `gramloop.mitigations` reads it


@dataclass(frozen=True)
class Field:
    """One setting: one of ``words``, or a number of a kind from ``low`` to ``high``, or None where it is optional.

    right: what the value is if not one of the words, for error messages.
    kind: of number. A float may be given as an int, and stays one; numpy's numbers become Python's.
    meaning, symbol: for the help of commands.
    """

    right: str = ""
    words: tuple[str, ...] = ()
    kind: type[int] | type[float] | None = None
    low: float = 0
    high: float = FLOAT32_MAX
    optional: bool = False
    meaning: str = ""
    symbol: str = ""

    def check(self, name: str, value: object) -> object:
        """The value as it is kept, or an error that says what would be right."""
        if value is None and self.optional:
            return None
        kept = self.keep(value)
        if kept is None:
            choices = [*(f'"{word}"' for word in self.words), self.right]
            right = " or ".join(filter(None, choices)) + ", or none" * self.optional
            raise GramLoopError(f"{name} is {short_repr(value)}; it is {right}")
        return kept

    def parse(self, name: str, text: str) -> object:
        """The value of a text, checked; ``none`` is None where that is right."""
        return self.check(name, None if self.optional and text.lower() == "none" else self.read(text))

    def keep(self, value: object) -> object:
        """The value as it is kept, None where it is wrong."""
        if isinstance(value, str):
            return str(value) if value in self.words else None
        if self.kind is None or isinstance(value, bool) or not isinstance(value, Real):
            return None
        with suppress(OverflowError):
            found = int(value) if isinstance(value, Integral) else float(value)
            if self.low <= found <= self.high and isinstance(found, int | self.kind):
                return found
        return None

    def read(self, text: str) -> object:
        """The number that a text is, or the text, which `check` then refuses."""
        for kind in (int, float):
            if self.kind in (int, kind) and "_" not in text:
                with suppress(ValueError):
                    return kind(text)
        return text


@dataclass(frozen=True)
class Adaptive(TableRepr):
    """Decide per image, without labels, whether to replay and how strongly.

    At ``off`` and beyond, away from ``full``, an image is not replayed; at ``full`` and beyond it is replayed with
    the whole gate; in between the gate is scaled in proportion. Equal values make it a switch: on above the value.
    ``off`` may lie above ``full``, for a signal that falls under shift.

    signal: of the patches at the window's end, before anything is replayed: "length" (mean L2 length) or
        "spread" (the lengths' standard deviation over their mean); or of the pixels that the model is given: "noise"
        (their estimated noise). `gramloop.replay.adaptive` computes them.
    """

    signal: Signal
    off: float
    full: float

    def __post_init__(self) -> None:
        for name, field in RULE.items():
            object.__setattr__(self, name, field.check(f"adaptive {name}", getattr(self, name)))

    def _table(self) -> Table:
        return settings_table("Replay only where a signal says so", self)


class _WindowField(Field):
    def keep(self, value: object) -> Window | None:
        if isinstance(value, tuple | list) and len(value) == 2:
            first, last = map(BLOCK.keep, value)
            if isinstance(first, int) and isinstance(last, int) and first <= last:
                return first, last
        return None

    def read(self, text: str) -> object:
        ends = text.split("-")
        return [BLOCK.read(end) for end in ends] if len(ends) == 2 else text


class _AdaptiveField(Field):
    def keep(self, value: object) -> Adaptive | None:
        if isinstance(value, Mapping) and set(value) == set(RULE):
            return Adaptive(**value)
        return value if isinstance(value, Adaptive) else None

    def read(self, text: str) -> object:
        parts = dict(zip(RULE, text.split(":"), strict=False))
        return {name: RULE[name].read(part) for name, part in parts.items()} if text.count(":") == 2 else text


BLOCK = Field("the index of a block", kind=int)
_FINITE = Field("a finite number", kind=float, low=-FLOAT32_MAX)
RULE: Mapping[str, Field] = {"signal": Field(words=SIGNALS), "off": _FINITE, "full": _FINITE}
FIELDS: Mapping[str, Field] = {
    "window": _WindowField(
        "a pair of blocks, such as [21, 23], in text 21-23",
        optional=True, meaning="blocks to replay", symbol="FIRST LAST",
    ),
    "replays": Field("a whole number from 0 to 1000", kind=int, high=_MOST, meaning="how often", symbol="K"),
    "gate": Field(words=get_args(Gate), meaning="what is accepted of a proposal"),
    "strength": Field(
        "a number from 0 to 1", ("matched",), float, high=1, meaning='0 to 1, or "matched"', symbol="S"
    ),
    "gate_at": replace(
        BLOCK, words=("final", "end"), meaning="final, end, or a block's index", symbol="WHERE"
    ),
    "update_at": Field(words=get_args(UpdateAt), meaning="where the accepted step is applied"),
    "eps": Field(
        "a small positive number, such as 1e-6", kind=float, low=FLOAT32_MIN,
        meaning="the smallest median drift that the gate divides by", symbol="DRIFT",
    ),
    "adaptive": _AdaptiveField(
        "an Adaptive(signal, off, full), in text length:1.7:1.8", optional=True,
        meaning="replay only where an image's signal says so, such as noise:0.2:0.3", symbol="SIGNAL:OFF:FULL",
    ),
    "until": replace(BLOCK, optional=True, meaning="the last block that shows the replay", symbol="BLOCK"),
    "substeps": Field(
        "a whole number from 1 to 1000", kind=int, low=1, high=_MOST, optional=True,
        meaning="K steps of 1/K through the window in place of a second pass, with one replay", symbol="K",
    ),
}  # fmt: skip
_MARKS = {"window": "-", "adaptive": ":"}  # between the parts of a setting


def field_of(name: object) -> Field:
    """The setting of a name."""
    if name not in FIELDS:
        raise GramLoopError(f"{short_repr(name)} is no setting of a replay; settings are {', '.join(FIELDS)}")
    return FIELDS[str(name)]


class ReplaySettings(TypedDict, total=False):
    """The fields of `ReplayConfig`, as keywords."""

    window: Window | None
    replays: int
    gate: Gate
    strength: Strength
    gate_at: GateAt
    update_at: UpdateAt
    eps: float
    adaptive: Adaptive | None
    until: int | None
    substeps: int | None


@dataclass(frozen=True)
class ReplayConfig(TableRepr):
    """One replay configuration; the defaults are the published method.

    window: first and last block to replay, zero-based and inclusive; None takes `default_window`.
    replays: how often the window is replayed (K). 0 leaves the model as it is.
    gate: "gram" accepts each patch by its drift, "uniform" every token by ``strength``, "none" everything.
    strength: scales the Gram gate, or is the uniform gate itself. "matched" (uniform only) takes, per image
        and replay, the mean gate of the Gram-gated trajectory of the same image, which runs along.
    gate_at: where drift is measured: "final" (the last block), "end" (the window's last block), or the
        index of a block between; always after the encoder's final norm.
    update_at: where the accepted step is applied: "end" (the window's last block) or "final" (the last
        block; the loop then runs on ungated and earlier taps stay those of the baseline).
    eps: the smallest median drift that the gate divides by.
    adaptive: an `Adaptive` rule that decides per image whether to replay; None replays every image.
    until: the last block whose output shows the replay; the blocks after it continue from the baseline state, so
        that a head on several blocks sees refined early features and baseline late ones. None: to the end.
    substeps: propose what the window makes of its input in so many steps of 1/substeps each, in place of a
        second pass through it; 1 is the baseline pass itself. None, the published method, replays.
    """

    window: Window | None = None
    replays: int = 2
    gate: Gate = "gram"
    strength: Strength = 1.0
    gate_at: GateAt = "final"
    update_at: UpdateAt = "end"
    eps: float = 1e-6
    adaptive: Adaptive | None = None
    until: int | None = None
    substeps: int | None = None

    def __post_init__(self) -> None:
        for name, field in FIELDS.items():
            object.__setattr__(self, name, field.check(name, getattr(self, name)))
        if self.strength == "matched" and self.gate != "uniform":
            raise GramLoopError(f'strength "matched" belongs to gate "uniform", not to gate "{self.gate}"')
        for name in ("adaptive", "until", "substeps"):
            if getattr(self, name) is not None and self.update_at == "final":
                raise GramLoopError(f'{name} acts at the window\'s end, so update_at is "end", not "final"')
        if self.substeps is not None and self.replays > 1:
            raise GramLoopError(
                f"substeps is {self.substeps} and replays {self.replays}; substeps are taken once, so replays is 1 then"
            )

    @property
    def measures_drift(self) -> bool:
        """Whether the drift of patches decides their gate, itself or by its mean, so that proposals are probed."""
        return self.gate == "gram" or self.strength == "matched"

    def _table(self) -> Table:
        rows = tuple(
            (name, setting_text(name, getattr(self, name)), setting_text(name, getattr(ReplayConfig, name)))
            for name in FIELDS
        )
        return Table(f"Replay: {describe_replay(self)}", ("setting", "value", "published"), rows)

    def as_json(self) -> dict[str, Any]:
        """The settings as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, settings: object) -> ReplayConfig:
        """The settings of `as_json`, or others as plain values; what is not given keeps its default."""
        if not isinstance(settings, Mapping):
            raise GramLoopError(
                f'the settings of a replay are {short_repr(settings)}; they are values by name, such as {{"replays": 2}}'
            )
        for name in settings:
            field_of(name)
        return cls(**settings)


def default_window(depth: int) -> Window:
    """[21, 23] for 40 blocks; elsewhere the same relative place, rounded, at least one block.

    Only the 40-block window was tuned by the method's authors. Scaled windows are a guess.
    """
    start = round(PAPER_WINDOW[0] / PAPER_DEPTH * depth)
    stop = round((PAPER_WINDOW[1] + 1) / PAPER_DEPTH * depth)
    start = min(start, depth - 1)
    return start, max(start, min(stop, depth) - 1)


@dataclass(frozen=True)
class Route:
    """A configuration on a backbone of ``depth`` blocks: which block does what.

    start, end: the window, s and e in the paper. probe: drift is measured after this block.
    until: the head sees the replay up to this block; ``resumes`` if the host continues from the baseline after it.
    keep: blocks whose baseline output is wanted.
    measures: whether proposals are probed.
    reach: the last block that is run besides the host's own pass: for a proposal, the probe, a kept block or ``until``.
    steps: blocks after which there is something to do.
    """

    config: ReplayConfig
    depth: int
    start: int
    end: int
    probe: int
    until: int
    keep: tuple[int, ...]
    measures: bool
    resumes: bool
    reach: int
    steps: frozenset[int]

    @property
    def last(self) -> int:
        """Index of the last block."""
        return self.depth - 1

    @property
    def at_final(self) -> bool:
        """Whether the accepted step is applied at the last block."""
        return self.config.update_at == "final"

    @property
    def runs_blocks(self) -> bool:
        """Whether blocks are run besides the host's own pass."""
        return self.config.replays > 0 or self.reach > self.end

    @property
    def probes_accepted(self) -> bool:
        """Whether the accepted state gets to the probe."""
        return self.probe == self.last if self.at_final else not self.resumes or self.probe <= self.until

    def shows_baseline(self, index: int) -> bool:
        """Whether the host's own forward shows the baseline output of a block."""
        return self.at_final or index < self.end or (self.resumes and index > self.until)


def route(config: ReplayConfig, depth: int, keep: Sequence[int] = (), trace: bool = False) -> Route:
    """Place a configuration on ``depth`` blocks, or say which index lies outside."""
    (start, end), last = config.window or default_window(depth), depth - 1
    if end > last:
        raise GramLoopError(
            f"window [{start}, {end}] reaches past the last block: this backbone has {depth} blocks, 0 to {last}"
        )
    probe = {"end": end, "final": last}[config.gate_at] if isinstance(config.gate_at, str) else config.gate_at
    until = last if config.until is None else config.until
    for name, block in (("gate_at", probe), ("until", until)):
        if not end <= block <= last:
            raise GramLoopError(
                f"{name} is block {block}; it lies from the window's end, {end}, to the last block, {last}"
            )
    if outside := [index for index in keep if not 0 <= index <= last]:
        raise GramLoopError(f"keep names block {outside[0]}; the blocks are 0 to {last}")
    measures = config.replays > 0 and (config.measures_drift or trace)
    resumes = config.replays > 0 and until < last
    kept = [index for index in keep if not resumes or index <= until]
    reach = max([end, *kept, probe if measures else 0, until if resumes else 0])
    steps = {end, probe} if trace else {end}
    if config.update_at == "final":
        reach, steps = (last if config.replays else end), {end, probe, last}
    return Route(
        config, depth, start, end, probe, until, tuple(keep), measures, resumes, reach, frozenset(steps)
    )


def parse_replay(text: str) -> ReplayConfig:
    """The replay that a list of settings describes; what is not given is as published."""
    given: dict[str, object] = {}
    for part in text.split(",") if text else ():
        name, value = split_setting(part)
        if name in given:
            raise GramLoopError(f"{name} is given twice in {text!r}")
        given[name] = field_of(name).parse(name, value)
    return ReplayConfig.from_json(given)


def split_setting(text: str) -> tuple[str, str]:
    """The name and the value of ``NAME=VALUE``; a hyphen in the name is as good as an underscore."""
    name, _, value = text.partition("=")
    return name.strip().replace("-", "_"), value.strip()


def replay_text(config: ReplayConfig) -> str:
    """The settings that differ from the published ones, as `parse_replay` reads them."""
    return ",".join(f"{name}={_MARKS.get(name, '').join(parts)}" for name, parts in _unusual(config))


def setting_text(name: str, value: object) -> str:
    """One setting as `parse_replay` reads it."""
    return "none" if value is None else _MARKS.get(name, "").join(_parts(name, value))


def describe_replay(config: ReplayConfig) -> str:
    """A replay in a few words."""
    if not config.replays:
        return "no replay"
    start, end = config.window or (None, None)
    blocks = f"block {start}" if start == end else f"blocks {start} to {end}"
    often = {1: "once", 2: "twice"}.get(config.replays, f"{config.replays} times")
    if config.substeps is not None:
        often = f"in {config.substeps} steps of 1/{config.substeps}"
    words = [f"{blocks if config.window else 'the default window'} {often}", f"{config.gate} gate"]
    for name, parts in _unusual(config):
        if name == "adaptive":
            parts = [f"{part} {value}" for part, value in zip(RULE, parts, strict=True)]
        if name not in ("window", "replays", "gate", "substeps"):
            words.append(f"{name} {' '.join(parts)}")
    return ", ".join(words)


def read_replay(path: str | Path) -> ReplayConfig:
    """The replay of a settings file."""
    return read_settings(path)[0]


def read_settings(path: str | Path) -> tuple[ReplayConfig, Mapping[str, Any]]:
    """The replay of a settings file, and what the file says about how it was found."""
    content = read_content(path)
    if content["kind"] == MITIGATIONS_KIND:
        raise GramLoopError(
            f"{path} holds more than a replay ({content.get('mitigations')}); gramloop.mitigations.apply(path, predictor) takes it"
        )
    try:
        return ReplayConfig.from_json(content.get("replay")), content["about"]
    except GramLoopError as error:
        raise GramLoopError(f"{path}: {error}") from error


def read_content(path: str | Path) -> dict[str, Any]:
    """What a settings file of either kind holds."""
    content = read_json(Path(path), "a file of replay settings")
    if not isinstance(content, dict) or content.get("kind") not in (KIND, MITIGATIONS_KIND):
        raise GramLoopError(f'{path} holds no replay settings; such a file says "kind": "{KIND}"')
    about = content.setdefault("about", {})
    if not isinstance(about, dict):
        raise GramLoopError(f"{path}: about is {short_repr(about)}; it is an object")
    return content


def write_replay(path: str | Path, config: ReplayConfig, about: Mapping[str, Any] | None = None) -> None:
    """Store a replay with what is known about it (plain JSON values), whole or not at all."""
    content = {"kind": KIND, "replay": config.as_json(), "about": dict(about or {})}
    atomic_write(Path(path), (json.dumps(content, indent=1) + "\n").encode())


def _unusual(config: ReplayConfig) -> Iterator[tuple[str, list[str]]]:
    """The settings that are not as published, each in its parts."""
    for name in FIELDS:
        value = getattr(config, name)
        if value != getattr(ReplayConfig, name):
            yield name, _parts(name, value)


def _parts(name: str, value: Any) -> list[str]:
    parts = astuple(value) if name == "adaptive" else value if name == "window" else (value,)
    return [str(part) for part in parts]
