"""Running units: every image decoded and shifted once, then shown to all methods.

The baseline is the ordinary pass that the first replay needs anyway, so a pair costs no more than the replay.
Images are made ready ahead, over the borders of units (`preparing`); beside a GPU rows are made in a thread (`scoring`).
"""

from __future__ import annotations

import platform
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from gramloop.data.checks import ChangedFileError
from gramloop.data.records import DataSet, Image8, LabelledImage, Record
from gramloop.data.shifted import shift_record
from gramloop.data.truth import Truth
from gramloop.errors import GramLoopError
from gramloop.evaluate.batches import groups, windows
from gramloop.evaluate.clean_truth import CleanTruth
from gramloop.evaluate.memory import peak_memory, reset_peak
from gramloop.evaluate.out_of_memory import OutOfMemoryError, is_out_of_memory, release_memory, too_large
from gramloop.evaluate.plan import Plan, Unit, condition_of
from gramloop.evaluate.predicting import calls, deterministic, predict_all, predict_together, wanted_trace
from gramloop.evaluate.preparing import Prepared, Preparing
from gramloop.evaluate.rows import Failure
from gramloop.evaluate.scoring import InTurn, UnitScores
from gramloop.evaluate.sources import check_categories, open_condition, open_planned, open_source
from gramloop.evaluate.store import Facts
from gramloop.evaluate.timing import call_name, shares_alone
from gramloop.evaluate.unchanged import refuse_other_model, refuse_other_origin
from gramloop.mitigations.mitigated import apply
from gramloop.tasks.loading import load_numbered
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.util.checksums import load_checksums
from gramloop.util.forward_patch import BlockCounter, counting

R = TypeVar("R")


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked
    """The run was asked to stop; the unit is dropped."""


@dataclass(frozen=True)
class Finished:
    """A unit's results, to be stored."""

    table: Any
    failures: tuple[Failure, ...]
    facts: Facts


@dataclass(frozen=True)
class Missed:
    """A unit that was not stored, since an image of it did not fit into memory; the others go on."""

    unit: Unit
    reason: str


@dataclass(frozen=True)
class _Shown:
    """An image of a unit on its way to the model."""

    unit: Unit
    position: int
    record: Record


class Session:
    """A plan with its model loaded and its data opened, ready to run units one after the other.

    Versions, weights and images must be those that were planned, whichever process or machine this is; ``folder``, that
    of the results, may remember their checksums. ``prepare`` processes make images ready, or a thread where it is 0.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device | str | None = None,
        folder: Path | None = None,
        prepare: int = 0,
    ) -> None:
        self.plan = plan
        if folder is not None:
            load_checksums(folder)
        refuse_other_origin(plan)
        self.device = torch.device(device or plan.model.device)
        self._preparing = Preparing(plan.task, not plan.label_free, prepare)
        if prepare:
            with suppress(ImportError):  # pyarrow looks for it at its first table: not while a GPU waits
                import_module("pandas")
        try:
            self._load(plan)
        except BaseException:
            self.close()
            raise
        self._data: tuple[str, DataSet] | None = None

    def _load(self, plan: Plan) -> None:
        self.predictor = load_numbered(
            plan.task,
            plan.model.files,
            plan.model.sizes,
            self.device,
            plan.categories,
            plan.model.dtype,
        )
        refuse_other_model(plan, self.predictor)
        source = open_source(plan.model.files)
        self.mitigated: Mapping[str, Predictor[Prediction]] = {
            method.name: apply(method.mitigations, self.predictor, source)
            for method in plan.methods
            if method.mitigations
        }
        self.opened = open_planned(plan)
        if self.opened.clean is not None and not plan.label_free:
            check_categories(self.predictor, self.opened.clean)
        self._clean = CleanTruth(self.predictor, plan.truth_score) if plan.label_free else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that prepare images."""
        self._preparing.close()

    def data(self, key: str) -> DataSet:
        """The set of one condition; the latest is kept, since units come condition by condition."""
        if self._data is None or self._data[0] != key:
            data = open_condition(self.plan, self.opened, key)
            if not self.plan.label_free:
                check_categories(self.predictor, data)
            self._data = (key, data)
        return self._data[1]

    def records(self, unit: Unit) -> Sequence[Record]:
        """The images of a unit; those of a condition that is made here are made of the unit's clean images alone."""
        condition = condition_of(unit.condition)
        if self.opened.clean is None or condition in self.opened.ready:
            return self.data(unit.condition)[unit.start : unit.stop]
        shift = self.opened.shift(condition)
        return [shift_record(record, shift) for record in self.opened.clean[unit.start : unit.stop]]

    def run(
        self,
        unit: Unit,
        on_image: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Finished:
        """Predict every image of a unit; `Stopped` if ``stopped()`` turns true before the end."""
        [found] = self.run_units([unit], lambda unit, finished: finished, on_image, stopped)
        if isinstance(found, Missed):
            raise OutOfMemoryError(found.reason)
        return found

    def run_units(
        self,
        units: Iterable[Unit],
        keep: Callable[[Unit, Finished], R],
        on_image: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[R | Missed]:
        """Run units one after the other, asking for the next ones as soon as their images can be prepared.

        ``keep`` is called with each finished unit, in order, perhaps in another thread; what it returns is yielded.
        """
        kept: deque[Future[R]] = deque()
        with (
            InTurn(beside=self._preparing.processes > 0) as in_turn,
            closing(self._preparing.ahead(self._shown(units))) as prepared,
        ):
            for unit, images in groupby(prepared, key=lambda pair: pair[0].unit):
                missed: Missed | None = None
                try:
                    finish = self._run(unit, images, in_turn, on_image, stopped)
                except OutOfMemoryError as error:
                    missed = Missed(unit, str(error))
                else:
                    kept.append(in_turn.do(_finish, unit, finish, keep))
                if missed is not None:  # no error is in flight any more that would hold tensors
                    release_memory(self.device)
                    yield missed
                while kept and kept[0].done():
                    yield kept.popleft().result()
            while kept:
                yield kept.popleft().result()

    def _shown(self, units: Iterable[Unit]) -> Iterator[tuple[_Shown, Record]]:
        for unit in units:
            for position, record in enumerate(self.records(unit), unit.start):
                yield _Shown(unit, position, record), record

    def _run(
        self,
        unit: Unit,
        images: Iterable[tuple[_Shown, Prepared]],
        in_turn: InTurn,
        on_image: Callable[[], None],
        stopped: Callable[[], bool],
    ) -> Callable[[], Finished]:
        """Show the images of a unit to the model; what makes its results of that."""
        began = time.perf_counter()
        reset_peak(self.device)
        scores, watch = UnitScores(self.plan), _Watch()
        with deterministic(self.plan.model.threads), counting(self.predictor.blocks) as counter:
            for window in windows(images, self.plan.batch):
                if stopped():
                    raise Stopped
                self._show(window, scores, watch, counter, in_turn, on_image)
        seconds = time.perf_counter() - began
        alone: dict[str, float] = {}
        if watch.latest is not None and unit.start == 0:
            with deterministic(self.plan.model.threads):
                alone = shares_alone(self.predictor, watch.latest, calls(self.plan.methods)[0], watch.seconds)
        facts = Facts(
            seconds,
            dict(watch.spent),
            watch.blocks,
            peak_memory(self.device),
            str(self.device),
            platform.node(),
            alone,
        )
        return partial(_finished, scores, facts)

    def _show(
        self,
        window: Sequence[tuple[_Shown, Prepared]],
        scores: UnitScores,
        watch: _Watch,
        counter: BlockCounter,
        in_turn: InTurn,
        on_image: Callable[[], None],
    ) -> None:
        """Predict some images, those of one size together, and hand them on in their order."""
        truths = [self._truth(shown, found) for shown, found in window]
        usable = [
            (index, found)
            for index, ((_, found), truth) in enumerate(zip(window, truths, strict=True))
            if isinstance(found, LabelledImage) and not isinstance(truth, str)
        ]
        predicted: dict[int, dict[str, Prediction]] = {}
        sizes = [(found.pixels.shape[0], found.pixels.shape[1]) for _, found in usable]
        for group in groups(sizes, self.plan.batch):
            together = [usable[number] for number in group]
            shown = [window[index][0] for index, _ in together]
            results = self._predict([found.pixels for _, found in together], shown, watch, counter)
            predicted.update(zip((index for index, _ in together), results, strict=True))
        for index, ((shown_one, _), truth) in enumerate(zip(window, truths, strict=True)):
            position, record = shown_one.position, shown_one.record
            if isinstance(truth, str):
                in_turn.later(scores.leave_out, position, record, truth)
            else:
                in_turn.later(scores.add, position, record, predicted[index], truth)
            on_image()

    def _predict(
        self, pixels: Sequence[Image8], shown: Sequence[_Shown], watch: _Watch, counter: BlockCounter
    ) -> list[dict[str, Prediction]]:
        """The predictions of all methods for images of one size."""
        methods, trace = self.plan.methods, wanted_trace(self.plan, min(one.position for one in shown))
        first, blocks = call_name(calls(methods)[0]), counter.blocks
        before = watch.spent[first]
        try:
            if len(pixels) == 1:
                found = [predict_all(self.predictor, pixels[0], methods, trace, watch.spent, self.mitigated)]
            else:
                found = predict_together(self.predictor, pixels, methods, trace, watch.spent)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        else:
            watch.blocks += (counter.blocks - blocks) * len(pixels)  # a block runs once for a batch
            watch.latest, watch.seconds = pixels[-1], (watch.spent[first] - before) / len(pixels)
            return found
        # outside, where the error no longer holds the tensors of its frames
        raise too_large(self.plan, self.predictor, self.device, [one.record for one in shown])

    def _truth(self, shown: _Shown, found: Prepared) -> Truth | str | None:
        """What the predictions of an image are compared with; or a sentence about why it cannot be used."""
        if isinstance(found, MemoryError):
            raise OutOfMemoryError(
                f"{shown.record.path} ({shown.record.width} x {shown.record.height}) does not fit into memory while it is "
                "prepared; try fewer --workers or a smaller --prepare"
            )
        if isinstance(found, str):
            return found
        if self._clean is None:
            labelled: Truth | None = found.truth
            return labelled
        record, clean = shown.record, self.opened.clean
        try:
            return self._clean.of(record if clean is None else clean[shown.position], record)
        except ChangedFileError:
            raise
        except GramLoopError as error:
            return str(error)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        raise too_large(self.plan, self.predictor, self.device, [record])


class _Watch:
    """What is counted while a unit runs."""

    def __init__(self) -> None:
        self.spent = defaultdict[str, float](float)  # seconds by call
        self.blocks = 0
        self.latest: Image8 | None = None  # an image, and the seconds of the first call on it
        self.seconds = 0.0


def _finished(scores: UnitScores, facts: Facts) -> Finished:
    return Finished(scores.table(), scores.failures, facts)


def _finish(unit: Unit, finish: Callable[[], Finished], keep: Callable[[Unit, Finished], R]) -> R:
    return keep(unit, finish())
