"""A search as it runs: candidates are methods of the evaluation's runner, and what they did are units of its store.

Rungs of ever fewer candidates on ever more images leave some finalists; the decision compares these with nothing, on
other images; the verdict measures the choice on images and families that decided nothing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines.local import Workers
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Part, Subject, Unit
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.runner import Missed
from gramloop.evaluate.store import Store
from gramloop.mitigations.mitigated import check_stack, stack_cost
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import replay_alone, replay_of
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.tasks.base import Row, Rows
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tune.gain import (
    GainEstimate,
    PairedRow,
    Scoring,
    best_rule,
    estimate_gain,
    replayed_share,
    with_rule,
)
from gramloop.tune.halving import Options, Schedule
from gramloop.tune.space import FREE, Candidates, Stack, affordable, combine, describe_candidate
from gramloop.tune.split import CLEAN, SearchCell, Split
from gramloop.tune.verdict import HoldoutResult, judge

LEAST_EXTRA = 0.05  # baseline forwards that a candidate is taken to add when gains are divided by cost
TOLERANCE = 0.1  # points that clean images may lose
ANY_CHANGE = 100.0  # points by which clean predictions may change where no label says what a change is worth
UNIT_IMAGES = 4  # of a unit, at most: what a kill can lose


@dataclass(frozen=True)
class Search:
    """A model and its images, the candidates, and the schedule that a budget allows."""

    subject: Subject
    options: Options
    candidates: tuple[Stack, ...]  # that are tried; as many as the budget can compare
    offered: Candidates
    split: Split
    schedule: Schedule
    predictor: Predictor[Prediction] = field(repr=False, compare=False)  # its weights may be missing
    plan: Mapping[str, Any] = field(default_factory=dict, repr=False)  # everything that decides the outcome
    given_calibration: str | None = None  # a file of calibration statistics

    @property
    def tolerance(self) -> float:
        """Points that clean images may lose, or without labels change by."""
        given = self.options.clean_tolerance
        return given if given is not None else ANY_CHANGE if self.subject.label_free else TOLERANCE

    @property
    def nothing(self) -> str:
        """What the candidates are compared with, in words."""
        return "no replay" if self.offered.replays_only else "nothing"

    @property
    def combines(self) -> bool:
        """Whether winners of different stages are tried together."""
        return any(rung.joining for rung in self.schedule.rungs)

    def cost(self, stack: Stack) -> float:
        """Work relative to the baseline forward, at most."""
        return stack_cost(stack, self.predictor).multiplier


@dataclass(frozen=True)
class CandidateScore:
    """A candidate with its gain on some part of the data."""

    number: int  # in the plan; combinations and adaptive twins have the numbers after these
    stack: Stack
    cost: float
    estimate: GainEstimate
    rule: Adaptive | None = None  # with which its replay has this gain

    @property
    def config(self) -> ReplayConfig | None:
        """Its replay, if it has one."""
        return replay_of(self.stack)


@dataclass(frozen=True)
class SearchOutcome:
    """What a search found."""

    leader: CandidateScore  # the best finalist
    chosen: bool  # whether it beat nothing
    finalists: tuple[CandidateScore, ...]  # best first, on the images of the decision
    holdout: tuple[HoldoutResult, ...]  # of the leader
    free: CandidateScore | None  # the best other finalist without extra cost
    free_holdout: tuple[HoldoutResult, ...]
    predictions: int
    failures: tuple[str, ...]  # images that could not be used
    refused: tuple[tuple[str, str], ...] = ()  # candidates that cannot run on this model, and why


def run_search(search: Search, table: Measurements) -> SearchOutcome:
    """Run what is not stored yet; the outcome is the same however often it was interrupted."""
    halving = _Halving(search, table)
    alive, searched = halving.rungs()
    schedule, split = search.schedule, search.split
    deciding = split.cells("decide", schedule.decide.images)
    table.measure(deciding, alive)
    alive = table.able(alive)
    alive += halving.add_twins(alive, searched)
    finalists = halving.ranked(alive, deciding, also_clean=searched)
    winner = next((one for one in finalists if halving.passes(one)), None)
    leader = winner or finalists[0]
    free = halving.free_one(finalists, leader)
    judging = split.cells("verdict", schedule.verdict.images)
    table.measure(judging, [one.number for one in (leader, free) if one is not None])
    return SearchOutcome(
        leader,
        winner is not None,
        tuple(finalists),
        halving.judge(leader, judging),
        free,
        () if free is None else halving.judge(free, judging),
        table.predictions,
        tuple(table.failures),
        tuple((describe_candidate(table.stacks[each]), why) for each, why in table.refused.items()),
    )


class Measurements:
    """What candidates did on cells, by number: those of the plan first, then combinations and adaptive twins.

    Args:
        search: what is run.
        store: of everything that is measured.
        workers: that run what is not stored.
        calibration: the checksum of the calibration statistics, if there are any.
        advance: called with the number of predictions that were made, or found in the store.
    """

    def __init__(
        self,
        search: Search,
        store: Store[Subject],
        workers: Workers,
        calibration: str = "",
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.search, self.store, self.workers, self.advance = search, store, workers, advance
        self.calibration = calibration
        self.stacks: list[Stack] = list(search.candidates)
        self.twins: dict[int, int] = {}  # an adaptive candidate: the one that it was made from
        self.refused: dict[int, str] = {}
        self.failures: dict[str, None] = {}
        self.predictions = search.schedule.calibration
        self._rows: dict[
            tuple[str, int], dict[int | None, Row]
        ] = {}  # by condition and position; None: baseline
        self._signals: dict[tuple[str, int], Mapping[str, Sequence[float]] | None] = {}
        self._failed: set[tuple[str, int]] = set()

    def add(self, stack: Stack, twin_of: int | None = None) -> int:
        """One more candidate; its number. A twin is another one's replay on some images only."""
        self.stacks.append(stack)
        number = len(self.stacks) - 1
        if twin_of is not None:
            self.twins[number] = twin_of
        return number

    def able(self, candidates: Iterable[int]) -> list[int]:
        """The candidates that no image was refused by; an error if none is left."""
        found = [number for number in candidates if number not in self.refused]
        if not found:
            number, reason = next(iter(self.refused.items()))
            raise GramLoopError(
                f"no candidate can run on this model; {describe_candidate(self.stacks[number])}: {reason}"
            )
        return found

    def measure(self, cells: Sequence[SearchCell], candidates: Sequence[int]) -> None:
        """Measure all candidates on all cells."""
        parts = self._parts(cells, candidates) if candidates else []
        missing = self.store.missing(parts)
        self.advance(sum(map(self._price, parts)) - sum(map(self._price, missing)))
        for done in self.workers.run(missing) if missing else ():  # workers load the model when they run
            if isinstance(done, Missed):
                raise GramLoopError(done.reason)
            self.advance(self._price(done.part))
        for part in parts:
            self._take(part)

    def _parts(self, cells: Sequence[SearchCell], candidates: Sequence[int]) -> list[Part]:
        """Cells by condition, some images at a time; the baseline is measured with the first candidates."""
        positions: dict[tuple[str, bool], list[int]] = {}
        for key, sample in cells:
            if (key, sample.position) not in self._failed:
                known = (key, sample.position) in self._rows
                positions.setdefault((key, known), []).append(sample.position)
        methods = tuple(self._method(number) for number in candidates)
        return [
            Part(
                key,
                tuple(sorted(each[first : first + UNIT_IMAGES])),
                methods if known else (Method(BASELINE), *methods),
            )
            for (key, known), each in positions.items()
            for first in range(0, len(each), UNIT_IMAGES)
        ]

    def _method(self, number: int) -> Method:
        name, stack = f"candidate-{number}", self.stacks[number]
        config = replay_alone(stack)
        if config is not None:
            return Method(name, config)
        method = Method(name, None, stack)
        return replace(method, calibration=self.calibration) if method.uses_calibration else method

    def _take(self, part: Part) -> None:
        """Keep what is stored of a part; an image that failed counts for no candidate."""
        stored = {unit.method.name: self._stored(unit) for unit in part.units}
        for name, found in stored.items():
            for failure in found.failures:
                self._failed.add((part.condition, failure.position))
                self._rows.pop((part.condition, failure.position), None)
                self.failures[f"{part.condition}, image {failure.image_id}: {failure.reason}"] = None
            for refusal in found.refused:
                self.refused.setdefault(int(name.removeprefix("candidate-")), refusal.reason)
        for name, found in stored.items():
            number = None if name == BASELINE else int(name.removeprefix("candidate-"))
            signals = found.column("signals") if number is None else [None] * len(found.positions)
            for position, row, signal in zip(found.positions, each_row(found.rows), signals, strict=True):
                cell = part.condition, position
                if cell in self._failed:
                    continue
                self._rows.setdefault(cell, {})[number] = row
                if number is None:
                    self._signals[cell] = None if signal is None else json.loads(signal)
        lost = sum((part.condition, position) in self._failed for position in part.images)
        self.predictions += self._price(part) * (len(part) - lost) // len(part)

    def _stored(self, unit: Unit) -> MethodRows:
        found = self.store.rows([unit])
        if found is None:
            raise GramLoopError(
                f"{self.store.path(unit)} was stored, and is gone; run the same command again"
            )
        return found

    def _price(self, part: Part) -> int:
        """Predictions of a part, as the budget counts them."""
        baselines = sum(method.name == BASELINE for method in part.methods)
        counted = len(part.methods) - baselines + baselines * self.search.schedule.baseline
        return len(part) * counted

    def measured(self, candidate: int, cells: Iterable[SearchCell]) -> dict[str, list[PairedRow]]:
        """One candidate on the cells that could be used, by condition.

        An adaptive twin that was not run is put together from what its origin did.
        """
        found: dict[str, list[PairedRow]] = {}
        for key, sample in cells:
            rows = self._rows.get((key, sample.position))
            if rows is None:
                continue
            own = candidate in rows
            row = rows[candidate if own else self.twins[candidate]]
            one = PairedRow(sample, rows[None], row, self._signals[key, sample.position])
            if not own:
                rule, block = self.rule(candidate)
                [one] = with_rule({key: [one]}, rule, block)[key]
            found.setdefault(key, []).append(one)
        return found

    def rule(self, twin: int) -> tuple[Adaptive, int]:
        """The rule of an adaptive twin, and the block whose signal it reads."""
        config = replay_alone(self.stacks[twin])
        assert config is not None
        assert config.adaptive is not None
        assert config.window is not None
        return config.adaptive, config.window[1]


def each_row(rows: Rows) -> list[Row]:
    """Statistics image by image."""
    ends = {name: lengths.cumsum() for name, lengths in rows.lengths.items()}
    return [
        {
            name: values[ends[name][place] - rows.lengths[name][place] : ends[name][place]]
            if name in ends
            else values[place]
            for name, values in rows.values.items()
        }
        for place in range(rows.images)
    ]


class _Halving:
    """Measurements in, ranked candidates out."""

    def __init__(self, search: Search, table: Measurements) -> None:
        self.search, self.table = search, table
        self.scoring = Scoring(search.subject.load_task(), search.subject.categories)

    def rungs(self) -> tuple[list[int], list[SearchCell]]:
        """The numbers of the finalists, and the cells that they have been measured on."""
        schedule, table = self.search.schedule, self.table
        alive, cells = list(range(len(self.search.candidates))), self.search.split.search_cells()
        gained: dict[Stack, tuple[Stack, float]] = {}  # what may be combined, with its rule, and its value
        for number, rung in enumerate(schedule.rungs):
            before = rung.cells - rung.fresh
            joining = self._join(dict(gained.values()), rung.joining)
            table.measure(cells[:before], joining)
            alive = sorted(alive + joining)
            table.measure(cells[before : rung.cells], alive)
            alive = table.able(alive)
            ranked = self.ranked(alive, cells[: rung.cells], ruled=True)
            for one in ranked:
                gained.pop(one.stack, None)
                if one.estimate.gain > 0 and one.estimate.not_clearly_harmful(self.search.tolerance):
                    stack = one.stack if one.rule is None else _with_adaptive(one.stack, one.rule)
                    gained[one.stack] = stack, self._value(one)
            last = number + 1 == len(schedule.rungs)
            keep = schedule.finalists if last else schedule.rungs[number + 1].candidates
            alive = sorted(one.number for one in _keep(ranked, keep))
        return alive, cells[: schedule.rungs[-1].cells if schedule.rungs else 0]

    def _join(self, gained: Mapping[Stack, float], room: int) -> list[int]:
        """New candidates: combinations that can run, keep the cost limit and have not been tried."""
        found: list[int] = []
        for stack in combine(gained, self.search.offered.partners) if room else ():
            if len(found) < room and stack not in self.table.stacks and self._allowed(stack):
                found.append(self.table.add(stack))
        return found

    def _allowed(self, stack: Stack) -> bool:
        try:
            check_stack(stack, self.search.predictor, self.search.offered.stats)
        except GramLoopError:
            return False
        return affordable(self.search.cost(stack), self.search.options.max_cost)

    def add_twins(self, candidates: Sequence[int], cells: Sequence[SearchCell]) -> list[int]:
        """For every candidate with a rule that gains, the same with this rule; their numbers."""
        found = []
        for number in candidates:
            if (ruled := self._best_rule(number, cells)) is not None:
                found.append(self.table.add(_with_adaptive(self.table.stacks[number], ruled[0]), number))
        return found

    def _best_rule(self, number: int, cells: Sequence[SearchCell]) -> tuple[Adaptive, GainEstimate] | None:
        config, options = replay_alone(self.table.stacks[number]), self.search.options
        if config is None or not options.adaptive or config.adaptive is not None or config.window is None:
            return None
        if config.update_at == "final":
            return None
        measured = self.table.measured(number, cells)
        return best_rule(self.scoring, measured, config.window[1], self.search.tolerance, options.caution)

    def ranked(
        self,
        candidates: Sequence[int],
        cells: Sequence[SearchCell],
        also_clean: Sequence[SearchCell] | None = None,
        ruled: bool = False,
    ) -> list[CandidateScore]:
        """Candidates, best first; those that harm clean images last.

        Args:
            candidates: their numbers.
            cells: that gains are taken on.
            also_clean: cells whose clean images count for the harm as well, which then leaves no room for doubt.
            ruled: rank a replay as its best rule would have it: rungs must not drop what helps some images only.
        """
        found = []
        for number in candidates:
            estimate, rule = self._estimate(number, cells, ruled)
            if also_clean is not None:
                clean = [cell for cell in (*also_clean, *cells) if cell[0] == CLEAN]
                harm = estimate_gain(self.scoring, self.table.measured(number, clean))
                estimate = replace(estimate, clean=harm.clean, clean_error=harm.clean_error)
            stack = self.table.stacks[number]
            found.append(CandidateScore(number, stack, self._cost(number, cells), estimate, rule))
        tolerance = self.search.tolerance

        def key(one: CandidateScore) -> tuple[bool, float]:
            strict = also_clean is not None
            kept = one.estimate.harmless(tolerance) if strict else one.estimate.not_clearly_harmful(tolerance)
            return kept, self._value(one)

        return sorted(found, key=key, reverse=True)  # stable: the earlier of two equals stays in front

    def _estimate(
        self, number: int, cells: Sequence[SearchCell], ruled: bool
    ) -> tuple[GainEstimate, Adaptive | None]:
        value = estimate_gain(self.scoring, self.table.measured(number, cells))
        # precision takes too long to try dozens of rules
        rule = self._best_rule(number, cells) if ruled and not self.scoring.task.thresholded else None
        if rule is not None:
            caution = self.search.options.caution
            if not value.harmless(self.search.tolerance) or rule[1].cautious(caution) > value.cautious(
                caution
            ):
                return rule[1], rule[0]
        return value, None

    def passes(self, one: CandidateScore) -> bool:
        """Whether a finalist beats nothing, each with its share of the allowed error."""
        tests = self.search.schedule.finalists + len(self.table.twins)
        confidence = 1 - (1 - self.search.options.confidence) / tests
        return one.estimate.harmless(self.search.tolerance) and one.estimate.beats_nothing(confidence)

    def free_one(self, finalists: Sequence[CandidateScore], leader: CandidateScore) -> CandidateScore | None:
        """The best other finalist that costs nothing extra and keeps clean images, if the verdict has room for it."""
        if self.search.schedule.judged < 2:
            return None
        others = (one for one in finalists if one is not leader and one.cost <= FREE)
        return next((one for one in others if one.estimate.harmless(self.search.tolerance)), None)

    def judge(self, one: CandidateScore, cells: Sequence[SearchCell]) -> tuple[HoldoutResult, ...]:
        """The verdict on a candidate."""
        measured = self.table.measured(one.number, cells)
        return judge(self.scoring, self.search.split, measured, self.search.subject.label_free)

    def _value(self, one: CandidateScore) -> float:
        """What candidates are ranked by."""
        cautious = one.estimate.cautious(self.search.options.caution)
        if not math.isfinite(cautious):
            return -math.inf
        if self.search.options.objective == "gain":
            return cautious
        extra = max(one.cost - 1, LEAST_EXTRA)
        return cautious / extra if cautious > 0 else cautious * extra

    def _cost(self, number: int, cells: Sequence[SearchCell]) -> float:
        """Work relative to the baseline forward; of a twin, the mean over the cells."""
        whole = self.search.cost(self.table.stacks[number])
        if number not in self.table.twins:
            return whole
        measured = self.table.measured(self.table.twins[number], cells)
        share = replayed_share(measured, *self.table.rule(number))
        return share * whole + (1 - share)


def _with_adaptive(stack: Stack, rule: Adaptive) -> Stack:
    return tuple(
        Replay(replace(each.config, adaptive=rule)) if isinstance(each, Replay) else each for each in stack
    )


def _keep(ranked: Sequence[CandidateScore], many: int) -> list[CandidateScore]:
    """The best; the last place is for the best without extra cost, if there is none among them."""
    kept = list(ranked[:many])
    if many > 1 and not any(one.cost <= FREE for one in kept):
        free = next((one for one in ranked[many:] if one.cost <= FREE), None)
        kept = kept if free is None else [*kept[:-1], free]
    return kept
