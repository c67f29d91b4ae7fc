"""Candidates: mitigations in the order in which they act, a replay among them or alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gramloop.mitigations.base import Mitigation, Stage
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import ordered, replay_alone, stack_json, stack_text
from gramloop.replay.config import describe_replay
from gramloop.tune.search.space import plain

Stack = tuple[Mitigation, ...]


@dataclass(frozen=True)
class Part:
    """What has been measured of a stack, for combinations with others: a higher value is better."""

    stack: Stack
    value: float


def stack_as_json(stack: Stack) -> dict[str, Any]:
    """Plain values; a replay alone is its settings, as it always was."""
    config = replay_alone(stack)
    return stack_json(stack) if config is None else config.as_json()


def describe_stack(stack: Stack) -> str:
    """A replay alone in words, anything else as `parse_mitigations` reads it."""
    config = replay_alone(stack)
    return stack_text(stack) if config is None else describe_replay(config)


def spelled_out(stack: Stack, depth: int) -> Stack:
    """The same with its replay's window in numbers, and without settings that have no effect."""
    return tuple(
        replace(each, config=plain(each.config, depth)) if isinstance(each, Replay) else each
        for each in stack
    )


def stages(stack: Stack) -> frozenset[Stage]:
    """Where it acts."""
    return frozenset(each.stage for each in stack)


def winners(parts: Iterable[Part]) -> list[Part]:
    """The best of every set of stages, best first."""
    found: dict[frozenset[Stage], Part] = {}
    for part in parts:
        best = found.get(stages(part.stack))
        if best is None or part.value > best.value:
            found[stages(part.stack)] = part
    return sorted(found.values(), key=lambda part: -part.value)


def combinations(parts: Sequence[Part], partners: Sequence[Stack]) -> list[Stack]:
    """Two winners of different stages as one stack, or a replay with a partner, the most promising first.

    Gains are taken to add up; what they really do is then measured.
    """
    best = winners(parts)
    found = [
        (first.value + second.value, (*first.stack, *second.stack))
        for place, first in enumerate(best)
        for second in best[place + 1 :]
        if not stages(first.stack) & stages(second.stack)
    ]
    found += [
        (part.value, (*part.stack, *partner))
        for part in best
        for partner in partners
        if "backbone" in stages(part.stack) and not stages(part.stack) & stages(partner)
    ]
    return [ordered(stack) for _, stack in sorted(found, key=lambda each: -each[0])]
