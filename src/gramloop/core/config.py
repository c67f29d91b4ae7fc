"""The settings of a replay, and what they mean on a backbone of a given depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypedDict, get_args

from gramloop.core.fields import LARGEST, SMALLEST, Field, shown
from gramloop.errors import GramLoopError
from gramloop.util.table import Shown, ShownTable, settings_table

Window = tuple[int, int]
Gate = Literal["gram", "uniform", "none"]
Strength = float | Literal["matched"]
GateAt = Literal["final", "end"] | int
UpdateAt = Literal["end", "final"]
Signal = Literal["length", "spread", "step", "drift", "noise"]
ORDINARY_SIGNALS: tuple[Signal, ...] = ("length", "spread", "noise")  # known before anything is replayed

# The published setting: blocks 21 to 23 of 40.
PAPER_DEPTH = 40
PAPER_WINDOW: Window = (21, 23)
MOST = 1000  # replays or substeps; a slip of the pen must not run for years


@dataclass(frozen=True)
class Adaptive(Shown):
    """Decide per image, without labels, whether to replay and how strongly.

    A signal of the image is measured. At ``off`` and beyond, away from ``full``, the image is not replayed;
    at ``full`` and beyond it is replayed with the whole gate; in between the gate is scaled in proportion.
    Equal values make it a switch: on above the value. ``off`` may lie above ``full``, for a signal that falls
    under shift.

    signal: of the patches at the window's end, before anything is replayed: "length" (mean L2 length) or
        "spread" (the lengths' standard deviation over their mean); of the pixels that the model is given: "noise"
        (their estimated noise); or of the first proposal: "step" (how far it moves relative to the length, which
        costs the window) or "drift" (which costs the probe too). `gramloop.core.signals` computes them.
    """

    signal: Signal
    off: float
    full: float

    def __post_init__(self) -> None:
        """Refuse what decides nothing."""
        for name, field in RULE.items():
            object.__setattr__(self, name, field.check(f"adaptive {name}", getattr(self, name)))

    def _shown(self) -> ShownTable:
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
RULE: Mapping[str, Field] = {
    "signal": Field(words=get_args(Signal)),
    "off": Field("a finite number", kind=float, low=-LARGEST),
    "full": Field("a finite number", kind=float, low=-LARGEST),
}
FIELDS: Mapping[str, Field] = {
    "window": _WindowField(
        "a pair of blocks, first and last, such as [21, 23], in text 21-23",
        optional=True,
        meaning="blocks to replay",
        symbol="FIRST LAST",
    ),
    "replays": Field(
        f"a whole number from 0 to {MOST}", kind=int, high=MOST, meaning="how often", symbol="K"
    ),
    "gate": Field(words=get_args(Gate), meaning="what is accepted of a proposal"),
    "strength": Field(
        "a number from 0 to 1", ("matched",), float, high=1, meaning='0 to 1, or "matched"', symbol="S"
    ),
    "gate_at": replace(
        BLOCK, words=("final", "end"), meaning="final, end, or a block's index", symbol="WHERE"
    ),
    "update_at": Field(words=get_args(UpdateAt), meaning="where the accepted step is applied"),
    "eps": Field(
        "a small positive number, such as 1e-6",
        kind=float,
        low=SMALLEST,
        meaning="the smallest median drift that the gate divides by",
        symbol="DRIFT",
    ),
    "trust": Field(
        "a positive drift, such as 0.001",
        kind=float,
        low=SMALLEST,
        optional=True,
        meaning="shrink proposals with a larger median drift",
        symbol="DRIFT",
    ),
    "adaptive": _AdaptiveField(
        "an Adaptive(signal, off, full), in text step:0.2:0.4",
        optional=True,
        meaning="replay only where an image's signal says so, such as spread:0.2:0.3",
        symbol="SIGNAL:OFF:FULL",
    ),
    "matched_to": Field(
        "a number from 0 to 1",
        kind=float,
        high=1,
        meaning='strength of the Gram gate that "matched" follows',
        symbol="S",
    ),
    "until": replace(BLOCK, optional=True, meaning="the last block that shows the replay", symbol="BLOCK"),
    "substeps": Field(
        f"a whole number from 1 to {MOST}",
        kind=int,
        low=1,
        high=MOST,
        optional=True,
        meaning="K steps of 1/K through the window in place of a second pass, with one replay",
        symbol="K",
    ),
}
_LATER = ("matched_to", "until", "substeps")  # not in the first files


def field_of(name: object) -> Field:
    """The setting of a name."""
    if name not in FIELDS:
        raise GramLoopError(f"{shown(name)} is no setting of a replay; settings are {', '.join(FIELDS)}")
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
    trust: float | None
    adaptive: Adaptive | None
    matched_to: float
    until: int | None
    substeps: int | None


@dataclass(frozen=True)
class ReplayConfig(Shown):
    """One replay configuration; the defaults are the published method.

    window: first and last block to replay, zero-based and inclusive; None takes `default_window`.
    replays: how often the window is replayed (K). 0 leaves the model as it is.
    gate: "gram" accepts each patch by its drift, "uniform" every token by ``strength``, "none" everything.
    strength: scales the Gram gate, or is the uniform gate itself. "matched" (uniform only) takes, per image
        and replay, the mean that the Gram gate would have had.
    gate_at: where drift is measured: "final" (the last block), "end" (the window's last block), or the
        index of a block between; always after the encoder's final norm.
    update_at: where the accepted step is applied: "end" (the window's last block) or "final" (the last
        block; the loop then runs on ungated and earlier taps stay ordinary).
    eps: the smallest median drift that the gate divides by.
    trust: a median drift that is trusted in full. A proposal beyond it is shrunk in proportion: its gate is
        multiplied by trust / median, so that a bad window does little instead of about 35% of its worst.
        None, the published method, trusts any drift.
    adaptive: an `Adaptive` rule that decides per image whether to replay; None replays every image.
    matched_to: of strength "matched" only: the strength of the Gram gate whose mean is taken.
    until: the last block whose output shows the replay; the blocks after it go on from the ordinary state, so
        that a head on several blocks sees refined early features beside ordinary late ones. None: to the end.
    substeps: propose what the window makes of its input in so many steps of 1/substeps each, in place of a
        second pass through it; 1 is the ordinary pass itself. None, the published method, replays.
    """

    window: Window | None = None
    replays: int = 2
    gate: Gate = "gram"
    strength: Strength = 1.0
    gate_at: GateAt = "final"
    update_at: UpdateAt = "end"
    eps: float = 1e-6
    trust: float | None = None
    adaptive: Adaptive | None = None
    matched_to: float = 1.0
    until: int | None = None
    substeps: int | None = None

    def __post_init__(self) -> None:
        """Refuse what no backbone could run."""
        for name, field in FIELDS.items():
            object.__setattr__(self, name, field.check(name, getattr(self, name)))
        if self.strength == "matched" and self.gate != "uniform":
            raise GramLoopError(f'strength "matched" belongs to gate "uniform", not to gate "{self.gate}"')
        if self.matched_to != 1.0 and self.strength != "matched":
            raise GramLoopError(f'matched_to belongs to strength "matched", not to strength {self.strength}')
        if self.adaptive is not None and self.update_at == "final":
            raise GramLoopError('adaptive replay decides at the window\'s end; update_at is "end" then')
        if self.until is not None and self.update_at == "final":
            raise GramLoopError('until ends what begins at the window\'s end; update_at is "end" then')
        if self.substeps is not None and self.update_at == "final":
            raise GramLoopError('substeps end at the window\'s end; update_at is "end" then')
        if self.substeps is not None and self.replays > 1:
            raise GramLoopError(
                f"substeps is {self.substeps} and replays {self.replays}; substeps are taken once, so replays is 1 then"
            )

    @property
    def measures_drift(self) -> bool:
        """Whether anything depends on drift, so that proposals have to be probed."""
        wanted = self.adaptive is not None and self.adaptive.signal == "drift"
        return self.gates_by_drift or self.trust is not None or wanted

    @property
    def gates_by_drift(self) -> bool:
        """Whether the drift of patches decides their gate, itself or by its mean."""
        return self.gate == "gram" or self.strength == "matched"

    def _shown(self) -> ShownTable:
        from gramloop.core.settings import describe_replay, said_setting

        rows = tuple(
            (name, said_setting(name, getattr(self, name)), said_setting(name, getattr(ReplayConfig, name)))
            for name in FIELDS
        )
        return ShownTable(f"Replay: {describe_replay(self)}", ("setting", "value", "published"), rows)

    def as_json(self) -> dict[str, Any]:
        """The settings as plain values; one that came later is left out at its default, so hashes stay."""
        left_out = {name for name in _LATER if getattr(self, name) == getattr(ReplayConfig, name)}
        return {name: value for name, value in asdict(self).items() if name not in left_out}

    @classmethod
    def from_json(cls, settings: object) -> ReplayConfig:
        """The settings of `as_json`, or others as plain values; what is not given keeps its default."""
        if not isinstance(settings, Mapping):
            raise GramLoopError(
                f'the settings of a replay are {shown(settings)}; they are values by name, such as {{"replays": 2}}'
            )
        for name in settings:
            field_of(name)
        return cls(**settings)


@dataclass(frozen=True)
class Route:
    """A configuration on a chain of ``depth`` blocks.

    Window [start, end], drift measured after ``probe``, the replay shown to the head up to ``until``.
    """

    depth: int
    start: int
    end: int
    probe: int
    until: int

    @property
    def last(self) -> int:
        """Index of the last block."""
        return self.depth - 1


def default_window(depth: int) -> Window:
    """[21, 23] for 40 blocks; elsewhere the same relative place, rounded, at least one block.

    Only the 40-block window was tuned by the method's authors. Scaled windows are a guess.
    """
    start = round(PAPER_WINDOW[0] / PAPER_DEPTH * depth)
    stop = round((PAPER_WINDOW[1] + 1) / PAPER_DEPTH * depth)
    start = min(start, depth - 1)
    return start, max(start, min(stop, depth) - 1)


def route(config: ReplayConfig, depth: int) -> Route:
    """Place a configuration on ``depth`` blocks, or say which index lies outside."""
    start, end = config.window or default_window(depth)
    last = depth - 1
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
    return Route(depth, start, end, probe, until)
