"""What a task is: how truth is read, predictions compared, scored, stored, drawn and merged.

Everything that depends on the task lives in one class per task. The loop, the store, tuning and reports know only `Task`;
`register_task` adds one.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import ChangedFileError, LabelledImage, Record, Shift, refuse_change
from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import ROWS_AT_ONCE, Score
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import (
    NO_COLOURS,
    Changes,
    Colours,
    DrawStyle,
    Prediction,
    PredictionT,
    class_style,
)
from gramloop.util.plotting import Legend

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Truth = TypeVar("Truth")
# the statistics of one image: a number or a flat array for each of the task's columns
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Categories:
    """The classes that predictions are scored in, in the order of the data set."""

    names: Mapping[int, str]  # class index or COCO category id: name
    things: frozenset[int] = frozenset()  # of a panoptic set: countable objects, unlike stuff

    @property
    def ids(self) -> list[int]:
        """The class numbers in order."""
        return list(self.names)


@dataclass(frozen=True, eq=False)
class Rows:
    """Statistics of several images under one method, column by column, in order of position."""

    images: int
    values: Mapping[str, NDArray[Any]]  # (images,) numbers, or the lists of all images end to end
    lengths: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)  # (images,) of the list columns

    @classmethod
    def of(cls, statistics: Sequence[Row]) -> Rows:
        """Rows of single images, put together."""
        values: dict[str, NDArray[Any]] = {}
        lengths: dict[str, NDArray[np.int64]] = {}
        for name in statistics[0] if statistics else ():
            parts = [np.asarray(row[name]) for row in statistics]
            if parts[0].ndim:
                lengths[name] = np.array([part.size for part in parts], dtype=np.int64)
                values[name] = np.concatenate([part.ravel() for part in parts])
            else:
                values[name] = np.array(parts)
        return cls(len(statistics), values, lengths)

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of one after those of another."""
        values = {name: np.concatenate([each.values[name] for each in parts]) for name in parts[0].values}
        lengths = {name: np.concatenate([each.lengths[name] for each in parts]) for name in parts[0].lengths}
        return cls(sum(each.images for each in parts), values, lengths)

    def take(self, places: Sequence[int]) -> Rows:
        """The rows of some images, in this order."""
        chosen = [*places]
        values = {name: column[chosen] for name, column in self.values.items() if name not in self.lengths}
        for name, lengths in self.lengths.items():
            lists = np.split(self.values[name], np.cumsum(lengths))
            values[name] = np.concatenate([self.values[name][:0], *(lists[place] for place in chosen)])
        return Rows(len(chosen), values, {name: each[chosen] for name, each in self.lengths.items()})

    def matrix(self, name: str) -> NDArray[Any]:  # → (images, K)
        """A column of lists of one length."""
        return self.values[name].reshape(self.images, -1) if self.images else self.values[name].reshape(0, 0)

    def owners(self, name: str) -> NDArray[np.int64]:
        """The row that each value of a list column belongs to."""
        return np.repeat(np.arange(self.images), self.lengths[name])


@dataclass(frozen=True)
class ClassScores:
    """The main metric of every class, and which classes the truth holds."""

    scores: NDArray[np.float64]  # (K,) in the order of the categories; NaN where there is none
    labelled: NDArray[np.bool_]  # (K,)


class Task(Generic[PredictionT, Truth]):
    """One task: subclasses hold everything that is specific to it. ``PredictionT`` is its prediction, ``Truth`` its truth."""

    name: ClassVar[str]
    title: ClassVar[str]  # in headings and tables; by default the name
    metrics: ClassVar[tuple[str, ...]]  # the main one first
    class_metric: ClassVar[str] = "AP"  # the main metric of a single class
    columns: ClassVar[Mapping[str, str]]  # what `statistics` returns: "float64", or "float64[]" for lists
    picture_columns: ClassVar[Mapping[str, str]] = {"picture": "binary"}  # what `encode` returns
    prediction: ClassVar[type[Prediction]]
    annotations: ClassVar[str]  # the kind that it reads, as data sets name it; by default its own name
    truth_noun: ClassVar[str] = "labels"  # in messages
    thresholded: ClassVar[bool] = False  # predictions have scores, and a threshold makes truth of them
    truth_bytes: ClassVar[int] = 0  # per pixel, of a truth held in memory
    draws_at_once: ClassVar[int] = ROWS_AT_ONCE  # replicates of a bootstrap handed to `scorer` together
    aligns: ClassVar[bool] = False  # predictions are aligned with the truth before they are compared
    has_classes: ClassVar[bool] = True  # predictions are scored class by class
    closed_classes: ClassVar[bool] = False  # a model must have as many classes as the set it is scored on

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            for each in {"annotations", "title"} - vars(cls).keys():
                setattr(cls, each, cls.name)

    # truth

    def read_truth(self, record: Record) -> Truth:
        """The annotated truth of a record."""
        raise NotImplementedError

    def truth_shape(self, truth: Truth) -> tuple[int, ...] | None:
        """Height and width of a truth that covers the image; None where it has no size."""
        return None

    def check_truth(self, truth: Truth, name: str) -> None:
        """Refuse a truth that nothing can be scored with."""

    def as_truth(self, prediction: PredictionT, threshold: float) -> Truth:
        """A prediction on the clean image in place of labels; ``threshold`` is for scored objects."""
        raise NotImplementedError

    def move_truth(self, truth: Truth, record: Record, shift: Shift) -> Truth:
        """The truth of a clean image after a geometric shift of its pixels; by default its own ``moved`` knows."""
        clean: Any = truth
        moved: Truth = clean.moved(shift.affine(record))
        return moved

    # statistics and scores

    def align(self, prediction: PredictionT, truth: Truth, alignment: str) -> PredictionT:
        """The prediction in the unit and scale of its truth."""
        return prediction

    def statistics(self, prediction: PredictionT, truth: Truth, categories: Categories) -> Row:
        """What is stored of one image, from which every score follows."""
        raise NotImplementedError

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        """Every metric on all rows."""
        raise NotImplementedError

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        """The main metric for any weights of the rows, as bootstraps and subsets need it."""
        raise NotImplementedError

    def class_scores(self, rows: Rows, categories: Categories) -> ClassScores:
        """The main metric class by class; by default of no class."""
        return ClassScores(np.zeros(0), np.zeros(0, dtype=np.bool_))

    def image_score(self, row: Row, categories: Categories) -> float:
        """The main metric of one image's stored row; NaN where its truth holds nothing to score."""
        kinds = {name: kind.removesuffix("[]") for name, kind in self.columns.items()}
        values = {name: np.asarray(row[name], dtype=kind) for name, kind in kinds.items()}
        return self.score(Rows.of([values]), categories)[self.metrics[0]]

    # files

    def encode(self, prediction: PredictionT) -> Row:
        """What a unit keeps of a prediction for figures, in the ``picture_columns``."""
        return {}

    def decode(self, row: Row, column: str = "picture") -> PredictionT | None:
        """The prediction that a stored row keeps for figures, or None."""
        return None

    def files(self, prediction: PredictionT, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        """The content of a prediction's files by ending; ``name`` is what they are called before it."""
        raise GramLoopError(f"predictions of {self.name} cannot be written to files")

    # figures

    figure_caption: ClassVar[str] = ""  # of predictions in panels: {truth}, {before} and {after}

    def as_prediction(self, truth: Truth) -> PredictionT:
        """A truth in the form of a prediction, to be kept and drawn like one."""
        raise GramLoopError(f"a truth of {self.name} cannot be drawn")

    def describe(self, prediction: PredictionT, style: DrawStyle) -> str:
        """What is drawn of a prediction, in a few words."""
        return ""

    def style(
        self,
        predictions: Sequence[PredictionT],
        classes: Classes,
        threshold: float = 0.5,
        known: Colours = NO_COLOURS,
    ) -> DrawStyle:
        """Colours and scales that fit all predictions of an image; classes keep ``known`` colours if they can."""
        maps = (self.class_map(each, threshold) for each in predictions)
        return class_style([each for each in maps if each is not None], classes, threshold, known)

    def class_map(self, prediction: PredictionT, threshold: float) -> NDArray[Any] | None:  # → (H, W)
        """The class of every pixel, -1 where there is none; None of a task without."""
        return None

    def draw(self, axes: Axes, image: RGB, prediction: PredictionT, style: DrawStyle) -> None:
        """Draw a prediction over its image."""
        raise NotImplementedError

    def legend(self, style: DrawStyle) -> Legend:
        """What colours stand for."""
        return style.legend()

    def changes(
        self, before: PredictionT, after: PredictionT, truth: PredictionT | None, style: DrawStyle
    ) -> Changes:
        """What the second prediction changes of the first, for better or worse where the truth is known."""
        first, second = (self.class_map(each, style.threshold) for each in (before, after))
        if first is None or second is None:
            return Changes("")
        return Changes(f"{(first != second).mean():.1%} of pixels change their class")

    # test-time augmentation

    def flip(self, prediction: PredictionT, width: int) -> PredictionT:
        """The prediction of the mirrored image, ``width`` pixels wide, mirrored back."""
        raise GramLoopError(f"{self.name} predictions cannot be mirrored")

    def merge(self, predictions: Sequence[PredictionT]) -> PredictionT:
        """One prediction from several views of an image; blocks add up, traces are dropped."""
        raise GramLoopError(f"{self.name} predictions of several views cannot be merged")

    def rescale(
        self, prediction: PredictionT, input_size: tuple[int, int], size: tuple[int, int]
    ) -> PredictionT:
        """A prediction on an image that was resized to ``input_size``, in the original ``size``; both height, width."""
        raise GramLoopError(f"{self.name} predictions cannot be brought to another size")

    def renumber(self, prediction: PredictionT, numbers: Mapping[int, int]) -> PredictionT:
        """The prediction with other class numbers; objects of classes without a new number are dropped."""
        return prediction


AnyTask = Task[Any, Any]
_registered: dict[str, AnyTask] = {}


def register_task(task: AnyTask) -> AnyTask:
    """Make a task known by its name. A task given again under the same name takes the place of the first."""
    _registered[task.name] = task
    return task


def get_task(name: str) -> AnyTask:
    """The task of this name: ``semantic``, ``detection``, ``depth``, ``panoptic``, ``instance``, or one that was registered."""
    tasks = _all_tasks()
    if name not in tasks:
        raise GramLoopError(f"there is no task {name!r}; there are {', '.join(tasks)}")
    return tasks[name]


def task_of(prediction: Prediction) -> AnyTask:
    """The task that a prediction belongs to."""
    for task in reversed(_all_tasks().values()):
        if isinstance(prediction, task.prediction):
            return task
    raise GramLoopError(f"a {type(prediction).__name__} belongs to no task; register_task adds one")


def task_names() -> tuple[str, ...]:
    """The names of all tasks."""
    return tuple(_all_tasks())


def _all_tasks() -> dict[str, AnyTask]:
    return {task.name: task for task in _built_in()} | _registered


@functools.cache
def _built_in() -> tuple[AnyTask, ...]:
    from gramloop.tasks.depth import DepthTask
    from gramloop.tasks.detection import DetectionTask
    from gramloop.tasks.segments import InstanceTask, PanopticTask
    from gramloop.tasks.semantic import SemanticTask

    return SemanticTask(), DetectionTask(), DepthTask(), PanopticTask(), InstanceTask()


def read_labelled(record: Record | LabelledImage, task: str, labels: bool = True) -> LabelledImage | str:
    """The image of a record and, where ``labels`` are wanted, its truth; or what is wrong with them."""
    try:
        found = record if isinstance(record, LabelledImage) else _decoded(record, task, labels)
        if found.truth is not None:
            name = str(record.image_id if isinstance(record, LabelledImage) else record.path)
            _refuse_misfit(found, get_task(task), name)
    except ChangedFileError:  # not an image to skip, but a set that changed
        raise
    except GramLoopError as error:
        return str(error)
    return found


def _decoded(record: Record, task: str, labels: bool) -> LabelledImage:
    refuse_change(record)
    pixels = record.image()
    high, wide = pixels.shape[:2]
    if (high, wide) != (record.height, record.width):
        raise GramLoopError(f"{record.path} is {wide} x {high}, but was {record.width} x {record.height}")
    return LabelledImage(record.image_id, pixels, get_task(task).read_truth(record) if labels else None)


def _refuse_misfit(found: LabelledImage, task: AnyTask, name: str) -> None:
    shape = task.truth_shape(found.truth)
    if shape is not None and shape != found.pixels.shape[:2]:
        verb = "is" if task.truth_noun == "depth" else "are"
        raise GramLoopError(
            f"the {task.truth_noun} of {name} {verb} {shape[1]} x {shape[0]}, unlike the image"
        )
    task.check_truth(found.truth, name)
