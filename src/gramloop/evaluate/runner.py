"""The loop of an evaluation: images come from the loader, methods predict them, rows go to the store.

    for batch in loader:
        for method in part.methods:
            rows[method].add(task.statistics(predict(batch, method), batch.truth))

Work comes in parts: some images of one condition, and the methods to run on them (`gramloop.evaluate.plan.Part`). A
`Subject` describes model and images, so that anything can be run like a plan: `gramloop.tune` makes its
candidates methods and its trials parts. Several processes, each with the model loaded once, run any number of parts:

    subject = Subject(hash=…, task="semantic", categories=…, load_predictor=…, open_images=…, load_task=…)
    store = Store(folder, subject)
    with start_workers(subject, store, workers=2) as workers:          # gramloop.evaluate.engines.local
        for done in workers.run(store.missing(parts)):                 # as often as needed; `Done` or `Missed`
            …
        workers.call(function, *args)                                  # function(runner, *args) in one process
    store.rows(units)                                                  # what was stored, as `MethodRows`

What methods of one part have in common is done once per image: decoding and shifting, the baseline pass that the first
replay needs anyway, filters on pixels that several methods begin with. With ``Subject.keep_refusals`` a method that
raises `GramLoopError` on an image has no row there, and its reason is in ``MethodRows.refused``; an image that cannot
be read or scored is in ``failures``.
"""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any, Self, TypeVar

import torch

from gramloop.data.records import Image8, LabelledImage, Record
from gramloop.errors import GramLoopError, UserCodeError
from gramloop.evaluate.loader import Loaded, Loader
from gramloop.evaluate.methods import BASELINE, Method, prediction_calls
from gramloop.evaluate.plan import Part, Subject
from gramloop.evaluate.predicting import (
    CleanTruth,
    LoopImage,
    MethodPredictor,
    OutOfMemoryError,
    deterministic,
    is_out_of_memory,
    peak_memory,
    release_memory,
    reset_peak,
    too_large,
)
from gramloop.evaluate.rows import Background, Facts, Failure, UnitRows
from gramloop.evaluate.store import Store
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import name_of
from gramloop.util.forward_patch import BlockCounter, counting

_WINDOW = 4  # batches among whose images those of one size are looked for

_T = TypeVar("_T")


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was asked to stop; the part is dropped."""


@dataclass(frozen=True)
class Done:
    """A part whose units are all stored; ``excluded`` images count for no method."""

    part: Part
    excluded: int


@dataclass(frozen=True)
class Missed:
    """A part that was not stored, since an image of it did not fit into memory; others are."""

    part: Part
    reason: str


@dataclass(frozen=True)
class Finished:
    """The results of a part, to be stored: rows and cost by method."""

    part: Part
    rows: Mapping[str, UnitRows]
    facts: Mapping[str, Facts]


class Runner:
    """A subject with its model loaded and its images opened, ready to run parts one after the other.

    Args:
        subject: what is run.
        store: where rows go; may be left out for `run_one`.
        device: one of several of the subject's type, such as cuda:1.
        prepare: processes that read images; a thread does where it is 0.
    """

    def __init__(
        self,
        subject: Subject,
        store: Store[Any] | None = None,
        device: torch.device | str | None = None,
        prepare: int = 0,
    ) -> None:
        self.subject, self.store = subject, store
        self.device = torch.device(device or subject.device)
        self._loader = Loader(subject.load_task, not subject.label_free, prepare)
        self.task = self._loader.task
        try:
            if prepare:
                with suppress(ImportError):  # pyarrow imports it at its first table: not while a GPU waits
                    import_module("pandas")
            self.predictor = subject.load_predictor(str(self.device))
            self.images = subject.open_images()
            stats = subject.load_calibration(self.predictor, self.images)
            self.methods = MethodPredictor(subject, self.predictor, stats)
        except BaseException:
            self.close()
            raise
        self._clean = CleanTruth(self.predictor, self.task, subject.truth_score)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that read images."""
        self._loader.close()

    def run(
        self,
        parts: Iterable[Part],
        on_images: Callable[[int], None] = lambda images: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Done | Missed]:
        """Run parts and store them; the next are taken as soon as their images can be read.

        Args:
            parts: what to run.
            on_images: called with the number of images that were predicted since the last call.
            stopped: asked before every image; `Stopped` is raised where it returns true.
        """
        stored: deque[Future[Done]] = deque()
        with (
            Background(threaded=self._loader.processes > 0) as background,
            closing(self._loader.ahead(self._wanted(parts))) as loaded,
        ):
            for part, images in groupby(loaded, key=lambda pair: pair[0].part):
                missed: Missed | None = None
                try:
                    finish = self._run_part(part, images, background, on_images, stopped)
                except OutOfMemoryError as error:
                    missed = Missed(part, str(error))
                else:
                    stored.append(background.call(self._keep, finish))
                if missed is not None:  # the error, which held tensors, is gone
                    release_memory(self.device)
                    yield missed
                while stored and stored[0].done():
                    yield stored.popleft().result()
            while stored:
                yield stored.popleft().result()

    def run_one(self, part: Part) -> Finished:
        """Run one part and store nothing."""
        with (
            Background(threaded=False) as background,
            closing(self._loader.ahead(self._wanted([part]))) as loaded,
        ):
            return self._run_part(part, loaded, background)

    def _wanted(self, parts: Iterable[Part]) -> Iterator[tuple[LoopImage, Record | LabelledImage]]:
        for part in parts:
            records = self.images.records(part.condition, part.images)
            clean: Sequence[Any] = [None] * len(part)
            if self.subject.label_free:
                clean = self.images.clean_records(part.condition, part.images)
            for position, record, origin in zip(part.images, records, clean, strict=True):
                yield LoopImage(part, position, record, origin), record

    def _run_part(
        self,
        part: Part,
        loaded: Iterable[tuple[LoopImage, Loaded]],
        background: Background,
        on_images: Callable[[int], None] = lambda images: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Finished:
        """The loop over the images of a part."""
        rows = {unit.method.name: UnitRows(self.subject, self.task, unit) for unit in part.units}
        calls = prediction_calls(part.methods)  # the baseline comes with the first replay
        meter = _Meter(self.device)
        with deterministic(self.subject.threads), counting(self.predictor.blocks) as meter.counter:
            for window in _windows(loaded, self.subject.batch):
                if stopped():
                    raise Stopped
                images = [_opened(*pair) for pair in window]
                for batch in _same_sizes(images, self.subject.batch):
                    if self.subject.label_free:
                        self._guarded(batch, self._clean.add_to, batch)
                        batch = [image for image in batch if not image.problem]
                    for call in calls if batch else ():
                        self._predict(batch, call, meter)
                for image in images:
                    background.later(_add_rows, rows, image)
                    on_images(1)
        return Finished(part, rows, meter.facts(calls))

    def _keep(self, finished: Finished) -> Done:
        """Store the units of a part."""
        assert self.store is not None
        for unit in finished.part.units:
            rows = finished.rows[unit.method.name]
            self.store.write(
                unit, rows.table(), rows.failures, rows.refused, finished.facts[unit.method.name]
            )
        lost = {failure.position for rows in finished.rows.values() for failure in rows.failures}
        return Done(finished.part, len(lost))

    def _predict(self, batch: Sequence[LoopImage], call: tuple[Method, ...], meter: _Meter) -> None:
        """Predict images of one size with the methods of one call."""
        began, blocks = time.perf_counter(), meter.counter.blocks
        trace: bool | None = True
        if not self.subject.diagnostics:
            kept = any(self.subject.keeps(image.position, image.record.image_id) for image in batch)
            trace = None if kept else False
        together = self._guarded(batch, self.methods.predict, batch, call, trace)
        seconds, executed = meter.spent.get(call[-1].name, (0.0, 0))
        more = (meter.counter.blocks - blocks) * together  # a block runs once for a batch
        meter.spent[call[-1].name] = seconds + time.perf_counter() - began, executed + more

    def _guarded(self, batch: Sequence[LoopImage], function: Callable[..., _T], *args: object) -> _T:
        """What a function of the model returns; the error says which images do not fit, or where a user's code failed."""
        try:
            return function(*args)
        except GramLoopError:
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                raise UserCodeError.of(
                    f"{name_of(self.predictor)} failed on {batch[0].about[0]}", error
                ) from error
        # outside, where the error no longer holds the tensors of its frames
        raise too_large(self.predictor, self.device, [image.about for image in batch])

    def predict(
        self, pixels: Image8, methods: Sequence[Method], trace: bool | None = None
    ) -> dict[str, Prediction]:
        """The predictions of methods for one image, by name, as the loop makes them."""
        image = LoopImage(Part("", (0,), tuple(methods)), 0, LabelledImage("", pixels, None), pixels=pixels)
        with deterministic(self.subject.threads):
            for call in prediction_calls(methods):
                self.methods.predict([image], call, trace)
        return {name: each for name, each in image.predictions.items() if isinstance(each, Prediction)}


def make_runner(
    subject: Subject, store: Store[Any], device: torch.device | str | None = None, prepare: int = 0
) -> Runner:
    """What runs the parts of a subject."""
    made: Runner = (subject.runner or Runner)(subject, store, device, prepare)
    return made


def _opened(image: LoopImage, found: Loaded) -> LoopImage:
    """The image with its pixels and labels, or why it cannot be used."""
    if isinstance(found, MemoryError):
        name, high, wide = image.about
        raise OutOfMemoryError(
            f"{name} ({wide} x {high}) does not fit into memory while it is read; try fewer --workers or a smaller "
            "--prepare"
        )
    if isinstance(found, str):
        image.problem = found
    else:
        image.pixels, image.truth = found.pixels, found.truth
    return image


def _add_rows(rows: Mapping[str, UnitRows], image: LoopImage) -> None:
    """What is stored of one image, of every method."""
    name = str(image.record.image_id)
    for method, unit in rows.items():
        prediction = image.predictions.get(method, "")
        if image.problem:
            unit.failures.append(Failure(image.position, name, image.problem))
        elif isinstance(prediction, str):
            unit.refused.append(Failure(image.position, name, prediction))
        else:
            signals = image.signals if method == BASELINE else None
            unit.add(image.position, name, prediction, image.truth, signals)


def _windows(
    loaded: Iterable[tuple[LoopImage, Loaded]], batch: int
) -> Iterator[list[tuple[LoopImage, Loaded]]]:
    """The images in turn, a few batches of them at a time; one by one where a batch is one."""
    most, window = batch if batch == 1 else _WINDOW * batch, []
    for pair in loaded:
        window.append(pair)
        if len(window) == most:
            yield window
            window = []
    if window:
        yield window


def _same_sizes(images: Sequence[LoopImage], batch: int) -> list[list[LoopImage]]:
    """The images that can be used, in batches of one size; earlier ones first."""
    found: list[list[LoopImage]] = []
    filling: dict[tuple[int, ...], list[LoopImage]] = {}
    for image in images:
        if image.problem:
            continue
        size = image.pixels.shape
        if len(filling.get(size, ())) in (0, batch):
            filling[size] = []
            found.append(filling[size])
        filling[size].append(image)
    return found


class _Meter:
    """What the calls of a part cost."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.counter = device, BlockCounter()
        self.spent: dict[str, tuple[float, int]] = {}  # seconds and blocks, by the last method of a call
        self.began = time.perf_counter()
        reset_peak(device)

    def facts(self, calls: Iterable[tuple[Method, ...]]) -> dict[str, Facts]:
        """The cost of each method; the baseline's seconds and blocks are with the replay that it came with."""
        wall, peak = time.perf_counter() - self.began, peak_memory(self.device)
        found = {}
        for call in calls:
            names = [method.name for method in call]
            for name in names:
                seconds, blocks = self.spent.get(name, (0.0, 0))
                other = next((each for each in names if each != name), "")
                place = str(self.device), platform.node()
                found[name] = Facts(seconds, other, blocks, wall, peak, *place)
        return found
