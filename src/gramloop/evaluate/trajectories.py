"""Three trajectories of one replay: raw, uniform at matched strength, and Gram-gated.

How far each ends from the ordinary pass tells what the gate does: the mean discrepancy at the last layer of an
image is its method's ``post_drift``. A trajectory is a method like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gramloop.evaluate.methods import Method
from gramloop.evaluate.plan import Plan
from gramloop.replay.config import ReplayConfig

Names = tuple[str, str, str]  # raw, uniform, gated


def with_companions(methods: Sequence[Method]) -> list[Method]:
    """The methods and, after them, what is missing beside the first Gram-gated one: NAME-raw, NAME-matched."""
    first = next((each for each in methods if each.replay is not None and _has_companions(each.replay)), None)
    if first is None or first.replay is None:
        return list(methods)
    wanted = {"raw": _raw(first.replay), "matched": _matched(first.replay)}
    present = [method.replay for method in methods]
    missing = [
        Method(f"{first.name}-{kind}", replay) for kind, replay in wanted.items() if replay not in present
    ]
    return [*methods, *missing]


def trajectories_of(plan: Plan) -> dict[str, Names]:
    """The methods that belong together, by the name of the Gram-gated one; none without diagnostics."""
    if not plan.diagnostics:
        return {}
    names = {method.replay: method.name for method in reversed(plan.methods) if method.replay is not None}
    found = {}
    for method in plan.methods:
        if method.replay is not None and _has_companions(method.replay):
            raw, uniform = names.get(_raw(method.replay)), names.get(_matched(method.replay))
            if raw is not None and uniform is not None:
                found[method.name] = (raw, uniform, method.name)
    return found


def _has_companions(replay: ReplayConfig) -> bool:
    """Whether it has the Gram gate at full strength, whose mean strength "matched" follows."""
    return replay.gate == "gram" and replay.strength == 1


def _raw(replay: ReplayConfig) -> ReplayConfig:
    """Every step accepted whole, in every image."""
    return replace(replay, gate="none", strength=1.0, adaptive=None)


def _matched(replay: ReplayConfig) -> ReplayConfig:
    """The gate's mean step for every patch, per image and replay."""
    return replace(replay, gate="uniform", strength="matched")
