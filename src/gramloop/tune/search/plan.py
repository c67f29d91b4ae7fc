"""A search before it begins: how candidates are compared, who sees what, and what the budget allows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gramloop.mitigations.calibration import MIN_IMAGES, CalibrationStats
from gramloop.mitigations.mitigated import stack_cost
from gramloop.mitigations.stack import replay_alone
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tune.search.choices import FREE, Offer, default_space, offer
from gramloop.tune.search.options import Options
from gramloop.tune.search.schedule import STACKED, Schedule, Stage, plan_schedule
from gramloop.tune.search.space import Space
from gramloop.tune.search.split import Sample, Split, family, split
from gramloop.tune.search.stacks import Stack, stack_as_json
from gramloop.tune.search.subject import Subject
from gramloop.tune.search.worth import CLEAN

LAYOUT = 1
TOLERANCE = 0.1  # points that clean images may lose
ANY_CHANGE = 100.0  # points by which clean predictions may change where no label says what a change is worth
CALIBRATED = 32  # clean images that tell what ordinary ones look like, at most
CALIBRATION_SHARE = 20  # of the budget, one part in so many
SearchCell = tuple[str, Sample]  # a condition, and an image of it


@dataclass(frozen=True)
class Search:
    """A subject, the candidates, and the schedule that a budget allows."""

    subject: Subject
    options: Options
    candidates: tuple[Stack, ...]
    split: Split
    schedule: Schedule
    offer: Offer  # everything that the space holds
    predictor: Predictor[Prediction] = field(repr=False, compare=False)  # to be asked what makes sense

    def plan(self) -> dict[str, Any]:
        """Everything that decides the outcome, as plain values."""
        partners = self.offer.partners
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
            "candidates": [stack_as_json(stack) for stack in self.candidates],
            **({"partners": [stack_as_json(each) for each in partners]} if partners else {}),
        }

    def _options(self) -> dict[str, Any]:
        options = {**asdict(self.options), "unseen": list(self.split.unseen)}
        options["clean_tolerance"] = self.tolerance
        if self.options.judge_on is None:  # came later: plans without it stay what they were
            del options["judge_on"]
        if self.options.stacking:  # likewise
            del options["stacking"]
        return options

    @property
    def nothing(self) -> str:
        """What the candidates are compared with, in words."""
        return "no replay" if self.offer.replays_only else "nothing"

    @property
    def combines(self) -> bool:
        """Whether winners of different stages are tried together."""
        return any(rung.stacked for rung in self.schedule.rungs)

    @property
    def calibration(self) -> tuple[Sample, ...]:
        """Clean images of the search that tell what ordinary ones look like; none where nobody needs to know."""
        return (
            self.split.images["search"][CLEAN][: self.schedule.calibration]
            if self.schedule.calibration
            else ()
        )

    def cost(self, stack: Stack) -> float:
        """Work per that of the ordinary forward, at most."""
        return stack_cost(stack, self.predictor).multiplier

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


def plan_search(subject: Subject, space: Space | None, budget: int, options: Options | None = None) -> Search:
    """Split the data, list the candidates and share out the budget; nothing is predicted yet.

    Without a space: cheap mitigations of every stage and some replays, as far as they make sense for the predictor.
    """
    options = options or Options()
    predictor = subject.look()
    divided = split(
        subject.images,
        block=options.block,
        unseen=options.unseen,
        judge_on=options.judge_on,
        seed=options.seed,
    )
    ordinary = len(divided.images["search"].get(CLEAN, ()))
    source = None if subject.source is None else CalibrationStats.read(subject.source)
    offered = offer(space or default_space(predictor), predictor, options.max_cost, ordinary, source)
    stages = [
        Stage(_images(divided, part, keys), len(keys))
        for part in ("search", "decide", "verdict")
        for keys in [_conditions(divided, subject.images, part)]
    ]
    free = any(stack_cost(stack, predictor).multiplier <= FREE for stack in offered.stacks)
    schedule = plan_schedule(
        budget,
        len(offered.stacks),
        *stages,
        eta=options.eta,
        finalists=options.finalists,
        stacked=STACKED if options.stacking and offered.combines else (),
        judged=2 if free and len(offered.stacks) > 1 else 1,
        plain=0 if offered.replays_only else 1,
        calibration=_calibration(offered, budget, ordinary),
    )
    order = sorted(
        range(len(offered.stacks)), key=lambda number: _order(offered.stacks[number], options.seed)
    )
    chosen = tuple(offered.stacks[number] for number in sorted(order[: schedule.candidates]))
    return Search(subject, options, chosen, divided, schedule, offered, predictor)


def _calibration(offered: Offer, budget: int, ordinary: int) -> int:
    if not offered.calibrates:
        return 0
    return min(CALIBRATED, ordinary, max(MIN_IMAGES, budget // CALIBRATION_SHARE))


def _conditions(divided: Split, images: Mapping[str, Any], part: str) -> list[str]:
    families = divided.seen if part != "verdict" else (*divided.seen, *divided.unseen)
    return [key for key in images if key == CLEAN or family(key) in families]


def _images(divided: Split, part: str, keys: Sequence[str]) -> int:
    return min(len(divided.images[part][key]) for key in keys)


def _order(stack: Stack, seed: int) -> tuple[bool, str]:
    """Where the budget is too small for all, replays are dropped first: there are many, and they cost most."""
    text = json.dumps(stack_as_json(stack), sort_keys=True)
    return replay_alone(stack) is not None, hashlib.sha256(f"{seed}\t{text}".encode()).hexdigest()
