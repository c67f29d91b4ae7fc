"""Images predicted by several methods, and clean predictions in place of labels.

What methods have in common is done once per image. The baseline is the pass that the first replay needs anyway, so a
pair costs no more than the replay. Filters on pixels run once for all methods that begin with them; where a filter
changes nothing, its methods share the prediction without it.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gramloop.data.records import ChangedFileError, Image8, LabelledImage, Record
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Part
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.mitigated import apply
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import Stack, replay_alone
from gramloop.tasks.base import AnyTask, read_labelled
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import AnyPredictor, predict_each

_KEPT = 1 << 28  # bytes of packed clean predictions in one process


@dataclass
class LoopImage:
    """An image of a part, as it goes through the loop."""

    part: Part
    position: int
    record: Record | LabelledImage
    clean: Record | LabelledImage | None = (
        None  # without its shift, where that is predicted in place of labels
    )
    problem: str = ""  # why it counts for no method
    pixels: Image8 = field(default_factory=lambda: np.empty((0, 0, 3), np.uint8))  # (H, W, 3) RGB
    truth: Any = None
    predictions: dict[str, Prediction | str] = field(default_factory=dict)  # by method; or why it refused
    filtered: dict[Stack, Image8] = field(default_factory=dict)  # pixels after filters
    # by pixels and what follows them
    shared: dict[tuple[int, Stack], Prediction] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its file, or its id, with width and height."""
        record = self.record
        if isinstance(record, LabelledImage):
            return f"{record.image_id} ({record.pixels.shape[1]} x {record.pixels.shape[0]})"
        return f"{record.path} ({record.width} x {record.height})"


@dataclass
class MethodPredictor:
    """A predictor and everything that methods make of it; an error of mitigations may be kept as a refusal."""

    predictor: AnyPredictor
    calibration: CalibrationStats | None = None
    keep_refusals: bool = False
    _applied: dict[Stack, AnyPredictor] = field(default_factory=dict)

    def predict(self, images: Sequence[LoopImage], call: tuple[Method, ...], trace: bool | None) -> int:
        """Predict images of one size with the methods of one call, see `prediction_calls`.

        Args:
            images: keep the predictions.
            call: a method, or the baseline and the replay that it comes with.
            trace: whether replays return what they measure; None where they measure it anyway.

        Returns:
            The images that the model was given at once.
        """
        last = call[-1]
        if len(call) == 1:
            return self._predict_alone(images, last, trace)
        assert last.replay is not None
        found = predict_each(self.predictor, [image.pixels for image in images], last.replay, True, trace)
        for image, (baseline, replayed) in zip(images, found, strict=True):
            image.predictions[BASELINE], image.predictions[last.name] = baseline, replayed
            image.shared[id(image.pixels), ()] = baseline
            image.shared[id(image.pixels), (Replay(last.replay),)] = replayed
        return len(images)

    def _predict_alone(self, images: Sequence[LoopImage], method: Method, trace: bool | None) -> int:
        """Predict images with one method; those whose pixels and what follows are known already share the prediction."""
        stack = (Replay(method.replay),) if method.replay is not None else method.mitigations
        filters = tuple(each for each in stack if each.stage == "pixels")  # they come first
        rest = stack[len(filters) :]
        try:
            shown = [(image, self._filtered(image, filters)) for image in images]
            new = [(image, pixels) for image, pixels in shown if (id(pixels), rest) not in image.shared]
            found = self._predict_rest([pixels for _, pixels in new], rest, trace) if new else []
            for (image, pixels), prediction in zip(new, found, strict=True):
                image.shared[id(pixels), rest] = prediction
            for image, pixels in shown:
                image.predictions[method.name] = image.shared[id(pixels), rest]
            return len(new)
        except GramLoopError as error:
            if not (self.keep_refusals and method.mitigations):
                raise
            if len(images) == 1:
                images[0].predictions[method.name] = str(error)
                return 1
        return max(self._predict_alone([image], method, trace) for image in images)

    def _filtered(self, image: LoopImage, filters: Stack) -> Image8:
        """The pixels after filters; kept, so that the identity of an array distinguishes it from others."""
        if not filters:
            return image.pixels
        if filters not in image.filtered:
            before = self._filtered(image, filters[:-1])
            image.filtered[filters] = filters[-1].filtered(before, self.calibration)
        return image.filtered[filters]

    def _predict_rest(self, pixels: Sequence[Image8], rest: Stack, trace: bool | None) -> list[Prediction]:
        config, predictor = replay_alone(rest), self.predictor
        if rest and config is None:
            if rest not in self._applied:
                self._applied[rest] = apply(rest, self.predictor, self.calibration)
            predictor = self._applied[rest]
        return [version for [version] in predict_each(predictor, pixels, config, False, trace)]


class CleanTruth:
    """What the model predicts on clean images, in place of labels: made once per image, moved as a shift moves pixels."""

    def __init__(self, predictor: AnyPredictor, task: AnyTask, score: float) -> None:
        self.predictor, self.task, self.score = predictor, task, score
        self._packed: dict[str, bytes] = {}
        self._bytes = 0

    def add_to(self, images: Sequence[LoopImage]) -> None:
        """Give images of one size their truth, or the reason why there is none.

        Where one of them is not known, all are predicted: a truth never depends on what happens to be kept.
        """
        known = [self._packed.get(_clean_id(image)) for image in images]
        truths: list[Any] = [pickle.loads(zlib.decompress(each)) for each in known if each is not None]
        if len(truths) < len(images):
            truths = self._predicted(images)
        for image, truth in zip(images, truths, strict=True):
            shown = image.record
            if isinstance(truth, str):
                image.problem = truth
            elif isinstance(shown, Record) and shown.shift is not None and shown.shift.moves:
                image.truth = self.task.move_truth(truth, shown, shown.shift)
            else:
                image.truth = truth

    def _predicted(self, images: Sequence[LoopImage]) -> list[Any]:
        """The truth of each image, or why it has none."""
        try:
            read = [
                read_labelled(image.clean, self.task.name, labels=False) for image in images if image.clean
            ]
            pixels = [each.pixels for each in read if not isinstance(each, str)]
            found = iter(predict_each(self.predictor, pixels, None, False, None) if pixels else ())
            truths = [
                each if isinstance(each, str) else self.task.as_truth(next(found)[0], self.score)
                for each in read
            ]
        except ChangedFileError:
            raise
        except GramLoopError as error:
            return [str(error)] if len(images) == 1 else [self._predicted([image])[0] for image in images]
        for image, truth in zip(images, truths, strict=True):
            if not isinstance(truth, str) and self._bytes < _KEPT:
                packed = self._packed[_clean_id(image)] = zlib.compress(pickle.dumps(truth), 1)
                self._bytes += len(packed)
        return truths


def _clean_id(image: LoopImage) -> str:
    assert image.clean is not None
    return str(image.clean.image_id)
