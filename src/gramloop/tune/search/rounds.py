"""A search as it runs: rungs, the decision between finalists and no replay, the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gramloop.core.config import Adaptive, ReplayConfig
from gramloop.tune.search.adapting import best_rule, switched
from gramloop.tune.search.journal import Journal
from gramloop.tune.search.plan import Search, SearchCell
from gramloop.tune.search.space import multiplier
from gramloop.tune.search.subject import Trial
from gramloop.tune.search.verdict import JudgedPart, judge
from gramloop.tune.search.workers import Workers
from gramloop.tune.search.worth import CLEAN, PairedStatistics, Worth, worth

TOGETHER = 16  # candidates of one trial


@dataclass(frozen=True)
class Standing:
    """A candidate with its worth on some part of the data."""

    number: int  # in the plan; the adaptive twin of a candidate has the numbers after these
    config: ReplayConfig
    cost: float
    worth: Worth


@dataclass(frozen=True)
class SearchOutcome:
    """What a search found."""

    leader: Standing  # the best finalist
    chosen: bool  # whether it beat no replay; else there is none
    finalists: tuple[Standing, ...]  # best first, on the images of the decision
    parts: tuple[JudgedPart, ...]  # the verdict
    predictions: int
    failures: tuple[str, ...]  # images that could not be used


def run_search(
    search: Search, journal: Journal, workers: Workers, advance: Callable[[int], None] = lambda _: None
) -> SearchOutcome:
    """Run what the journal does not hold yet; the outcome is the same however often it was interrupted."""
    run = _SearchRun(search, journal, workers, advance)
    alive = list(range(len(search.candidates)))
    cells = search.search_cells()
    for number, rung in enumerate(search.schedule.rungs):
        run.measure(cells[rung.cells - rung.fresh : rung.cells], alive)
        standings = run.standings(alive, cells[: rung.cells], ruled=True)
        rungs = search.schedule.rungs
        keep = rungs[number + 1].candidates if number + 1 < len(rungs) else search.schedule.finalists
        alive = sorted(one.number for one in standings[:keep])
    deciding = search.cells("decide", search.schedule.decide.images)
    run.measure(deciding, alive)
    alive += run.add_twins(alive, cells[: _measured_cells(search)])
    finalists = run.standings(alive, deciding, strict=cells[: _measured_cells(search)])
    winner = next((one for one in finalists if run.passes(one)), None)
    leader = winner or finalists[0]
    judging = search.cells("verdict", search.schedule.verdict.images)
    run.measure(judging, [leader.number])
    subject, measured = search.subject, run.measured(leader.number, judging)
    parts = judge(subject.task, subject.categories, search.split, measured, subject.label_free)
    return SearchOutcome(
        leader, winner is not None, tuple(finalists), parts, run.predictions, tuple(run.failures)
    )


class _SearchRun:
    """Jobs in, standings out."""

    def __init__(
        self, search: Search, journal: Journal, workers: Workers, advance: Callable[[int], None]
    ) -> None:
        self.search, self.journal, self.workers, self.advance = search, journal, workers, advance
        self.predictions = 0
        self.failures: dict[str, None] = {}
        self._table: dict[tuple[str, str], dict[str, Any]] = {}
        self._configs = list(search.candidates)
        self._twins: dict[int, int] = {}  # an adaptive candidate: the one that it is made from

    def add_twins(self, candidates: Sequence[int], cells: Sequence[SearchCell]) -> list[int]:
        """For every candidate with a rule that gains, the same with this rule; their numbers."""
        found = []
        for number in candidates:
            if (ruled := self._best_rule(number, cells)) is not None:
                found.append(len(self._configs))
                self._twins[found[-1]] = number
                self._configs.append(replace(self._configs[number], adaptive=ruled[0]))
        return found

    def _best_rule(self, number: int, cells: Sequence[SearchCell]) -> tuple[Adaptive, Worth] | None:
        config, options, subject = self._configs[number], self.search.options, self.search.subject
        if not options.adaptive or config.adaptive is not None or config.update_at == "final":
            return None
        measured = self.measured(number, cells)
        _, end = config.window or (0, 0)
        return best_rule(
            subject.task, subject.categories, measured, end, self.search.tolerance, options.caution
        )

    def measure(self, cells: Sequence[SearchCell], candidates: Sequence[int]) -> None:
        """See that all candidates are measured on all cells."""
        groups = [candidates[first : first + TOGETHER] for first in range(0, len(candidates), TOGETHER)]
        trials = {
            trial.key: trial for trial in (self._trial(cell, group) for cell in cells for group in groups)
        }
        for key, trial in trials.items():
            if key in self.journal.done:
                self.advance(len(trial.candidates))
        for result in self.workers.run(
            [trial for key, trial in trials.items() if key not in self.journal.done]
        ):
            self.journal.add(result)
            self.advance(len(trials[result["job"]].candidates))
        for key, trial in trials.items():  # in the plan's order, whatever order they were finished in
            self._take(trial, self.journal.done[key])

    def measured(self, candidate: int, cells: Iterable[SearchCell]) -> dict[str, list[PairedStatistics]]:
        """One candidate on the cells that could be used, by condition.

        An adaptive twin that was not run itself is put together from what its candidate did.
        """
        found: dict[str, list[PairedStatistics]] = {}
        origin = self._twins.get(candidate, candidate)
        for key, sample in cells:
            row = self._table.get((key, sample.image_id))
            if row is not None:
                itself = candidate in row["replayed"]
                statistic, blocks = row["replayed"][candidate if itself else origin]
                one = PairedStatistics(
                    sample, row["ordinary"], statistic, row["truth"], blocks, row["signals"]
                )
                if not itself:
                    one = self._as_ruled(candidate, one)
                found.setdefault(key, []).append(one)
        return found

    def _as_ruled(self, twin: int, one: PairedStatistics) -> PairedStatistics:
        config = self._configs[twin]
        assert config.adaptive is not None
        assert config.window is not None
        [ruled] = switched({"": [one]}, config.adaptive, config.window[1])[""]
        return one if ruled is one else replace(ruled, blocks=self.search.subject.depth)

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
        quick = self.search.subject.task != "detection"  # precision takes too long to try dozens of rules
        for number in candidates:
            value = self._worth(number, cells)
            if ruled and quick and (rule := self._best_rule(number, cells)) is not None:
                caution, tolerance = self.search.options.caution, self.search.tolerance
                if not value.harmless(tolerance) or rule[1].cautious(caution) > value.cautious(caution):
                    value = rule[1]
            if strict is not None:
                clean = [cell for cell in (*strict, *cells) if cell[0] == CLEAN]
                over_all = self._worth(number, clean)
                value = Worth(value.gain, value.error, value.freedom, over_all.clean, over_all.clean_error)
            found.append(Standing(number, self._configs[number], self._cost(number, cells), value))
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
        """Whether a finalist beats no replay, each with its share of the allowed error."""
        options = self.search.options
        each = 1 - (1 - options.confidence) / (self.search.schedule.finalists + len(self._twins))
        return one.worth.harmless(self.search.tolerance) and one.worth.beats_nothing(each)

    def _value(self, one: Standing) -> float:
        cautious = one.worth.cautious(self.search.options.caution)
        if not math.isfinite(cautious):
            return -math.inf
        if self.search.options.objective == "gain":
            return cautious
        extra = max(one.cost - 1, 1e-9)
        return cautious / extra if cautious > 0 else cautious * extra

    def _cost(self, number: int, cells: Sequence[SearchCell]) -> float:
        """Blocks executed per block of the ordinary forward; a twin's is the mean over the cells."""
        depth = self.search.subject.depth
        replayed = multiplier(self._configs[number], depth)
        if number not in self._twins:
            return replayed
        measured = [one for each in self.measured(number, cells).values() for one in each]
        # blocks of a paired prediction hold the ordinary pass too, so they only tell who was passed over
        each_cost = [replayed if one.blocks > depth else 1.0 for one in measured]
        return sum(each_cost) / len(each_cost) if each_cost else math.nan

    def _worth(self, number: int, cells: Sequence[SearchCell]) -> Worth:
        subject = self.search.subject
        return worth(subject.task, subject.categories, self.measured(number, cells))

    def _trial(self, cell: SearchCell, candidates: Sequence[int]) -> Trial:
        key, sample = cell
        configs = tuple(self._configs[number] for number in candidates)
        return Trial(key, sample.position, sample.image_id, tuple(candidates), configs)

    def _take(self, trial: Trial, result: Mapping[str, Any]) -> None:
        if "failed" in result:
            self.failures[f"{trial.condition}, image {trial.image_id}: {result['failed']}"] = None
            return
        self.predictions += len(trial.candidates)
        empty = {
            "ordinary": result["ordinary"],
            "truth": result.get("truth"),
            "signals": result.get("signals"),
            "replayed": {},
        }
        row = self._table.setdefault((trial.condition, trial.image_id), empty)
        each = zip(trial.candidates, result["replayed"], result["blocks"], strict=True)
        row["replayed"].update({number: (statistic, blocks) for number, statistic, blocks in each})


def _measured_cells(search: Search) -> int:
    return search.schedule.rungs[-1].cells if search.schedule.rungs else 0
