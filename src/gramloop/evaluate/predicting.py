"""Images predicted by several methods: what these have in common is done once per image.

The baseline is the pass that the first replay needs anyway, so a pair costs no more than the replay. Filters on pixels
run once for all methods that begin with them; where a filter changes nothing, its methods share the prediction without
it.
"""

from __future__ import annotations

import pickle
import random
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gramloop.data.records import Image8, LabelledImage, Record
from gramloop.data.shifted import ShiftedRecord
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import RUN_SEED, Part, Subject
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.mitigated import apply
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import replay_alone
from gramloop.tasks.base import AnyTask, read_labelled
from gramloop.tasks.block_runs import observing
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.util.device import deterministic_algorithms

_KEPT = 1 << 28  # bytes of packed clean predictions in one process
Stack = tuple[Mitigation, ...]


@dataclass
class LoopImage:
    """An image of a part on its way through the loop."""

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
    signals: Mapping[str, Sequence[float]] | None = None  # of the baseline pass
    filtered: dict[Stack, Image8] = field(default_factory=dict)  # pixels after filters
    shared: dict[tuple[int, Stack], Prediction] = field(
        default_factory=dict
    )  # by pixels and what follows them

    @property
    def about(self) -> tuple[object, int, int]:
        """Its name, height and width."""
        record = self.record
        if isinstance(record, LabelledImage):
            return record.image_id, record.pixels.shape[0], record.pixels.shape[1]
        return record.path, record.height, record.width


class MethodPredictor:
    """A predictor and everything that methods make of it."""

    def __init__(
        self, subject: Subject, predictor: Predictor[Prediction], calibration: CalibrationStats | None
    ) -> None:
        self.subject, self.predictor, self.calibration = subject, predictor, calibration
        self._applied: dict[Stack, Predictor[Prediction]] = {}

    def trace(self, images: Sequence[LoopImage]) -> bool | None:
        """Whether replays return what they measure: always, never, or (None) where they measure it anyway."""
        if self.subject.diagnostics:
            return True
        kept = any(self.subject.keeps(each.position, each.record.image_id) for each in images)
        return None if kept else False

    def predict(self, images: Sequence[LoopImage], call: tuple[Method, ...]) -> None:
        """Predict images of one size with the methods of one call, see `prediction_calls`."""
        trace = self.trace(images)
        if len(images) == 1:
            self.predict_image(images[0], call, trace)
            return
        pixels, paired = [image.pixels for image in images], len(call) == 2
        predictor: Any = self.predictor  # which `gramloop.evaluate.planning.check_batch` let pass
        found = predictor.predict_batch(pixels, call[-1].replay, paired, trace=trace)
        for image, one in zip(images, found, strict=True):
            both = (one.ordinary, one.replayed) if paired else (one,)
            image.predictions.update({method.name: each for method, each in zip(call, both, strict=True)})

    def predict_image(self, image: LoopImage, call: tuple[Method, ...], trace: bool | None) -> None:
        """The same for one image."""
        last, host = call[-1], self.predictor.host
        observed = self.subject.signals and call[0].name == BASELINE and host is not None
        with observing(host) if observed and host is not None else nullcontext() as seen:
            if len(call) == 2:
                assert last.replay is not None
                pair = self.predictor.predict(image.pixels, last.replay, paired=True, trace=trace)
                image.predictions[BASELINE], image.predictions[last.name] = pair.ordinary, pair.replayed
                image.shared[id(image.pixels), ()] = pair.ordinary
                image.shared[id(image.pixels), (Replay(last.replay),)] = pair.replayed
            else:
                image.predictions[last.name] = self._predict_alone(image, last, trace)
        if seen is not None:
            image.signals = seen.means()

    def _predict_alone(self, image: LoopImage, method: Method, trace: bool | None) -> Prediction | str:
        stack = (Replay(method.replay),) if method.replay is not None else method.mitigations
        filters = tuple(each for each in stack if each.stage == "pixels")  # they come first
        try:
            pixels, rest = self._filtered(image, filters), stack[len(filters) :]
            if (key := (id(pixels), rest)) not in image.shared:
                image.shared[key] = self._predict_rest(pixels, rest, trace)
            return image.shared[key]
        except GramLoopError as error:
            if not (self.subject.keep_refusals and method.mitigations):
                raise
            return str(error)

    def _filtered(self, image: LoopImage, filters: Stack) -> Image8:
        """The pixels after filters; kept, so that the identity of an array tells it from others."""
        if not filters:
            return image.pixels
        if filters not in image.filtered:
            before = self._filtered(image, filters[:-1])
            image.filtered[filters] = filters[-1].filtered(before, self.calibration)
        return image.filtered[filters]

    def _predict_rest(self, pixels: Image8, rest: Stack, trace: bool | None) -> Prediction:
        config = replay_alone(rest)
        if not rest or config is not None:
            return self.predictor.predict(pixels, config, trace=trace)
        if rest not in self._applied:
            self._applied[rest] = apply(rest, self.predictor, self.calibration)
        return self._applied[rest].predict(pixels, trace=trace)


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Deterministic algorithms or an error, seeded generators, and a fixed number of threads, since sums depend on it."""
    before = torch.get_num_threads(), np.random.get_state(), random.getstate()  # noqa: NPY002
    torch.set_num_threads(threads)
    try:
        with deterministic_algorithms(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(RUN_SEED)
            np.random.seed(RUN_SEED)  # noqa: NPY002
            random.seed(RUN_SEED)
            yield
    finally:
        torch.set_num_threads(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        random.setstate(before[2])


class CleanTruth:
    """What the model predicts on clean images, in place of labels: made once per image, moved as a shift moves pixels."""

    def __init__(self, predictor: Predictor[Prediction], task: AnyTask, score: float) -> None:
        self.predictor, self.task, self.score = predictor, task, score
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def of(self, clean: Record | LabelledImage, shown: Record | LabelledImage) -> Any:
        """The prediction on ``clean`` as a truth, moved where the shift of ``shown`` moves pixels."""
        key = str(clean.image_id)
        if key in self._packed:
            self._packed.move_to_end(key)
            truth = pickle.loads(zlib.decompress(self._packed[key]))
        else:
            read = read_labelled(clean, self.task.name, labels=False)
            if isinstance(read, str):
                raise GramLoopError(read)
            truth = self.task.as_truth(self.predictor.predict(read.pixels), self.score)
            self._keep(key, truth)
        if isinstance(shown, ShiftedRecord) and shown.shift is not None and shown.shift.moves:
            return self.task.move_truth(truth, shown, shown.shift)
        return truth

    def _keep(self, key: str, truth: object) -> None:
        self._packed[key] = zlib.compress(pickle.dumps(truth), 1)
        self._bytes += len(self._packed[key])
        while self._bytes > _KEPT and len(self._packed) > 1:
            self._bytes -= len(self._packed.popitem(last=False)[1])
