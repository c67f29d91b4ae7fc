"""``gramloop.tune(model, data, suite=…, out=…)``: what makes this model better on these data under shift, at what cost.

A folder of a search holds plan.json, the units of everything measured (as `gramloop.evaluate.store` keeps them),
calibration.safetensors where it was needed, and in the end best.json: the choice with its evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gramloop.data.records import DataSet
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines.local import start_workers
from gramloop.evaluate.plan import check_behaviour
from gramloop.evaluate.predicting import deterministic
from gramloop.evaluate.runner import Runner
from gramloop.evaluate.store import PLAN, UNITS, Store
from gramloop.mitigations.calibration import MIN_IMAGES, CalibrationStats, calibrate, read_stats, sha256_of
from gramloop.mitigations.mitigated import stack_cost
from gramloop.mitigations.stack import Stack, replay_alone
from gramloop.tasks.base import read_labelled
from gramloop.tasks.identity import Behaviour
from gramloop.tune.halving import JOINING, Options, StageSize, plan_schedule
from gramloop.tune.measurements import Measurements, Search
from gramloop.tune.result import Tuning
from gramloop.tune.search import run_search
from gramloop.tune.space import (
    NO_EXTRA_COST,
    Candidates,
    Space,
    candidate_json,
    default_space,
    list_candidates,
)
from gramloop.tune.split import CLEAN, split_data
from gramloop.tune.target import SCENE_SPLIT, Records, Target, memory_target, suite_target, with_identity
from gramloop.util.device import numbered_device
from gramloop.util.files import atomic_write, locked, remove_leftovers
from gramloop.util.json_files import checked, first_difference, read_json

RESULT, CALIBRATION = "best.json", "calibration.safetensors"
DEFAULT_SEVERITY = 3  # of a generated suite, by default
MAX_CALIBRATION = 32  # clean images that calibration statistics are learnt from, at most
CALIBRATION_SHARE = 20  # of the budget, one part in so many
_KIND = "gramloop tune"
_WHAT = "a plan written by gramloop tune"
_UNDECIDED = ("begun", "calibration", "behaviour")  # entries of a plan that do not decide the outcome


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
        version = more.pop("version", "")
        target = memory_target(model, data, calibration=given, **more)
        target = target if out is None else with_identity(target, version)
        workers = workers or 1
    else:
        if suite is None or out is None:
            raise GramLoopError(
                "suite and out are missing: the suite to tune on, and a folder for the results"
            )
        from gramloop.evaluate.evaluation import request_for

        request, workers = request_for(model, data, suite, Path(out), workers, SCENE_SPLIT, **more)
        if not request.severities and find_suite(suite).generated:
            request = replace(request, severities=[DEFAULT_SEVERITY])
        target = suite_target(replace(request, calibration=given))
    search = plan_search(target, space, budget, options)
    device = numbered_device(more.get("device"))
    return run_tuning(search, out, workers=workers, device=device, advance=advance)


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
    parts = [StageSize(split.size(part), len(split.conditions(part))) for part in split.images]
    free = any(stack_cost(stack, predictor).multiplier <= NO_EXTRA_COST for stack in offered.stacks)
    learnt = min(MAX_CALIBRATION, clean, max(MIN_IMAGES, budget // CALIBRATION_SHARE))
    schedule = plan_schedule(
        budget,
        len(offered.stacks),
        *parts,
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
        "behaviour": None if target.behaviour is None else asdict(target.behaviour),
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


def run_tuning(
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
        check_search_folder(folder, search)  # what is refused stays untouched
        with locked(folder):
            plan = _begin(folder, search)
            stats = _find_calibration(search, folder, plan, device)
            advance(search.schedule.calibration)
            subject = replace(search.subject, load_calibration=partial(_read_stats, stats))
            store = Store(folder, subject)
            with start_workers(subject, store, workers, device) as processes:
                digest = "" if stats is None else sha256_of(stats)
                table = Measurements(search, store, processes, digest, advance)
                outcome = run_search(search, table)
            tuning = Tuning(search, outcome, plan["begun"], stats)
            if out is not None:
                tuning.write(folder / RESULT)
    return tuning


def _read_stats(stats: Path | None, *_: object) -> CalibrationStats | None:
    return read_stats(stats)


def check_search_folder(folder: Path, search: Search) -> dict[str, Any] | None:
    """The plan in a folder, None if there is none; refuses the folder of another search. Nothing is written."""
    found = read_search_plan(folder)
    if found is not None and _plan_hash(found) != search.subject.hash:
        difference = first_difference(found, search.plan, skip=_UNDECIDED)
        raise GramLoopError(
            f"{folder} holds a search with {difference}; choose another folder, or the settings it was begun with"
        )
    if found is not None:
        seen = (found.get("behaviour"), search.plan.get("behaviour"))
        before, now = (
            None if one is None else checked(one, Behaviour, str(folder / PLAN), _WHAT) for one in seen
        )
        known = "version" in found["subject"].get("model", {})
        check_behaviour(before, now, known, f"{folder} holds a search")
    if found is None and (folder / UNITS).exists():
        raise GramLoopError(f"{folder} has {UNITS} but no {PLAN}; choose another folder")
    return found


def read_search_plan(folder: Path) -> dict[str, Any] | None:
    """The plan of the search in a folder, None if there is none."""
    path, what = folder / PLAN, _WHAT
    if not path.is_file():
        return None
    plan: dict[str, Any] = checked(read_json(path, what), dict[str, Any], str(path), what)
    if plan.get("kind") != _KIND:
        raise GramLoopError(f"{path} is not {what}: it is of the kind {plan.get('kind')!r}")
    return plan


def _begin(folder: Path, search: Search) -> dict[str, Any]:
    """The plan of the folder, with the day on which it was begun."""
    plan = check_search_folder(folder, search)
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
