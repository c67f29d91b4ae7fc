"""``gramloop.tune(model, data, suite=…, out=…)``: what makes this model better on these data under shift, at what cost.

A folder of a search holds plan.json, the units of everything measured (as `gramloop.evaluate.store` keeps them),
calibration.safetensors where it was needed, and in the end best.json: the choice with its evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gramloop.data.records import DataSet, LabelledImage, Record, Shift, shift_data_set
from gramloop.data.suites import Condition, find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.engines.local import start_workers
from gramloop.evaluate.evaluation import request_for
from gramloop.evaluate.plan import (
    TRUTH_SCORE,
    Positions,
    TruthKind,
    Workload,
    check_behaviour,
    check_truth,
)
from gramloop.evaluate.planning import Request, plan_and_model
from gramloop.evaluate.provenance import PlannedImages, plan_workload
from gramloop.evaluate.runner import Runner
from gramloop.evaluate.store import PLAN, UNITS, Store
from gramloop.mitigations.calibration import MIN_IMAGES, CalibrationStats, calibrate, read_stats, sha256_of
from gramloop.mitigations.mitigated import stack_cost
from gramloop.mitigations.stack import Stack, replay_alone
from gramloop.tasks.base import Categories, get_task, read_labelled
from gramloop.tasks.identity import Behaviour, content_of, identify
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_predictor
from gramloop.tune.result import Tuning
from gramloop.tune.schedule import CLEAN, JOINING, SearchOptions, StageSize, plan_schedule, split_data
from gramloop.tune.search import Measurements, Search, run_search
from gramloop.tune.space import (
    NO_EXTRA_COST,
    Candidates,
    Space,
    candidate_json,
    default_space,
    list_candidates,
)
from gramloop.util.device import deterministic, numbered_device
from gramloop.util.files import atomic_write, locked, remove_leftovers
from gramloop.util.json_files import checked, first_difference, read_json

RESULT, CALIBRATION = "best.json", "calibration.safetensors"
SCENE_SPLIT = "tune"  # scenes that neither evaluate nor the demonstration shows
DEFAULT_SEVERITY = 3  # of a generated suite, by default
MAX_CALIBRATION = 32  # clean images that calibration statistics are learnt from, at most
CALIBRATION_SHARE = 20  # of the budget, one part in so many
_KIND, _WHAT = "gramloop tune", "a plan written by gramloop tune"
_UNDECIDED = ("begun", "behaviour")  # entries of a plan that do not decide the outcome

Records = Sequence[Record | LabelledImage]


@dataclass(frozen=True)
class Target:
    """A model and its images.

    Attributes:
        workload: as worker processes open it.
        predictor: to be asked what works with it; its weights may be missing.
        images: ids by condition, in the order in which they were taken.
        about: checksums and versions, for the plan and the result.
        calibration: a file of calibration statistics, if one was given.
        behaviour: of a model of the user's code, what it predicts on trial images.
    """

    workload: Workload
    predictor: Predictor[Prediction] = field(repr=False, compare=False)
    images: Mapping[str, tuple[str, ...]] = field(repr=False)
    about: Mapping[str, object] = field(default_factory=dict, repr=False)
    calibration: str | None = None
    behaviour: Behaviour | None = None

    def __post_init__(self) -> None:
        if not any(key != CLEAN for key in self.images):
            raise GramLoopError("tuning needs at least one shifted condition in addition to the clean images")
        clean = set(self.images.get(CLEAN, ()))
        for key, ids in self.images.items() if self.workload.label_free else ():
            if lacking := [each for each in ids if each not in clean]:
                raise GramLoopError(
                    f"the truth clean needs every image without its shift too, and {lacking[0]} of {key} is not among "
                    "the clean ones"
                )

    def identity(self) -> dict[str, object]:
        """What decides the outcome: model and data, the truth, and the calibration statistics."""
        found = dict(self.about)
        if self.workload.label_free:
            found |= {"truth": "clean", "truth score": self.workload.truth_score}
        if self.calibration is not None:
            found["calibration"] = sha256_of(Path(self.calibration))
        return found


def suite_target(request: Request) -> Target:
    """The model and the data of a request, as `gramloop evaluate` takes it, checked against each other."""
    plan, predictor = plan_and_model(replace(request, methods=("baseline",), pictures=0))
    images = partial(_SuiteImages, plan)
    workload = replace(plan_workload(plan), open_images=images, keep_refusals=True)
    about: dict[str, object] = {
        "suite": plan.suite,
        "data": dict(plan.data.contents),
        "model": dict(plan.model.sha256),
        "sizes": dict(plan.model.sizes),
        "device": plan.model.device,
        "dtype": plan.model.dtype,
        "versions": dict(plan.versions),
    }
    return Target(workload, predictor, images().ids(), about, request.calibration, plan.model.behaviour)


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
class MemoryImages:
    """Records by condition, as `gramloop.evaluate` reads them."""

    data: Mapping[str, Records]

    def records(self, condition: str, images: Positions) -> list[Record | LabelledImage]:
        """The images at these positions of a condition."""
        return [self.data[condition][position] for position in images]

    def clean_records(self, condition: str, images: Positions) -> list[Record | LabelledImage]:
        """The same images without their shift, by id."""
        clean = {str(each.image_id): each for each in self.data[CLEAN]}
        return [clean[str(each.image_id)] for each in self.records(condition, images)]


def memory_target(
    predictor: Predictor[Prediction] | Callable[[], Predictor[Prediction]],
    data: Mapping[str, Records] | DataSet,
    *,
    conditions: Sequence[Condition] = (),
    suite: str = "own-c",
    truth: TruthKind = "labels",
    truth_score: float = TRUTH_SCORE,
    calibration: str | None = None,
) -> Target:
    """A predictor with images in memory, or with a data set.

    Args:
        predictor: a `Predictor`, or a function that makes one (for several processes, one that can be pickled).
        data: records (or `LabelledImage`) by condition, such as ``{"clean": …, "fog/3": …}``; or a clean set,
            which is then shown clean and under ``conditions``.
        conditions: the shifts of a clean set.
        suite: the name that seeds these shifts, as in `gramloop.data.suites`.
        truth: ``clean`` compares with the prediction on the clean image, and reads no labels.
        truth_score: boxes or masks of a clean prediction that score less are not taken for objects.
        calibration: a file of calibration statistics; by default they are learnt from clean images of the search.
    """
    check_truth(truth, truth_score)
    make = partial(_made, predictor)
    made = make(None)
    check_predictor(made)
    numbers = list(made.classes)
    if isinstance(data, DataSet):
        if data.task != made.task:
            raise GramLoopError(
                f"{data.root} is annotated for {data.task}, but the predictor is for {made.task}"
            )
        numbers = list(data.categories)
        shifts = {one.key: Shift(suite, "p" if suite.endswith("-p") else "c", one) for one in conditions}
        data = {CLEAN: data, **{key: shift_data_set(data, shift) for key, shift in shifts.items()}}
    workload = Workload(
        hash="",
        task=made.task,
        categories=Categories({number: made.classes.get(number) or f"class {number}" for number in numbers}),
        load_predictor=make,
        open_images=partial(MemoryImages, data),
        load_task=partial(get_task, made.task),
        label_free=truth == "clean",
        truth_score=truth_score,
        keep_refusals=True,
    )
    ids = {key: tuple(str(record.image_id) for record in records) for key, records in data.items()}
    return Target(workload, made, ids, calibration=calibration)


def _made(
    predictor: Predictor[Prediction] | Callable[[], Predictor[Prediction]], device: str | None
) -> Predictor[Prediction]:
    return predictor() if callable(predictor) and not isinstance(predictor, Predictor) else predictor


def with_identity(target: Target, data: Mapping[str, Records], version: str = "") -> Target:
    """A target in memory with digests of its model and images, so that its search is resumed with these alone."""
    sizes, digests = [], {}
    for key, records in data.items():
        held: list[object] = []
        for each in records:
            if isinstance(each, LabelledImage):
                sizes.append(each.pixels.shape[:2])
                held.append((each.image_id, each.pixels, each.truth))
            else:
                sizes.append((each.height, each.width))
                held.append((each.image_id, tuple(each.files)))
        digests[key] = content_of({"images": held})["images"]
    files = {"object": getattr(target.predictor, "name", type(target.predictor).__name__)}
    with deterministic(target.workload.threads):
        content, seen = identify(files, target.predictor, min(sizes), target.workload.device, version)
    return replace(target, about={"model": content, "data": digests}, behaviour=seen)


def tune(
    model: Any,
    data: Path | str | DataSet | Mapping[str, Records] | None = None,
    *,
    suite: str | None = None,
    out: Path | str | None = None,
    budget: int = 2000,
    space: Space | None = None,
    options: SearchOptions | None = None,
    workers: int | None = None,
    calibration: Path | str | None = None,
    advance: Callable[[int], None] = lambda _: None,
    **more: Any,
) -> Tuning:
    """Find mitigations within a budget of predictions, and judge them on images and shifts not searched.

    Args:
        model: as for `gramloop.evaluate`; for data in memory a predictor, or a function that makes one.
        data: the folder of the set; or images in memory, see `memory_target`.
        suite: such as "scenes-c", "coco-c" or "my-set-c"; it may be left out for images in memory.
        out: a folder for plan, measurements and result; the same call resumes there after an interruption.
        budget: predictions, everything included; never exceeded.
        space: what to choose from; by default cheap mitigations and some replays.
        options: how candidates are compared.
        workers: processes; as many as the cores hold, by default. One for a model in memory.
        calibration: a file of calibration statistics; by default they are learnt from clean images of the search.
        advance: called with the number of predictions that were made or found.
        more: of a suite, `gramloop.evaluate.SetOptions` (severity 3 by default); in memory, the other arguments of
            `memory_target`.
    """
    if calibration is not None:
        more["calibration"] = str(Path(calibration).resolve())
    if isinstance(data, DataSet | Mapping):
        target, workers = _given_target(model, data, suite, out is not None, **more), workers or 1
    elif suite is None or out is None:
        raise GramLoopError("suite and out are missing: the suite to tune on, and a folder for the results")
    else:
        given = more.pop("calibration", None)
        request, workers = request_for(model, data, suite, Path(out), workers, SCENE_SPLIT, **more)
        if not request.severities and find_suite(suite).generated:
            request = replace(request, severities=[DEFAULT_SEVERITY])
        target = suite_target(replace(request, calibration=given))
    device = numbered_device(more.get("device"))
    search = plan_search(target, space, budget, options)
    return run_tuning(search, out, workers=workers, device=device, advance=advance)


def _given_target(
    model: Any, data: DataSet | Mapping[str, Records], suite: str | None, kept: bool, **more: Any
) -> Target:
    """The target of images in memory; with digests where its search is kept."""
    version = more.pop("version", "")
    if suite is not None:
        more["suite"] = suite
    target = memory_target(model, data, **more)
    images: Any = target.workload.open_images()
    return with_identity(target, images.data, version) if kept else target


def plan_search(
    target: Target, space: Space | None, budget: int, options: SearchOptions | None = None
) -> Search:
    """Split the data, list the candidates and divide the budget; nothing is predicted yet.

    Args:
        target: the model and its images.
        space: what to choose from; by default cheap mitigations of every stage and some replays.
        budget: predictions, everything included.
        options: how candidates are compared.
    """
    options, predictor = options or SearchOptions(), target.predictor
    names = ("block", "unseen", "judge_on", "seed")
    split = split_data(target.images, **{name: getattr(options, name) for name in names})
    clean = len(split.images["search"].get(CLEAN, ()))
    stats = read_stats(target.calibration)
    offered = list_candidates(space or default_space(predictor), predictor, options.max_cost, clean, stats)
    free = any(stack_cost(stack, predictor).multiplier <= NO_EXTRA_COST for stack in offered.stacks)
    learnt = min(MAX_CALIBRATION, clean, max(MIN_IMAGES, budget // CALIBRATION_SHARE))
    schedule = plan_schedule(
        budget,
        len(offered.stacks),
        *(StageSize(split.size(part), len(split.conditions(part))) for part in split.images),
        finalists=options.finalists,
        joining=JOINING if options.stacking and offered.combines else (),
        judged=2 if free and len(offered.stacks) > 1 else 1,
        baseline=0 if offered.replays_only else 1,
        calibration=learnt if offered.calibrates else 0,
    )
    candidates = _within_budget(offered, schedule.candidates, options.seed)
    search = Search(target.workload, options, candidates, offered, split, schedule, predictor)
    return _with_plan(search, target)


def _with_plan(search: Search, target: Target) -> Search:
    """The search with its plan, whose hash names what it measures."""
    split, workload = search.split, search.workload
    options = {
        **asdict(search.options),
        "unseen": list(split.unseen),
        "clean_tolerance": search.tolerance,
    }
    content = {
        "kind": _KIND,
        "task": workload.task,
        "options": options,
        "schedule": asdict(search.schedule),
        "split": split.as_json(),
        "conditions": {key: len(ids) for key, ids in target.images.items()},
        "categories": workload.categories.ids,
        "threads": workload.threads,
        "subject": target.identity(),
        "behaviour": None if target.behaviour is None else asdict(target.behaviour),
        "candidates": [candidate_json(stack) for stack in search.candidates],
        "partners": [candidate_json(stack) for stack in search.offered.partners],
    }
    plan = json.loads(json.dumps(content))
    named = replace(workload, hash=_plan_hash(plan))
    return replace(search, workload=named, plan=plan, given_calibration=target.calibration)


def _within_budget(offered: Candidates, many: int, seed: int) -> tuple[Stack, ...]:
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
            stats = _find_calibration(search, folder, device)
            advance(search.schedule.calibration)
            workload = replace(search.workload, load_calibration=partial(_read_stats, stats))
            store = Store(folder, workload)
            with start_workers(workload, store, workers, device) as processes:
                digest = "" if stats is None else sha256_of(stats)
                outcome = run_search(search, Measurements(search, store, processes, digest, advance))
            tuning = Tuning(search, outcome, plan["begun"], stats)
            if out is not None:
                tuning.write(folder / RESULT)
    return tuning


def _read_stats(stats: Path | None, *_: object) -> CalibrationStats | None:
    return read_stats(stats)


def check_search_folder(folder: Path, search: Search) -> dict[str, Any] | None:
    """The plan in a folder, None if there is none; refuses the folder of another search. Nothing is written."""
    found = read_search_plan(folder)
    if found is None:
        if (folder / UNITS).exists():
            raise GramLoopError(f"{folder} has {UNITS} but no {PLAN}; choose another folder")
        return None
    if _plan_hash(found) != search.workload.hash:
        difference = first_difference(found, search.plan, skip=_UNDECIDED)
        raise GramLoopError(
            f"{folder} holds a search with {difference}; choose another folder, or the settings it was begun with"
        )
    before, now = (
        None if one is None else checked(one, Behaviour, str(folder / PLAN), _WHAT)
        for one in (found.get("behaviour"), search.plan.get("behaviour"))
    )
    known = "version" in found["subject"].get("model", {})
    check_behaviour(before, now, known, f"{folder} holds a search")
    return found


def read_search_plan(folder: Path) -> dict[str, Any] | None:
    """The plan of the search in a folder, None if there is none."""
    path = folder / PLAN
    if not path.is_file():
        return None
    plan: dict[str, Any] = checked(read_json(path, _WHAT), dict[str, Any], str(path), _WHAT)
    if plan.get("kind") != _KIND:
        raise GramLoopError(f"{path} is not {_WHAT}: it is of the kind {plan.get('kind')!r}")
    return plan


def _begin(folder: Path, search: Search) -> dict[str, Any]:
    """The plan of the folder, with the day on which it was begun."""
    plan = check_search_folder(folder, search)
    if plan is None:
        plan = {**search.plan, "begun": datetime.now(UTC).date().isoformat()}
        atomic_write(folder / PLAN, (json.dumps(plan, indent=1) + "\n").encode(), durable=True)
    remove_leftovers(folder)
    return plan


def _plan_hash(plan: Mapping[str, Any]) -> str:
    """Sixteen hexadecimal digits over everything that decides the outcome."""
    content = {name: value for name, value in plan.items() if name not in _UNDECIDED}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _find_calibration(search: Search, folder: Path, device: str | None) -> Path | None:
    """The file of calibration statistics: a given one is copied; else they are learnt from clean images of the search.

    Units carry its checksum, so that statistics that come out differently are not mixed.
    """
    path = folder / CALIBRATION
    if search.given_calibration is not None:
        atomic_write(path, Path(search.given_calibration).read_bytes())
        return path
    if not search.schedule.calibration:
        return None
    if path.is_file():
        return path
    samples = search.split.images["search"][CLEAN][: search.schedule.calibration]
    runner = Runner(search.workload, device=device)
    with deterministic(search.workload.threads):
        records = runner.images.records(CLEAN, tuple(sample.position for sample in samples))
        images = [read_labelled(record, search.workload.task, labels=False) for record in records]
        # an image that cannot be read is reported where it is measured
        calibrate(runner.predictor, [each.pixels for each in images if not isinstance(each, str)]).save(path)
    return path
