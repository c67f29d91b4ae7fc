"""``gramloop.tune(model, data, suite=…, out=…)``: what makes this model better on these data under shift, at what cost.

A folder of a search holds plan.json, the units of everything measured (as `gramloop.evaluate.store` keeps them),
calibration.safetensors where it was needed, and in the end best.json: the choice with its evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gramloop import __version__
from gramloop.data.records import DataSet
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines.local import start_workers
from gramloop.evaluate.plan import AGREEMENT_NOTE
from gramloop.evaluate.predicting import deterministic
from gramloop.evaluate.runner import Runner
from gramloop.evaluate.store import PLAN, UNITS, Store
from gramloop.mitigations.calibration import MIN_IMAGES, calibrate, read_stats, sha256_of
from gramloop.mitigations.mitigated import stack_cost
from gramloop.mitigations.stack import replay_alone, replay_of, stack_json, stack_text, write_mitigations
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.base import read_labelled
from gramloop.tune.halving import JOINING, Options, Stage, plan_schedule
from gramloop.tune.search import ANY_CHANGE, CandidateScore, Measurements, Search, SearchOutcome, run_search
from gramloop.tune.space import (
    FREE,
    Candidates,
    Space,
    Stack,
    candidate_json,
    default_space,
    describe_candidate,
    list_candidates,
)
from gramloop.tune.split import CLEAN, split_data
from gramloop.tune.target import SCENE_SPLIT, Records, Target, memory_target, suite_target
from gramloop.tune.verdict import HoldoutResult, finite, holdout_table
from gramloop.util.device import numbered_device
from gramloop.util.files import atomic_write, locked, remove_leftovers
from gramloop.util.json_files import checked, first_difference, read_json
from gramloop.util.table import Cell, Table, TableRepr

RESULT, CALIBRATION = "best.json", "calibration.safetensors"
SEVERITY = 3  # of a generated suite, by default
MAX_CALIBRATION = 32  # clean images that calibration statistics are learnt from, at most
CALIBRATION_SHARE = 20  # of the budget, one part in so many
_KIND = "gramloop tune"
_UNDECIDED = ("begun", "calibration")  # entries of a plan that do not decide the outcome


def tune(
    model: Any,
    data: Path | str | DataSet | Mapping[str, Records] | None = None,
    *,
    suite: str | None = None,
    out: Path | str | None = None,
    budget: int = 2000,
    space: Space | None = None,
    options: Options | None = None,
    workers: int | None = None,
    calibration: Path | str | None = None,
    advance: Callable[[int], None] = lambda _: None,
    **more: Any,
) -> Tuning:
    """Find mitigations within a budget of predictions, and judge them on images and shifts not searched.

    Args:
        model: as for `gramloop.evaluate`; for data in memory a predictor, or a function that makes one.
        data: the folder of the set; or images in memory, see `gramloop.tune.target.memory_target`.
        suite: such as "scenes-c", "coco-c" or "my-set-c"; it may be left out for images in memory.
        out: a folder for plan, measurements and result; the same call resumes there after an interruption.
        budget: predictions, everything included; never exceeded.
        space: what to choose from; by default cheap mitigations and some replays.
        options: how candidates are compared.
        workers: processes; as many as the cores hold, by default. One for a model in memory.
        calibration: a file of calibration statistics; by default they are learnt from clean images of the search.
        advance: called with the number of predictions that were made or found.
        more: of a suite, `gramloop.evaluate.SetOptions` (severity 3 by default); in memory, the other arguments of
            `gramloop.tune.target.memory_target`.
    """
    given = None if calibration is None else str(Path(calibration).resolve())
    if isinstance(data, DataSet | Mapping):
        if suite is not None:
            more["suite"] = suite
        target = memory_target(model, data, calibration=given, **more)
        workers = workers or 1
    else:
        if suite is None or out is None:
            raise GramLoopError(
                "suite and out are missing: the suite to tune on, and a folder for the results"
            )
        from gramloop.evaluate.evaluation import request_for

        request, workers = request_for(model, data, suite, Path(out), workers, SCENE_SPLIT, **more)
        if not request.severities and find_suite(suite).generated:
            request = replace(request, severities=[SEVERITY])
        target = suite_target(replace(request, calibration=given))
    search = plan_search(target, space, budget, options)
    device = numbered_device(more.get("device"))
    return run(search, out, workers=workers, device=device, advance=advance)


def plan_search(target: Target, space: Space | None, budget: int, options: Options | None = None) -> Search:
    """Split the data, list the candidates and divide the budget; nothing is predicted yet.

    Args:
        target: the model and its images.
        space: what to choose from; by default cheap mitigations of every stage and some replays.
        budget: predictions, everything included.
        options: how candidates are compared.
    """
    options, predictor = options or Options(), target.predictor
    names = ("block", "unseen", "judge_on", "seed")
    split = split_data(target.images, **{name: getattr(options, name) for name in names})
    clean = len(split.images["search"].get(CLEAN, ()))
    stats = read_stats(target.calibration)
    offered = list_candidates(space or default_space(predictor), predictor, options.max_cost, clean, stats)
    parts = [Stage(split.size(part), len(split.conditions(part))) for part in split.images]
    free = any(stack_cost(stack, predictor).multiplier <= FREE for stack in offered.stacks)
    learnt = min(MAX_CALIBRATION, clean, max(MIN_IMAGES, budget // CALIBRATION_SHARE))
    schedule = plan_schedule(
        budget,
        len(offered.stacks),
        *parts,
        eta=options.eta,
        finalists=options.finalists,
        joining=JOINING if options.stacking and offered.combines else (),
        judged=2 if free and len(offered.stacks) > 1 else 1,
        baseline=0 if offered.replays_only else 1,
        calibration=learnt if offered.calibrates else 0,
    )
    candidates = _as_many(offered, schedule.candidates, options.seed)
    search = Search(target.subject, options, candidates, offered, split, schedule, predictor)
    plan = {
        "kind": _KIND,
        "task": target.subject.task,
        "options": {**asdict(options), "unseen": list(split.unseen), "clean_tolerance": search.tolerance},
        "schedule": asdict(schedule),
        "split": split.as_json(),
        "conditions": {key: len(ids) for key, ids in target.images.items()},
        "categories": target.subject.categories.ids,
        "threads": target.subject.threads,
        "subject": dict(target.about),
        "candidates": [candidate_json(stack) for stack in candidates],
        "partners": [candidate_json(stack) for stack in offered.partners],
    }
    plan = json.loads(json.dumps(plan))
    subject = replace(target.subject, hash=_plan_hash(plan), description=_plan_text(plan))
    return replace(search, subject=subject, plan=plan, given_calibration=target.calibration)


def _as_many(offered: Candidates, many: int, seed: int) -> tuple[Stack, ...]:
    """As many candidates as the budget can compare; replays are dropped first: there are many, and they cost most."""

    def order(number: int) -> tuple[bool, str]:
        stack = offered.stacks[number]
        text = json.dumps(candidate_json(stack), sort_keys=True)
        return replay_alone(stack) is not None, hashlib.sha256(f"{seed}\t{text}".encode()).hexdigest()

    kept = sorted(range(len(offered.stacks)), key=order)[:many]
    return tuple(offered.stacks[number] for number in sorted(kept))


def run(
    search: Search,
    out: Path | str | None = None,
    *,
    workers: int | None = 1,
    device: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Tuning:
    """Run a planned search, or resume it in its folder, and store the result there; ``device`` is one of several."""
    with TemporaryDirectory() if out is None else nullcontext(str(out)) as place:
        folder = Path(place)
        check_folder(folder, search)  # what is refused stays untouched
        with locked(folder):
            plan = _begin(folder, search)
            stats = _find_calibration(search, folder, plan, device)
            advance(search.schedule.calibration)
            subject = replace(search.subject, load_calibration=partial(read_stats, stats))
            store = Store(folder, subject)
            with start_workers(subject, store, workers, device) as processes:
                digest = "" if stats is None else sha256_of(stats)
                table = Measurements(search, store, processes, digest, advance)
                outcome = run_search(search, table)
            tuning = Tuning(search, outcome, plan["begun"], stats)
            if out is not None:
                tuning.write(folder / RESULT)
    return tuning


def check_folder(folder: Path, search: Search) -> dict[str, Any] | None:
    """The plan in a folder, None if there is none; refuses the folder of another search. Nothing is written."""
    found = read_search_plan(folder)
    if found is not None and _plan_hash(found) != search.subject.hash:
        difference = first_difference(found, search.plan, skip=_UNDECIDED)
        raise GramLoopError(
            f"{folder} holds a search with {difference}; choose another folder, or the settings it was begun with"
        )
    if found is None and (folder / UNITS).exists():
        raise GramLoopError(f"{folder} has {UNITS} but no {PLAN}; choose another folder")
    return found


def read_search_plan(folder: Path) -> dict[str, Any] | None:
    """The plan of the search in a folder, None if there is none."""
    path, what = folder / PLAN, "a plan written by gramloop tune"
    if not path.is_file():
        return None
    plan: dict[str, Any] = checked(read_json(path, what), dict[str, Any], str(path), what)
    if plan.get("kind") != _KIND:
        raise GramLoopError(f"{path} is not {what}: it is of the kind {plan.get('kind')!r}")
    return plan


def _begin(folder: Path, search: Search) -> dict[str, Any]:
    """The plan of the folder, with the day on which it was begun."""
    plan = check_folder(folder, search)
    if plan is None:
        plan = {**search.plan, "begun": datetime.now(UTC).date().isoformat()}
        atomic_write(folder / PLAN, _plan_text(plan).encode(), durable=True)
    remove_leftovers(folder)
    return plan


def _plan_text(plan: Mapping[str, Any]) -> str:
    return json.dumps(plan, indent=1) + "\n"


def _plan_hash(plan: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits over everything that decides the outcome."""
    content = {name: value for name, value in plan.items() if name not in _UNDECIDED}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_calibration(search: Search, folder: Path, plan: dict[str, Any], device: str | None) -> Path | None:
    """The file of calibration statistics: a given one is copied; else they are learnt from clean images of the search."""
    path = folder / CALIBRATION
    if search.given_calibration is not None:
        atomic_write(path, Path(search.given_calibration).read_bytes())
        return path
    if not search.schedule.calibration:
        return None
    known = plan.get("calibration")
    if known is not None and path.is_file() and sha256_of(path) == known:
        return path
    samples = search.split.images["search"][CLEAN][: search.schedule.calibration]
    with Runner(search.subject, device=device) as runner, deterministic(search.subject.threads):
        records = runner.images.records(CLEAN, tuple(sample.position for sample in samples))
        images = [read_labelled(record, search.subject.task, labels=False) for record in records]
        # an image that cannot be read is reported where it is measured
        calibrate(runner.predictor, [each.pixels for each in images if not isinstance(each, str)]).save(path)
    made = sha256_of(path)
    if known not in (None, made):
        raise GramLoopError(
            f"{path} comes out differently than when this search began; choose another folder, or use the machine and "
            "versions it was begun with"
        )
    plan["calibration"] = made
    atomic_write(folder / PLAN, _plan_text(plan).encode(), durable=True)
    return path


@dataclass(frozen=True)
class Tuning(TableRepr):
    """What was chosen, what it does on images not searched, and how it was found."""

    search: Search
    outcome: SearchOutcome
    date: str
    calibration: Path | None = None  # the file of calibration statistics, next to the result

    @property
    def stack(self) -> Stack:
        """The mitigations to use; empty if nothing was chosen."""
        return self.outcome.leader.stack if self.outcome.chosen else ()

    @property
    def mitigations(self) -> str:
        """The same as text, as `gramloop.mitigations.apply` takes it."""
        return stack_text(self.stack)

    @property
    def config(self) -> ReplayConfig:
        """The replay of the choice; ``replays`` is 0 if it has none."""
        return replay_of(self.stack) or ReplayConfig(replays=0)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        search, outcome = self.search, self.outcome
        leader = f"{describe_candidate(outcome.leader.stack)} ({outcome.leader.cost:.2f}x the work)"
        unseen, results = "on images that the search has not seen", _in_words(outcome.holdout)
        if outcome.chosen:
            sentences = [f"Chosen: {leader}. {unseen.capitalize()}: {results}."]
        else:
            combined = " or their combinations" if search.combines else ""
            sentences = [
                f"{search.nothing.capitalize()}: none of {len(search.candidates)} candidates{combined} beat it beyond "
                f"noise. The nearest, {leader}, {unseen}: {results}."
            ]
        if outcome.free is not None:
            also = "Also at" if outcome.leader.cost <= FREE else "At"
            name = describe_candidate(outcome.free.stack)
            sentences.append(f"{also} no extra cost, {name}: {_in_words(outcome.free_holdout)}.")
        if search.subject.label_free:
            sentences.append(f"Without labels, {AGREEMENT_NOTE}.")
        return " ".join(sentences)

    def _table(self) -> Table:
        title = self.mitigations or "the baseline: nothing was chosen"
        return holdout_table(self.outcome.holdout, f"Chosen: {title}", [self.sentence])

    def __str__(self) -> str:
        return self.sentence

    def tables(self) -> list[Table]:
        """The decision and the verdict."""
        outcome = self.outcome
        label_free = self.search.subject.label_free
        changed = "clean changes" if label_free else "clean"
        columns = ("candidate", "agreement" if label_free else "gain", "± s.e.", changed, "cost", "")
        rows: list[tuple[Cell, ...]] = [
            (*_finalist_row(one, label_free), self._mark(one)) for one in outcome.finalists
        ]
        rows.append((self.search.nothing, "0.00", None, "0.00", "1.00x", "" if outcome.chosen else "chosen"))
        images = self.search.schedule.decide.images
        decision = Table(f"Decision, on {images} images not searched", columns, tuple(rows))
        what = "the choice" if outcome.chosen else "the nearest candidate"
        judged = [(what, outcome.holdout)]
        if outcome.free is not None:
            judged.append(
                (f"{describe_candidate(outcome.free.stack)}, at no extra cost", outcome.free_holdout)
            )
        titles = "Verdict on {}, 95% intervals"
        return [decision, *(holdout_table(results, titles.format(name)) for name, results in judged)]

    def _mark(self, one: CandidateScore) -> str:
        return "chosen" if self.outcome.chosen and one is self.outcome.leader else ""

    def about(self) -> dict[str, Any]:
        """What the file of the choice says about it: verdict, effort, data and model; plain values."""
        schedule, outcome = self.search.schedule, self.outcome
        left_out = dict((*self.search.offered.left_out, *outcome.refused))
        free = None
        if outcome.free is not None:
            unseen = {part.name: part.as_json() for part in outcome.free_holdout}
            free = {**_candidate(outcome.free), "cost": outcome.free.cost, "unseen images": unseen}
        return {
            "found by": f"gramloop tune {__version__}",
            "date": self.date,
            "verdict": self.sentence,
            "cost": outcome.leader.cost,
            "unseen images": {part.name: part.as_json() for part in outcome.holdout},
            "at no extra cost": free,
            "tried": {
                "candidates": len(self.search.candidates),
                "of": schedule.offered,
                "predictions": outcome.predictions,
                "budget": schedule.budget,
                "rungs": [[rung.candidates, rung.cells] for rung in schedule.rungs],
                "excluded images": len(outcome.failures),
                **({"left out": left_out} if left_out else {}),
            },
            "finalists": [_finalist(one, self.search.subject.label_free) for one in outcome.finalists],
            "nearest": None if outcome.chosen else candidate_json(outcome.leader.stack),
            "split": self.search.split.as_json(),
            "task": self.search.subject.task,
            "subject": dict(self.search.plan["subject"]),
            "plan": self.search.subject.hash,
        }

    def write(self, path: Path) -> None:
        """Store the choice with its evidence, as evaluate, predict and apply take it, and attach if it is a replay."""
        uses = any(each.stage in ("pixels", "features") for each in self.stack)
        write_mitigations(path, self.stack, self.calibration if uses else None, self.about())


def _in_words(results: Sequence[HoldoutResult]) -> str:
    return "; ".join(map(str, results))


def _candidate(one: CandidateScore) -> dict[str, Any]:
    config = replay_alone(one.stack)
    return stack_json(one.stack) if config is None else {"replay": config.as_json()}


def _finalist(one: CandidateScore, label_free: bool) -> dict[str, Any]:
    estimate = one.estimate
    numbers = {"gain": estimate.gain, "error": estimate.error}
    numbers |= {"clean change" if label_free else "clean gain": estimate.clean, "cost": one.cost}
    return {**_candidate(one), **{name: finite(value) for name, value in numbers.items()}}


def _finalist_row(one: CandidateScore, label_free: bool) -> tuple[str, str, str, str, str]:
    estimate = one.estimate
    clean = f"{-estimate.clean:.2f}" if label_free else f"{estimate.clean:+.2f}"
    numbers = f"{estimate.gain:+.2f}", f"{estimate.error:.2f}", clean, f"{one.cost:.2f}x"
    return (describe_candidate(one.stack), *numbers)


def describe_search(search: Search) -> str:
    """What will be run, in a few lines."""
    schedule, split, nothing = search.schedule, search.split, search.nothing
    tried = f"{schedule.candidates} candidates"
    if schedule.candidates < schedule.offered:
        tried += f", as many as the budget can compare of {schedule.offered}"
    lines = [f"budget {schedule.budget} predictions, {schedule.predictions} planned; {tried}, and {nothing}"]
    lines += [f"left out: {text}: {reason}" for text, reason in search.offered.left_out]
    if schedule.calibration:
        lines.append(f"calibration: {schedule.calibration} clean images of the search, without labels")
    for number, rung in enumerate(schedule.rungs, 1):
        joining = f", and up to {rung.joining} combinations of winners" if rung.joining else ""
        cost = rung.predictions + schedule.baseline * rung.fresh
        lines.append(
            f"rung {number}: {rung.candidates} candidates x {rung.cells} images under a condition{joining} "
            f"({cost} predictions)"
        )
    free = " and the best without extra cost" if schedule.judged > 1 else ""
    lines += [
        f"decision: {schedule.finalists} finalists and {nothing} on {schedule.decide.images} other images x "
        f"{schedule.decide.conditions} conditions ({schedule.decide_predictions} predictions)",
        f"verdict: the best{free} on {schedule.verdict.images} other images x {schedule.verdict.conditions} "
        f"conditions ({schedule.verdict_predictions} predictions)",
        f"families searched: {', '.join(split.seen)}",
        f"families kept for the verdict: {', '.join(split.unseen) or 'none'}",
    ]
    if CLEAN not in split.images["search"]:
        lines.append("the clean images are not known, so they are not protected")
    if search.subject.label_free:
        limit = f"by at most {search.tolerance:g} points" if search.tolerance < ANY_CHANGE else "by anything"
        lines.append(f"without labels: {AGREEMENT_NOTE}; clean predictions may change {limit}")
    return "\n".join(lines)
