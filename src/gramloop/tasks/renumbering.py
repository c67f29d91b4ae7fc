"""A model's classes under a data set's numbers: they are the same where their names are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import nn

from gramloop.data.records import TaskName as Task
from gramloop.errors import GramLoopError
from gramloop.replay.cost import Cost
from gramloop.replay.vit import ViT
from gramloop.tasks.base import task_of
from gramloop.tasks.images import RGB, ImageLike
from gramloop.tasks.prediction import Pair, Prediction
from gramloop.tasks.predictor import ImagePredictor, Predictor, Replay, Tracing

_PLACEHOLDER = re.compile(r"label[_ ]?\d+|n/?a|-", re.IGNORECASE)  # what transformers writes for no name


class Renumbered(ImagePredictor[Prediction]):
    """A predictor whose classes have other numbers; boxes, masks and segments of classes that have none are left out."""

    def __init__(self, predictor: Predictor[Prediction], numbers: Mapping[int, int]) -> None:
        """``numbers``: the new one for each number that the predictor gives."""
        self.predictor, self._numbers = predictor, numbers
        self.task: Task = predictor.task
        self.classes = {new: predictor.classes[old] for old, new in numbers.items()}

    @property
    def blocks(self) -> Sequence[nn.Module]:
        """Those of the predictor."""
        return self.predictor.blocks

    @property
    def host(self) -> ViT | None:
        """That of the predictor."""
        return self.predictor.host

    @property
    def taps(self) -> tuple[int, ...]:
        """Those of the predictor."""
        return self.predictor.taps

    def cost(self, replay: Replay = None, paired: bool = False) -> Cost:
        """That of the predictor."""
        return self.predictor.cost(replay, paired)

    def _versions(self, pixels: RGB, replay: Replay, paired: bool, trace: Tracing) -> list[Prediction]:
        if not paired:
            return [self.renumbered(self.predictor.predict(pixels, replay, trace=trace))]
        pair = self.predictor.predict(pixels, replay, paired=True, trace=trace)
        return [self.renumbered(pair.ordinary), self.renumbered(pair.replayed)]

    def check_batch(self) -> None:
        """Refuse to look at several images at once, where the predictor cannot."""
        if not hasattr(self.predictor, "predict_batch"):
            name = getattr(self.predictor, "name", type(self.predictor).__name__)
            raise GramLoopError(f"{name} predicts one image at a time; leave out the batch")
        getattr(self.predictor, "check_batch", lambda: None)()

    def predict_batch(
        self,
        images: Sequence[ImageLike],
        replay: Replay = None,
        paired: bool = False,
        *,
        trace: Tracing = None,
    ) -> list[Prediction] | list[Pair[Prediction]]:
        """That of the predictor, with the other numbers."""
        self.check_batch()
        found = self.predictor.predict_batch(images, replay, paired, trace=trace)  # type: ignore[attr-defined]
        if paired:
            return [Pair(self.renumbered(one.ordinary), self.renumbered(one.replayed)) for one in found]
        return [self.renumbered(one) for one in found]

    def renumbered(self, found: Prediction) -> Prediction:
        """A prediction of the predictor with the other numbers."""
        changed: Prediction = task_of(found).renumber(found, self._numbers)
        return changed


def before_renumbering(predictor: Predictor[Prediction]) -> Predictor[Prediction]:
    """The predictor whose classes have the model's own numbers."""
    return before_renumbering(predictor.predictor) if isinstance(predictor, Renumbered) else predictor


def numbered_as(predictor: Predictor[Prediction], categories: Mapping[int, str]) -> Predictor[Prediction]:
    """The predictor with the numbers that a data set has for the same names.

    Where no name is known to both, numbers are taken as they are. Where some are, and their numbers differ, the first
    name that the model lacks is told.
    """
    known = {
        _plain(name): number
        for number, name in predictor.classes.items()
        if name and not _PLACEHOLDER.fullmatch(name)
    }
    listed = {_plain(name): number for number, name in categories.items()}
    shared = [name for name in listed if name in known]
    if all(known[name] == listed[name] for name in shared):
        return predictor
    if missing := [name for name in listed if name not in known]:
        raise GramLoopError(
            f"the set lists {missing[0]!r}, which the model has no class for, although it knows {shared[0]!r} by another "
            f"number, {known[shared[0]]}; name the classes of both alike"
        )
    return Renumbered(predictor, {known[name]: listed[name] for name in shared})


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", name.strip().casefold())
