"""The loop of an evaluation: images come from the loader, methods predict them, rows go to the store.

    for batch in loader:
        for method in part.methods:
            rows[method].add(task.statistics(predict(batch, method), batch.truth))

Work comes in parts: some images of one condition, and the methods to run on them (`gramloop.evaluate.plan.Part`). A
`Workload` describes model and images, so that anything can be run like a plan: `gramloop.tune` makes its
candidates methods and its trials parts. Several processes, each with the model loaded once, run any number of parts:

    workload = Workload(hash=…, task="semantic", categories=…, load_predictor=…, open_images=…, load_task=…)
    store = Store(folder, workload)
    with start_workers(workload, store, workers=2) as run:             # gramloop.evaluate.engines
        for done in run(store.missing(parts)):                         # as often as needed; `Done` or `Missed`
            …
    store.rows(units)                                                  # what was stored, as `MethodRows`

What methods have in common is done once per image. The baseline is the pass that the first replay needs anyway, so a
pair costs no more than the replay. Filters on pixels run once for all methods that begin with them; where a filter
changes nothing, its methods share the prediction without it.

With ``Workload.keep_refusals`` a method that raises `GramLoopError` on an image has no row there, and its reason is in
``MethodRows.refused``; an image that cannot be read or scored is in ``failures``.
"""

from __future__ import annotations

import pickle
import platform
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch

from gramloop.data.records import ChangedFileError, Image8, LabelledImage, Record
from gramloop.errors import GramLoopError, UserCodeError
from gramloop.evaluate.loader import Loaded, Loader
from gramloop.evaluate.methods import BASELINE, Method, prediction_calls
from gramloop.evaluate.plan import Part, Workload
from gramloop.evaluate.rows import Facts, Failure, UnitRows, keeps_picture
from gramloop.evaluate.store import Store
from gramloop.mitigations.mitigated import apply
from gramloop.mitigations.stack import Stack, replay_alone
from gramloop.tasks.base import AnyTask, read_labelled
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import AnyPredictor, class_numbers, name_of, predict_each
from gramloop.util.device import deterministic, is_out_of_memory, peak_memory, release_memory, reset_peak

_UNSCORED = 16  # predicted images that may wait to be scored
_KEPT = 1 << 28  # bytes of packed clean predictions in one process

_T = TypeVar("_T")


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was asked to stop; the part is dropped."""


class OutOfMemoryError(GramLoopError):
    """An image does not fit into memory: its part is not stored, and all others are."""


@dataclass(frozen=True)
class Done:
    """A part whose units are all stored."""

    part: Part


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


@dataclass
class LoopImage:
    """An image of a part, as it goes through the loop."""

    part: Part
    position: int
    record: Record | LabelledImage
    clean: Any = None  # the record without its shift, where that is predicted in place of labels
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


class Runner:
    """A workload with its model loaded and its images opened, ready to run parts one after the other.

    Args:
        workload: what is run.
        store: where rows go; may be left out for `run_one`.
        device: one of several of the workload's type, such as cuda:1.
        prepare: processes that read images; a thread does where it is 0.
    """

    def __init__(
        self,
        workload: Workload,
        store: Store[Any] | None = None,
        device: torch.device | str | None = None,
        prepare: int = 0,
    ) -> None:
        self.workload, self.store = workload, store
        self.device = torch.device(device or workload.device)
        self.task = workload.load_task()
        self.loader = Loader(workload.load_task, not workload.label_free, prepare)
        if prepare:
            with suppress(ImportError):  # pyarrow imports it at its first table: not while a GPU waits
                import_module("pandas")
        self.predictor = workload.load_predictor(str(self.device))
        self.numbers: dict[int, int] = {}  # of the set, by those of the model
        if workload.match_names:
            self.numbers = class_numbers(self.predictor.classes, workload.categories.names)
        self.images = workload.open_images()
        load = workload.load_calibration
        self.calibration = None if load is None else load(self.predictor, self.images)
        self._applied: dict[Stack, AnyPredictor] = {}
        self._clean = CleanTruth(self.predictor, self.task, workload.truth_score)

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
            stopped: asked before every batch; `Stopped` is raised where it returns true.
        """
        stored: deque[Future[Done]] = deque()
        with ExitStack() as stack:
            scorer = None  # a thread that scores, so that a GPU need not wait
            if self.loader.processes:
                scorer = stack.enter_context(ThreadPoolExecutor(1, "gramloop-rows"))
            loaded = stack.enter_context(closing(self.loader.ahead(self._wanted(parts))))
            for part, images in groupby(loaded, key=lambda pair: pair[0].part):
                missed: Missed | None = None
                try:
                    finished, scored = self._run_part(part, images, scorer, on_images, stopped)
                except OutOfMemoryError as error:
                    missed = Missed(part, str(error))
                else:
                    stored.append(_call(scorer, self._keep, finished, scored))
                if missed is not None:  # the error, which held tensors, is gone
                    release_memory(self.device)
                    yield missed
                while stored and (stored[0].done() or len(stored) > 1):
                    yield stored.popleft().result()
            while stored:
                yield stored.popleft().result()

    def run_one(self, part: Part) -> Finished:
        """Run one part and store nothing."""
        with closing(self.loader.ahead(self._wanted([part]))) as loaded:
            return self._run_part(part, loaded)[0]

    def _wanted(self, parts: Iterable[Part]) -> Iterator[tuple[LoopImage, Record | LabelledImage]]:
        for part in parts:
            records = self.images.records(part.condition, part.images)
            clean: Sequence[Any] = [None] * len(part)
            if self.workload.label_free:
                clean = self.images.clean_records(part.condition, part.images)
            for position, record, origin in zip(part.images, records, clean, strict=True):
                yield LoopImage(part, position, record, origin), record

    def _run_part(
        self,
        part: Part,
        loaded: Iterable[tuple[LoopImage, Loaded]],
        scorer: ThreadPoolExecutor | None = None,
        on_images: Callable[[int], None] = lambda images: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[Finished, Sequence[Future[None]]]:
        """The loop over the images of a part; its rows are complete once all that is scored later is done."""
        scored = deque[Future[None]]()
        given = self.workload, self.task
        rows = {unit.method.name: UnitRows(*given, unit, self.numbers) for unit in part.units}
        calls = prediction_calls(part.methods)  # the baseline comes with the first replay
        spent = dict.fromkeys((call[-1].name for call in calls), 0.0)
        began = time.perf_counter()
        reset_peak(self.device)
        with deterministic(self.workload.threads):
            for batch in _batches(loaded, self.workload.batch):
                if stopped():
                    raise Stopped
                if self.workload.label_free and not batch[0].problem:
                    self._guarded(batch, self._clean.add_to, batch)
                usable = [image for image in batch if not image.problem]
                for call in calls if usable else ():
                    started = time.perf_counter()
                    self._guarded(usable, self._predict_call, usable, call, self._traces(usable))
                    spent[call[-1].name] += time.perf_counter() - started
                while len(scored) >= _UNSCORED:
                    scored.popleft().result()
                scored.extend(_call(scorer, _add_rows, rows, image) for image in batch)
                on_images(len(batch))
        where = time.perf_counter() - began, peak_memory(self.device), str(self.device), platform.node()
        facts = {}
        for call in calls:
            for method in call:
                other = next((each.name for each in call if each != method), "")
                facts[method.name] = Facts(spent.get(method.name, 0.0), other, *where)
        return Finished(part, rows, facts), scored

    def _predict_call(
        self, images: Sequence[LoopImage], call: tuple[Method, ...], trace: bool | None
    ) -> None:
        """Predict images of one size with the methods of one call: one, or the baseline and the replay it comes with."""
        last = call[-1]
        if len(call) == 1:
            self._predict_alone(images, last, trace)
            return
        found = predict_each(self.predictor, [image.pixels for image in images], last.replay, True, trace)
        for image, (baseline, replayed) in zip(images, found, strict=True):
            image.predictions[BASELINE], image.predictions[last.name] = baseline, replayed
            image.shared[id(image.pixels), ()] = baseline
            image.shared[id(image.pixels), last.stack] = replayed

    def _predict_alone(self, images: Sequence[LoopImage], method: Method, trace: bool | None) -> None:
        """Predict images with one method; those whose pixels and what follows are known already share the prediction."""
        filters = tuple(each for each in method.stack if each.stage == "pixels")  # they come first
        rest = method.stack[len(filters) :]
        try:
            filtered = [(image, self._filtered(image, filters)) for image in images]
            new = [(image, pixels) for image, pixels in filtered if (id(pixels), rest) not in image.shared]
            found = self._predict_rest([pixels for _, pixels in new], rest, trace) if new else []
            for (image, pixels), prediction in zip(new, found, strict=True):
                image.shared[id(pixels), rest] = prediction
            for image, pixels in filtered:
                image.predictions[method.name] = image.shared[id(pixels), rest]
            return
        except GramLoopError as error:
            if not self.workload.keep_refusals or method.replay is not None:
                raise
            if len(images) == 1:
                images[0].predictions[method.name] = str(error)
                return
        for image in images:
            self._predict_alone([image], method, trace)

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

    def _traces(self, images: Sequence[LoopImage]) -> bool | None:
        """Whether replays return what they measure: always, where they measure it anyway, or never."""
        if self.workload.diagnostics:
            return True
        about = [(self.workload, image.position, str(image.record.image_id)) for image in images]
        return None if any(keeps_picture(*each) for each in about) else False

    def _keep(self, finished: Finished, scored: Sequence[Future[None]]) -> Done:
        """Store the units of a part; an error of one of its rows is raised in place."""
        for future in scored:
            future.result()
        assert self.store is not None
        for unit in finished.part.units:
            rows, facts = finished.rows[unit.method.name], finished.facts[unit.method.name]
            self.store.write(unit, rows.table(), rows.failures, rows.refused, facts)
        return Done(finished.part)

    def _guarded(self, batch: Sequence[LoopImage], function: Callable[..., _T], *args: object) -> _T:
        """What a function of the model returns; the error says which images do not fit, or where a user's code failed."""
        largest = max(batch, key=lambda image: image.pixels.size).name
        try:
            return function(*args)
        except GramLoopError:
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                about = f"{name_of(self.predictor)} failed on {batch[0].name}"
                raise UserCodeError.of(about, error) from error
        # outside, where the error no longer holds the tensors of its frames
        together, smaller = (f", in a batch of {len(batch)},", "--batch 1, ") if len(batch) > 1 else ("", "")
        raise OutOfMemoryError(
            f"{largest}{together} does not fit into the memory of {self.device}; try {smaller}a smaller --short-side, "
            "--dtype bfloat16 or another --device"
        )

    def predict(
        self, pixels: Image8, methods: Sequence[Method], trace: bool | None = None
    ) -> dict[str, Prediction]:
        """The predictions of methods for one image, by name, as the loop makes them."""
        image = LoopImage(Part("", (0,), tuple(methods)), 0, LabelledImage("", pixels, None), pixels=pixels)
        with deterministic(self.workload.threads):
            for call in prediction_calls(methods):
                self._predict_call([image], call, trace)
        return {name: each for name, each in image.predictions.items() if isinstance(each, Prediction)}


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
        known = [self._packed.get(str(image.clean.image_id)) for image in images]
        truths: list[Any] = [pickle.loads(zlib.decompress(each)) for each in known if each is not None]
        if len(truths) < len(images):
            truths = self._predicted(images)
        for image, truth in zip(images, truths, strict=True):
            shifted, image.truth = image.record, truth
            if isinstance(truth, str):
                image.problem = truth
            elif isinstance(shifted, Record) and shifted.shift is not None and shifted.shift.moves:
                image.truth = self.task.move_truth(truth, shifted, shifted.shift)

    def _predicted(self, images: Sequence[LoopImage]) -> list[Any]:
        """The truth of each image, or why it has none."""
        try:
            read = [read_labelled(image.clean, self.task.name, labels=False) for image in images]
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
                packed = self._packed[str(image.clean.image_id)] = zlib.compress(pickle.dumps(truth), 1)
                self._bytes += len(packed)
        return truths


def make_runner(
    workload: Workload, store: Store[Any], device: torch.device | str | None = None, prepare: int = 0
) -> Runner:
    """What runs the parts of a workload."""
    made: Runner = (workload.runner or Runner)(workload, store, device, prepare)
    return made


def _call(pool: ThreadPoolExecutor | None, function: Callable[..., _T], *args: object) -> Future[_T]:
    """What a function returns, or will return where there is a thread for it."""
    if pool is not None:
        return pool.submit(function, *args)
    future: Future[_T] = Future()
    future.set_result(function(*args))
    return future


def _batches(loaded: Iterable[tuple[LoopImage, Loaded]], size: int) -> Iterator[list[LoopImage]]:
    """Images of one size, so many at once; those that cannot be used are alone."""
    waiting: dict[tuple[int, ...], list[LoopImage]] = {}
    for image, found in loaded:
        if isinstance(found, MemoryError):
            raise OutOfMemoryError(
                f"{image.name} does not fit into memory while it is read; try fewer --workers or a smaller --prepare"
            )
        if isinstance(found, str):
            image.problem = found
            yield [image]
            continue
        image.pixels, image.truth = found.pixels, found.truth
        alike = waiting.setdefault(image.pixels.shape, [])
        alike.append(image)
        if len(alike) == size:
            yield waiting.pop(image.pixels.shape)
    yield from waiting.values()


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
            unit.add(image.position, name, prediction, image.truth)
