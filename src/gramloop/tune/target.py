"""What is tuned: a model and images under conditions, by name and folder or in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

from gramloop.data.records import DataSet, LabelledImage, Record, Shift, shift_data_set
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import TRUTH_SCORE, Positions, Subject, TruthKind, check_truth
from gramloop.evaluate.planning import Request, plan_and_model
from gramloop.evaluate.predicting import deterministic
from gramloop.evaluate.provenance import PlannedImages, plan_subject
from gramloop.mitigations.calibration import sha256_of
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.identity import Behaviour, content_of, identify
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_predictor
from gramloop.tune.split import CLEAN

SCENE_SPLIT = "tune"  # scenes that neither evaluate nor the demonstration shows
Records = Sequence[Record | LabelledImage]


@dataclass(frozen=True)
class Target:
    """A model and its images.

    Attributes:
        subject: as worker processes open it.
        predictor: to be asked what works with it; its weights may be missing.
        images: ids by condition, in the order in which they were taken.
        about: checksums and versions, for the plan and the result.
        calibration: a file of calibration statistics, if one was given.
        behaviour: of a model of the user's code, what it predicts on trial images.
    """

    subject: Subject
    predictor: Predictor[Prediction] = field(repr=False, compare=False)
    images: Mapping[str, tuple[str, ...]] = field(repr=False)
    about: Mapping[str, object] = field(default_factory=dict, repr=False)
    calibration: str | None = None
    behaviour: Behaviour | None = None

    def __post_init__(self) -> None:
        if not any(key != CLEAN for key in self.images):
            raise GramLoopError("tuning needs at least one shifted condition in addition to the clean images")
        clean = set(self.images.get(CLEAN, ()))
        for key, ids in self.images.items() if self.subject.label_free else ():
            if lacking := [each for each in ids if each not in clean]:
                raise GramLoopError(
                    f"the truth clean needs every image without its shift too, and {lacking[0]} of {key} is not among "
                    "the clean ones"
                )


def suite_target(request: Request) -> Target:
    """The model and the data of a request, as `gramloop evaluate` takes it, checked against each other."""
    plan, predictor = plan_and_model(replace(request, methods=("baseline",), pictures=0))
    images = partial(_SuiteImages, plan)
    subject = replace(plan_subject(plan), open_images=images, signals=True, keep_refusals=True)
    about: dict[str, object] = {
        "suite": plan.suite,
        "data": dict(plan.data.contents),
        "model": dict(plan.model.sha256),
        "sizes": dict(plan.model.sizes),
        "device": plan.model.device,
        "dtype": plan.model.dtype,
        "versions": dict(plan.versions),
    }
    found = _target(subject, predictor, images().ids(), about, request.calibration)
    return replace(found, behaviour=plan.model.behaviour)


class _SuiteImages(PlannedImages):
    """The images of a suite, and the clean ones that it is made from."""

    def records(self, condition: str, images: Positions) -> list[Record]:
        clean = self.opened.clean
        if condition == CLEAN and clean is not None:
            return [clean[position] for position in images]
        return super().records(condition, images)

    def ids(self) -> dict[str, tuple[str, ...]]:
        """Image ids by condition, clean first where the clean set is known."""
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
        places = {str(each.image_id): place for place, each in enumerate(self.data[CLEAN])}
        wanted = self.records(condition, images)
        return [self.data[CLEAN][places[str(each.image_id)]] for each in wanted]


def memory_target(
    predictor: Predictor[Prediction] | Callable[[], Predictor[Prediction]],
    data: Mapping[str, Records] | DataSet,
    *,
    conditions: Sequence[Condition] = (),
    suite: str = "own-c",
    categories: Sequence[int] | None = None,
    about: Mapping[str, object] | None = None,
    threads: int = 1,
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
        categories: the class numbers that are scored; by default those of the set, or else of the predictor.
        about: what identifies model and data, for the plan and the result.
        threads: of torch, in each process; sums depend on it.
        truth: ``clean`` compares with the prediction on the clean image, and reads no labels.
        truth_score: boxes or masks of a clean prediction that score less are not taken for objects.
        calibration: a file of calibration statistics; by default they are learnt from clean images of the search.
    """
    check_truth(truth, truth_score)
    if not callable(predictor):
        check_predictor(predictor)
    make = partial(_loaded, predictor) if isinstance(predictor, Predictor) else partial(_made, predictor)
    made = make(None)
    check_predictor(made)
    if isinstance(data, DataSet):
        if data.task != made.task:
            raise GramLoopError(
                f"{data.root} is annotated for {data.task}, but the predictor is for {made.task}"
            )
        categories = categories or tuple(data.categories)
        shifts = {one.key: Shift(suite, "p" if suite.endswith("-p") else "c", one) for one in conditions}
        data = {CLEAN: data, **{key: shift_data_set(data, shift) for key, shift in shifts.items()}}
    names = {number: made.classes.get(number) or f"class {number}" for number in categories or made.classes}
    subject = Subject(
        hash="",
        task=made.task,
        categories=Categories(names),
        load_predictor=make,
        open_images=partial(MemoryImages, data),
        load_task=partial(get_task, made.task),
        label_free=truth == "clean",
        truth_score=truth_score,
        signals=True,
        keep_refusals=True,
        threads=threads,
    )
    ids = {key: tuple(str(record.image_id) for record in records) for key, records in data.items()}
    return _target(subject, made, ids, about or {}, calibration)


def with_identity(target: Target, version: str = "") -> Target:
    """A target in memory with digests of its model and images, so that its search is resumed with these alone."""
    subject, data = target.subject, cast(MemoryImages, target.subject.open_images()).data
    sizes = [
        each.pixels.shape[:2] if isinstance(each, LabelledImage) else (each.height, each.width)
        for records in data.values()
        for each in records
    ]
    files = {"object": getattr(target.predictor, "name", type(target.predictor).__name__)}
    with deterministic(subject.threads):
        content, seen = identify(files, target.predictor, min(sizes), subject.device, version)
    identity = {"model": content, "data": {key: _digest(records) for key, records in data.items()}}
    return replace(target, about={**identity, **target.about}, behaviour=seen)


def _digest(records: Records) -> str:
    """The digest of images in memory with their truths, or of the files of records."""
    held = [
        (each.image_id, each.pixels, each.truth)
        if isinstance(each, LabelledImage)
        else (each.image_id, tuple(each.files))
        for each in records
    ]
    return content_of({"images": held})["images"]


def _loaded(predictor: Predictor[Prediction], device: str | None) -> Predictor[Prediction]:
    return predictor


def _made(make: Callable[[], Predictor[Prediction]], device: str | None) -> Predictor[Prediction]:
    return make()


def _target(
    subject: Subject,
    predictor: Predictor[Prediction],
    images: Mapping[str, tuple[str, ...]],
    about: Mapping[str, object],
    calibration: str | None,
) -> Target:
    """With what decides the outcome in addition to model and data."""
    more: dict[str, object] = {}
    if subject.label_free:
        more = {"truth": "clean", "truth score": subject.truth_score}
    if calibration is not None:
        more["calibration"] = sha256_of(Path(calibration))
    return Target(subject, predictor, images, {**about, **more}, calibration)
