"""A search before it begins: how candidates are compared, who sees what, and what the budget allows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from gramloop.core.config import ReplayConfig
from gramloop.errors import GramLoopError
from gramloop.tune.search.schedule import ETA, FINALISTS, Schedule, Stage, plan_schedule
from gramloop.tune.search.space import Space
from gramloop.tune.search.split import Sample, Split, family, split
from gramloop.tune.search.subject import Subject
from gramloop.tune.search.worth import CLEAN

LAYOUT = 1
TOLERANCE = 0.1  # points that clean images may lose
ANY_CHANGE = 100.0  # points by which clean predictions may change where no label says what a change is worth
SearchCell = tuple[str, Sample]  # a condition, and an image of it


@dataclass(frozen=True)
class Options:
    """How candidates are compared.

    clean_tolerance: points that clean images may lose, 0.1 where nothing is said. Without labels it is how far their
        predictions may change, and nothing is asked where nothing is said: a change need be no loss.
    confidence: of the decision that a replay is better than none, over all finalists together.
    caution: standard errors that are taken off a gain when candidates are ranked.
    objective: the gain, or the gain per ordinary forward that the replay adds.
    max_cost: no candidate that costs more than so many ordinary forwards.
    adaptive: also look for a rule per candidate that replays some images only (`gramloop.tune.search.adapting`).
    block: consecutive images that belong together, as frames of a video.
    unseen: families kept from the search; a third of them by default.
    judge_on: a pattern of image ids, such as ``drive7_*``, that only the verdict sees; a part of all by default.
    """

    clean_tolerance: float | None = None
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
    judge_on: str | None = None

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise GramLoopError(f"the confidence lies from 0.5 to below 1, not at {self.confidence}")
        tolerance = self.clean_tolerance
        if not (self.caution >= 0 and (tolerance is None or tolerance >= 0)):
            raise GramLoopError(f"caution and tolerance are 0 or more, not {self.caution} and {tolerance}")
        if self.objective not in ("gain", "gain-per-cost"):
            raise GramLoopError(f"the objective is gain or gain-per-cost, not {self.objective!r}")
        if self.max_cost is not None and not self.max_cost > 1:
            raise GramLoopError(f"every replay costs more than 1 ordinary forward, so not {self.max_cost}")


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
            "options": self._options(),
            "schedule": self.schedule.as_json(),
            "split": self.split.as_json(),
            "conditions": {key: len(ids) for key, ids in self.subject.images.items()},
            "categories": list(self.subject.categories),
            "threads": self.subject.threads,
            "subject": dict(self.subject.about),
            "candidates": [config.as_json() for config in self.candidates],
        }

    def _options(self) -> dict[str, Any]:
        options = {**asdict(self.options), "unseen": list(self.split.unseen)}
        options["clean_tolerance"] = self.tolerance
        if self.options.judge_on is None:  # came later: plans without it stay what they were
            del options["judge_on"]
        return options

    @property
    def tolerance(self) -> float:
        """Points that clean images may lose, or without labels change by."""
        given = self.options.clean_tolerance
        unsaid = ANY_CHANGE if self.subject.label_free else TOLERANCE
        return unsaid if given is None else given

    def cells(self, part: str, images: int) -> list[SearchCell]:
        """The first images of a part, each under every condition of the part."""
        keys = self.conditions(part)
        samples = self.split.images[part]
        return [(key, samples[key][place]) for key in keys for place in range(images)]

    def search_cells(self) -> list[SearchCell]:
        """All cells of the search, ordered so that any first few are of many images and many conditions."""
        keys, samples = self.conditions("search"), self.split.images["search"]
        many = _images(self.split, "search", keys)
        return [
            (keys[(place + turn) % len(keys)], samples[keys[(place + turn) % len(keys)]][place])
            for turn in range(len(keys))
            for place in range(many)
        ]

    def conditions(self, part: str) -> list[str]:
        """Under which conditions a part of the images is shown."""
        return _conditions(self.split, self.subject.images, part)


def plan_search(subject: Subject, space: Space, budget: int, options: Options | None = None) -> Search:
    """Split the data, list the candidates and share out the budget; nothing is predicted yet."""
    options = options or Options()
    divided = split(
        subject.images,
        block=options.block,
        unseen=options.unseen,
        judge_on=options.judge_on,
        seed=options.seed,
    )
    offered = space.candidates(subject.depth, options.max_cost, subject.taps)
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


def _conditions(divided: Split, images: Mapping[str, Any], part: str) -> list[str]:
    families = divided.seen if part != "verdict" else (*divided.seen, *divided.unseen)
    return [key for key in images if key == CLEAN or family(key) in families]


def _images(divided: Split, part: str, keys: Sequence[str]) -> int:
    return min(len(divided.images[part][key]) for key in keys)


def _order(config: ReplayConfig, seed: int) -> str:
    text = json.dumps(config.as_json(), sort_keys=True)
    return hashlib.sha256(f"{seed}\t{text}".encode()).hexdigest()
