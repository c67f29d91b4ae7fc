"""The loop of an evaluation: images come from the loader, methods predict them, rows go to the store.

    for batch in loader:
        for method in part.methods:
            rows[method].add(task.statistics(predict(batch, method), batch.truth))

Work comes in parts: some images of one condition, and the methods to run on them (`gramloop.evaluate.plan.Part`). A
`Workload` describes model and images, so that anything can be run like a plan: `gramloop.tune` makes its
candidates methods and its trials parts. Several processes, each with the model loaded once, run any number of parts:

    workload = Workload(hash=…, task="semantic", categories=…, load_predictor=…, open_images=…, load_task=…)
    store = Store(folder, workload)
    with start_workers(workload, store, workers=2) as workers:         # gramloop.evaluate.engines.local
        for done in workers.run(store.missing(parts)):                 # as often as needed; `Done` or `Missed`
            …
    store.rows(units)                                                  # what was stored, as `MethodRows`

With ``Workload.keep_refusals`` a method that raises `GramLoopError` on an image has no row there, and its reason is in
``MethodRows.refused``; an image that cannot be read or scored is in ``failures``.
"""

from __future__ import annotations

import platform
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any, TypeVar

import torch

from gramloop.data.records import Image8, LabelledImage, Record
from gramloop.errors import GramLoopError, UserCodeError
from gramloop.evaluate.loader import Loaded, Loader
from gramloop.evaluate.methods import Method, prediction_calls
from gramloop.evaluate.plan import Part, Workload
from gramloop.evaluate.predicting import CleanTruth, LoopImage, MethodPredictor
from gramloop.evaluate.rows import Facts, Failure, UnitRows
from gramloop.evaluate.store import Store
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import name_of
from gramloop.util.device import deterministic, is_out_of_memory, peak_memory, release_memory, reset_peak
from gramloop.util.forward_patch import BlockCounter, counting

_UNSCORED = 16  # predicted images that may wait to be scored

_T = TypeVar("_T")


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was asked to stop; the part is dropped."""


class OutOfMemoryError(GramLoopError):
    """An image does not fit into memory: its part is not stored, and all others are."""


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
        self.images = workload.open_images()
        load = workload.load_calibration
        stats = None if load is None else load(self.predictor, self.images)
        self.methods = MethodPredictor(self.predictor, stats, workload.keep_refusals)
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
        rows = {unit.method.name: UnitRows(self.workload, self.task, unit) for unit in part.units}
        calls = prediction_calls(part.methods)  # the baseline comes with the first replay
        spent = {call[-1].name: (0.0, 0) for call in calls}
        began = time.perf_counter()
        reset_peak(self.device)
        with deterministic(self.workload.threads), counting(self.predictor.blocks) as counter:
            for batch in _batches(loaded, self.workload.batch):
                if stopped():
                    raise Stopped
                self._predict(batch, calls, counter, spent)
                while len(scored) >= _UNSCORED:
                    scored.popleft().result()
                scored.extend(_call(scorer, _add_rows, rows, image) for image in batch)
                on_images(len(batch))
        where = time.perf_counter() - began, peak_memory(self.device), str(self.device), platform.node()
        facts = {}
        for call in calls:
            for method in call:
                seconds, blocks = spent.get(method.name, (0.0, 0))
                other = next((each.name for each in call if each != method), "")
                facts[method.name] = Facts(seconds, other, blocks, *where)
        return Finished(part, rows, facts), scored

    def _predict(
        self,
        batch: Sequence[LoopImage],
        calls: Iterable[tuple[Method, ...]],
        counter: BlockCounter,
        spent: dict[str, tuple[float, int]],
    ) -> None:
        """Predict images of one size with all methods; ``spent`` are seconds and blocks by the last method of a call."""
        if self.workload.label_free and not batch[0].problem:
            self._guarded(batch, self._clean.add_to, batch)
        usable = [image for image in batch if not image.problem]
        for call in calls if usable else ():
            began, before = time.perf_counter(), counter.blocks
            together = self._guarded(usable, self.methods.predict, usable, call, self._traces(usable))
            seconds, blocks = spent[call[-1].name]
            blocks += (counter.blocks - before) * together  # a block runs once for a batch
            spent[call[-1].name] = seconds + time.perf_counter() - began, blocks

    def _traces(self, images: Sequence[LoopImage]) -> bool | None:
        """Whether replays return what they measure: always, where they measure it anyway, or never."""
        workload = self.workload
        kept = (
            image.position < workload.pictures or str(image.record.image_id) in workload.keep
            for image in images
        )
        return True if workload.diagnostics else None if any(kept) else False

    def _keep(self, finished: Finished, scored: Sequence[Future[None]]) -> Done:
        """Store the units of a part; an error of one of its rows is raised in place."""
        for future in scored:
            future.result()
        assert self.store is not None
        for unit in finished.part.units:
            rows = finished.rows[unit.method.name]
            self.store.write(
                unit, rows.table(), rows.failures, rows.refused, finished.facts[unit.method.name]
            )
        lost = {failure.position for rows in finished.rows.values() for failure in rows.failures}
        return Done(finished.part, len(lost))

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
        together = f", in a batch of {len(batch)}," if len(batch) > 1 else ""
        raise OutOfMemoryError(
            f"{largest}{together} does not fit into the memory of {self.device}; try --batch 1, a smaller --short-side, "
            "--dtype bfloat16 or another --device"
        )

    def predict(
        self, pixels: Image8, methods: Sequence[Method], trace: bool | None = None
    ) -> dict[str, Prediction]:
        """The predictions of methods for one image, by name, as the loop makes them."""
        image = LoopImage(Part("", (0,), tuple(methods)), 0, LabelledImage("", pixels, None), pixels=pixels)
        with deterministic(self.workload.threads):
            for call in prediction_calls(methods):
                self.methods.predict([image], call, trace)
        return {name: each for name, each in image.predictions.items() if isinstance(each, Prediction)}


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
