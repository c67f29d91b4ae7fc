"""Images of one size shown to a model together, where it can: which, and in which order their results come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from gramloop.data.records import Image8
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import Method
from gramloop.evaluate.truth import CLEAN_PREDICTION, TruthKind
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor, Replay, Tracing

_WINDOWS = 4  # batches among whose images those of one size are looked for

T = TypeVar("T")


@runtime_checkable
class BatchPredictor(Protocol):
    """A predictor that can be shown several images at once."""

    def predict_batch(
        self, images: Sequence[Image8], replay: Replay = ..., paired: bool = ..., *, trace: Tracing = ...
    ) -> Sequence[Any]:
        """What ``predict`` gives, for each image of one size; ``check_batch()``, if there is one, refuses to."""


def check_batch(
    batch: int, predictor: Predictor[Prediction], methods: Sequence[Method], truth: TruthKind
) -> None:
    """Refuse batches where they are not possible, or would not give the numbers of single images."""
    if batch < 1:
        raise GramLoopError(f"the batch must be at least 1 image, not {batch}")
    if batch == 1:
        return
    alone = "leave out --batch"
    if not isinstance(predictor, BatchPredictor):
        name = getattr(predictor, "name", type(predictor).__name__)
        raise GramLoopError(f"{name} predicts one image at a time; {alone}")
    getattr(predictor, "check_batch", lambda: None)()
    if truth == CLEAN_PREDICTION:
        raise GramLoopError(f"the truth clean compares predictions of single images; {alone}")
    for method in methods:
        if method.mitigations:
            raise GramLoopError(f"the mitigations of {method.name} work on one image at a time; {alone}")
        if method.replay is not None and method.replay.adaptive is not None:
            raise GramLoopError(f"{method.name} decides for each image whether to replay it; {alone}")


def windows(items: Iterable[T], batch: int) -> Iterator[list[T]]:
    """The items in turn, a few batches of them at a time; one by one where a batch is one."""
    window: list[T] = []
    for item in items:
        window.append(item)
        if len(window) == (batch if batch == 1 else _WINDOWS * batch):
            yield window
            window = []
    if window:
        yield window


def groups(sizes: Sequence[tuple[int, int]], batch: int) -> list[list[int]]:
    """The numbers 0 … n - 1 of images, in groups of one size and of at most ``batch``; earlier ones first."""
    found: list[list[int]] = []
    open_groups: dict[tuple[int, int], list[int]] = {}
    for index, size in enumerate(sizes):
        if len(open_groups.get(size, ())) in (0, batch):
            open_groups[size] = []
            found.append(open_groups[size])
        open_groups[size].append(index)
    return found
