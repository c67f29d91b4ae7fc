"""A search as it runs: rungs, the decision between finalists and nothing, the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gramloop.errors import GramLoopError
from gramloop.mitigations.mitigated import check_stack
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import replay_alone, replay_of
from gramloop.replay.config import Adaptive, ReplayConfig
from gramloop.tasks.base import get_task
from gramloop.tune.search.adapting import best_rule
from gramloop.tune.search.choices import FREE
from gramloop.tune.search.journal import Journal
from gramloop.tune.search.measuring import Measurements
from gramloop.tune.search.plan import Search, SearchCell
from gramloop.tune.search.stacks import Part, Stack, combinations, describe_stack
from gramloop.tune.search.verdict import JudgedPart, judge
from gramloop.tune.search.workers import Workers
from gramloop.tune.search.worth import CLEAN, Worth, worth

LEAST_EXTRA = 0.05  # ordinary forwards that a candidate is taken to add when gains are divided by cost


@dataclass(frozen=True)
class Standing:
    """A candidate with its worth on some part of the data."""

    number: int  # in the plan; combinations and adaptive twins have the numbers after these
    stack: Stack
    cost: float
    worth: Worth
    rule: Adaptive | None = None  # with which its replay stands here

    @property
    def config(self) -> ReplayConfig | None:
        """Its replay, if it has one."""
        return replay_of(self.stack)


@dataclass(frozen=True)
class Judged:
    """A candidate and its verdict."""

    standing: Standing
    parts: tuple[JudgedPart, ...]


@dataclass(frozen=True)
class SearchOutcome:
    """What a search found."""

    leader: Standing  # the best finalist
    chosen: bool  # whether it beat nothing; else there is none
    finalists: tuple[Standing, ...]  # best first, on the images of the decision
    parts: tuple[JudgedPart, ...]  # the verdict
    free: Judged | None  # the best other finalist without extra cost, and its verdict
    predictions: int
    failures: tuple[str, ...]  # images that could not be used
    refused: tuple[tuple[str, str], ...] = ()  # candidates that cannot run on this model, and why
    filter_seconds: Mapping[str, float] = field(default_factory=dict, compare=False)  # per image, of this run


def run_search(
    search: Search,
    journal: Journal,
    workers: Workers,
    advance: Callable[[int], None] = lambda _: None,
    source: str | None = None,
) -> SearchOutcome:
    """Run what the journal does not hold yet; the outcome is the same however often it was interrupted."""
    run = _SearchRun(search, Measurements(search, journal, workers, advance, source))
    alive, cells = run.rungs()
    deciding = search.cells("decide", search.schedule.decide.images)
    run.table.measure(deciding, alive)
    alive = run.table.able(alive)
    alive += run.add_twins(alive, cells)
    finalists = run.standings(alive, deciding, strict=cells)
    winner = next((one for one in finalists if run.passes(one)), None)
    leader = winner or finalists[0]
    free = run.free_one(finalists, leader)
    judging = search.cells("verdict", search.schedule.verdict.images)
    run.table.measure(judging, [one.number for one in (leader, free) if one is not None])
    spent = run.table.filter_seconds
    return SearchOutcome(
        leader,
        winner is not None,
        tuple(finalists),
        run.judged(leader, judging),
        None if free is None else Judged(free, run.judged(free, judging)),
        run.table.predictions,
        tuple(run.table.failures),
        tuple((describe_stack(run.table.stacks[each]), why) for each, why in run.table.refused.items()),
        {text: sum(each) / len(each) for text, each in spent.items()},
    )


class _SearchRun:
    """Measurements in, standings out."""

    def __init__(self, search: Search, table: Measurements) -> None:
        self.search, self.table = search, table

    def rungs(self) -> tuple[list[int], list[SearchCell]]:
        """The numbers of the finalists, and the cells that they have been measured on."""
        search, table = self.search, self.table
        alive, cells, parts = list(range(len(search.candidates))), search.search_cells(), dict[Stack, Part]()
        rungs = search.schedule.rungs
        for number, rung in enumerate(rungs):
            before = rung.cells - rung.fresh
            joining = self._combined(list(parts.values()), rung.stacked)
            table.measure(cells[:before], joining)
            alive = sorted(alive + joining)
            table.measure(cells[before : rung.cells], alive)
            alive = table.able(alive)
            standings = self.standings(alive, cells[: rung.cells], ruled=True)
            for one in standings:
                parts.pop(one.stack, None)
                if (part := self._part(one)) is not None:
                    parts[one.stack] = part
            keep = rungs[number + 1].candidates if number + 1 < len(rungs) else search.schedule.finalists
            alive = sorted(one.number for one in self._kept(standings, keep))
        return alive, cells[: rungs[-1].cells if rungs else 0]

    def _kept(self, standings: Sequence[Standing], keep: int) -> list[Standing]:
        """The best; the last place is for the best without extra cost, if there is none among them."""
        kept = list(standings[:keep])
        if keep > 1 and not any(one.cost <= FREE for one in kept):
            free = next((one for one in standings[keep:] if one.cost <= FREE), None)
            kept = kept if free is None else [*kept[:-1], free]
        return kept

    def _part(self, one: Standing) -> Part | None:
        """What may be combined with others: it gains something, and does no clear harm to clean images."""
        if not (one.worth.gain > 0 and one.worth.not_clearly_harmful(self.search.tolerance)):
            return None
        stack = one.stack
        if one.rule is not None:
            stack = tuple(
                Replay(replace(each.config, adaptive=one.rule)) if isinstance(each, Replay) else each
                for each in stack
            )
        return Part(stack, self._value(one))

    def _combined(self, parts: Sequence[Part], room: int) -> list[int]:
        """New candidates: combinations that make sense, keep the cost limit and have not been tried."""
        found: list[int] = []
        for stack in combinations(parts, self.search.offer.partners) if room else ():
            if len(found) == room:
                break
            if stack not in self.table.stacks and self._allowed(stack):
                found.append(self.table.add(stack))
        return found

    def _allowed(self, stack: Stack) -> bool:
        limit = self.search.options.max_cost
        try:
            check_stack(stack, self.search.predictor, self.search.offer.source)
        except GramLoopError:
            return False
        return limit is None or self.search.cost(stack) <= limit + 1e-9

    def add_twins(self, candidates: Sequence[int], cells: Sequence[SearchCell]) -> list[int]:
        """For every candidate with a rule that gains, the same with this rule; their numbers."""
        ruled = [(number, self._best_rule(number, cells)) for number in candidates]
        return [self.table.add_twin(number, rule[0]) for number, rule in ruled if rule is not None]

    def _best_rule(self, number: int, cells: Sequence[SearchCell]) -> tuple[Adaptive, Worth] | None:
        config, options, subject = (
            replay_alone(self.table.stacks[number]),
            self.search.options,
            self.search.subject,
        )
        if config is None or not options.adaptive or config.adaptive is not None:
            return None
        if config.update_at == "final":
            return None
        measured = self.table.measured(number, cells)
        _, end = config.window or (0, 0)
        return best_rule(
            subject.task, subject.categories, measured, end, self.search.tolerance, options.caution
        )

    def standings(
        self,
        candidates: Sequence[int],
        cells: Sequence[SearchCell],
        strict: Sequence[SearchCell] | None = None,
        ruled: bool = False,
    ) -> list[Standing]:
        """Candidates, best first.

        ``strict`` adds cells to those that clean images are judged on. With ``ruled`` a candidate stands as
        its best rule would have it, if that is better: rungs must not drop what helps some images only.
        """
        found = []
        quick = not get_task(
            self.search.subject.task
        ).thresholded  # precision takes too long to try dozens of rules
        for number in candidates:
            value, stands_by = self._worth(number, cells), None
            if ruled and quick and (rule := self._best_rule(number, cells)) is not None:
                caution, tolerance = self.search.options.caution, self.search.tolerance
                if not value.harmless(tolerance) or rule[1].cautious(caution) > value.cautious(caution):
                    stands_by, value = rule
            if strict is not None:
                clean = [cell for cell in (*strict, *cells) if cell[0] == CLEAN]
                over_all = self._worth(number, clean)
                value = replace(value, clean=over_all.clean, clean_error=over_all.clean_error)
            stack, cost = self.table.stacks[number], self._cost(number, cells)
            found.append(Standing(number, stack, cost, value, stands_by))
        tolerance = self.search.tolerance

        def key(one: Standing) -> tuple[bool, float]:
            kept = (
                one.worth.harmless(tolerance)
                if strict is not None
                else one.worth.not_clearly_harmful(tolerance)
            )
            return kept, self._value(one)

        return sorted(found, key=key, reverse=True)  # stable, so the earlier of two equals stays in front

    def passes(self, one: Standing) -> bool:
        """Whether a finalist beats nothing, each with its share of the allowed error."""
        options = self.search.options
        each = 1 - (1 - options.confidence) / (self.search.schedule.finalists + len(self.table.twins))
        return one.worth.harmless(self.search.tolerance) and one.worth.beats_nothing(each)

    def free_one(self, finalists: Sequence[Standing], leader: Standing) -> Standing | None:
        """The best of the others that costs nothing extra and keeps clean images, where the verdict has room."""
        if self.search.schedule.judged < 2:
            return None
        others = [one for one in finalists if one is not leader and one.cost <= FREE]
        return next((one for one in others if one.worth.harmless(self.search.tolerance)), None)

    def judged(self, one: Standing, cells: Sequence[SearchCell]) -> tuple[JudgedPart, ...]:
        """The verdict on a candidate."""
        subject, measured = self.search.subject, self.table.measured(one.number, cells)
        return judge(subject.task, subject.categories, self.search.split, measured, subject.label_free)

    def _value(self, one: Standing) -> float:
        cautious = one.worth.cautious(self.search.options.caution)
        if not math.isfinite(cautious):
            return -math.inf
        if self.search.options.objective == "gain":
            return cautious
        extra = max(one.cost - 1, LEAST_EXTRA)
        return cautious / extra if cautious > 0 else cautious * extra

    def _cost(self, number: int, cells: Sequence[SearchCell]) -> float:
        """Work per that of the ordinary forward; a twin's is the mean over the cells."""
        whole = self.search.cost(self.table.stacks[number])
        if number not in self.table.twins:
            return whole
        measured = [one for each in self.table.measured(number, cells).values() for one in each]
        # blocks of a paired prediction hold the ordinary pass too, so they only tell who was passed over
        each_cost = [whole if one.blocks > self.search.subject.depth else 1.0 for one in measured]
        return sum(each_cost) / len(each_cost) if each_cost else math.nan

    def _worth(self, number: int, cells: Sequence[SearchCell]) -> Worth:
        subject = self.search.subject
        return worth(subject.task, subject.categories, self.table.measured(number, cells))
