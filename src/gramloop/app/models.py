"""The models of the app, each loaded once when it is first chosen, with what the page has to know about it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, RLock

from gramloop.app.settings import AppSettings, ModelSource
from gramloop.data.records import Task
from gramloop.data.scenes.drawing import scene
from gramloop.errors import GramLoopError, short_repr
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.models.tiny import DEPTH_HEAD, SOURCE, WEIGHTS, suggested_replay, tiny_depth
from gramloop.replay.config import ReplayConfig, default_window
from gramloop.tasks.block_runs import observing
from gramloop.tasks.images import RGB
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.util.device import choose_device

_TINY_TASKS: tuple[Task, ...] = ("semantic", "detection", "depth")
Signals = dict[str, list[float]]  # by name, the mean at every block

# One prediction at a time: two would slow each other down, so that milliseconds told of the neighbour, and signals
# are measured by hooks that hear every forward of a model.
PREDICTING = RLock()


@dataclass(frozen=True)
class Timed:
    """A prediction and how long it took."""

    prediction: Prediction
    milliseconds: float


@dataclass(frozen=True)
class Looked:
    """A prediction with the signals of its pass, which are measured apart from any time."""

    prediction: Prediction
    signals: Signals  # empty where the model shows no blocks


@dataclass(frozen=True)
class About:
    """What a page has to know of a model before anything is predicted."""

    task: Task
    depth: int  # how many blocks there are to replay; 0 where none can be
    replay: ReplayConfig  # to begin with, its window spelled out
    sourced: bool  # whether it is known what ordinary images look like to it


@dataclass(frozen=True)
class Opened:
    """A loaded model for one task."""

    name: str
    predictor: Predictor[Prediction]
    source: CalibrationStats | None  # what ordinary images look like to it, where that is known
    replay: ReplayConfig  # to begin with, its window spelled out

    @property
    def depth(self) -> int:
        """How many blocks there are to replay; 0 where none can be."""
        return len(self.predictor.blocks)

    @property
    def about(self) -> About:
        """The same in short."""
        return About(self.predictor.task, self.depth, self.replay, self.source is not None)

    def timed(self, predict: Callable[[], Prediction]) -> Timed:
        """Run a prediction by itself."""
        with PREDICTING:
            begin = time.perf_counter()
            found = predict()
            return Timed(found, 1000 * (time.perf_counter() - begin))

    def looked(self, pixels: RGB) -> Looked:
        """The ordinary prediction, with signals."""
        with PREDICTING:
            if self.predictor.host is None:
                return Looked(self.predictor.predict(pixels), {})
            with observing(self.predictor.host) as seen:
                found = self.predictor.predict(pixels)
            return Looked(found, seen.means())


class Models:
    """The models that can be chosen, by name."""

    def __init__(self, settings: AppSettings) -> None:
        self.sources = {source.name: source for source in settings.models}
        self._device = choose_device(settings.device)
        self._opened: dict[tuple[str, Task | None], Opened] = {}
        self._lock = Lock()

    @property
    def names(self) -> list[str]:
        """In the order of the list."""
        return list(self.sources)

    def open(self, name: str, task: Task | None = None) -> Opened:
        """The model for a task; None for the one to begin with."""
        source = self._source(name)
        if not isinstance(task, str | None):
            raise GramLoopError(f"the task is {short_repr(task)}; the list has all there are")
        wanted = self.tasks(name)[0] if task is None and "folder" in source.files else task or source.task
        with self._lock:
            if (name, wanted) not in self._opened:
                self._opened[name, wanted] = self._load(source, wanted)
            return self._opened[name, wanted]

    def about(self, name: str) -> About:
        """What a page has to know of a model. The embedded one is not loaded for that, so that the page starts sooner."""
        source = self._source(name)
        if not _embedded(source) or source.source is not None:
            return self.open(name).about
        replay = suggested_replay()
        return About(self.tasks(name)[0], tiny_depth(), _spelled_out(replay, tiny_depth()), SOURCE.is_file())

    def tasks(self, name: str) -> tuple[Task, ...]:
        """The tasks that a model can be asked for, the one to begin with first."""
        source = self._source(name)
        if "folder" not in source.files:
            return (self.open(name).predictor.task,)
        has_depth = (Path(source.files["folder"]) / DEPTH_HEAD).is_file()
        known = [task for task in _TINY_TASKS if task != "depth" or has_depth]
        return tuple(sorted(known, key=lambda task: task != source.task))

    def _source(self, name: str) -> ModelSource:
        if not isinstance(name, str) or name not in self.sources:
            raise GramLoopError(
                f"there is no model {short_repr(name)} here; there are {', '.join(self.sources)}"
            )
        return self.sources[name]

    def _load(self, source: ModelSource, task: Task | None) -> Opened:
        predictor = load_predictor(task, source.files, dict(source.sizes), self._device)
        embedded = _embedded(source)
        replay = _spelled_out(suggested_replay() if embedded else ReplayConfig(), len(predictor.blocks))
        calibrated = source.source or (SOURCE if embedded else None)
        known = None if calibrated is None else CalibrationStats.read(calibrated)
        opened = Opened(source.name, predictor, known, replay)
        with PREDICTING:  # what is done once must not enter anybody's time
            predictor.predict(scene(0).image)
        return opened


def _embedded(source: ModelSource) -> bool:
    return source.files.get("folder") == str(WEIGHTS)


def _spelled_out(replay: ReplayConfig, depth: int) -> ReplayConfig:
    return ReplayConfig(window=default_window(depth)) if depth and replay.window is None else replay
