"""The candidates of a search: what a space offers, as far as it makes sense for a predictor and keeps a cost limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import MIN_IMAGES, CalibrationStats, placeholder_stats
from gramloop.mitigations.mitigated import check_stack, needs_calibration, stack_cost
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import replay_alone, stack_text
from gramloop.replay.config import ReplayConfig, Window
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tune.search.space import Space
from gramloop.tune.search.stacks import Stack, spelled_out, stages

USUAL = (
    *("recentre:c=1", "recentre:c=2", "recentre:0.1", "recentre:0.3", "recentre:0.5", "norms:0.1"),
    *("denoise", "median", "levels", "sharpen"),
    *("resize:1.1", "flip", "pair"),
)
WINDOWS = 8  # single blocks that are replayed, where nothing else is said
STRENGTH = 0.5
FREE = 1 + 1e-9  # ordinary forwards of a candidate without extra cost


@dataclass(frozen=True)
class Offer:
    """What can be tried."""

    stacks: tuple[Stack, ...]
    partners: tuple[Stack, ...]  # that make sense beside a replay alone, and are combined with one
    left_out: tuple[tuple[str, str], ...]  # a text, and the reason
    calibrates: bool  # whether it has to be learnt what ordinary images look like
    source: CalibrationStats | None = field(
        default=None, repr=False, compare=False
    )  # known, or as imagined beforehand

    @property
    def replays_only(self) -> bool:
        """Whether the ordinary prediction comes with every candidate."""
        return all(replay_alone(stack) is not None for stack in self.stacks)

    @property
    def combines(self) -> bool:
        """Whether there are two stages to combine."""
        apart = any(not stages(one) & stages(other) for one in self.stacks for other in self.stacks)
        return apart or bool(self.partners)


def default_space(predictor: Predictor[Prediction]) -> Space:
    """Cheap mitigations of every stage, and replays of some single blocks where there are any."""
    depth = len(predictor.blocks)
    values: dict[str, Sequence[object]] = {}
    if depth and _refusal(predictor) is None:
        values = {"window": spread_windows(depth), "replays": (1,), "strength": (STRENGTH,)}
    return Space(values, USUAL, fitting=True)


def spread_windows(depth: int, many: int = WINDOWS) -> tuple[Window, ...]:
    """Single blocks, evenly apart, the first and the last but one among them."""
    last = max(depth - 2, 0)
    places = sorted({round(step * last / max(many - 1, 1)) for step in range(many)})
    return tuple((place, place) for place in places)


def offer(
    space: Space,
    predictor: Predictor[Prediction],
    max_cost: float | None = None,
    clean: int = 0,
    source: CalibrationStats | None = None,
) -> Offer:
    """The candidates of a space.

    Args:
        space: replays and other mitigations.
        predictor: what they are for; its weights are not needed.
        max_cost: ordinary forwards that a candidate may cost.
        clean: images from which it could be learnt what ordinary ones look like.
        source: what is known of them already.
    """
    left_out: dict[str, str] = {}
    stacks = dict.fromkeys(_replays(space, predictor, max_cost, left_out))
    partners: list[Stack] = []
    calibrates = False
    imagined = source or placeholder_stats(predictor, clean)
    for given in space.stacks:
        stack = spelled_out(given, len(predictor.blocks)) if predictor.blocks else given
        try:
            check_stack(stack, predictor, imagined)
        except GramLoopError as error:
            if _fits_beside_a_replay(stack, predictor, imagined):
                partners.append(stack)
            elif space.fitting:
                left_out[stack_text(given)] = str(error)
            else:
                raise
            continue
        cost = stack_cost(stack, predictor).multiplier
        if max_cost is not None and cost > max_cost + 1e-9:
            left_out[stack_text(given)] = f"it costs {cost:.2f}x, more than the limit of {max_cost:g}"
            continue
        stacks[stack] = None
        calibrates |= source is None and (clean >= MIN_IMAGES and needs_calibration(stack, predictor))
    if not stacks:
        told = "; ".join(f"{text}: {reason}" for text, reason in left_out.items())
        raise GramLoopError(f"there is no candidate to try: {told or 'none stands alone'}")
    if not any("backbone" in stages(stack) for stack in stacks):
        partners = []
    return Offer(tuple(stacks), tuple(partners), tuple(left_out.items()), calibrates, imagined)


def _replays(
    space: Space, predictor: Predictor[Prediction], max_cost: float | None, left_out: dict[str, str]
) -> list[Stack]:
    if not space.has_replays:
        if space.fitting and (reason := _refusal(predictor)) is not None:
            left_out["replay"] = reason
        return []
    if (reason := _refusal(predictor)) is not None:
        raise GramLoopError(reason)
    try:
        found = space.candidates(len(predictor.blocks), max_cost, predictor.taps)
    except GramLoopError as error:
        if not space.mitigations:
            raise
        left_out["replays"] = str(error)
        return []
    return [(Replay(config),) for config in found]


def _refusal(predictor: Predictor[Prediction]) -> str | None:
    """Why nothing of a predictor can be replayed."""
    try:
        check_replay(predictor, ReplayConfig(window=(0, 0), gate_at="end"))
    except GramLoopError as error:
        return str(error)
    return None


def _fits_beside_a_replay(
    stack: Stack, predictor: Predictor[Prediction], source: CalibrationStats | None
) -> bool:
    if "backbone" in stages(stack):
        return False
    beside: tuple[Mitigation, ...] = (Replay(ReplayConfig(window=(0, 0), gate_at="end")), *stack)
    try:
        check_stack(beside, predictor, source)
    except GramLoopError:
        return False
    return True
