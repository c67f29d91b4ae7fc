"""A search as it runs: candidates are methods of the evaluation's runner, and what they did are units of its store.

Rungs of ever fewer candidates on ever more images leave some finalists; the decision compares these with nothing, on
other images; the verdict measures the choice on images and families that decided nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gramloop.errors import GramLoopError
from gramloop.mitigations.mitigated import check_stack
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import Stack, replay_alone, replay_of
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.tune.decision import DecisionTest, weigh_finalists
from gramloop.tune.gain import (
    GainEstimate,
    Scoring,
    best_rule,
    estimate_gain,
    replayed_share,
)
from gramloop.tune.measurements import Measurements, Search
from gramloop.tune.space import NO_EXTRA_COST, affordable, combine, describe_candidate
from gramloop.tune.split import CLEAN, SearchCell
from gramloop.tune.verdict import HoldoutResult, judge

CAUTION = 1.0  # standard errors that are subtracted from a gain when candidates are ranked


@dataclass(frozen=True)
class CandidateScore:
    """A candidate with its gain on some part of the data."""

    number: int  # in the plan; combinations and adaptive twins have the numbers after these
    stack: Stack
    cost: float
    estimate: GainEstimate
    rule: Adaptive | None = None  # with which its replay has this gain
    evidence: DecisionTest | None = None  # of the decision

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
    finalists = halving.weighed(halving.ranked(alive, deciding, also_clean=searched), deciding)
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
        return best_rule(self.scoring, measured, config.window[1], self.search.tolerance, CAUTION)

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
            better = rule[1].cautious(CAUTION) > value.cautious(CAUTION)
            if better or not value.harmless(self.search.tolerance):
                return rule[1], rule[0]
        return value, None

    def weighed(
        self, finalists: Sequence[CandidateScore], cells: Sequence[SearchCell]
    ) -> list[CandidateScore]:
        """The finalists with the evidence that they beat nothing."""
        found = weigh_finalists(self.scoring, [self.table.measured(one.number, cells) for one in finalists])
        return [replace(one, evidence=each) for one, each in zip(finalists, found, strict=True)]

    def passes(self, one: CandidateScore) -> bool:
        """Whether a finalist beats nothing, and clean images keep their score."""
        assert one.evidence is not None
        confidence = self.search.options.confidence
        beats = one.evidence.beats_nothing(confidence)
        if not one.evidence.can_decide(
            confidence
        ):  # too few images to swap: Student's t, at a share of the error
            tests = self.search.schedule.finalists + len(self.table.twins)
            beats = one.estimate.beats_nothing(1 - (1 - confidence) / tests)
        return beats and one.estimate.harmless(self.search.tolerance)

    def free_one(self, finalists: Sequence[CandidateScore], leader: CandidateScore) -> CandidateScore | None:
        """The best other finalist that costs nothing extra and keeps clean images, if the verdict has room for it."""
        if self.search.schedule.judged < 2:
            return None
        others = (one for one in finalists if one is not leader and one.cost <= NO_EXTRA_COST)
        return next((one for one in others if one.estimate.harmless(self.search.tolerance)), None)

    def judge(self, one: CandidateScore, cells: Sequence[SearchCell]) -> tuple[HoldoutResult, ...]:
        """The verdict on a candidate."""
        measured = self.table.measured(one.number, cells)
        return judge(self.scoring, self.search.split, measured, self.search.subject.label_free)

    def _value(self, one: CandidateScore) -> float:
        """What candidates are ranked by."""
        cautious = one.estimate.cautious(CAUTION)
        return cautious if math.isfinite(cautious) else -math.inf

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
    if many > 1 and not any(one.cost <= NO_EXTRA_COST for one in kept):
        free = next((one for one in ranked[many:] if one.cost <= NO_EXTRA_COST), None)
        kept = kept if free is None else [*kept[:-1], free]
    return kept
