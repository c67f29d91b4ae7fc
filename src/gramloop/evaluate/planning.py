"""Making a plan from a request: models hashed, data opened and counted, both checked against each other, windows resolved."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from gramloop.data.checks import (
    frost_fingerprint,
    raise_problems,
    refuse_unscorable,
    with_contents,
)
from gramloop.data.opening import OpenSuite
from gramloop.data.records import DataSet
from gramloop.data.suites import find_suite
from gramloop.errors import GramLoopError, GramLoopWarning
from gramloop.evaluate.methods import (
    BASELINE,
    GRAMLOOP,
    Method,
    calibration_of,
    read_methods,
    with_companions,
)
from gramloop.evaluate.options import PlannedWork, StoredOptions, TruthOptions
from gramloop.evaluate.plan import (
    TRUTH_SCORE,
    CalibrationSplit,
    DataSource,
    Plan,
    PlannedModel,
    load_task,
)
from gramloop.evaluate.provenance import (
    CLEAN_SET,
    FROST,
    choose_split,
    file_checksums,
    hold_out,
    open_data,
    origin_versions,
)
from gramloop.metrics.scores import ALIGNMENTS, Alignment
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.mitigated import check_stack, needs_calibration
from gramloop.mitigations.stack import REPLAYS, replay_of
from gramloop.tasks.base import AnyTask
from gramloop.tasks.identity import identify
from gramloop.tasks.loading import WeightPrecision, kind_of, load_predictor
from gramloop.tasks.predictor import (
    AnyPredictor,
    ViTPredictor,
    check_replay,
    class_numbers,
    name_of,
    takes_batches,
)
from gramloop.util.device import deterministic
from gramloop.util.files import file_digest
from gramloop.util.options import check_limits

SHARD = 50  # images per unit: minutes of a large model, and small enough to lose


@dataclass(frozen=True)
class Request(TruthOptions, PlannedWork, StoredOptions):
    """What is to be evaluated, as a user asks for it."""

    suite: str  # such as "scenes-c", "coco-c" or "my-set-c"
    task: str | None  # None as the model has it
    files: Mapping[str, str]  # the model, as `gramloop.tasks.load_predictor` takes it
    data: DataSource
    # as `parse_method` reads them; by default baseline and, where possible, gramloop
    methods: Sequence[str] = ()
    sizes: Mapping[str, Any] = field(default_factory=dict)  # how the model is given images, if not as usual
    device: str = "cpu"  # of each worker
    alignment: Alignment = "auto"  # of predicted depth with the true one; see `gramloop.metrics.scores`
    truth_score: float = TRUTH_SCORE  # of a clean prediction's box or mask that counts as an object
    dtype: WeightPrecision = "float32"  # of the backbone's weights
    calibration: str | None = None  # a file with statistics of in-distribution images
    # of a folder that methods are added to; else one is chosen
    calibration_split: CalibrationSplit | None = None
    version: str = ""  # what the user calls a model of their own code, in place of the code's content

    def __post_init__(self) -> None:
        check_limits(self)
        if self.truth not in ("labels", "clean"):
            raise GramLoopError(f"the truth is labels or clean, not {self.truth!r}")
        if not 0 < self.truth_score < 1:
            raise GramLoopError(
                f"the score of a box that counts as truth lies between 0 and 1, not at {self.truth_score}"
            )
        if self.alignment not in ALIGNMENTS:
            raise GramLoopError(f"the alignment is one of {', '.join(ALIGNMENTS)}, not {self.alignment!r}")


def make_plan(request: Request) -> Plan:
    """Open the model and the data, check that they fit each other, and write down what will be run.

    Args:
        request: what is to be evaluated.

    Returns:
        The plan, which `gramloop.evaluate.evaluate` runs.
    """
    return plan_and_model(request)[0]


def plan_and_model(request: Request) -> tuple[Plan, AnyPredictor]:
    """The plan of `make_plan`, and the predictor without weights that it was made with."""
    if request.methods:
        read_methods(request.methods)  # a typo is reported before anything is opened
    predictor = load_predictor(
        cast(Any, request.task), request.files, request.sizes, device="meta", dtype=request.dtype
    )
    task = load_task(predictor.task, request.files)
    if request.alignment != "auto" and not task.aligns:
        raise GramLoopError(
            f"an alignment belongs to depth; leave {request.alignment!r} out for {predictor.task}"
        )
    opened = _open(request, task)
    methods, calibration, split = _methods(request, predictor, opened)
    opened = hold_out(opened, split, request.images)
    images = _survey(request, task, predictor, opened)
    same = ("suite", "diagnostics", "pictures", "alignment", "truth", "truth_score", "batch")
    plan = Plan(
        **{name: getattr(request, name) for name in same},
        task=predictor.task,
        methods=methods,
        conditions=images.counts,
        shards=request.shards or max(1, -(-max(images.counts.values()) // SHARD)),
        categories=images.categories,
        data=replace(request.data, contents=images.contents),
        model=_model(request, predictor, images.smallest),
        versions=origin_versions(),
        keep=tuple(sorted(set(request.keep))),
        things=tuple(sorted(images.things)),
        calibration=None if calibration is None else str(calibration),
        calibration_split=split,
    )
    return plan, predictor


def _model(request: Request, predictor: AnyPredictor, size: tuple[int, int]) -> PlannedModel:
    # where `load_predictor` puts the user's models
    device = request.device if "object" in request.files else "cpu"
    with deterministic(request.threads):
        content, behaviour = identify(request.files, predictor, size, device, request.version)
    sha256 = {**content, **file_checksums(request.files, predictor.task)}
    kind, depth, sizes = kind_of(request.files), predictor.cost().baseline, dict(request.sizes)
    run_on = request.device, request.threads, request.dtype
    return PlannedModel(kind, request.files, sha256, depth, sizes, *run_on, behaviour)


def _methods(
    request: Request, predictor: AnyPredictor, opened: OpenSuite
) -> tuple[tuple[Method, ...], Path | None, CalibrationSplit | None]:
    """The methods with windows resolved, each checked with the model; their calibration file, or calibration split."""
    named = read_methods(request.methods or _default_methods(predictor))
    calibration = calibration_of(request.calibration, named)
    stats = None if calibration is None else CalibrationStats.read(calibration)
    digest = "" if calibration is None else file_digest(calibration)
    split, depth = request.calibration_split, predictor.cost().baseline
    if stats is None and any(needs_calibration(each.stack, predictor, optional=False) for each in named):
        split = split or choose_split(opened, request.images)
    methods = []
    for method in named:
        used = digest if method.uses_calibration else ""
        if split is not None and needs_calibration(method.stack, predictor):
            check_stack(method.stack, predictor, calibrates=True)
            used = split.contents
        else:
            check_stack(method.stack, predictor, stats)
        methods.append(replace(method, calibration=used, calibration_file=None).with_window(depth))
    methods = with_companions(methods) if request.diagnostics else methods
    if request.batch > 1:
        if not takes_batches(predictor):
            note = f"{name_of(predictor)} predicts one image at a time, also with --batch"
            warnings.warn(note, GramLoopWarning, stacklevel=2)
        for method in methods:
            if (replay := replay_of(method.stack)) and replay.adaptive is not None:
                raise GramLoopError(
                    f"{method.name} decides for each image whether to replay it; leave out --batch"
                )
    return tuple(methods), calibration, split


def _default_methods(predictor: AnyPredictor) -> tuple[str, ...]:
    """The plain model and, where it can be replayed as published, that."""
    try:
        check_replay(predictor, REPLAYS[GRAMLOOP])
    except GramLoopError:
        return (BASELINE,)
    return (BASELINE, GRAMLOOP)


@dataclass
class _Images:
    """What a plan knows of its images, once all conditions were seen."""

    counts: dict[str, int] = field(default_factory=dict)  # by condition
    categories: dict[int, str] = field(default_factory=dict)
    things: frozenset[int] = frozenset()
    contents: dict[str, str] = field(default_factory=dict)
    smallest: tuple[int, int] = (0, 0)  # height and width of the image with the fewest pixels


def _survey(request: Request, task: AnyTask, predictor: AnyPredictor, opened: OpenSuite) -> _Images:
    """Count and check the images of every condition; those that are made from one clean set are checked once."""
    found, sizes, lacking = _Images(), list[tuple[int, int]](), set(request.keep)
    known = set(predictor.classes)  # numbers of classes
    if (textures := request.data.frost_textures) is not None:
        if opened.clean is None:
            raise GramLoopError(
                f"frost textures belong to generated images; those of {request.suite} are read"
            )
        found.contents[FROST] = frost_fingerprint(Path(textures))
    for condition in opened.conditions:
        data = opened.open(condition) if opened.clean is None else opened.clean
        owner = condition.key if opened.clean is None else CLEAN_SET
        images = found.counts[condition.key] = min(len(data), request.images or len(data))
        lacking -= {str(record.image_id) for record in data[:images]} if lacking else set()
        if owner in found.contents:
            continue
        if data.task != task.annotations:
            raise GramLoopError(f"{data.root} is annotated for {data.task}, not for {task.name}")
        if len(found.counts) == 1 and request.truth == "clean":
            found.categories = _own_categories(predictor, task)
            found.things = frozenset(getattr(predictor, "things", ()))
        elif len(found.counts) == 1 and task.has_classes:
            if kind_of(request.files) not in ("tiny", "files"):
                known = set(class_numbers(predictor.classes, data.categories).values()) or known
            found.categories, found.things = dict(data.categories), data.things
        if request.truth == "labels":
            check_categories(known, task, data)
            refuse_unscorable(data, images)
        check_sizes(predictor, data, images)
        sizes += {(one.height, one.width): None for one in data[:images]}
        for note in data.notes:
            warnings.warn(note, GramLoopWarning, stacklevel=2)
        found.contents[owner] = with_contents(data, images)[1]
    if lacking:
        raise GramLoopError(f"{request.suite} has no image {min(lacking)!r} whose picture could be kept")
    found.smallest = min(sizes, key=lambda size: (size[0] * size[1], size))
    return found


def _own_categories(predictor: AnyPredictor, task: AnyTask) -> dict[int, str]:
    """The classes of a model that is compared with itself."""
    if not predictor.classes and task.has_classes:
        raise GramLoopError(
            f"{name_of(predictor)} does not list its classes, which the truth clean counts; give it classes = [...]"
        )
    return {number: name or f"class {number}" for number, name in predictor.classes.items()}


def _open(request: Request, task: AnyTask) -> OpenSuite:
    suite, label_free = find_suite(request.suite), request.truth == "clean"
    chosen = suite.select(list(request.conditions) or None, list(request.severities) or None)
    if label_free and suite.kind == "o":
        raise GramLoopError(
            f"the domains of {suite.name} have no clean images to predict, so they need their labels"
        )
    opened = open_data(request.suite, request.data, task.annotations, chosen, not label_free)
    if label_free and opened.clean is None and suite.kind != "clean":
        raise GramLoopError(
            f"{request.data.root} holds shifted images alone; the truth clean needs the clean ones that they were made "
            "from: give their folder, and the shifts are made again"
        )
    return opened


def check_categories(known: set[int], task: AnyTask, data: DataSet) -> None:
    """Refuse a set with classes that the model has no number for."""
    listed = set(data.categories)
    if not known:  # custom code may not list them
        return
    if task.closed_classes and len(known) != len(listed):
        raise GramLoopError(f"the model has {len(known)} classes, but {data.root} lists {len(listed)}")
    if strangers := sorted(listed - known):
        name = data.categories[strangers[0]]
        raise GramLoopError(
            f"{data.root} lists the category {strangers[0]} ({name}), which the model does not know; "
            f"it knows {min(known)}..{max(known)}"
        )


def check_sizes(predictor: AnyPredictor, data: DataSet, images: int) -> None:
    """Refuse images that are too large for the model, all of them at once, before any is decoded."""
    if not isinstance(predictor, ViTPredictor):
        return
    problems = []
    first: dict[tuple[int, int], Path] = {}
    for record in data[:images]:
        first.setdefault((record.height, record.width), record.path)
    for size, path in first.items():
        try:
            predictor.check_size(*size)
        except GramLoopError as error:
            problems.append(f"{path}: {error}")
    raise_problems(data.root, problems)
