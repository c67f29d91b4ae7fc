"""A search as it runs: candidates are methods of the evaluation's runner, and what they did are units of its store.

Rungs of ever fewer candidates on ever more images leave some finalists; the decision compares these with nothing, on
other images; the verdict measures the choice on images and families that decided nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gramloop.errors import GramLoopError
from gramloop.evaluate.engines import RunParts
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Part, Workload
from gramloop.evaluate.runner import Missed
from gramloop.evaluate.store import Store
from gramloop.mitigations.stack import Stack, stack_text
from gramloop.tasks.base import Rows
from gramloop.tune.evidence import (
    GainEstimate,
    HoldoutResult,
    Measured,
    Scoring,
    estimate_gain,
    judge,
    weigh_finalists,
)
from gramloop.tune.planning import Search
from gramloop.tune.schedule import CLEAN, Sample, SearchCell
from gramloop.tune.space import NO_EXTRA_COST, combine

UNIT_IMAGES = 4  # of a unit, at most: what a kill can lose


@dataclass(frozen=True)
class CandidateScore:
    """A candidate with its gain on some part of the data."""

    number: int  # in the plan; combinations have the numbers after these
    stack: Stack
    cost: float
    estimate: GainEstimate
    holdout: Mapping[str, HoldoutResult] = field(default_factory=dict)  # by part of the data, where judged


@dataclass(frozen=True)
class SearchOutcome:
    """What a search found."""

    leader: CandidateScore  # the best finalist
    chosen: bool  # whether it beat nothing
    finalists: tuple[CandidateScore, ...]  # best first, on the images of the decision
    free: CandidateScore | None  # the best other finalist without extra cost
    predictions: int
    failures: tuple[str, ...]  # images that could not be used
    refused: tuple[tuple[str, str], ...] = ()  # candidates that cannot run on this model, and why


class Measurements:
    """What candidates did on cells, by number: those of the plan first, then combinations.

    ``calibration`` is the checksum of the calibration statistics, if there are any; ``advance`` is called with the number
    of predictions that were made, or found in the store.
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
        self.scoring = Scoring(search.workload.load_task(), search.workload.categories)
        self.stacks: list[Stack] = list(search.candidates)
        self.refused: dict[Stack, str] = {}
        self.failures: dict[tuple[str, int], str] = {}  # by condition and position
        self.predictions = search.schedule.calibration
        self._rows: dict[
            tuple[Stack, str, int], Rows
        ] = {}  # of one image each; the baseline is an empty stack

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
            if (key, sample.position) not in self.failures:
                known = ((), key, sample.position) in self._rows
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
        method = Method(f"candidate-{number}", self.stacks[number])
        return replace(method, calibration=self.calibration) if method.uses_calibration else method

    def _take(self, part: Part) -> None:
        """Keep what is stored of a part; an image that failed counts for no candidate."""
        for unit in part.units:
            found, stack = self.store.rows([unit]), unit.method.stack
            if found is None:
                raise GramLoopError(
                    f"{self.store.path(unit)} was stored, and is gone; run the same command again"
                )
            for failure in found.failures:
                text = f"{part.condition}, image {failure.image_id}: {failure.reason}"
                self.failures.setdefault((part.condition, failure.position), text)
            for refusal in found.refused:
                self.refused.setdefault(stack, refusal.reason)
            for place, position in enumerate(found.positions):
                self._rows[stack, part.condition, position] = found.rows.take([place])
        lost = sum((part.condition, position) in self.failures for position in part.images)
        self.predictions += self._price(part) * (len(part) - lost) // len(part)

    def _price(self, part: Part) -> int:
        """Predictions of a part, as the budget counts them."""
        baselines = sum(method.name == BASELINE for method in part.methods)
        counted = len(part.methods) - baselines + baselines * self.search.schedule.baseline
        return len(part) * counted

    def measured(self, candidate: int, cells: Iterable[SearchCell]) -> dict[str, Measured]:
        """One candidate on the cells that could be used, by condition."""
        samples: dict[str, list[Sample]] = {}
        for key, sample in cells:
            if (key, sample.position) not in self.failures:
                samples.setdefault(key, []).append(sample)

        def joined(stack: Stack, key: str) -> Rows:
            return Rows.joined([self._rows[stack, key, sample.position] for sample in samples[key]])

        stack = self.stacks[candidate]
        return {key: Measured(each, joined((), key), joined(stack, key)) for key, each in samples.items()}

    def ranked(
        self,
        candidates: Iterable[int],
        cells: Sequence[SearchCell],
        also_clean: Sequence[SearchCell] | None = None,
    ) -> list[CandidateScore]:
        """Candidates that no image was refused by, best first; those that harm clean images last.

        ``also_clean`` are cells whose clean images count for the harm as well, which then leaves no room for doubt.
        """
        found = []
        for number in candidates:
            stack = self.stacks[number]
            if stack in self.refused:
                continue
            estimate = estimate_gain(self.scoring, self.measured(number, cells))
            if also_clean is not None:
                clean = [cell for cell in (*also_clean, *cells) if cell[0] == CLEAN]
                harm = estimate_gain(self.scoring, self.measured(number, clean))
                estimate = replace(estimate, clean=harm.clean, clean_error=harm.clean_error)
            found.append(CandidateScore(number, stack, self.search.cost(stack), estimate))
        if not found:
            stack, reason = next(iter(self.refused.items()))
            raise GramLoopError(f"no candidate can run on this model; {stack_text(stack)}: {reason}")
        tolerance, strict = self.search.tolerance, also_clean is not None

        def key(one: CandidateScore) -> tuple[bool, float]:
            kept = one.estimate.harmless(tolerance) if strict else one.estimate.not_clearly_harmful(tolerance)
            return kept, one.estimate.cautious

        return sorted(found, key=key, reverse=True)  # stable: the earlier of two equals stays in front

    def join(self, gained: Mapping[Stack, float], room: int) -> list[int]:
        """New candidates: combinations that can run, keep the cost limit and have not been tried."""
        found: list[int] = []
        for stack in combine(gained) if room else ():
            if len(found) < room and stack not in self.stacks and self.search.allows(stack):
                self.stacks.append(stack)
                found.append(len(self.stacks) - 1)
        return found


def run_search(search: Search, table: Measurements) -> SearchOutcome:
    """Run what is not stored yet; the outcome is the same however often it was interrupted."""
    alive, searched = _run_rungs(search, table)
    schedule, split = search.schedule, search.split
    deciding = split.cells("decide", schedule.decide.images)
    table.measure(deciding, alive)
    finalists = table.ranked(alive, deciding, also_clean=searched)
    tests = weigh_finalists(table.scoring, [table.measured(one.number, deciding) for one in finalists])
    confidence = search.options.confidence
    better = [one for one, test in zip(finalists, tests, strict=True) if test.beats_nothing(confidence)]
    harmless = [one for one in finalists if one.estimate.harmless(search.tolerance)]
    winner = next((one for one in harmless if one in better), None)
    leader = winner or finalists[0]
    free = next((one for one in harmless if one is not leader and one.cost <= NO_EXTRA_COST), None)
    judged = [leader] if free is None or schedule.judged < 2 else [leader, free]
    judging = split.cells("verdict", schedule.verdict.images)
    table.measure(judging, [one.number for one in judged])

    def with_holdout(one: CandidateScore) -> CandidateScore:
        measured, label_free = table.measured(one.number, judging), search.workload.label_free
        return replace(one, holdout=judge(table.scoring, split, measured, label_free))

    leader, *others = map(with_holdout, judged)
    return SearchOutcome(
        leader,
        winner is not None,
        tuple(finalists),
        others[0] if others else None,
        table.predictions,
        tuple(table.failures.values()),
        tuple((stack_text(each), why) for each, why in table.refused.items()),
    )


def _run_rungs(search: Search, table: Measurements) -> tuple[list[int], list[SearchCell]]:
    """The numbers of the finalists, and the cells that they have been measured on."""
    rungs, cells = search.schedule.rungs, search.split.search_cells()
    alive, measured = list(range(len(search.candidates))), list[SearchCell]()
    gained: dict[Stack, float] = {}  # what may be combined, and its value
    kept = [*(rung.candidates for rung in rungs[1:]), search.schedule.finalists]
    for rung, keep in zip(rungs, kept, strict=False):
        joining = table.join(gained, rung.joining)
        table.measure(measured, joining)
        alive = sorted(alive + joining)
        table.measure(cells[len(measured) : rung.cells], alive)
        measured = cells[: rung.cells]
        ranked = table.ranked(alive, measured)
        for one in ranked:
            gained.pop(one.stack, None)
            if one.estimate.gain > 0 and one.estimate.not_clearly_harmful(search.tolerance):
                gained[one.stack] = one.estimate.cautious
        alive = sorted(one.number for one in _keep(ranked, keep))
    return alive, measured


def _keep(ranked: Sequence[CandidateScore], many: int) -> list[CandidateScore]:
    """The best; the last place is for the best without extra cost, if there is none among them."""
    kept, free = list(ranked[:many]), [one for one in ranked if one.cost <= NO_EXTRA_COST]
    return [*kept[:-1], free[0]] if many > 1 and free and free[0] not in kept else kept
