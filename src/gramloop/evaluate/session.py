"""Running one unit: every image decoded and shifted once, then shown to all methods.

The baseline is the ordinary pass that the first replay needs anyway, so a pair costs no more than the replay.
Images are prepared in a thread of their own while the model works on the one before.
"""

from __future__ import annotations

import os
import platform
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gramloop.core.cost import counting
from gramloop.data.contents import ChangedFileError
from gramloop.data.labelled import LabelledImage, Truth, read_labelled
from gramloop.data.records import DataSet, Image8, Record
from gramloop.errors import GramLoopError
from gramloop.evaluate.clean_truth import CleanTruth
from gramloop.evaluate.memory import peak_memory, reset_peak
from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import Plan, Unit
from gramloop.evaluate.rows import Failure, Rows, comparable, statistics_of
from gramloop.evaluate.sources import check_categories, open_condition, open_planned, open_source
from gramloop.evaluate.store import Facts
from gramloop.evaluate.timing import call_name, shares_alone
from gramloop.evaluate.unchanged import refuse_other_model, refuse_other_origin
from gramloop.io.fingerprints import recall
from gramloop.metrics.depth import NoScoreError
from gramloop.mitigations.applying import apply
from gramloop.tasks.loading import load_numbered
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor

AHEAD = 4  # images waiting for the model


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked
    """The run was asked to stop; the unit is dropped."""


@dataclass(frozen=True)
class Finished:
    """A unit's results, to be stored."""

    table: Any
    failures: tuple[Failure, ...]
    facts: Facts


class Session:
    """A plan with its model loaded and its data opened, ready to run units one after the other.

    Versions, weights and images must be those that were planned, whichever process or machine this is; ``folder``, that
    of the results, may remember their checksums.
    """

    def __init__(
        self, plan: Plan, device: torch.device | str | None = None, folder: Path | None = None
    ) -> None:
        self.plan = plan
        if folder is not None:
            recall(folder)
        refuse_other_origin(plan)
        self.device = torch.device(device or plan.model.device)
        self.predictor = load_numbered(
            plan.task, plan.model.files, plan.model.sizes, self.device, plan.categories
        )
        refuse_other_model(plan, self.predictor)
        source = open_source(plan.model.files)
        self.mitigated: Mapping[str, Predictor[Prediction]] = {
            method.name: apply(method.mitigations, self.predictor, source)
            for method in plan.methods
            if method.mitigations
        }
        self.opened = open_planned(plan)
        self._clean = CleanTruth(self.predictor, plan.truth_score) if plan.label_free else None
        self._data: tuple[str, DataSet] | None = None

    def data(self, key: str) -> DataSet:
        """The set of one condition; the latest is kept, since units come condition by condition."""
        if self._data is None or self._data[0] != key:
            data = open_condition(self.plan, self.opened, key)
            if not self.plan.label_free:
                check_categories(self.predictor, data)
            self._data = (key, data)
        return self._data[1]

    def run(
        self,
        unit: Unit,
        on_image: Callable[[], None] = lambda: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> Finished:
        """Predict every image of a unit; `Stopped` if ``stopped()`` turns true before the end."""
        began = time.perf_counter()
        reset_peak(self.device)
        records = self.data(unit.condition)[unit.start : unit.stop]
        rows = Rows(
            self.plan.task, self.plan.diagnostics, self.plan.pictures, label_free=self.plan.label_free
        )
        failures, spent = [], defaultdict[str, float](float)
        first_call = calls(self.plan.methods)[0]
        latest: tuple[Image8, float] | None = None  # an image, and the seconds of the first call on it
        with deterministic(self.plan.model.threads), counting(self.predictor.blocks) as counter:
            for position, shown in _read_ahead(records, unit.start, self.plan):
                if stopped():
                    raise Stopped
                record = records[position - unit.start]
                truth = shown if isinstance(shown, str) else self._truth(position, record, shown)
                before = spent[call_name(first_call)]
                if isinstance(shown, str) or isinstance(truth, str):
                    failures.append(Failure(position, str(record.image_id), str(truth)))
                elif reason := self._predict(rows, position, record, shown.pixels, truth, spent):
                    failures.append(Failure(position, str(record.image_id), reason))
                else:
                    latest = shown.pixels, spent[call_name(first_call)] - before
                on_image()
        seconds = time.perf_counter() - began
        alone: dict[str, float] = {}
        if latest is not None and unit.start == 0:
            with deterministic(self.plan.model.threads):
                alone = shares_alone(self.predictor, latest[0], first_call, latest[1])
        facts = Facts(
            seconds,
            dict(spent),
            counter.blocks,
            peak_memory(self.device),
            str(self.device),
            platform.node(),
            alone,
        )
        return Finished(rows.table(), tuple(failures), facts)

    def _truth(self, position: int, record: Record, shown: LabelledImage) -> Truth | str | None:
        """What the predictions of an image are compared with; or a sentence about why it is not known."""
        if self._clean is None:
            return shown.truth
        try:
            return self._clean.of(
                record if self.opened.clean is None else self.opened.clean[position], record
            )
        except ChangedFileError:
            raise
        except GramLoopError as error:
            return str(error)

    def _predict(
        self,
        rows: Rows,
        position: int,
        record: Record,
        pixels: Image8,
        truth: Truth | None,
        spent: dict[str, float],
    ) -> str:
        """Add the rows of one image; or none, and a sentence about what cannot be scored."""
        trace = wanted_trace(self.plan, position)
        try:
            found = predict_all(self.predictor, pixels, self.plan.methods, trace, spent, self.mitigated)
        except (MemoryError, torch.OutOfMemoryError) as error:
            raise GramLoopError(
                f"{record.path} does not fit into memory; try a smaller short side"
            ) from error
        compared, categories = {}, list(self.plan.categories)
        for name, prediction in found.items():
            try:
                prediction = comparable(prediction, truth, self.plan.alignment)
                compared[name] = prediction, statistics_of(prediction, truth, categories)
            except NoScoreError as error:
                return f"{name}: {error}"
        for method in self.plan.methods:
            rows.add(position, record.image_id, method.name, *compared[method.name], truth)
        return ""


def wanted_trace(plan: Plan, position: int) -> bool | None:
    """Whether replays return what they measure: always, never, or (None) where they measure it anyway."""
    if plan.diagnostics:
        return True
    return None if position < plan.pictures else False


def predict_all(
    predictor: Predictor[Prediction],
    image: Image8,
    methods: Sequence[Method],
    trace: bool | None = False,
    spent: dict[str, float] | None = None,
    mitigated: Mapping[str, Predictor[Prediction]] | None = None,
) -> dict[str, Prediction]:
    """The predictions of all methods for one image, by name; the baseline comes with the first replay.

    Args:
        predictor: the plain one.
        image: RGB, (H, W, 3).
        methods: what is compared.
        trace: whether replays return what they measure; None where they measure it anyway.
        spent: seconds by call, to be added to.
        mitigated: the predictors of methods with mitigations, by name.
    """
    found: dict[str, Prediction] = {}
    for together in calls(methods):
        began = time.perf_counter()
        last = together[-1]
        if len(together) == 2:
            pair = predictor.predict(image, last.replay, paired=True, trace=trace)
            found[together[0].name], found[last.name] = pair.ordinary, pair.replayed
        else:
            chosen = mitigated[last.name] if last.mitigations and mitigated else predictor
            found[last.name] = chosen.predict(image, last.replay, trace=trace)
        if spent is not None:
            name = call_name(together)
            spent[name] = spent.get(name, 0.0) + time.perf_counter() - began
    return found


def calls(methods: Sequence[Method]) -> list[tuple[Method, ...]]:
    """Which methods are predicted in one call: the baseline with the first replay, all others alone."""
    ordinary = [method for method in methods if method.name == BASELINE]
    replays = [method for method in methods if method.replay is not None]
    if not ordinary or not replays:
        return [(method,) for method in methods]
    paired = (ordinary[0], replays[0])
    return [paired, *((method,) for method in methods if method not in paired)]


def _read_ahead(
    records: Sequence[Record], start: int, plan: Plan
) -> Iterator[tuple[int, LabelledImage | str]]:
    """Images in order, each made ready while those before are being worked on."""
    with ThreadPoolExecutor(1, "gramloop-images") as pool:
        waiting: deque[Future[LabelledImage | str]] = deque()
        upcoming = iter(records)
        try:
            for position in range(start, start + len(records)):
                while len(waiting) < AHEAD and (record := next(upcoming, None)) is not None:
                    waiting.append(pool.submit(read_labelled, record, plan.task, not plan.label_free))
                yield position, waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Deterministic algorithms or an error, and a fixed number of threads, since sums depend on it."""
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])
