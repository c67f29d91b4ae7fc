"""What is tuned: a predictor and images under conditions, and how one trial of the search is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypedDict

import numpy as np

from gramloop.core.config import ReplayConfig
from gramloop.core.signals import observing
from gramloop.data.contents import ChangedFileError
from gramloop.data.depth_maps import DepthMap
from gramloop.data.labelled import LabelledImage, PixelLabels, Truth, read_labelled
from gramloop.data.records import TASKS, DataSet, Instances, Record, Task
from gramloop.data.shifted import Shift, shift_data_set
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.clean_truth import CleanTruth
from gramloop.evaluate.truth import CLEAN_PREDICTION, SCORE, TruthKind, check_truth
from gramloop.metrics.depth import NoScoreError, aligned_depth, depth_scores
from gramloop.metrics.miou import count
from gramloop.tasks.prediction import Depth, Detection, Prediction, Segmentation
from gramloop.tasks.predictor import Predictor, check_predictor

PREPARED = 4  # images kept ready, since trials on one image follow each other


@dataclass(frozen=True)
class Subject:
    """A model and its data, described so that every worker process can open them for itself."""

    task: Task
    depth: int  # blocks of the backbone
    categories: tuple[int, ...]
    images: Mapping[str, tuple[str, ...]] = field(
        repr=False
    )  # ids by condition, in the order they were taken
    make_predictor: Callable[[], Predictor[Prediction]] = field(repr=False)
    open_records: Callable[[str], Sequence[Record | LabelledImage]] = field(repr=False)  # of a condition
    about: Mapping[str, object] = field(default_factory=dict, repr=False)  # fingerprints, for the plan
    threads: int = 1
    taps: tuple[int, ...] = ()  # blocks that the head reads, where that is known
    truth: TruthKind = "labels"  # what predictions are compared with
    truth_score: float = SCORE  # of a clean prediction's box that counts as an object

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise GramLoopError(f"the task must be {', '.join(TASKS[:-1])} or {TASKS[-1]}, not {self.task!r}")
        if not any(key != "clean" for key in self.images):
            raise GramLoopError("tuning needs at least one shifted condition beside the clean images")
        check_truth(self.truth, self.truth_score)
        clean = set(self.images.get("clean", ()))
        for key, ids in self.images.items() if self.label_free else ():
            if strangers := [each for each in ids if each not in clean]:
                raise GramLoopError(
                    f"the truth clean needs every image without its shift too, and {strangers[0]} of {key} is not "
                    "among the clean ones"
                )

    @property
    def label_free(self) -> bool:
        """Whether predictions are compared with clean ones, so that scores are agreement and not accuracy."""
        return self.truth == CLEAN_PREDICTION


class SubjectOptions(TypedDict, total=False):
    """The keywords of `subject_of`."""

    conditions: Sequence[Condition]
    suite: str
    categories: Sequence[int] | None
    about: Mapping[str, object]
    threads: int
    truth: TruthKind
    truth_score: float


def subject_of(
    predictor: Predictor[Prediction] | Callable[[], Predictor[Prediction]],
    data: Mapping[str, Sequence[Record | LabelledImage]] | DataSet,
    *,
    conditions: Sequence[Condition] = (),
    suite: str = "own-c",
    categories: Sequence[int] | None = None,
    about: Mapping[str, object] | None = None,
    threads: int = 1,
    truth: TruthKind = "labels",
    truth_score: float = SCORE,
) -> Subject:
    """A predictor with its images.

    Args:
        predictor: a `Predictor`, or a function that makes one (for several processes, one that can be pickled).
        data: records (or `LabelledImage`) by condition, such as ``{"clean": …, "fog/3": …}``; or a clean set,
            which is then shown clean and under ``conditions``.
        conditions: the shifts of a clean set.
        suite: the name that seeds these shifts, as in `gramloop.data.suites`.
        categories: the class numbers that are scored; those of the set, or else of the predictor.
        about: what identifies model and data, for the plan and the result.
        threads: of torch, in each process; sums depend on it.
        truth: ``clean`` compares with what the predictor says on the clean image, and reads no labels.
        truth_score: boxes of a clean prediction that score less count for nothing.
    """
    if not callable(predictor):
        check_predictor(predictor)
    make = partial(_itself, predictor) if isinstance(predictor, Predictor) else predictor
    made = make()
    check_predictor(made)
    if isinstance(data, DataSet):
        if data.task != made.task:
            raise GramLoopError(
                f"{data.root} is annotated for {data.task}, but the predictor is for {made.task}"
            )
        categories = categories or tuple(data.categories)
        shifts = {one.key: Shift(suite, "p" if suite.endswith("-p") else "c", one) for one in conditions}
        data = {"clean": data, **{key: shift_data_set(data, shift) for key, shift in shifts.items()}}
    images = {key: tuple(str(record.image_id) for record in records) for key, records in data.items()}
    return Subject(
        made.task,
        len(made.blocks),
        tuple(categories or made.classes),
        images,
        make,
        data.__getitem__,
        {**(about or {}), **about_truth(made.task, truth, truth_score)},
        threads,
        made.taps,
        truth,
        truth_score,
    )


def about_truth(task: Task, truth: TruthKind, score: float) -> dict[str, object]:
    """What a plan says of the truth; nothing of labels, as before there was another."""
    if truth != CLEAN_PREDICTION:
        return {}
    return {"truth": truth, **({"truth score": score} if task == "detection" else {})}


@dataclass(frozen=True)
class Trial:
    """Some candidates on one image under one condition: done and stored as a whole."""

    condition: str
    position: int
    image_id: str
    candidates: tuple[int, ...]  # by their number in the plan
    configs: tuple[ReplayConfig, ...]

    @property
    def key(self) -> str:
        """Its name in the journal."""
        return f"{self.condition}\t{self.image_id}\t{','.join(map(str, self.candidates))}"


class Bench:
    """A subject with its predictor loaded, ready for trials."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.predictor = subject.make_predictor()
        self._host = self.predictor.host
        self._records = lru_cache(2)(subject.open_records)  # conditions come one after the other
        self._shown = lru_cache(PREPARED)(self._show)
        self._clean = CleanTruth(self.predictor, subject.truth_score)
        self._clean_places = {name: place for place, name in enumerate(subject.images.get("clean", ()))}

    def run(self, trial: Trial) -> dict[str, object]:
        """The statistics of a trial as plain values: the ordinary prediction once, then every candidate's."""
        shown = self._shown(trial.condition, trial.position, trial.image_id)
        if isinstance(shown, str):
            return {"job": trial.key, "failed": shown}
        first, *others = trial.configs
        with observing(self._host) if self._host is not None else nullcontext() as observed:
            pair = self.predictor.predict(shown.pixels, first, paired=True, trace=False)
        found = [pair.replayed, *(self.predictor.predict(shown.pixels, each, trace=False) for each in others)]
        try:
            ordinary, *replayed = (self._statistic(each, shown.truth) for each in (pair.ordinary, *found))
        except NoScoreError as error:
            return {"job": trial.key, "failed": str(error)}
        result: dict[str, object] = {
            "job": trial.key,
            "ordinary": ordinary,
            "replayed": replayed,
            "blocks": [int(each.blocks) for each in found],
        }
        if observed is not None:
            result["signals"] = observed.means()
        if isinstance(shown.truth, Instances):
            result["truth"] = {
                "boxes": shown.truth.boxes.tolist(),
                "labels": shown.truth.categories.tolist(),
                "areas": shown.truth.areas.tolist(),
                "crowd": shown.truth.iscrowd.tolist(),
            }
        return result

    def _statistic(self, found: Prediction, truth: Truth | None) -> dict[str, object]:
        """Plain lists of numbers, from which any score follows."""
        if isinstance(found, Segmentation) and isinstance(truth, PixelLabels):
            counts = count(found.labels, truth.indices, len(self.subject.categories), truth.ignored)
            return {"counts": counts.stacked().tolist()}
        if isinstance(found, Detection) and isinstance(truth, Instances):
            columns = {"boxes": found.boxes, "scores": found.scores, "labels": found.labels}
            return {name: np.asarray(column).tolist() for name, column in columns.items()}
        if isinstance(found, Depth) and isinstance(truth, DepthMap):
            metres = aligned_depth(found.values, truth, disparity=found.disparity)
            return {"delta1": depth_scores(metres, truth).delta1}
        raise GramLoopError(f"a {type(found).__name__} cannot be compared with {type(truth).__name__}")

    def _show(self, condition: str, position: int, image_id: str) -> LabelledImage | str:
        """The image with its truth; or a sentence about what is wrong with them."""
        record = self._records(condition)[position]
        if str(record.image_id) != image_id:
            raise GramLoopError(
                f"image {position} of {condition} is {record.image_id}, but was {image_id} when the search was planned"
            )
        shown = read_labelled(record, self.subject.task, labels=not self.subject.label_free)
        if isinstance(shown, str) or not self.subject.label_free:
            return shown
        clean = self._records("clean")[self._clean_places[image_id]]
        try:
            return replace(shown, truth=self._clean.of(clean, record))
        except ChangedFileError:
            raise
        except GramLoopError as error:
            return str(error)


def _itself(predictor: Predictor[Prediction]) -> Predictor[Prediction]:
    return predictor
