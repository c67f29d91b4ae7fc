"""What a search may choose from: values for any fields of `ReplayConfig`, any mitigations, and their combinations.

Every combination of a replay's values is one candidate. Combinations that the configuration refuses are left out, and of
those that do the same on a given backbone one is kept, so that no budget is spent twice.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation, Stage
from gramloop.mitigations.calibration import MIN_IMAGES, CalibrationStats
from gramloop.mitigations.mitigated import check_stack, needs_calibration, stack_cost
from gramloop.mitigations.stack import Replay, Stack, ordered, parse_mitigations, stack_text
from gramloop.replay.config import (
    ReplayConfig,
    ReplaySettings,
    check_value,
    parse_value,
    route,
    split_setting,
)
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_replay

LONGEST_WINDOW = 2  # blocks of a window, by default
STRENGTHS = (0.15, 0.5, 1.0)
DEFAULT_MITIGATIONS = (
    *("recentre:c=1", "recentre:c=2", "recentre:0.1", "recentre:0.3", "recentre:0.5", "norms:0.1"),
    *("denoise", "median", "levels", "sharpen"),
    *("resize:1.1", "flip"),
)
DEFAULT_BLOCKS, DEFAULT_STRENGTH = 8, 0.5  # single blocks that are replayed by default
NO_EXTRA_COST = 1 + 1e-9  # baseline forwards that a candidate without extra cost takes


@dataclass(frozen=True)
class Space:
    """Replays and other mitigations, such as ``Space({"window": [(3, 3)]}, ["recentre:0.3", "denoise"])``.

    Attributes:
        values: of a replay, to try by field; every combination is a candidate. Without any, and without mitigations,
            the published replay is the only one.
        mitigations: as text or as objects; each is a candidate, alone or several joined by a plus.
        fitting: leave out what a predictor cannot take, in place of refusing it.
    """

    values: Mapping[str, Sequence[object]] = field(default_factory=dict)
    mitigations: Sequence[str | Sequence[Mitigation]] = ()
    fitting: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.mitigations, str):
            raise GramLoopError(f"the mitigations to try are a list, not the text {self.mitigations!r}")
        stacks = (parse_mitigations(each) if isinstance(each, str) else each for each in self.mitigations)
        object.__setattr__(self, "mitigations", tuple(map(ordered, stacks)))
        checked = {}
        for name, tried in self.values.items():
            if isinstance(tried, str) or not isinstance(tried, Sequence) or not tried:
                raise GramLoopError(f"the values of {name} are a list with at least one, not {tried!r}")
            checked[name] = tuple(check_value(name, each) for each in tried)
        object.__setattr__(self, "values", checked)

    def replays(self, depth: int) -> tuple[ReplayConfig, ...]:
        """Every replay that runs on ``depth`` blocks."""
        found: dict[ReplayConfig, None] = {}
        refusal: GramLoopError | None = None
        for combination in itertools.product(*self.values.values()):
            settings = dict(zip(self.values, combination, strict=True))
            try:
                config = _canonical(ReplayConfig.from_json(settings), depth)
            except GramLoopError as error:
                refusal = refusal or error
                continue
            if config.replays:
                found[config] = None
        if not found and refusal is not None:
            raise GramLoopError(f"no combination of the values to try can run: {refusal}")
        return tuple(found)


def replay_values(depth: int, **values: Sequence[object]) -> dict[str, Sequence[object]]:
    """All windows of one or two blocks, short ones first, one replay, three strengths; or the given values of these."""
    lengths = range(1, min(LONGEST_WINDOW, depth) + 1)
    windows = [(start, start + size - 1) for size in lengths for start in range(depth - size + 1)]
    return {"window": windows, "replays": (1,), "strength": STRENGTHS, **values}


def read_values(texts: Iterable[str]) -> dict[str, tuple[object, ...]]:
    """Lists of values as on a command line: ``strength=0.2,1``, ``window=3-3,2-4``, ``gate=gram``."""
    found = {}
    for text in texts:
        name, values = split_setting(text)
        found[name] = tuple(parse_value(name, part.strip()) for part in values.split(","))
    return found


def _canonical(config: ReplayConfig, depth: int) -> ReplayConfig:
    """The same replay on this depth with its window in numbers, and without a strength that has no effect."""
    placed = route(config, depth)
    settings: ReplaySettings = {"window": (placed.start, placed.end)}
    if config.gate == "none":
        settings["strength"] = ReplayConfig.strength
    return replace(config, **settings)


@dataclass(frozen=True)
class Candidates:
    """What can be tried."""

    stacks: tuple[Stack, ...]
    left_out: tuple[tuple[str, str], ...]  # a text, and the reason
    calibrates: bool  # whether calibration statistics have to be learnt
    stats: CalibrationStats | None = field(default=None, repr=False, compare=False)  # given


def default_space(predictor: Predictor[Prediction]) -> Space:
    """Cheap mitigations of every stage and replays of some single blocks, as far as the predictor can take them."""
    last = max(len(predictor.blocks) - 2, 0)
    places = sorted({round(step * last / (DEFAULT_BLOCKS - 1)) for step in range(DEFAULT_BLOCKS)})
    windows = [(block, block) for block in places]
    values = {"window": windows, "replays": (1,), "strength": (DEFAULT_STRENGTH,)}
    return Space(values, DEFAULT_MITIGATIONS, fitting=True)


def list_candidates(
    space: Space,
    predictor: Predictor[Prediction],
    max_cost: float | None = None,
    clean: int = 0,
    stats: CalibrationStats | None = None,
) -> Candidates:
    """The candidates of a space that a predictor can take.

    ``max_cost`` limits the baseline forwards that one takes; ``clean`` images could be learnt from where no ``stats`` of
    in-distribution images are given.
    """
    left_out: dict[str, str] = {}
    depth = len(predictor.blocks)
    stacks = dict.fromkeys(_replays(space, predictor, max_cost, left_out))
    calibrates, can_calibrate = False, stats is None and clean >= MIN_IMAGES
    for given in cast(tuple[Stack, ...], space.mitigations):
        stack = tuple(
            Replay(_canonical(each.config, depth)) if depth and isinstance(each, Replay) else each
            for each in given
        )
        try:
            check_stack(stack, predictor, stats, can_calibrate)
        except GramLoopError as error:
            if not space.fitting:
                raise
            left_out[stack_text(given)] = str(error)
            continue
        cost = stack_cost(stack, predictor).multiplier
        if not affordable(cost, max_cost):
            left_out[stack_text(given)] = f"it costs {cost:.2f}x, more than the limit of {max_cost:g}"
            continue
        stacks[stack] = None
        calibrates |= can_calibrate and needs_calibration(stack, predictor)
    if not stacks:
        reasons = "; ".join(f"{text}: {reason}" for text, reason in left_out.items())
        raise GramLoopError(f"there is no candidate to try: {reasons}")
    return Candidates(tuple(stacks), tuple(left_out.items()), calibrates, stats)


def affordable(cost: float, max_cost: float | None) -> bool:
    """Whether a cost is within the limit, if there is one."""
    return max_cost is None or cost <= max_cost + 1e-9


def stages(stack: Stack) -> frozenset[Stage]:
    """Where a stack acts."""
    return frozenset(each.stage for each in stack)


def combine(values: Mapping[Stack, float]) -> list[Stack]:
    """Two winners of different stages as one stack, the most promising first.

    ``values`` are what candidates gained. Gains are taken to add up; what they really do is then measured.
    """
    winners: dict[frozenset[Stage], Stack] = {}
    for stack, value in values.items():
        best = winners.get(stages(stack))
        if best is None or value > values[best]:
            winners[stages(stack)] = stack
    best_first = sorted(winners.values(), key=lambda stack: -values[stack])
    pairs = itertools.combinations(best_first, 2)
    found = [(values[one] + values[two], one, two) for one, two in pairs if not stages(one) & stages(two)]
    return [ordered((*one, *two)) for _, one, two in sorted(found, key=lambda each: -each[0])]


def _replays(
    space: Space, predictor: Predictor[Prediction], max_cost: float | None, left_out: dict[str, str]
) -> list[Stack]:
    if space.mitigations and not space.values:
        return []
    try:
        check_replay(predictor, ReplayConfig(window=(0, 0), gate_at="end"))
    except GramLoopError as error:
        if not space.fitting:
            raise
        left_out["replay"] = str(error)
        return []
    try:
        stacks: list[Stack] = [(Replay(each),) for each in space.replays(len(predictor.blocks))]
        found = [each for each in stacks if affordable(stack_cost(each, predictor).multiplier, max_cost)]
        if not found:
            raise GramLoopError(f"no candidate costs at most {max_cost} times the baseline forward")
    except GramLoopError as error:
        if not space.mitigations:
            raise
        left_out["replays"] = str(error)
        return []
    return found
