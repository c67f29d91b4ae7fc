"""Making a plan from what a user asks for: models hashed, data opened and counted, windows spelled out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gramloop.data.checks import refuse_unscorable, warn_of_rotated, with_contents
from gramloop.data.manifest import fingerprint
from gramloop.data.opening import OpenSuite, Verify
from gramloop.data.records import Task
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.batches import check_batch
from gramloop.evaluate.methods import BASELINE, GRAMLOOP, Method, read_methods, with_found_source
from gramloop.evaluate.plan import PICTURES, DataSource, ModelSource, Plan
from gramloop.evaluate.sources import (
    CLEAN,
    check_categories,
    check_sizes,
    checksums,
    open_data,
    open_source,
    versions,
)
from gramloop.evaluate.trajectories import with_companions
from gramloop.evaluate.truth import CLEAN_PREDICTION, SCORE, TruthKind, check_truth
from gramloop.metrics.depth import Alignment
from gramloop.mitigations.mitigated import check_stack
from gramloop.mitigations.replay import REPLAYS
from gramloop.tasks.loading import Precision, kind_of, load_predictor
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_replay
from gramloop.tasks.renumbering import numbered_as
from gramloop.tasks.user_fingerprints import object_fingerprints, user_fingerprints
from gramloop.util.processes import MOST_THREADS

SHARD = 50  # images per unit: minutes of a large model, and small enough to lose


@dataclass(frozen=True)
class Request:
    """What is to be evaluated, as a user says it."""

    suite: str
    task: Task | None  # None: as the model says
    files: Mapping[str, str]  # as `gramloop.tasks.load_predictor` takes them, and "source" of ordinary images
    data: DataSource
    methods: Sequence[str] = ()  # baseline and, where the model can be replayed, gramloop
    conditions: Sequence[str] = ()
    severities: Sequence[int] = ()
    images: int | None = None  # the first so many of every condition
    shards: int | None = None
    sizes: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    threads: int = 1
    diagnostics: bool = False
    pictures: int = PICTURES
    alignment: Alignment = "auto"  # of depth; see `gramloop.metrics.depth`
    replay: str | None = None  # a settings file for the method gramloop
    truth: TruthKind = "labels"
    truth_score: float = SCORE
    dtype: Precision = "float32"  # of the backbone's weights
    batch: int = 1  # images of one size that are shown to the model at once
    verify: bool = False  # compare every file of a written suite with its checksums, not some

    def __post_init__(self) -> None:
        check_truth(self.truth, self.truth_score)
        for name in ("images", "shards", "threads", "batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise GramLoopError(f"the number of {name} must be at least 1, not {value}")
        if self.threads > MOST_THREADS:
            raise GramLoopError(f"the number of threads must be at most {MOST_THREADS}, not {self.threads}")


def make_plan(request: Request) -> Plan:
    """Look at the model and the data, check that they fit each other, and write down what will be run."""
    return plan_and_model(request)[0]


def plan_and_model(request: Request) -> tuple[Plan, Predictor[Prediction]]:
    """The plan of `make_plan`, and the predictor without weights that told what there is to know."""
    if request.methods:
        named = read_methods(request.methods, request.replay)  # a slip is told before anything is opened
        request = replace(request, files=with_found_source(request.files, named))
    predictor = load_predictor(request.task, request.files, request.sizes, device="meta", dtype=request.dtype)
    sha256 = checksums(request.files, request.task)  # of a model, and not of whatever folder was named
    if "make" in request.files:
        sha256 = {**user_fingerprints(request.files["make"], predictor), **sha256}
    if "object" in request.files:
        sha256 = {**object_fingerprints(predictor), **sha256}
    task, depth = predictor.task, predictor.cost().baseline
    kind = kind_of(request.files)
    model = ModelSource(
        kind,
        request.files,
        sha256,
        depth,
        dict(request.sizes),
        request.device,
        request.threads,
        request.dtype,
    )
    opened = _open(request, task)
    methods = read_methods(request.methods or _default_methods(predictor), request.replay)
    source = open_source(request.files)
    for method in methods:
        if method.replay is not None:
            check_replay(predictor, method.replay)
        check_stack(method.mitigations, predictor, source)
    chosen: list[Method] = [method.with_window(depth) for method in methods]
    if request.diagnostics:
        chosen = with_companions(chosen)
    check_batch(request.batch, predictor, chosen, request.truth)
    counts: dict[str, int] = {}
    categories: dict[int, str] = {}
    fingerprints: dict[str, str] = {}
    contents: dict[str, str] = {}
    things: frozenset[int] = frozenset()
    for condition in opened.conditions:
        data = opened.open(condition) if opened.clean is None else opened.clean
        if data.task != task:
            raise GramLoopError(f"{data.root} is annotated for {data.task}, not for {task}")
        if not categories and request.truth == CLEAN_PREDICTION:
            categories = _own_categories(predictor)
            things = frozenset(getattr(predictor, "things", ()))
        elif not categories:
            if kind not in ("tiny", "files"):
                predictor = numbered_as(predictor, data.categories)
            check_categories(predictor, data)
            categories, things = dict(data.categories), data.things
        counts[condition.key] = min(len(data), request.images or len(data))
        check_sizes(predictor, data, counts[condition.key])
        key = condition.key if opened.clean is None else CLEAN
        if key not in contents:
            warn_of_rotated(data, counts[condition.key])
            if request.truth != CLEAN_PREDICTION:
                refuse_unscorable(data, counts[condition.key])
            fingerprints[key] = fingerprint(data)
            contents[key] = with_contents(data, counts[condition.key], opened.listed(condition))[1]
    plan = Plan(
        suite=request.suite,
        task=task,
        methods=tuple(chosen),
        conditions=counts,
        shards=request.shards or max(1, -(-max(counts.values()) // SHARD)),
        categories=categories,
        data=replace(request.data, fingerprints=fingerprints, contents=contents),
        model=model,
        versions=versions(),
        diagnostics=request.diagnostics,
        pictures=request.pictures,
        alignment=request.alignment,
        truth=request.truth,
        truth_score=request.truth_score,
        things=tuple(sorted(things)) if task == "panoptic" else (),
        batch=request.batch,
    )
    return plan, predictor


def _own_categories(predictor: Predictor[Prediction]) -> dict[int, str]:
    """The classes of a model that is compared with itself."""
    if not predictor.classes and predictor.task != "depth":
        name = getattr(predictor, "name", type(predictor).__name__)
        raise GramLoopError(
            f"{name} does not say its classes, which the truth clean counts; give it classes = [...]"
        )
    return {number: name or f"class {number}" for number, name in predictor.classes.items()}


def _default_methods(predictor: Predictor[Prediction]) -> tuple[str, ...]:
    """The plain model and, where it can be replayed as published, that."""
    try:
        check_replay(predictor, REPLAYS[GRAMLOOP])
    except GramLoopError:
        return (BASELINE,)
    return (BASELINE, GRAMLOOP)


def _open(request: Request, task: Task) -> OpenSuite:
    suite = find_suite(request.suite)
    chosen = suite.select(list(request.conditions) or None, list(request.severities) or None)
    if request.truth == CLEAN_PREDICTION and suite.kind == "o":
        raise GramLoopError(
            f"the domains of {suite.name} have no clean images to predict, so they need their labels"
        )
    verify: Verify = "full" if request.verify else "quick"
    opened = open_data(request.suite, request.data, task, chosen, request.truth, verify)
    if request.truth == CLEAN_PREDICTION and opened.clean is None and suite.kind != "clean":
        raise GramLoopError(
            f"{request.data.root} holds shifted images alone; the truth clean needs the clean ones that they were made "
            "from: give their folder, and the shifts are made again"
        )
    return opened
