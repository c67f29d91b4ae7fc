"""The settings of a replay, and what they mean on a backbone of a given depth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypedDict

from gramloop.errors import GramLoopError

Window = tuple[int, int]
Gate = Literal["gram", "uniform", "none"]
Strength = float | Literal["matched"]
GateAt = Literal["final", "end"] | int
UpdateAt = Literal["end", "final"]

# The published setting: blocks 21 to 23 of 40.
PAPER_DEPTH = 40
PAPER_WINDOW: Window = (21, 23)


class ReplaySettings(TypedDict, total=False):
    """The fields of `ReplayConfig`, as keywords."""

    window: Window | None
    replays: int
    gate: Gate
    strength: Strength
    gate_at: GateAt
    update_at: UpdateAt
    eps: float


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
    """

    window: Window | None = None
    replays: int = 2
    gate: Gate = "gram"
    strength: Strength = 1.0
    gate_at: GateAt = "final"
    update_at: UpdateAt = "end"
    eps: float = 1e-6

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

    @property
    def measures_drift(self) -> bool:
        """Whether the gate depends on drift, so that proposals have to be probed."""
        return self.gate == "gram" or self.strength == "matched"


@dataclass(frozen=True)
class Route:
    """A configuration on a chain of ``depth`` blocks: window [start, end], drift measured after ``probe``."""

    depth: int
    start: int
    end: int
    probe: int

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
    return Route(depth, start, end, probe)


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
