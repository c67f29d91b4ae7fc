"""One trial of the app: an uploaded image, a shift, a model and mitigations, predicted by the library's functions."""

from __future__ import annotations

import hashlib
import ipaddress
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
from PIL import Image

from gramloop.data.records import Record, Shift
from gramloop.data.scenes.drawing import scene
from gramloop.data.suites import SEVERITIES, display_name, find_suite
from gramloop.errors import GramLoopError
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.calibration import CalibrationStats
from gramloop.mitigations.mitigated import apply, stack_cost
from gramloop.mitigations.replay import REPLAYS, Replay
from gramloop.mitigations.stack import KINDS, parse_mitigations, replay_of, stack_scales, stack_text
from gramloop.models.tiny import SOURCE, WEIGHTS
from gramloop.replay.config import ReplayConfig, default_window, parse_replay
from gramloop.shifts.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS
from gramloop.shifts.perturbations import PERTURBATIONS
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.images import RGB, read_image
from gramloop.tasks.loading import load_predictor
from gramloop.tasks.prediction import Prediction, ReplayMaps
from gramloop.tasks.predictor import Predictor
from gramloop.util.device import choose_device

NO_SHIFT = "none"
UPLOAD_FORMATS = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "PPM",
)  # none that starts a program, as EPS does
LONGEST_TEXT = 400  # characters of typed mitigations or settings
_KEPT = 16  # predictions that are not made again when another control changes
_SURE = 0.5  # a box or mask of the clean prediction that scores less is not taken for an object
_SCENES = (10, 7, 4, 21, 1, 12, 26, 17)  # of the split "val"
_EMBEDDED_TASKS = ("semantic", "detection", "depth")
_EXAMPLES = {  # mitigations that need a number
    "scales": "scales:0.75,1,1.25",
    "resize": "resize:1.25",
    "recentre": "recentre:0.3",
    "norms": "norms:0.1",
}


# what the app is started with


@dataclass(frozen=True)
class Limits:
    """What one visitor may ask for."""

    upload_bytes: int = 20_000_000
    upload_pixels: int = 50_000_000
    longest_side: int = 1024  # larger images are shrunk to this, and the page says so
    work: float = 50.0  # most work of a mitigation, in baseline passes


@dataclass(frozen=True)
class OfferedModel:
    """A model in the list: its name, and what `gramloop.tasks.load_predictor` takes."""

    name: str
    files: Mapping[str, str]
    task: str | None = None  # None for the model's default
    sizes: Mapping[str, object] = field(default_factory=dict)
    dtype: Any = "float32"
    calibration: Path | None = None  # statistics of in-distribution images, a file of `gramloop calibrate`

    @property
    def embedded(self) -> bool:
        """Whether it is the model that comes with the package."""
        return self.files.get("folder") == str(WEIGHTS)

    @property
    def tasks(self) -> tuple[str | None, ...]:
        """What it predicts, the task to start with first; None for the only one."""
        if not self.embedded:
            return (self.task or ("semantic" if "folder" in self.files else None),)
        return tuple(sorted(_EMBEDDED_TASKS, key=lambda task: task != self.task))


@dataclass(frozen=True)
class AppSettings:
    """Everything that the page is built from."""

    models: tuple[OfferedModel, ...]
    results: tuple[Path, ...] = ()
    host: str = "127.0.0.1"
    device: str | None = None
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        for folder in self.results:
            if not folder.is_dir():
                raise GramLoopError(f"--results {folder} is no folder")

    @property
    def local(self) -> bool:
        """Whether the page can be reached from this machine alone."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


# images


@dataclass(frozen=True)
class Picture:
    """Pixels (H, W, 3) and the digest of their content."""

    pixels: RGB
    digest: str
    note: str = ""  # what was changed when it was read

    @classmethod
    def of(cls, pixels: RGB, note: str = "") -> Picture:
        """The picture of an array (H, W, 3)."""
        digest = hashlib.sha256(f"{pixels.shape}".encode() + np.ascontiguousarray(pixels).tobytes())
        return cls(pixels, digest.hexdigest(), note)


def read_upload(path: str | Path, limits: Limits) -> Picture:
    """Read an uploaded image; it is checked before it is decoded, and shrunk to a size that is quick to predict."""
    path, most = Path(path), limits.upload_pixels
    try:
        with Image.open(path, formats=UPLOAD_FORMATS) as image:
            if image.width * image.height > most:  # known before a pixel is decoded
                raise GramLoopError(
                    f"it has {image.width} x {image.height} pixels; the limit is {most / 1e6:.1f} million"
                )
            image.load()
            pixels = read_image(image)
    except (GramLoopError, Image.DecompressionBombError) as error:
        raise GramLoopError(f"{path.name[:60]} is refused: {error}") from error
    except (OSError, SyntaxError, ValueError) as error:
        raise GramLoopError(f"{path.name[:60]} cannot be read as an image; upload another one") from error
    height, width = pixels.shape[:2]
    scale = limits.longest_side / max(height, width)
    if scale >= 1:
        return Picture.of(pixels)
    size = max(2, round(width * scale)), max(2, round(height * scale))
    small = np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.BOX, reducing_gap=3.0))
    return Picture.of(small, f"Shrunk from {width} x {height} to {size[0]} x {size[1]} pixels.")


@cache
def example_scenes() -> tuple[Picture, ...]:
    """The drawn scenes that the page offers."""
    return tuple(Picture.of(scene(index, split="val").image) for index in _SCENES)


# choices


def shift_choices() -> list[tuple[str, str]]:
    """Names to show, with what `shift_of` takes: corruptions first, then perturbations."""
    corruptions = [(display_name(name), f"c:{name}") for name in (*CORRUPTIONS, *EXTRA_CORRUPTIONS)]
    perturbations = [(f"{display_name(name)} (perturbation)", f"p:{name}") for name in PERTURBATIONS]
    return [("none", NO_SHIFT), *corruptions, *perturbations]


def shift_of(choice: str, severity: Any) -> Shift | None:
    """The shift of a choice; None for none."""
    if choice == NO_SHIFT:
        return None
    if choice not in (known for _, known in shift_choices()) or severity not in SEVERITIES:
        raise GramLoopError(f"there is no shift {choice[:60]!r} of severity {repr(severity)[:60]}")
    kind, _, name = choice.partition(":")
    suite = find_suite(f"image-{kind}")
    (condition,) = suite.select([name], [int(severity)])
    return Shift(suite.name, suite.kind, condition)


def mitigation_choices() -> list[str]:
    """Every kind of mitigation and every named replay, each ready for use."""
    return [*(_EXAMPLES.get(name, name) for name in KINDS), *REPLAYS]


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
    stack = parse_mitigations("+".join(parts)) if parts else ()
    bare = Replay.name in parts
    return tuple(Replay(replay) if bare and isinstance(each, Replay) else each for each in stack)


# trials


@dataclass(frozen=True)
class Opened:
    """A loaded model for one task."""

    name: str
    predictor: Predictor[Prediction]
    stats: CalibrationStats | None
    replay: ReplayConfig  # to start from, with its window
    embedded: bool


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
    holds ``lock``, which also guards the models. Each model is loaded when it is first chosen.
    """

    def __init__(self, settings: AppSettings) -> None:
        self.settings = settings
        self.models = {model.name: model for model in settings.models}
        self.lock = RLock()
        self._device = choose_device(settings.device)
        self._opened: dict[tuple[str, str | None], Opened] = {}
        self._kept: dict[tuple[str, ...], Timed] = {}

    def open(self, name: str, task: str | None = None) -> Opened:
        """The model of a name for a task; None for the one to start with."""
        if name not in self.models:
            raise GramLoopError(f"there is no model {name[:60]!r}; there are {', '.join(self.models)}")
        model = self.models[name]
        task = model.tasks[0] if task is None else task
        if (name, task) not in self._opened:
            self._opened[name, task] = self._load(model, task)
        return self._opened[name, task]

    def _load(self, model: OfferedModel, task: str | None) -> Opened:
        if task is not None:
            get_task(task)
        predictor = load_predictor(task, model.files, dict(model.sizes), self._device, dtype=model.dtype)
        depth = len(predictor.blocks)
        replay = ReplayConfig(window=default_window(depth)) if depth else ReplayConfig()
        file = model.calibration or (SOURCE if model.embedded else None)
        predictor.predict(scene(0).image)  # what happens only once must not count as time of a trial
        stats = None if file is None else CalibrationStats.read(file)
        return Opened(model.name, predictor, stats, replay, model.embedded)

    def run(self, trial: Trial) -> Outcome:
        """Predict with and without mitigations."""
        with self.lock:
            opened, stack = self.open(trial.model, trial.task), trial.mitigations
            self._check_work(stack, opened)
            mitigated = apply(stack, opened.predictor, opened.stats) if stack else None
            shift, shifted = shift_of(trial.shift, trial.severity), trial.picture
            if shift is not None:
                shifted = Picture.of(shift.pixels(shifted.pixels, _record(shifted, shift)))
            baseline = opened.predictor.predict
            clean, plain = (
                self._timed("baseline", opened, each, baseline) for each in (trial.picture, shifted)
            )
            text, found, maps = stack_text(stack), None, None
            if mitigated is not None:
                found = self._timed(text, opened, shifted, mitigated.predict)
                maps = found.prediction.trace
                config = replay_of(stack)
                if maps is None and config and config.replays and len(stack_scales(stack)) == 1:
                    # a gate that ignores drift measures none: once more, for the maps
                    maps = mitigated.predict(shifted.pixels, trace=True).trace
            truth = _truth(clean.prediction, trial.picture, shift, opened.predictor.task)
            return Outcome(opened, shift, trial.picture, shifted, truth, plain, found, maps, text)

    def _timed(
        self, method: str, opened: Opened, picture: Picture, predict: Callable[[Any], Prediction]
    ) -> Timed:
        key = method, picture.digest, opened.name, opened.predictor.task
        if key not in self._kept:
            if len(self._kept) == _KEPT:
                del self._kept[next(iter(self._kept))]  # the oldest
            begin = time.perf_counter()
            found = predict(picture.pixels)
            self._kept[key] = Timed(found, 1000 * (time.perf_counter() - begin))
        return self._kept[key]

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
