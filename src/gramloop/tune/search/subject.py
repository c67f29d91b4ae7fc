"""What is tuned: a predictor and images under conditions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypedDict

from gramloop.data.records import TASKS, DataSet, LabelledImage, Record, Task
from gramloop.data.shifted import Shift, shift_data_set
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import TRUTH_SCORE, TruthKind, check_truth
from gramloop.mitigations.calibration import sha256_of
from gramloop.tasks.base import get_task
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, check_predictor


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
    truth_score: float = TRUTH_SCORE  # of a clean prediction's box that counts as an object
    source: str | None = None  # a file about ordinary images, where somebody gave one
    sketch: Predictor[Prediction] | None = field(
        default=None, repr=False, compare=False
    )  # perhaps without weights

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
        return self.truth == "clean"

    def look(self) -> Predictor[Prediction]:
        """The predictor, to be asked what makes sense for it; its weights may be missing."""
        return self.sketch or self.make_predictor()


class SubjectOptions(TypedDict, total=False):
    """The keywords of `subject_of`."""

    conditions: Sequence[Condition]
    suite: str
    categories: Sequence[int] | None
    about: Mapping[str, object]
    threads: int
    truth: TruthKind
    truth_score: float
    source: str | None


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
    truth_score: float = TRUTH_SCORE,
    source: str | None = None,
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
        truth_score: boxes or masks of a clean prediction that score less count for nothing.
        source: a file about ordinary images, as `CalibrationStats.save` makes it; where a mitigation needs
            one and none is given, it is made from clean images of the search.
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
        {**(about or {}), **about_truth(made.task, truth, truth_score), **_about_source(source)},
        threads,
        made.taps,
        truth,
        truth_score,
        source,
        made,
    )


def about_truth(task: Task, truth: TruthKind, score: float) -> dict[str, object]:
    """What a plan says of the truth; nothing of labels, as before there was another."""
    if truth != "clean":
        return {}
    return {"truth": truth, **({"truth score": score} if get_task(task).thresholded else {})}


def _about_source(source: str | None) -> dict[str, object]:
    return {} if source is None else {"source": sha256_of(Path(source))}


def _itself(predictor: Predictor[Prediction]) -> Predictor[Prediction]:
    return predictor
