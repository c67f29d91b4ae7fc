"""The search: what will be run, as a plan; then rungs, the decision between finalists and no replay, the verdict."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from gramloop.config import Adaptive, ReplayConfig
from gramloop.errors import GramLoopError
from gramloop.tune.adapting import best_rule, switched
from gramloop.tune.journal import Journal
from gramloop.tune.schedule import ETA, FINALISTS, Schedule, Stage, plan_schedule
from gramloop.tune.space import Space, multiplier
from gramloop.tune.split import Placed, Split, family, split
from gramloop.tune.subject import Job, Subject
from gramloop.tune.verdict import Part, judge
from gramloop.tune.workers import Workers
from gramloop.tune.worth import CLEAN, Measured, Worth, worth

LAYOUT = 1
TOGETHER = 16  # candidates of one job
Cell = tuple[str, Placed]  # a condition, and an image of it


@dataclass(frozen=True)
class Options:
    """How candidates are compared.

    clean_tolerance: points that clean images may lose.
    confidence: of the decision that a replay is better than none, over all finalists together.
    caution: standard errors that are taken off a gain when candidates are ranked.
    objective: the gain, or the gain per ordinary forward that the replay adds.
    max_cost: no candidate that costs more than so many ordinary forwards.
    adaptive: also look for a rule per candidate that replays some images only (`gramloop.tune.adapting`).
    block: consecutive images that belong together, as frames of a video.
    unseen: families kept from the search; a third of them by default.
    """

    clean_tolerance: float = 0.1
    confidence: float = 0.95
    caution: float = 1.0
    objective: Literal["gain", "gain-per-cost"] = "gain"
    max_cost: float | None = None
    adaptive: bool = True
    eta: int = ETA
    finalists: int = FINALISTS
    block: int = 1
    unseen: tuple[str, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise GramLoopError(f"the confidence lies from 0.5 to below 1, not at {self.confidence}")
        if not (self.caution >= 0 and self.clean_tolerance >= 0):
            raise GramLoopError(
                f"caution and tolerance are 0 or more, not {self.caution} and {self.clean_tolerance}"
            )
        if self.objective not in ("gain", "gain-per-cost"):
            raise GramLoopError(f"the objective is gain or gain-per-cost, not {self.objective!r}")
        if self.max_cost is not None and not self.max_cost > 1:
            raise GramLoopError(f"every replay costs more than 1 ordinary forward, so not {self.max_cost}")


@dataclass(frozen=True)
class Standing:
    """A candidate with its worth on some part of the data."""

    number: int  # in the plan; the adaptive twin of a candidate has the numbers behind these
    config: ReplayConfig
    cost: float
    worth: Worth


@dataclass(frozen=True)
class Outcome:
    """What a search found."""

    leader: Standing  # the best finalist
    chosen: bool  # whether it beat no replay; else there is none
    finalists: tuple[Standing, ...]  # best first, on the images of the decision
    parts: tuple[Part, ...]  # the verdict
    predictions: int
    failures: tuple[str, ...]  # images that could not be used


@dataclass(frozen=True)
class Search:
    """A subject, the candidates, and the schedule that a budget allows."""

    subject: Subject
    options: Options
    candidates: tuple[ReplayConfig, ...]
    split: Split
    schedule: Schedule

    def plan(self) -> dict[str, Any]:
        """Everything that decides the outcome, as plain values."""
        return {
            "kind": "gramloop tune",
            "layout": LAYOUT,
            "task": self.subject.task,
            "depth": self.subject.depth,
            "options": {**asdict(self.options), "unseen": list(self.split.unseen)},
            "schedule": self.schedule.as_json(),
            "split": self.split.as_json(),
            "conditions": {key: len(ids) for key, ids in self.subject.images.items()},
            "categories": list(self.subject.categories),
            "threads": self.subject.threads,
            "subject": dict(self.subject.about),
            "candidates": [config.as_json() for config in self.candidates],
        }

    def cells(self, part: str, images: int) -> list[Cell]:
        """The first images of a part, each under every condition of the part."""
        keys = self.conditions(part)
        placed = self.split.images[part]
        return [(key, placed[key][place]) for key in keys for place in range(images)]

    def search_cells(self) -> list[Cell]:
        """All cells of the search, ordered so that any first few are of many images and many conditions."""
        keys, placed = self.conditions("search"), self.split.images["search"]
        many = _images(self.split, "search", keys)
        return [
            (keys[(place + turn) % len(keys)], placed[keys[(place + turn) % len(keys)]][place])
            for turn in range(len(keys))
            for place in range(many)
        ]

    def conditions(self, part: str) -> list[str]:
        """Under which conditions a part of the images is shown."""
        return _conditions(self.split, self.subject.images, part)


def plan_search(subject: Subject, space: Space, budget: int, options: Options | None = None) -> Search:
    """Split the data, list the candidates and share out the budget; nothing is predicted yet."""
    options = options or Options()
    divided = split(subject.images, block=options.block, unseen=options.unseen, seed=options.seed)
    offered = space.candidates(subject.depth, options.max_cost)
    stages = [
        Stage(_images(divided, part, keys), len(keys))
        for part in ("search", "decide", "verdict")
        for keys in [_conditions(divided, subject.images, part)]
    ]
    schedule = plan_schedule(budget, len(offered), *stages, eta=options.eta, finalists=options.finalists)
    chosen = sorted(range(len(offered)), key=lambda n: _order(offered[n], options.seed))[
        : schedule.candidates
    ]
    return Search(subject, options, tuple(offered[n] for n in sorted(chosen)), divided, schedule)


def run_search(
    search: Search, journal: Journal, workers: Workers, advance: Callable[[int], None] = lambda _: None
) -> Outcome:
    """Run what the journal does not hold yet; the outcome is the same however often it was interrupted."""
    run = _Run(search, journal, workers, advance)
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
    parts = judge(
        search.subject.task, search.subject.categories, search.split, run.measured(leader.number, judging)
    )
    return Outcome(leader, winner is not None, tuple(finalists), parts, run.predictions, tuple(run.failures))


class _Run:
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

    def add_twins(self, candidates: Sequence[int], cells: Sequence[Cell]) -> list[int]:
        """For every candidate with a rule that gains, the same with this rule; their numbers."""
        found = []
        for number in candidates:
            if (ruled := self._best_rule(number, cells)) is not None:
                found.append(len(self._configs))
                self._twins[found[-1]] = number
                self._configs.append(replace(self._configs[number], adaptive=ruled[0]))
        return found

    def _best_rule(self, number: int, cells: Sequence[Cell]) -> tuple[Adaptive, Worth] | None:
        config, options, subject = self._configs[number], self.search.options, self.search.subject
        if not options.adaptive or config.adaptive is not None or config.update_at == "final":
            return None
        measured = self.measured(number, cells)
        _, end = config.window or (0, 0)
        return best_rule(
            subject.task, subject.categories, measured, end, options.clean_tolerance, options.caution
        )

    def measure(self, cells: Sequence[Cell], candidates: Sequence[int]) -> None:
        """See that all candidates are measured on all cells."""
        groups = [candidates[first : first + TOGETHER] for first in range(0, len(candidates), TOGETHER)]
        jobs = {job.key: job for job in (self._job(cell, group) for cell in cells for group in groups)}
        for key, job in jobs.items():
            if key in self.journal.done:
                self.advance(len(job.candidates))
        for result in self.workers.run([job for key, job in jobs.items() if key not in self.journal.done]):
            self.journal.add(result)
            self.advance(len(jobs[result["job"]].candidates))
        for key, job in jobs.items():  # in the plan's order, whatever order they were finished in
            self._take(job, self.journal.done[key])

    def measured(self, candidate: int, cells: Iterable[Cell]) -> dict[str, list[Measured]]:
        """One candidate on the cells that could be used, by condition.

        An adaptive twin that was not run itself is put together from what its candidate did.
        """
        found: dict[str, list[Measured]] = {}
        origin = self._twins.get(candidate, candidate)
        for key, placed in cells:
            row = self._table.get((key, placed.image_id))
            if row is not None:
                itself = candidate in row["replayed"]
                statistic, blocks = row["replayed"][candidate if itself else origin]
                one = Measured(placed, row["ordinary"], statistic, row["truth"], blocks, row["signals"])
                if not itself:
                    one = self._as_ruled(candidate, one)
                found.setdefault(key, []).append(one)
        return found

    def _as_ruled(self, twin: int, one: Measured) -> Measured:
        config = self._configs[twin]
        assert config.adaptive is not None
        assert config.window is not None
        [ruled] = switched({"": [one]}, config.adaptive, config.window[1])[""]
        return one if ruled is one else replace(ruled, blocks=self.search.subject.depth)

    def standings(
        self,
        candidates: Sequence[int],
        cells: Sequence[Cell],
        strict: Sequence[Cell] | None = None,
        ruled: bool = False,
    ) -> list[Standing]:
        """Candidates, best first.

        ``strict`` adds cells to those that clean images are judged on. With ``ruled`` a candidate stands as
        its best rule would have it, if that is better: rungs must not drop what helps some images only.
        """
        found = []
        quick = self.search.subject.task == "semantic"  # precision takes too long to try dozens of rules
        for number in candidates:
            value = self._worth(number, cells)
            if ruled and quick and (rule := self._best_rule(number, cells)) is not None:
                caution, tolerance = self.search.options.caution, self.search.options.clean_tolerance
                if not value.harmless(tolerance) or rule[1].cautious(caution) > value.cautious(caution):
                    value = rule[1]
            if strict is not None:
                clean = [cell for cell in (*strict, *cells) if cell[0] == CLEAN]
                over_all = self._worth(number, clean)
                value = Worth(value.gain, value.error, value.freedom, over_all.clean, over_all.clean_error)
            found.append(Standing(number, self._configs[number], self._cost(number, cells), value))
        tolerance = self.search.options.clean_tolerance

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
        return one.worth.harmless(options.clean_tolerance) and one.worth.beats_nothing(each)

    def _value(self, one: Standing) -> float:
        cautious = one.worth.cautious(self.search.options.caution)
        if not math.isfinite(cautious):
            return -math.inf
        if self.search.options.objective == "gain":
            return cautious
        extra = max(one.cost - 1, 1e-9)
        return cautious / extra if cautious > 0 else cautious * extra

    def _cost(self, number: int, cells: Sequence[Cell]) -> float:
        """Blocks executed per block of the ordinary forward; a twin's is the mean over the cells."""
        depth = self.search.subject.depth
        replayed = multiplier(self._configs[number], depth)
        if number not in self._twins:
            return replayed
        measured = [one for each in self.measured(number, cells).values() for one in each]
        # blocks of a paired prediction hold the ordinary pass too, so they only tell who was passed over
        each_cost = [replayed if one.blocks > depth else 1.0 for one in measured]
        return sum(each_cost) / len(each_cost) if each_cost else math.nan

    def _worth(self, number: int, cells: Sequence[Cell]) -> Worth:
        subject = self.search.subject
        return worth(subject.task, subject.categories, self.measured(number, cells))

    def _job(self, cell: Cell, candidates: Sequence[int]) -> Job:
        key, placed = cell
        configs = tuple(self._configs[number] for number in candidates)
        return Job(key, placed.position, placed.image_id, tuple(candidates), configs)

    def _take(self, job: Job, result: Mapping[str, Any]) -> None:
        if "failed" in result:
            self.failures[f"{job.condition}, image {job.image_id}: {result['failed']}"] = None
            return
        self.predictions += len(job.candidates)
        empty = {
            "ordinary": result["ordinary"],
            "truth": result.get("truth"),
            "signals": result.get("signals"),
            "replayed": {},
        }
        row = self._table.setdefault((job.condition, job.image_id), empty)
        each = zip(job.candidates, result["replayed"], result["blocks"], strict=True)
        row["replayed"].update({number: (statistic, blocks) for number, statistic, blocks in each})


def _measured_cells(search: Search) -> int:
    return search.schedule.rungs[-1].cells if search.schedule.rungs else 0


def _conditions(divided: Split, images: Mapping[str, Any], part: str) -> list[str]:
    families = divided.seen if part != "verdict" else (*divided.seen, *divided.unseen)
    return [key for key in images if key == CLEAN or family(key) in families]


def _images(divided: Split, part: str, keys: Sequence[str]) -> int:
    return min(len(divided.images[part][key]) for key in keys)


def _order(config: ReplayConfig, seed: int) -> str:
    text = json.dumps(config.as_json(), sort_keys=True)
    return hashlib.sha256(f"{seed}\t{text}".encode()).hexdigest()
