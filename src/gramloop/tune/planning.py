"""What a search will do: a model with its images, the candidates, the split and the schedule; nothing is predicted yet."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from gramloop.data.records import Record
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.answer import model_options, short_path
from gramloop.evaluate.evaluation import Model, request_for
from gramloop.evaluate.plan import AGREEMENT_NOTE, Positions, Workload
from gramloop.evaluate.planning import Request, plan_and_model
from gramloop.evaluate.provenance import PlannedImages, plan_workload
from gramloop.evaluate.store import PLAN, SCENES
from gramloop.mitigations.calibration import MIN_IMAGES, read_stats
from gramloop.mitigations.mitigated import check_stack, stack_cost
from gramloop.mitigations.stack import Stack, replay_alone, stack_json
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.identity import Behaviour
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tune.options import SearchOptions, TuneOptions
from gramloop.tune.schedule import (
    ANY_CHANGE,
    CLEAN,
    CLEAN_TOLERANCE,
    JOINING,
    Schedule,
    Split,
    StageSize,
    plan_schedule,
    split_data,
)
from gramloop.tune.space import (
    NO_EXTRA_COST,
    Candidates,
    Space,
    affordable,
    combine,
    default_space,
    list_candidates,
    read_values,
    replay_values,
)
from gramloop.util.files import file_digest, sha256
from gramloop.util.json_files import checked, read_json
from gramloop.util.table import Column, Table

SCENE_SPLIT = "tune"  # scenes that neither evaluate nor the demonstration shows
DEFAULT_SEVERITY = 3  # of a generated suite, by default
MAX_CALIBRATION = 32  # clean images that calibration statistics are learnt from, at most
CALIBRATION_SHARE = 20  # of the budget, one part in so many
PLAN_WORDS = "a plan written by gramloop tune"
UNHASHED = ("begun", "behaviour", "asked")  # entries of a plan that do not decide the outcome
_KIND = "gramloop tune"


@dataclass(frozen=True)
class Target:
    """A model and its images.

    Attributes:
        workload: as worker processes open it.
        predictor: to be asked what works with it; its weights may be missing.
        images: ids by condition, in the order in which they were taken.
        subject: what decides the outcome of model and data: checksums, versions, the truth, calibration statistics.
        calibration: a file of calibration statistics, if one was given.
        behaviour: of a model of the user's code, what it predicts on trial images.
        asked: how model and data are named, for the report.
    """

    workload: Workload
    predictor: Predictor[Prediction] = field(repr=False, compare=False)
    images: Mapping[str, tuple[str, ...]] = field(repr=False)
    subject: Mapping[str, object] = field(default_factory=dict, repr=False)
    calibration: str | None = None
    behaviour: Behaviour | None = None
    asked: Mapping[str, str] = field(default_factory=dict, repr=False)


def suite_target(request: Request) -> Target:
    """The model and the data of a request, as `gramloop evaluate` takes it, checked against each other."""
    plan, predictor = plan_and_model(replace(request, methods=("baseline",), pictures=0))
    images = partial(_SuiteImages, plan)
    workload = replace(plan_workload(plan), open_images=images, keep_refusals=True)
    subject: dict[str, object] = {
        "suite": plan.suite,
        "data": dict(plan.data.contents),
        "model": dict(plan.model.sha256),
        "sizes": dict(plan.model.sizes),
        "device": plan.model.device,
        "dtype": plan.model.dtype,
        "versions": dict(plan.versions),
    }
    if plan.label_free:
        subject |= {"truth": "clean", "truth score": plan.truth_score}
    if request.calibration is not None:
        subject["calibration"] = file_digest(Path(request.calibration))
    asked = {"model": model_options(plan.model), "data": short_path(plan.data.root)}
    ids = images().ids()
    return Target(workload, predictor, ids, subject, request.calibration, plan.model.behaviour, asked)


class _SuiteImages(PlannedImages):
    """The images of a suite, and the clean ones that it is made from."""

    def records(self, condition: str, images: Positions) -> list[Record]:
        clean = self.opened.clean
        if condition == CLEAN and clean is not None:
            return [clean[position] for position in images]
        return super().records(condition, images)

    def ids(self) -> dict[str, tuple[str, ...]]:
        """Image ids by condition, the clean ones included where they are known."""
        counts = dict(self.plan.conditions)
        if self.opened.clean is not None:
            counts = dict.fromkeys((CLEAN, *counts), max(counts.values()))
        return {
            key: tuple(str(one.image_id) for one in self.records(key, range(count)))
            for key, count in counts.items()
        }


@dataclass(frozen=True)
class Search:
    """A model and its images, the candidates, and the schedule that a budget allows."""

    target: Target
    options: SearchOptions
    candidates: tuple[Stack, ...]  # that are tried; as many as the budget can compare
    offered: Candidates
    split: Split
    schedule: Schedule

    @cached_property
    def plan(self) -> dict[str, Any]:
        """Everything that decides the outcome, and what a model of the user's code predicts on trials; plain values."""
        target, workload = self.target, self.target.workload
        chosen = {"unseen": list(self.split.unseen), "clean_tolerance": self.tolerance}
        content = {
            "kind": _KIND,
            "task": workload.task,
            "options": {**asdict(self.options), **chosen},
            "schedule": asdict(self.schedule),
            "split": self.split.as_json(),
            "conditions": {key: len(ids) for key, ids in target.images.items()},
            "categories": workload.categories.ids,
            "threads": workload.threads,
            "subject": target.subject,
            "behaviour": None if target.behaviour is None else asdict(target.behaviour),
            "candidates": [stack_json(stack) for stack in self.candidates],
        }
        plan: dict[str, Any] = json.loads(json.dumps(content))
        return plan

    @cached_property
    def workload(self) -> Workload:
        """What is measured, named by sixteen hexadecimal digits over everything that decides the outcome."""
        content = {name: value for name, value in self.plan.items() if name not in UNHASHED}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return replace(self.target.workload, hash=sha256(text.encode())[:16])

    @property
    def tolerance(self) -> float:
        """Points that clean images may lose, or without labels change by."""
        usual = ANY_CHANGE if self.target.workload.label_free else CLEAN_TOLERANCE
        return usual if self.options.clean_tolerance is None else self.options.clean_tolerance

    @property
    def too_few(self) -> str:
        """Why nothing can be chosen, where the images of the decision are too few to swap; empty otherwise."""
        level = 1 - self.options.confidence
        deciding = self.split.cells("decide", self.schedule.decide.images)
        units, needed = len({sample.unit for _, sample in deciding}), math.ceil(-math.log2(level) - 1e-9)
        if units >= needed:
            return ""
        what = "images" if self.split.block == 1 else "blocks of images"
        return (
            f"the decision has {units} {what}, and a confidence of {self.options.confidence:g} needs {needed}"
        )

    def cost(self, stack: Stack) -> float:
        """Work relative to the baseline forward, at most."""
        return stack_cost(stack, self.target.predictor).multiplier

    def allows(self, stack: Stack) -> bool:
        """Whether a combination of candidates can run and keeps the cost limit."""
        try:
            check_stack(stack, self.target.predictor, self.offered.stats, self.offered.calibrates)
        except GramLoopError:
            return False
        return affordable(self.cost(stack), self.options.max_cost)


def search_suite(
    asked: TuneOptions, *, held: Model | None = None, space: Space | None = None, scenes: Path | None = None
) -> Search:
    """The search that options describe; nothing is predicted yet.

    ``held`` is a model in memory; ``space`` is what to choose from in place of what the options say; scenes are drawn in
    the folder by default.
    """
    read_search_plan(asked.out)  # another folder is refused before scenes are drawn into it
    values = read_values(asked.space.values)
    named = Space(mitigations=asked.space.mitigation)  # a typo is reported before anything is opened
    usual = [DEFAULT_SEVERITY] if find_suite(asked.suite).generated else []
    file = asked.space.calibration
    request = request_for(
        asked.suite, asked.data, asked.model, scenes or asked.out / SCENES, held=held, split=SCENE_SPLIT
    )
    request = replace(
        request,
        severities=request.severities or usual,
        calibration=None if file is None else str(file.resolve()),
        threads=asked.threads,
    )
    target = suite_target(request)
    if space is None and values:
        depth = len(target.predictor.blocks)
        if not depth:
            check_replay(target.predictor, ReplayConfig())
        space = replace(named, values=replay_values(depth, **values))
    elif space is None and asked.space.mitigation:
        space = named
    return plan_search(target, space, asked.budget, asked.choice)


def plan_search(
    target: Target, space: Space | None, budget: int, options: SearchOptions | None = None
) -> Search:
    """Split the data, list the candidates and divide the budget; nothing is predicted yet."""
    options, predictor = options or SearchOptions(), target.predictor
    names = ("block", "unseen", "judge_on", "seed")
    split = split_data(target.images, **{name: getattr(options, name) for name in names})
    clean = len(split.images["search"].get(CLEAN, ()))
    stats = read_stats(target.calibration)
    offered = list_candidates(space or default_space(predictor), predictor, options.max_cost, clean, stats)
    replays_only = all(replay_alone(stack) is not None for stack in offered.stacks)
    combines = options.stacking and combine(dict.fromkeys(offered.stacks, 0.0))
    free = any(stack_cost(stack, predictor).multiplier <= NO_EXTRA_COST for stack in offered.stacks)
    learnt = min(MAX_CALIBRATION, clean, max(MIN_IMAGES, budget // CALIBRATION_SHARE))
    schedule = plan_schedule(
        budget,
        len(offered.stacks),
        *(StageSize(split.size(part), len(split.conditions(part))) for part in split.images),
        finalists=options.finalists,
        joining=JOINING if combines else (),
        judged=2 if free and len(offered.stacks) > 1 else 1,
        baseline=0 if replays_only else 1,
        calibration=learnt if offered.calibrates else 0,
    )
    candidates = _within_budget(offered, schedule.candidates, options.seed)
    return Search(target, options, candidates, offered, split, schedule)


def _within_budget(offered: Candidates, many: int, seed: int) -> tuple[Stack, ...]:
    """As many candidates as the budget can compare; replays are dropped first: there are many, and they cost most."""

    def order(number: int) -> tuple[bool, str]:
        stack, config = offered.stacks[number], replay_alone(offered.stacks[number])
        text = json.dumps(stack_json(stack) if config is None else config.as_json(), sort_keys=True)
        return config is not None, sha256(f"{seed}\t{text}".encode())

    kept = sorted(range(len(offered.stacks)), key=order)[:many]
    return tuple(offered.stacks[number] for number in sorted(kept))


def read_search_plan(folder: Path) -> dict[str, Any] | None:
    """The plan of the search in a folder, None if there is none."""
    path = folder / PLAN
    if not path.is_file():
        return None
    plan: dict[str, Any] = checked(read_json(path, PLAN_WORDS), dict[str, Any], str(path), PLAN_WORDS)
    if plan.get("kind") != _KIND:
        raise GramLoopError(f"{path} is not {PLAN_WORDS}: it is of the kind {plan.get('kind')!r}")
    return plan


def describe_search(search: Search) -> Table:
    """What will be run, stage by stage."""
    schedule = search.schedule
    columns = (
        Column("stage", kind="text"),
        Column("candidates"),
        Column("images", "images under a condition"),
        Column("predictions"),
    )
    title = f"{schedule.candidates} of {schedule.offered} candidates, at most {schedule.predictions} of {schedule.budget} predictions"
    return Table(title, columns, schedule.stages, _search_notes(search))


def _search_notes(search: Search) -> Iterator[str]:
    yield f"Families searched: {', '.join(search.split.seen)}."
    yield f"Families kept for the verdict: {', '.join(search.split.unseen) or 'none'}."
    for text, reason in search.offered.left_out:
        yield f"Left out: {text}: {reason}."
    if search.too_few:
        yield f"Nothing can be chosen: {search.too_few}."
    if CLEAN not in search.split.images["search"]:
        yield "The clean images are not known, so they are not protected."
    if search.workload.label_free:
        limit = f"by at most {search.tolerance:g} points" if search.tolerance < ANY_CHANGE else "by anything"
        yield f"Without labels: {AGREEMENT_NOTE}; clean predictions may change {limit}."
