"""A model's classes under a data set's numbers: they are the same where their names are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace as with_fields

import numpy as np
from torch import nn

from gramloop.core.cost import Cost
from gramloop.core.hosts import Host
from gramloop.data.records import Task
from gramloop.errors import GramLoopError
from gramloop.tasks.images import RGB, ImageLike
from gramloop.tasks.prediction import Detection, InstanceMasks, Pair, Panoptic, Prediction, Segmentation
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
    def host(self) -> Host | None:
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
        if isinstance(found, Panoptic):
            return self._renumbered_segments(found)
        if not isinstance(found, Segmentation | Detection | InstanceMasks):
            return found
        table = np.full(max(self._numbers) + 2, -1, dtype=np.int64)
        table[list(self._numbers)] = list(self._numbers.values())
        labels = table[np.clip(found.labels, -1, len(table) - 1)]
        if isinstance(found, Segmentation):
            return with_fields(found, labels=labels.astype(np.int32))
        kept = labels >= 0
        shared = {"boxes": found.boxes[kept], "scores": found.scores[kept], "labels": labels[kept]}
        if isinstance(found, Detection):
            return with_fields(found, **shared)
        masks = tuple(mask for mask, keep in zip(found.masks, kept, strict=True) if keep)
        return with_fields(found, masks=masks, **shared)

    def _renumbered_segments(self, found: Panoptic) -> Panoptic:
        infos = [
            with_fields(info, category=self._numbers[info.category])
            for info in found.infos
            if info.category in self._numbers
        ]
        kept = np.isin(found.segments, [info.id for info in infos])
        return with_fields(
            found, segments=np.where(kept, found.segments, 0).astype(np.int32), infos=tuple(infos)
        )


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
