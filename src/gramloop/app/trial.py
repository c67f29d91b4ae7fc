"""One trial: an image, a shift, a model and mitigations; what was computed before is not computed again."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

import numpy as np

from gramloop.app.settings import AppSettings, ModelSource
from gramloop.app.uploads import Picture
from gramloop.data.records import Record, Shift
from gramloop.data.records import TaskName as Task
from gramloop.data.scenes.drawing import scene
from gramloop.data.suites import SEVERITIES, display_name, find_suite
from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.mitigated import apply, stack_cost
from gramloop.mitigations.replay import REPLAYS, SUBSTEPS, Replay
from gramloop.mitigations.stack import KINDS, parse_mitigations, replay_of, stack_scales, stack_text
from gramloop.models.tiny import DEPTH_HEAD, SOURCE, WEIGHTS
from gramloop.replay.config import ReplayConfig, default_window, parse_replay
from gramloop.shifts.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from gramloop.shifts.perturbations import PERTURBATIONS
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.prediction import Prediction, ReplayMaps
from gramloop.tasks.predictor import Predictor
from gramloop.util.device import choose_device

T = TypeVar("T")
NO_SHIFT = "none"
LONGEST_TEXT = 400  # characters of typed mitigations or settings
_SURE = 0.5  # a box or mask of the clean prediction that scores less is not taken for an object
_SCENES = (10, 7, 4, 21, 1, 12, 26, 17)  # of the split "val"
_TINY_TASKS: tuple[Task, ...] = ("semantic", "detection", "depth")
_EXAMPLES = {  # mitigations that need a number
    "scales": "scales:0.75,1,1.25",
    "resize": "resize:1.25",
    "recentre": "recentre:0.3",
    "norms": "norms:0.1",
    SUBSTEPS: "substeps:3",
}


class Cache:
    """Values by kind and key, bounded in bytes; the least recently used are dropped first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self.computed: Counter[str] = Counter()  # by kind
        self._kept: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()

    def get(self, kind: str, key: Hashable, make: Callable[[], T]) -> T:
        """The value, made if it is not there."""
        if (kind, key) in self._kept:
            self._kept.move_to_end((kind, key))
            found: T = self._kept[kind, key][0]
            return found
        value = make()
        size = size_of(value)
        self.computed[kind] += 1
        if size <= self.limit:
            self._kept[kind, key] = value, size
            self.bytes += size
        while self.bytes > self.limit:
            self.bytes -= self._kept.popitem(last=False)[1][1]
        return value


def size_of(value: object) -> int:
    """Bytes of the arrays, texts and bytes inside a value, and a little for everything else."""
    if isinstance(value, np.ndarray):
        return 64 + value.nbytes
    if isinstance(value, bytes | str):
        return 64 + len(value)
    if is_dataclass(value):
        return 64 + sum(size_of(getattr(value, each.name)) for each in fields(value))
    if isinstance(value, Mapping):
        return size_of([*value, *value.values()])
    return 64 + sum(map(size_of, value)) if isinstance(value, tuple | list) else 64


# choices


@cache
def example_scenes() -> tuple[Picture, ...]:
    """The drawn scenes that the page offers."""
    return tuple(Picture.of(scene(index, split="val").image) for index in _SCENES)


def shift_choices() -> list[tuple[str, str]]:
    """Names to show, with what `shift_of` takes: corruptions first, then perturbations."""
    corruptions = [(display_name(name), f"c:{name}") for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)]
    perturbations = [(f"{display_name(name)} (perturbation)", f"p:{name}") for name in PERTURBATIONS]
    return [("none", NO_SHIFT), *corruptions, *perturbations]


def shift_of(choice: str, severity: Any) -> Shift | None:
    """The shift of a choice; None for none."""
    if choice == NO_SHIFT:
        return None
    kind, _, name = choice.partition(":")
    if kind not in ("c", "p") or not name:
        raise GramLoopError(f"there is no shift {choice[:60]!r}; choose one of the list")
    if severity not in SEVERITIES:
        raise GramLoopError(f"severity is {repr(severity)[:60]}; it is {SEVERITIES[0]} to {SEVERITIES[-1]}")
    suite = find_suite(f"image-{kind}")
    (condition,) = suite.select([name], [int(severity)])
    return Shift(suite.name, suite.kind, condition)


def mitigation_choices() -> list[str]:
    """Every kind of mitigation and every named replay, each ready for use."""
    return [*(_EXAMPLES.get(name, name) for name in KINDS), _EXAMPLES[SUBSTEPS], *REPLAYS]


def mitigations_of(chosen: Sequence[str], settings: str) -> tuple[Mitigation, ...]:
    """The mitigations of a list of texts; a bare ``replay`` takes the settings, such as ``window=5-7,replays=2``."""
    parts = [part.strip() for each in chosen for part in each.split("+") if each.strip()]
    for text in ("+".join(parts), settings):
        if len(text) > LONGEST_TEXT:
            raise GramLoopError(f"mitigations and settings have at most {LONGEST_TEXT} characters here")
        if ".json" in text.lower() or "/" in text or "\\" in text:  # visitors name no file of this machine
            raise GramLoopError(
                "files cannot be named here; write out the settings, such as replay:window=2-3"
            )
    replay = parse_replay(settings.strip())  # wrong settings are reported even where nothing uses them
    if not parts:
        return ()
    stack = parse_mitigations("+".join(parts))
    bare = Replay.name in parts
    return tuple(Replay(replay) if bare and isinstance(each, Replay) else each for each in stack)


# models


@dataclass(frozen=True)
class Opened:
    """A loaded model for one task."""

    name: str
    predictor: Predictor[Prediction]
    stats: CalibrationStats | None
    replay: ReplayConfig  # to start from, with its window
    embedded: bool


class Models:
    """The models of the list, each loaded when it is first chosen."""

    def __init__(self, settings: AppSettings) -> None:
        self.sources = {source.name: source for source in settings.models}
        self._device = choose_device(settings.device)
        self._opened: dict[tuple[str, str], Opened] = {}

    @property
    def names(self) -> list[str]:
        """In the order of the list."""
        return list(self.sources)

    def tasks(self, name: str) -> tuple[str, ...]:
        """The tasks of a model, the one to start with first."""
        source = self._source(name)
        if "folder" not in source.files:
            return (self.open(name, source.task).predictor.task,)
        has_depth = (Path(source.files["folder"]) / DEPTH_HEAD).is_file()
        known = [task for task in _TINY_TASKS if task != "depth" or has_depth]
        return tuple(sorted(known, key=lambda task: task != source.task))

    def open(self, name: str, task: str | None = None) -> Opened:
        """The model for a task; None for the one to start with."""
        source = self._source(name)
        if task is None and "folder" in source.files:
            task = self.tasks(name)[0]
        key = name, task or ""
        if key not in self._opened:
            self._opened[key] = self._load(source, task)
        return self._opened[key]

    def _source(self, name: str) -> ModelSource:
        if name not in self.sources:
            raise GramLoopError(f"there is no model {name[:60]!r}; there are {', '.join(self.sources)}")
        return self.sources[name]

    def _load(self, source: ModelSource, task: Any) -> Opened:
        if task is not None:
            get_task(task)
        predictor = load_predictor(task, source.files, dict(source.sizes), self._device)
        embedded = source.files.get("folder") == str(WEIGHTS)
        depth = len(predictor.blocks)
        replay = ReplayConfig(window=default_window(depth)) if depth else ReplayConfig()
        file = source.calibration or (SOURCE if embedded else None)
        predictor.predict(scene(0).image)  # what happens only once must not count as time of a trial
        stats = None if file is None else CalibrationStats.read(file)
        return Opened(source.name, predictor, stats, replay, embedded)


# trials


@dataclass(frozen=True)
class Trial:
    """What to try; ``mitigations`` may be empty."""

    picture: Picture
    model: str
    task: str | None = None
    shift: str = NO_SHIFT
    severity: Any = 3
    mitigations: tuple[Mitigation, ...] = ()


@dataclass(frozen=True)
class Timed:
    """A prediction and how long it took."""

    prediction: Prediction
    milliseconds: float


@dataclass(frozen=True)
class Outcome:
    """The predictions of a trial and how far they agree with that of the clean image."""

    opened: Opened
    shift: Shift | None
    clean: Picture
    shifted: Picture
    truth: Any  # the baseline prediction of the clean image, moved where the shift moves pixels
    baseline: Timed
    mitigated: Timed | None  # None without mitigations
    maps: ReplayMaps | None  # of a replay, where the image is seen once
    replay: ReplayConfig | None
    mitigations: str  # as text

    @property
    def task(self) -> Any:
        """What is predicted."""
        return get_task(self.opened.predictor.task)

    @property
    def predictions(self) -> list[Prediction]:
        """The baseline and, with mitigations, the mitigated prediction, aligned with the truth where that is usual."""
        found = [each.prediction for each in (self.baseline, self.mitigated) if each is not None]
        return [self.task.align(each, self.truth, "auto") for each in found] if self.task.aligns else found

    @property
    def classes(self) -> dict[int, str]:
        """Names of classes, in which those that were found without a name have their number."""
        known = dict(self.opened.predictor.classes)
        numbers = {*known, *self.task.classes_in(self.task.as_prediction(self.truth))}
        numbers = numbers.union(*map(self.task.classes_in, self.predictions))
        every = range(max(numbers, default=-1) + 1) if self.task.name == "semantic" else sorted(numbers)
        return {number: known.get(number) or f"class {number}" for number in every}

    def agreement(self) -> list[float]:
        """The score of each prediction, in percent, with the clean prediction in place of labels."""
        task, categories = self.task, Categories(self.classes)
        rows = (task.statistics(each, self.truth, categories) for each in self.predictions)
        return [task.image_score(row) for row in rows]


class Bench:
    """Runs the trials of all visitors, one at a time.

    Two predictions would slow each other down, and figures share matplotlib's settings: whoever predicts or draws
    holds ``lock``, which also guards models and cache.
    """

    def __init__(self, settings: AppSettings) -> None:
        self.settings = settings
        self.models = Models(settings)
        self.cache = Cache(settings.limits.cache_bytes)
        self.lock = RLock()

    def run(self, trial: Trial) -> Outcome:
        """Predict with and without mitigations."""
        with self.lock:
            opened, stack = self.models.open(trial.model, trial.task), trial.mitigations
            mitigated = apply(stack, opened.predictor, opened.stats) if stack else None
            self._check_work(stack, opened)
            shift = shift_of(trial.shift, trial.severity)
            shifted = trial.picture if shift is None else self._shifted(trial.picture, shift)
            clean, baseline = (
                self._timed("baseline", opened, each, opened.predictor.predict)
                for each in (trial.picture, shifted)
            )
            found = maps = None
            if mitigated is not None:
                found = self._timed("mitigated", opened, shifted, mitigated.predict, stack)
                maps = found.prediction.trace
            config = replay_of(stack)
            if mitigated and config and config.replays and maps is None and len(stack_scales(stack)) == 1:
                # a gate that ignores drift measures none: once more, for the maps
                traced = self._timed(
                    "maps", opened, shifted, lambda pixels: mitigated.predict(pixels, trace=True), stack
                )
                maps = traced.prediction.trace
            truth = _truth(clean.prediction, trial.picture, shift, opened.predictor.task)
            pictures = trial.picture, shifted
            return Outcome(opened, shift, *pictures, truth, baseline, found, maps, config, stack_text(stack))

    def _shifted(self, picture: Picture, shift: Shift) -> Picture:
        key = picture.digest, shift.suite, shift.condition.key
        record = _record(picture, shift)
        return self.cache.get("shift", key, lambda: Picture.of(shift.pixels(picture.pixels, record)))

    def _timed(
        self,
        kind: str,
        opened: Opened,
        picture: Picture,
        predict: Callable[[Any], Prediction],
        stack: Sequence[Mitigation] = (),
    ) -> Timed:
        def run() -> Timed:
            begin = time.perf_counter()
            found = predict(picture.pixels)
            return Timed(found, 1000 * (time.perf_counter() - begin))

        key = picture.digest, opened.name, opened.predictor.task, stack_text(stack)
        return self.cache.get(kind, key, run)

    def _check_work(self, stack: Sequence[Mitigation], opened: Opened) -> None:
        times = stack_cost(stack, opened.predictor).multiplier if stack else 0.0
        if times > self.settings.limits.work:
            limit = f"the limit is {self.settings.limits.work:g} times"
            raise GramLoopError(
                f"{stack_text(stack)} takes {times:,.0f} times the work of a baseline pass; {limit}"
            )


def _truth(found: Prediction, picture: Picture, shift: Shift | None, name: str) -> Any:
    task = get_task(name)
    truth = task.as_truth(found, _SURE)
    return task.move_truth(truth, _record(picture, shift), shift) if shift and shift.moves else truth


def _record(picture: Picture, shift: Shift) -> Record:
    """The image as shifts take one; its name is its content, so that the same image is always shifted alike."""
    height, width = picture.pixels.shape[:2]
    name = picture.digest[:16]
    return Record(name, Path(name), name, height, width, shift=shift)
