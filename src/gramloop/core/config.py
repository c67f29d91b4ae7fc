"""The settings of a replay, and what they mean on a backbone of a given depth."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypedDict

from gramloop.errors import GramLoopError

Window = tuple[int, int]
Gate = Literal["gram", "uniform", "none"]
Strength = float | Literal["matched"]
GateAt = Literal["final", "end"] | int
UpdateAt = Literal["end", "final"]
Signal = Literal["length", "spread", "step", "drift"]

# The published setting: blocks 21 to 23 of 40.
PAPER_DEPTH = 40
PAPER_WINDOW: Window = (21, 23)


@dataclass(frozen=True)
class Adaptive:
    """Decide per image, without labels, whether to replay and how strongly.

    A signal of the image is measured. At ``off`` and beyond, away from ``full``, the image is not replayed;
    at ``full`` and beyond it is replayed with the whole gate; in between the gate is scaled in proportion.
    Equal values make it a switch: on above the value. ``off`` may lie above ``full``, for a signal that falls
    under shift.

    signal: of the patches at the window's end, before anything is replayed: "length" (mean L2 length) or
        "spread" (the lengths' standard deviation over their mean); or of the first proposal: "step" (how
        far it moves relative to the length, which costs the window) or "drift" (which costs the probe too).
        `gramloop.core.signals` computes them.
    """

    signal: Signal
    off: float
    full: float

    def __post_init__(self) -> None:
        """Refuse what decides nothing."""
        _check_choice("signal", self.signal, ("length", "spread", "step", "drift"))
        for name, value in (("off", self.off), ("full", self.full)):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise GramLoopError(f"adaptive {name} is {value!r}; it is a finite number")


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


@dataclass(frozen=True)
class ReplayConfig:
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

    def __post_init__(self) -> None:
        """Refuse what no backbone could run."""
        if self.window is not None:
            object.__setattr__(self, "window", _checked_window(self.window))
        if not _is_index(self.replays):
            raise GramLoopError(f"replays is {self.replays!r}; it is a whole number, 0 or more")
        _check_choice("gate", self.gate, ("gram", "uniform", "none"))
        _check_choice("update_at", self.update_at, ("end", "final"))
        if not _is_index(self.gate_at):
            _check_choice("gate_at", self.gate_at, ("final", "end"), "or the index of a block")
        if isinstance(self.strength, str):
            _check_choice("strength", self.strength, ("matched",), "or a number from 0 to 1")
            if self.gate != "uniform":
                raise GramLoopError(
                    f'strength "matched" belongs to gate "uniform", not to gate "{self.gate}"'
                )
        elif not 0.0 <= self.strength <= 1.0:
            raise GramLoopError(f"strength is {self.strength!r}; it is a number from 0 to 1")
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise GramLoopError(f"eps is {self.eps!r}; it is a small positive number, such as 1e-6")
        self._check_trust()
        if not 0.0 <= self.matched_to <= 1.0:
            raise GramLoopError(f"matched_to is {self.matched_to!r}; it is a number from 0 to 1")
        if self.matched_to != 1.0 and self.strength != "matched":
            raise GramLoopError('matched_to belongs to strength "matched"')
        if self.adaptive is not None and not isinstance(self.adaptive, Adaptive):
            raise GramLoopError(
                f"adaptive is {self.adaptive!r}; it is an Adaptive(signal, off, full) or None"
            )
        if self.adaptive is not None and self.update_at == "final":
            raise GramLoopError('adaptive replay decides at the window\'s end; update_at is "end" then')
        if self.until is not None and not _is_index(self.until):
            raise GramLoopError(f"until is {self.until!r}; it is the index of a block, or None")
        if self.until is not None and self.update_at == "final":
            raise GramLoopError('until ends what begins at the window\'s end; update_at is "end" then')

    def _check_trust(self) -> None:
        if self.trust is None:
            return
        if not (isinstance(self.trust, int | float) and self.trust > 0 and math.isfinite(self.trust)):
            raise GramLoopError(f"trust is {self.trust!r}; it is a positive drift, such as 0.001, or None")

    @property
    def measures_drift(self) -> bool:
        """Whether anything depends on drift, so that proposals have to be probed."""
        wanted = self.adaptive is not None and self.adaptive.signal == "drift"
        return self.gates_by_drift or self.trust is not None or wanted

    @property
    def gates_by_drift(self) -> bool:
        """Whether the drift of patches decides their gate, itself or by its mean."""
        return self.gate == "gram" or self.strength == "matched"

    def as_json(self) -> dict[str, Any]:
        """The settings as plain values; one that came later is left out at its default, so hashes stay."""
        settings = asdict(self)
        if self.matched_to == 1.0:
            del settings["matched_to"]
        if self.until is None:
            del settings["until"]
        return settings

    @classmethod
    def from_json(cls, settings: Mapping[str, Any]) -> ReplayConfig:
        """The settings of `as_json`; what is not given keeps its default."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(settings) - known):
            raise GramLoopError(
                f"{unknown[0]!r} is no setting of a replay; settings are {', '.join(sorted(known))}"
            )
        given = dict(settings)
        if given.get("window") is not None:
            given["window"] = tuple(given["window"])
        if given.get("adaptive") is not None:
            try:
                given["adaptive"] = Adaptive(**given["adaptive"])
            except TypeError:
                raise GramLoopError(
                    f"adaptive is {given['adaptive']!r}; it has signal, off and full"
                ) from None
        return cls(**given)


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
    if end >= depth:
        raise GramLoopError(
            f"window [{start}, {end}] reaches past the last block: this backbone has {depth} blocks, 0 to {depth - 1}"
        )
    if config.gate_at == "end":
        probe = end
    elif config.gate_at == "final":
        probe = depth - 1
    else:
        probe = config.gate_at
        if not end <= probe < depth:
            raise GramLoopError(
                f"gate_at is block {probe}; it lies from the window's end, {end}, to the last block, {depth - 1}"
            )
    until = depth - 1 if config.until is None else config.until
    if not end <= until < depth:
        raise GramLoopError(
            f"until is block {until}; it lies from the window's end, {end}, to the last block, {depth - 1}"
        )
    return Route(depth, start, end, probe, until)


def _checked_window(window: Window) -> Window:
    pair = tuple(window) if isinstance(window, (tuple, list)) else ()
    if len(pair) != 2 or not all(_is_index(i) for i in pair):
        raise GramLoopError(
            f"window is {window!r}; it is a pair (first block, last block) of whole numbers from 0"
        )
    if pair[0] > pair[1]:
        raise GramLoopError(f"window [{pair[0]}, {pair[1]}] is reversed; the first block comes first")
    return int(pair[0]), int(pair[1])


def _is_index(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_choice(name: str, value: object, choices: tuple[str, ...], otherwise: str = "") -> None:
    if value not in choices:
        allowed = " or ".join(f'"{choice}"' for choice in choices)
        raise GramLoopError(f"{name} is {value!r}; it is {allowed} {otherwise}".rstrip())
