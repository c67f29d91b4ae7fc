"""Images predicted by several methods, on a device whose memory may not suffice.

What methods have in common is done once per image. The baseline is the pass that the first replay needs anyway, so a pair costs no more than the replay. Filters on pixels
run once for all methods that begin with them; where a filter changes nothing, its methods share the prediction without
it.
"""

from __future__ import annotations

import gc
import pickle
import random
import sys
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gramloop.data.records import ChangedFileError, Image8, LabelledImage, Record
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import RUN_SEED, Part, Subject
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.mitigated import apply
from gramloop.mitigations.replay import Replay
from gramloop.mitigations.stack import Stack, replay_alone
from gramloop.tasks.base import AnyTask, read_labelled
from gramloop.tasks.block_reuse import observing
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import AnyPredictor, predict_each
from gramloop.util.device import deterministic_algorithms

_KEPT = 1 << 28  # bytes of packed clean predictions in one process
# of a plain RuntimeError of PyTorch: on the CPU, on MPS, and in libraries below CUDA
_WORDS = ("can't allocate memory", "not enough memory", "out of memory", "ALLOC_FAILED")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


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
        self, subject: Subject, predictor: AnyPredictor, calibration: CalibrationStats | None
    ) -> None:
        self.subject, self.predictor, self.calibration = subject, predictor, calibration
        self._applied: dict[Stack, AnyPredictor] = {}

    def predict(self, images: Sequence[LoopImage], call: tuple[Method, ...], trace: bool | None) -> int:
        """Predict images of one size with the methods of one call, see `prediction_calls`.

        Args:
            images: keep the predictions.
            call: a method, or the baseline and the replay that it comes with.
            trace: whether replays return what they measure; None where they measure it anyway.

        Returns:
            The images that the model was given at once.
        """
        host = self.predictor.host if self.subject.signals and call[0].name == BASELINE else None
        if host is None:
            return self._predict(images, call, trace)
        for image in images:  # signals are of one image
            with observing(host) as seen:
                self._predict([image], call, trace)
            image.signals = seen.means()
        return 1

    def _predict(self, images: Sequence[LoopImage], call: tuple[Method, ...], trace: bool | None) -> int:
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
            shown = [self._filtered(image, filters) for image in images]
            new = [
                pair for pair in zip(images, shown, strict=True) if (id(pair[1]), rest) not in pair[0].shared
            ]
            if new:
                found = self._predict_rest([pixels for _, pixels in new], rest, trace)
                for (image, pixels), prediction in zip(new, found, strict=True):
                    image.shared[id(pixels), rest] = prediction
            for image, pixels in zip(images, shown, strict=True):
                image.predictions[method.name] = image.shared[id(pixels), rest]
            return len(new)
        except GramLoopError as error:
            if not (self.subject.keep_refusals and method.mitigations):
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
        config = replay_alone(rest)
        predictor = self.predictor
        if rest and config is None:
            if rest not in self._applied:
                self._applied[rest] = apply(rest, self.predictor, self.calibration)
            predictor = self._applied[rest]
        return [version for [version] in predict_each(predictor, pixels, config, False, trace)]


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

    def __init__(self, predictor: AnyPredictor, task: AnyTask, score: float) -> None:
        self.predictor, self.task, self.score = predictor, task, score
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def add_to(self, images: Sequence[LoopImage]) -> None:
        """Give images of one size their truth, or the reason why there is none.

        Where one of them is not known, all are predicted: a truth never depends on what happens to be kept.
        """
        truths = [self._known(str(image.clean.image_id)) for image in images if image.clean is not None]
        if any(truth is None for truth in truths):
            truths = self._predicted(images)
        for image, truth in zip(images, truths, strict=True):
            shown = image.record
            if isinstance(truth, str):
                image.problem = truth
            elif isinstance(shown, Record) and shown.shift is not None and shown.shift.moves:
                image.truth = self.task.move_truth(truth, shown, shown.shift)
            else:
                image.truth = truth

    def _known(self, key: str) -> Any:
        if key not in self._packed:
            return None
        self._packed.move_to_end(key)
        return pickle.loads(zlib.decompress(self._packed[key]))

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
            if image.clean is not None and not isinstance(truth, str):
                self._keep(str(image.clean.image_id), truth)
        return truths

    def _keep(self, key: str, truth: object) -> None:
        self._bytes -= len(self._packed.pop(key, b""))
        self._packed[key] = zlib.compress(pickle.dumps(truth), 1)
        self._bytes += len(self._packed[key])
        while self._bytes > _KEPT and len(self._packed) > 1:
            self._bytes -= len(self._packed.popitem(last=False)[1])


class OutOfMemoryError(GramLoopError):
    """An image does not fit into memory: its part is not stored, and all others are."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is about lack of memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)


def too_large(
    predictor: AnyPredictor, device: torch.device, images: Sequence[tuple[object, int, int]]
) -> OutOfMemoryError:
    """The error about images (name, height, width) that were predicted together, and what to change."""
    name, height, width = max(images, key=lambda image: image[1] * image[2])
    about = f"{width} x {height}"
    advice = ["a smaller --short-side"]
    if len(images) > 1:
        about += f", in a batch of {len(images)}"
        advice.insert(0, "--batch 1")
    weights = next((each for block in predictor.blocks for each in block.parameters()), None)
    if device.type != "cpu" and weights is not None and weights.dtype == torch.float32:
        advice.append("--dtype bfloat16")
    advice.append("another --device")
    return OutOfMemoryError(
        f"{name} ({about}) does not fit into the memory of {device}; try "
        f"{', '.join(advice[:-1])} or {advice[-1]}"
    )


def release_memory(device: torch.device) -> None:
    """Give back what a failed prediction left behind."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def reset_peak(device: torch.device) -> None:
    """Measure the peak from now on, where the system can; elsewhere it is that of the process's whole life."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_memory(device: torch.device) -> int:
    """The most bytes in use at once: of the GPU's tensors, or of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        pass
    try:
        import resource
    except ImportError:  # not a Unix system
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
