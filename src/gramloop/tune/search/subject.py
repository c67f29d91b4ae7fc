"""What is tuned: a predictor and labelled images under conditions, and how one trial of the search is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.core.config import ReplayConfig
from gramloop.core.hosts import Host, find_host
from gramloop.core.signals import observing
from gramloop.data.records import DataSet, Instances, Record, Task
from gramloop.data.shifted import Shift, shift_data_set
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.metrics.miou import count

PREPARED = 4  # images kept ready, since trials on one image follow each other
Statistic = dict[str, Any]  # plain lists of numbers, from which any score follows


@dataclass(frozen=True)
class LabelledImage:
    """A labelled image in memory, for whoever has no data set on disk: truth is a label map or `Instances`."""

    image_id: str
    pixels: NDArray[np.uint8]  # (H, W, 3) RGB
    truth: Any
    ignored: int = 255

    def image(self) -> NDArray[np.uint8]:
        """The pixels."""
        return self.pixels

    def labels(self) -> Any:
        """The class index of every pixel, (H, W)."""
        return self.truth

    def instances(self) -> Instances:
        """The annotated objects."""
        found: Instances = self.truth
        return found


@dataclass(frozen=True)
class Subject:
    """A model and its data, described so that every worker process can open them for itself."""

    task: Task
    depth: int  # blocks of the backbone
    categories: tuple[int, ...]
    images: Mapping[str, tuple[str, ...]] = field(
        repr=False
    )  # ids by condition, in the order they were taken
    make_predictor: Callable[[], Any] = field(repr=False)
    open_records: Callable[[str], Sequence[Any]] = field(repr=False)  # of a condition
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)  # fingerprints, for the plan
    threads: int = 1
    taps: tuple[int, ...] = ()  # blocks that the head reads, where that is known

    def __post_init__(self) -> None:
        if self.task not in ("semantic", "detection"):
            raise GramLoopError(f"the task must be semantic or detection, not {self.task!r}")
        if not any(key != "clean" for key in self.images):
            raise GramLoopError("tuning needs at least one shifted condition beside the clean images")


def subject_of(
    predictor: Any,
    data: Mapping[str, Sequence[Any]] | DataSet,
    *,
    conditions: Sequence[Condition] = (),
    suite: str = "own-c",
    task: Task | None = None,
    categories: Sequence[int] | None = None,
    depth: int | None = None,
    about: Mapping[str, Any] | None = None,
    threads: int = 1,
) -> Subject:
    """A predictor with its images.

    Args:
        predictor: anything with ``predict(image, replay, paired=…, trace=…)``, or a function that makes one
            (for several processes, one that can be pickled).
        data: records (or `LabelledImage`) by condition, such as ``{"clean": …, "fog/3": …}``; or a clean set,
            which is then shown clean and under ``conditions``.
        conditions: the shifts of a clean set.
        suite: the name that seeds these shifts, as in `gramloop.data.suites`.
        task: needed where the data are no `DataSet`.
        categories: the class numbers, needed likewise.
        depth: blocks of the backbone, where the predictor does not tell.
        about: what identifies model and data, for the plan and the result.
        threads: of torch, in each process; sums depend on it.
    """
    if isinstance(data, DataSet):
        task, categories = task or data.task, categories or tuple(data.categories)
        data = {
            "clean": data,
            **{one.key: shift_data_set(data, Shift(suite, _kind(suite), one)) for one in conditions},
        }
    if task is None or categories is None:
        raise GramLoopError("task and categories must be given with records that are no DataSet")
    make = predictor if not hasattr(predictor, "predict") else partial(_itself, predictor)
    images = {key: tuple(str(record.image_id) for record in records) for key, records in data.items()}
    made = make()
    return Subject(
        task,
        depth if depth is not None else _depth(made),
        tuple(categories),
        images,
        make,
        data.__getitem__,
        about or {},
        threads,
        taps_of(made),
    )


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
        self._host = _host(self.predictor)
        self._records = lru_cache(2)(subject.open_records)  # conditions come one after the other
        self._shown = lru_cache(PREPARED)(self._show)

    def run(self, trial: Trial) -> dict[str, Any]:
        """The statistics of a trial as plain values: the ordinary prediction once, then every candidate's."""
        shown = self._shown(trial.condition, trial.position, trial.image_id)
        if isinstance(shown, str):
            return {"job": trial.key, "failed": shown}
        image, truth, ignored = shown
        first, *others = trial.configs
        with observing(self._host) if self._host is not None else nullcontext() as observed:
            pair = self.predictor.predict(image, first, paired=True, trace=False)
        found = [pair.replayed, *(self.predictor.predict(image, each, trace=False) for each in others)]
        result = {
            "job": trial.key,
            "ordinary": self._statistic(pair.ordinary, truth, ignored),
            "replayed": [self._statistic(each, truth, ignored) for each in found],
            "blocks": [int(each.blocks) for each in found],
        }
        if observed is not None:
            result["signals"] = observed.means()
        if self.subject.task == "detection":
            result["truth"] = {
                "boxes": truth.boxes.tolist(),
                "labels": truth.categories.tolist(),
                "areas": truth.areas.tolist(),
                "crowd": truth.iscrowd.tolist(),
            }
        return result

    def _statistic(self, found: Any, truth: Any, ignored: int) -> Statistic:
        if self.subject.task == "detection":
            columns = {"boxes": found.boxes, "scores": found.scores, "labels": found.labels}
            return {name: np.asarray(column).tolist() for name, column in columns.items()}
        counts = count(found.labels, truth, len(self.subject.categories), ignored)
        return {"counts": counts.stacked().tolist()}

    def _show(self, condition: str, position: int, image_id: str) -> tuple[Any, Any, int] | str:
        """Image, truth and ignored label; or a sentence about what is wrong with them."""
        record = self._records(condition)[position]
        if str(record.image_id) != image_id:
            raise GramLoopError(
                f"image {position} of {condition} is {record.image_id}, but was {image_id} when the search was planned"
            )
        try:
            image = record.image()
            if self.subject.task == "detection":
                return image, record.instances(), 0
            labels = record.labels()
        except GramLoopError as error:
            return str(error)
        if labels.shape != image.shape[:2]:
            return f"the labels of {image_id} are {labels.shape[1]} x {labels.shape[0]}, unlike the image"
        return image, labels, _ignored(record)


def _ignored(record: Any) -> int:
    if isinstance(record, Record):
        return 255 if record.classes is None else record.classes.ignored
    return int(getattr(record, "ignored", 255))


def _itself(predictor: Any) -> Any:
    return predictor


def _kind(suite: str) -> Any:
    return "p" if suite.endswith("-p") else "c"


def _host(predictor: Any) -> Host | None:
    """The ViT inside a predictor, where it can be found."""
    for place in (predictor, getattr(predictor, "model", None)):
        vit = getattr(getattr(place, "backbone", None), "model", None)
        if vit is not None:
            return find_host(vit)
    return None


def taps_of(predictor: Any) -> tuple[int, ...]:
    """The blocks that a predictor's head reads, where it tells."""
    for place in (predictor, getattr(predictor, "model", None)):
        if (taps := getattr(place, "taps", None)) is not None:
            return tuple(taps)
    return ()


def _depth(predictor: Any) -> int:
    for place in (predictor, getattr(predictor, "model", None)):
        shape = getattr(getattr(place, "backbone", None), "shape", None)
        if shape is not None:
            return int(shape.depth)
    raise GramLoopError("the predictor does not tell how many blocks its backbone has; give depth=…")
