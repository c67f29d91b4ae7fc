"""The settings of a replay: what each may be, as Python values, text and a file; and which blocks they mean.

A text is a list such as ``window=5-7,eps=1e-6,adaptive=none``. A file is what `gramloop tune` writes, and what attach,
evaluate and predict take. A value is checked once, where a `ReplayConfig` is made, with the same message whether it
came from Python, a file, a command line or a list of settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, get_args

from gramloop.errors import GramLoopError, short_repr
from gramloop.util.files import atomic_write
from gramloop.util.json_files import read_json

Window = tuple[int, int]
GateKind = Literal["gram", "uniform", "none"]
Strength = float | Literal["matched"]
GateAt = Literal["final", "end"] | int
UpdateAt = Literal["end", "final"]
Signal = Literal["noise"]

FLOAT32_MAX, FLOAT32_MIN = 3.4028234663852886e38, 1.1754943508222875e-38  # models compute in float32
KIND = "gramloop replay"
MITIGATIONS_KIND = "gramloop mitigations"  # more than a replay; `gramloop.mitigations` reads it


@dataclass(frozen=True)
class Adaptive:
    """Decide per image, without labels, whether to replay and how strongly.

    At ``off`` and below, an image is not replayed; at ``full`` and above it is replayed with the whole gate; in between
    the gate is scaled in proportion. Equal values make it a switch: on above the value. ``off`` may lie above ``full``,
    to replay images without noise.

    signal: "noise", estimated from the pixels that the model is given; see `gramloop.replay.adaptive`.
    """

    signal: Signal
    off: float
    full: float

    def __post_init__(self) -> None:
        for name in RULE:
            object.__setattr__(self, name, check_value(f"adaptive {name}", getattr(self, name), RULE[name]))


@dataclass(frozen=True)
class Field:
    """What one setting may be: one of ``words``, a number from ``low`` to ``high``, a window, a rule, or None.

    right: what is right besides the words, for error messages.
    kind: of value; a float may be given as an int, and stays one. ``tuple`` is a window.
    mark: between the parts of a window or a rule, in text.
    """

    right: str = ""
    words: tuple[str, ...] = ()
    kind: type | None = None
    low: float = 0
    high: float = FLOAT32_MAX
    optional: bool = False
    mark: str = ""


BLOCK = Field("the index of a block", kind=int)
_FINITE = Field("a finite number", kind=float, low=-FLOAT32_MAX)
RULE: Mapping[str, Field] = {"signal": Field(words=get_args(Signal)), "off": _FINITE, "full": _FINITE}
FIELDS: Mapping[str, Field] = {
    "window": Field("a pair of blocks, such as [21, 23], in text 21-23", kind=tuple, optional=True, mark="-"),
    "replays": Field("a whole number from 0 to 1000", kind=int, high=1000),  # a typo must not run for years
    "gate": Field(words=get_args(GateKind)),
    "strength": Field("a number from 0 to 1", ("matched",), float, high=1),
    "gate_at": replace(BLOCK, words=("final", "end")),
    "update_at": Field(words=get_args(UpdateAt)),
    "eps": Field("a small positive number, such as 1e-6", kind=float, low=FLOAT32_MIN),
    "adaptive": Field(
        "an Adaptive(signal, off, full), in text noise:0.2:0.3", kind=Adaptive, optional=True, mark=":"
    ),
}  # fmt: skip


def check_value(name: str, value: object, field: Field | None = None) -> Any:
    """The value of a setting as it is kept, numpy's numbers as Python's; or an error that says what would be right."""
    field = field or _field(name)
    kept = None if value is None else _kept(value, field)
    if kept is None and not (value is None and field.optional):
        choices = [*(f'"{word}"' for word in field.words), field.right]
        right = " or ".join(filter(None, choices)) + ", or none" * field.optional
        raise GramLoopError(f"{name} is {short_repr(value)}; it is {right}")
    return kept


def parse_value(name: str, text: str) -> Any:
    """The value of a setting that is given as text, checked; ``none`` is None where that is right."""
    field = _field(name)
    if field.optional and text.lower() == "none":
        return None
    value: object = _number(text, field.kind)
    parts = text.split(field.mark) if field.mark else []
    if field.kind is tuple and len(parts) == 2:
        value = [_number(part, int) for part in parts]
    elif field.kind is Adaptive and len(parts) == len(RULE):
        value = {key: _number(part, RULE[key].kind) for key, part in zip(RULE, parts, strict=True)}
    return check_value(name, value)


def _field(name: object) -> Field:
    if name not in FIELDS:
        raise GramLoopError(f"{short_repr(name)} is no setting of a replay; settings are {', '.join(FIELDS)}")
    return FIELDS[str(name)]


def _kept(value: object, field: Field) -> object:
    """The value as it is kept, None where it is wrong."""
    if isinstance(value, str):
        return str(value) if value in field.words else None
    if field.kind is Adaptive:
        made = isinstance(value, Mapping) and set(value) == set(RULE)
        return Adaptive(**value) if made else value if isinstance(value, Adaptive) else None  # type: ignore[arg-type]
    if field.kind is tuple:
        ends = tuple(_kept(end, BLOCK) for end in value) if isinstance(value, tuple | list) else ()
        return ends if len(ends) == 2 and None not in ends and ends[0] <= ends[1] else None  # type: ignore[operator]
    if field.kind is None or isinstance(value, bool) or not isinstance(value, Real):
        return None
    with suppress(OverflowError):
        number = int(value) if isinstance(value, Integral) else float(value)
        if field.low <= number <= field.high and isinstance(number, int | field.kind):
            return number
    return None


def _number(text: str, kind: type | None) -> object:
    """The number that a text is, or the text, which `check_value` then refuses."""
    for each in (int, float):
        if kind in (int, each) and "_" not in text:
            with suppress(ValueError):
                return each(text)
    return text


class ReplaySettings(TypedDict, total=False):
    """The fields of `ReplayConfig`, as keywords."""

    window: Window | None
    replays: int
    gate: GateKind
    strength: Strength
    gate_at: GateAt
    update_at: UpdateAt
    eps: float
    adaptive: Adaptive | None


@dataclass(frozen=True)
class ReplayConfig:
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
    """

    window: Window | None = None
    replays: int = 2
    gate: GateKind = "gram"
    strength: Strength = 1.0
    gate_at: GateAt = "final"
    update_at: UpdateAt = "end"
    eps: float = 1e-6
    adaptive: Adaptive | None = None

    def __post_init__(self) -> None:
        for name in FIELDS:
            object.__setattr__(self, name, check_value(name, getattr(self, name)))
        if self.strength == "matched" and self.gate != "uniform":
            raise GramLoopError(f'strength "matched" belongs to gate "uniform", not to gate "{self.gate}"')
        if self.adaptive is not None and self.update_at == "final":
            raise GramLoopError('adaptive acts at the window\'s end, so update_at is "end", not "final"')

    @cached_property
    def measures_drift(self) -> bool:
        """Whether the drift of patches decides their gate, itself or by its mean, so that proposals are probed."""
        return self.gate == "gram" or self.strength == "matched"

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
            _field(name)
        return cls(**settings)


def parse_replay(text: str) -> ReplayConfig:
    """The replay that a list of settings describes; what is not given is as published."""
    given: dict[str, object] = {}
    for part in text.split(",") if text else ():
        name, value = split_setting(part)
        if name in given:
            raise GramLoopError(f"{name} is given twice in {text!r}")
        given[name] = parse_value(name, value)
    return ReplayConfig.from_json(given)


def split_setting(text: str) -> tuple[str, str]:
    """The name and the value of ``NAME=VALUE``; a hyphen in the name is as good as an underscore."""
    name, _, value = text.partition("=")
    return name.strip().replace("-", "_"), value.strip()


def replay_text(config: ReplayConfig) -> str:
    """The settings that differ from the published ones, as `parse_replay` reads them."""
    texts = []
    for name, field in FIELDS.items():
        value = getattr(config, name)
        if value != getattr(ReplayConfig, name):
            parts = astuple(value) if isinstance(value, Adaptive) else value
            joined = field.mark.join(map(str, parts)) if isinstance(parts, tuple) else parts
            texts.append(f"{name}={'none' if value is None else joined}")
    return ",".join(texts)


def read_replay(path: str | Path) -> ReplayConfig:
    """The replay of a settings file."""
    content = read_content(path)
    if content.get("mitigations"):
        raise GramLoopError(
            f"{path} holds more than a replay ({content.get('mitigations')}); gramloop.mitigations.apply(path, predictor) takes it"
        )
    try:
        return ReplayConfig.from_json(content.get("replay"))
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


# where a replay's blocks are on a backbone of some depth, and what they cost

PAPER_DEPTH = 40
PAPER_WINDOW: Window = (21, 23)


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
    keep: blocks whose baseline output is wanted.
    measures: whether proposals are probed.
    reach: the last block that is run besides the host's own pass: for a proposal, the probe or a kept block.
    steps: blocks after which there is something to do.
    """

    config: ReplayConfig
    depth: int
    start: int
    end: int
    probe: int
    keep: tuple[int, ...]
    measures: bool
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


def route(config: ReplayConfig, depth: int, keep: Sequence[int] = (), trace: bool = False) -> Route:
    """Place a configuration on ``depth`` blocks, or say which index lies outside."""
    (start, end), last = config.window or default_window(depth), depth - 1
    if end > last:
        raise GramLoopError(
            f"window [{start}, {end}] reaches past the last block: this backbone has {depth} blocks, 0 to {last}"
        )
    probe = {"end": end, "final": last}[config.gate_at] if isinstance(config.gate_at, str) else config.gate_at
    if not end <= probe <= last:
        raise GramLoopError(
            f"gate_at is block {probe}; it lies from the window's end, {end}, to the last block, {last}"
        )
    if outside := [index for index in keep if not 0 <= index <= last]:
        raise GramLoopError(f"keep names block {outside[0]}; the blocks are 0 to {last}")
    measures = config.replays > 0 and (config.measures_drift or trace)
    reach, steps = max([end, *keep, probe if measures else 0]), {end, probe} if trace else {end}
    if config.update_at == "final":
        reach, steps = (last if config.replays else end), {end, probe, last}
    return Route(config, depth, start, end, probe, tuple(keep), measures, reach, frozenset(steps))


@dataclass(frozen=True)
class Cost:
    """Blocks executed for one image, and those of the baseline forward.

    area: of an input relative to the usual one, on average over several forward passes.
    """

    blocks: int
    baseline: int
    area: float = 1.0

    @property
    def multiplier(self) -> float:
        """Work per baseline forward: a block on an image of twice the area counts twice."""
        return self.area * self.blocks / self.baseline


def cost(
    depth: int, window: Window | None = None, replays: int = 2, /, **settings: Unpack[ReplaySettings]
) -> Cost:
    """Blocks that one forward executes with a replay attached; the settings are those of `ReplayConfig`.

    The published setting, ``cost(40)``, executes 94 blocks, 2.35 times the baseline forward. A trace of a
    replay that measures no drift, and kept blocks after the probe, cost the blocks they need on top.
    """
    given: ReplaySettings = {"window": window, "replays": replays, **settings}
    return Cost(depth + extra_blocks(ReplayConfig(**given), depth), depth)


def extra_blocks(config: ReplayConfig, depth: int, keep: Sequence[int] = ()) -> int:
    """Blocks executed beyond the host's own forward, to replay and to know the baseline output of ``keep``."""
    at = route(config, depth, keep)
    if at.at_final:
        return config.replays * (at.last - at.start + 1)
    proposal = at.end - at.start + 1 + (at.probe - at.end if at.measures else 0)
    # of the trajectory whose mean gate a matched strength takes, only the first proposal is the same
    followed = max(config.replays - 1, 0) if config.strength == "matched" else 0
    return (config.replays + followed) * proposal + at.reach - at.end


def pair_blocks(config: ReplayConfig, depth: int) -> int:
    """Blocks executed for a baseline and a replayed forward that share their blocks (`reusing_blocks`)."""
    at, total = route(config, depth), depth + extra_blocks(config, depth)
    # the baseline suffix is known; the host runs its own on the replayed state
    return total - at.reach + at.last if config.replays and not at.at_final else total
