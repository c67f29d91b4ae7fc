"""A search as it runs: candidates are methods of the evaluation's runner, and what they did are units of its store.

Rungs of ever fewer candidates on ever more images leave some finalists; the decision compares these with nothing, on
other images; the verdict measures the choice on images and families that decided nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import RunParts
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Part, Unit, Workload
from gramloop.evaluate.rows import MethodRows
from gramloop.evaluate.runner import Missed
from gramloop.evaluate.store import Store
from gramloop.mitigations.mitigated import check_stack
from gramloop.mitigations.stack import Stack, stack_text
from gramloop.tasks.base import Rows
from gramloop.tune.evidence import (
    DecisionTest,
    GainEstimate,
    HoldoutResult,
    Measured,
    Scoring,
    estimate_gain,
    judge,
    weigh_finalists,
)
from gramloop.tune.planning import Search
from gramloop.tune.schedule import (
    CLEAN,
    Sample,
    SearchCell,
)
from gramloop.tune.space import NO_EXTRA_COST, affordable, combine

UNIT_IMAGES = 4  # of a unit, at most: what a kill can lose


@dataclass(frozen=True)
class CandidateScore:
    """A candidate with its gain on some part of the data."""

    number: int  # in the plan; combinations have the numbers after these
    stack: Stack
    cost: float
    estimate: GainEstimate
    evidence: DecisionTest | None = None  # of the decision


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


class Measurements:
    """What candidates did on cells, by number: those of the plan first, then combinations.

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
        store: Store[Workload],
        workers: RunParts,
        calibration: str = "",
        advance: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.search, self.store, self.workers, self.advance = search, store, workers, advance
        self.calibration = calibration
        self.stacks: list[Stack] = list(search.candidates)
        self.refused: dict[int, str] = {}
        self.failures: dict[str, None] = {}
        self.predictions = search.schedule.calibration
        self._rows: dict[
            tuple[str, int | None], list[Rows]
        ] = {}  # by condition and candidate; None: baseline
        self._places: dict[tuple[str, int | None], dict[int, int]] = {}  # of positions in these rows
        self._failed: set[tuple[str, int]] = set()

    def runnable(self, candidates: Iterable[int]) -> list[int]:
        """The candidates that no image was refused by; an error if none is left."""
        found = [number for number in candidates if number not in self.refused]
        if not found:
            number, reason = next(iter(self.refused.items()))
            raise GramLoopError(
                f"no candidate can run on this model; {stack_text(self.stacks[number])}: {reason}"
            )
        return found

    def measure(self, cells: Sequence[SearchCell], candidates: Sequence[int]) -> None:
        """Measure all candidates on all cells."""
        parts = self._parts(cells, candidates) if candidates else []
        missing = self.store.missing(parts)
        self.advance(sum(map(self._price, parts)) - sum(map(self._price, missing)))
        for done in self.workers(missing) if missing else ():  # workers load the model when they run
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
                known = sample.position in self._places.get((key, None), ())
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
        method = Method(name, stack)
        return replace(method, calibration=self.calibration) if method.uses_calibration else method

    def _take(self, part: Part) -> None:
        """Keep what is stored of a part; an image that failed counts for no candidate."""
        stored = {_number(unit.method): self._stored(unit) for unit in part.units}
        for number, found in stored.items():
            for failure in found.failures:
                self._failed.add((part.condition, failure.position))
                self.failures[f"{part.condition}, image {failure.image_id}: {failure.reason}"] = None
            for refusal in found.refused:
                assert number is not None  # the baseline mitigates nothing
                self.refused.setdefault(number, refusal.reason)
            self._keep((part.condition, number), found)
        lost = sum((part.condition, position) in self._failed for position in part.images)
        self.predictions += self._price(part) * (len(part) - lost) // len(part)

    def _keep(self, key: tuple[str, int | None], found: MethodRows) -> None:
        places = self._places.setdefault(key, {})
        places |= {position: len(places) + n for n, position in enumerate(found.positions)}
        self._rows.setdefault(key, []).append(found.rows)

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

    def measured(self, candidate: int, cells: Iterable[SearchCell]) -> dict[str, Measured]:
        """One candidate on the cells that could be used, by condition."""
        samples: dict[str, list[Sample]] = {}
        for key, sample in cells:
            if (key, sample.position) not in self._failed:
                samples.setdefault(key, []).append(sample)
        return {
            key: Measured(each, self._chosen(key, None, each), self._chosen(key, candidate, each))
            for key, each in samples.items()
        }

    def _chosen(self, key: str, number: int | None, samples: Sequence[Sample]) -> Rows:
        places = self._places[key, number]
        return Rows.joined(self._rows[key, number]).take([places[sample.position] for sample in samples])


def _number(method: Method) -> int | None:
    return None if method.name == BASELINE else int(method.name.removeprefix("candidate-"))


def run_search(search: Search, table: Measurements) -> SearchOutcome:
    """Run what is not stored yet; the outcome is the same however often it was interrupted."""
    halving = _Halving(search, table)
    alive, searched = halving.rungs()
    schedule, split = search.schedule, search.split
    deciding = split.cells("decide", schedule.decide.images)
    table.measure(deciding, alive)
    ranked = halving.ranked(table.runnable(alive), deciding, also_clean=searched)
    evidence = weigh_finalists(halving.scoring, [table.measured(one.number, deciding) for one in ranked])
    finalists = [replace(one, evidence=each) for one, each in zip(ranked, evidence, strict=True)]
    winner = next((one for one in finalists if halving.passes(one)), None)
    leader = winner or finalists[0]
    free = halving.free_finalist(finalists, leader)
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
        tuple((stack_text(table.stacks[each]), why) for each, why in table.refused.items()),
    )


class _Halving:
    """Measurements in, ranked candidates out."""

    def __init__(self, search: Search, table: Measurements) -> None:
        self.search, self.table = search, table
        self.scoring = Scoring(search.workload.load_task(), search.workload.categories)

    def rungs(self) -> tuple[list[int], list[SearchCell]]:
        """The numbers of the finalists, and the cells that they have been measured on."""
        schedule, table = self.search.schedule, self.table
        alive, cells = list(range(len(self.search.candidates))), self.search.split.search_cells()
        gained: dict[Stack, float] = {}  # what may be combined, and its value
        for number, rung in enumerate(schedule.rungs):
            before = rung.cells - rung.fresh
            joining = self._join(gained, rung.joining)
            table.measure(cells[:before], joining)
            alive = sorted(alive + joining)
            table.measure(cells[before : rung.cells], alive)
            ranked = self.ranked(table.runnable(alive), cells[: rung.cells])
            for one in ranked:
                gained.pop(one.stack, None)
                if one.estimate.gain > 0 and one.estimate.not_clearly_harmful(self.search.tolerance):
                    gained[one.stack] = one.estimate.cautious
            last = number + 1 == len(schedule.rungs)
            keep = schedule.finalists if last else schedule.rungs[number + 1].candidates
            alive = sorted(one.number for one in _keep(ranked, keep))
        return alive, cells[: schedule.rungs[-1].cells if schedule.rungs else 0]

    def _join(self, gained: Mapping[Stack, float], room: int) -> list[int]:
        """New candidates: combinations that can run, keep the cost limit and have not been tried."""
        found: list[int] = []
        for stack in combine(gained) if room else ():
            if len(found) < room and stack not in self.table.stacks and self._allowed(stack):
                self.table.stacks.append(stack)
                found.append(len(self.table.stacks) - 1)
        return found

    def _allowed(self, stack: Stack) -> bool:
        try:
            offered = self.search.offered
            check_stack(stack, self.search.target.predictor, offered.stats, offered.calibrates)
        except GramLoopError:
            return False
        return affordable(self.search.cost(stack), self.search.options.max_cost)

    def ranked(
        self,
        candidates: Sequence[int],
        cells: Sequence[SearchCell],
        also_clean: Sequence[SearchCell] | None = None,
    ) -> list[CandidateScore]:
        """Candidates, best first; those that harm clean images last.

        Args:
            candidates: their numbers.
            cells: that gains are taken on.
            also_clean: cells whose clean images count for the harm as well, which then leaves no room for doubt.
        """
        found = []
        for number in candidates:
            estimate = estimate_gain(self.scoring, self.table.measured(number, cells))
            if also_clean is not None:
                clean = [cell for cell in (*also_clean, *cells) if cell[0] == CLEAN]
                harm = estimate_gain(self.scoring, self.table.measured(number, clean))
                estimate = replace(estimate, clean=harm.clean, clean_error=harm.clean_error)
            stack = self.table.stacks[number]
            found.append(CandidateScore(number, stack, self.search.cost(stack), estimate))
        tolerance = self.search.tolerance

        def key(one: CandidateScore) -> tuple[bool, float]:
            strict = also_clean is not None
            kept = one.estimate.harmless(tolerance) if strict else one.estimate.not_clearly_harmful(tolerance)
            return kept, one.estimate.cautious

        return sorted(found, key=key, reverse=True)  # stable: the earlier of two equals stays in front

    def passes(self, one: CandidateScore) -> bool:
        """Whether a finalist beats nothing, and clean images keep their score."""
        assert one.evidence is not None
        beats = one.evidence.beats_nothing(self.search.options.confidence)
        return beats and one.estimate.harmless(self.search.tolerance)

    def free_finalist(
        self, finalists: Sequence[CandidateScore], leader: CandidateScore
    ) -> CandidateScore | None:
        """The best other finalist that costs nothing extra and keeps clean images, if the verdict has room for it."""
        if self.search.schedule.judged < 2:
            return None
        others = (one for one in finalists if one is not leader and one.cost <= NO_EXTRA_COST)
        return next((one for one in others if one.estimate.harmless(self.search.tolerance)), None)

    def judge(self, one: CandidateScore, cells: Sequence[SearchCell]) -> tuple[HoldoutResult, ...]:
        """The verdict on a candidate."""
        measured = self.table.measured(one.number, cells)
        return judge(self.scoring, self.search.split, measured, self.search.workload.label_free)


def _keep(ranked: Sequence[CandidateScore], many: int) -> list[CandidateScore]:
    """The best; the last place is for the best without extra cost, if there is none among them."""
    kept = list(ranked[:many])
    if many > 1 and not any(one.cost <= NO_EXTRA_COST for one in kept):
        free = next((one for one in ranked[many:] if one.cost <= NO_EXTRA_COST), None)
        kept = kept if free is None else [*kept[:-1], free]
    return kept
