"""One trial: an image, a shift, a model and mitigations; only what changed since another trial is computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gramloop.app.cache import Cache
from gramloop.app.choices import NO_SHIFT, shift_of
from gramloop.app.models import Looked, Models, Opened, Timed
from gramloop.app.settings import AppSettings
from gramloop.app.uploads import Picture
from gramloop.data.records import Task
from gramloop.data.shifted import Shift, ShiftedRecord
from gramloop.data.truth import Truth
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import TRUTH_SCORE
from gramloop.mitigations.base import Mitigation
from gramloop.mitigations.mitigated import apply, stack_cost
from gramloop.mitigations.stack import replay_of, stack_scales, stack_text
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.base import task_of
from gramloop.tasks.prediction import Prediction, ReplayMaps


@dataclass(frozen=True)
class Trial:
    """What is to be tried; ``mitigations`` may be empty."""

    picture: Picture
    model: str
    task: Task | None = None
    shift: str = NO_SHIFT
    severity: int = 3
    mitigations: tuple[Mitigation, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    opened: Opened
    shift: Shift | None
    clean: Picture
    shown: Picture  # the shifted image
    truth: Truth  # the ordinary prediction of the clean image, moved where the shift moves pixels
    clean_look: Looked
    shown_look: Looked
    ordinary: Timed
    treated: Timed | None  # None without mitigations
    maps: ReplayMaps | None  # drift and gate, where there is a replay and one look at the image
    replay: ReplayConfig | None
    mitigations: str  # as text; empty without

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.opened.predictor.task

    @property
    def final(self) -> Prediction:
        """The treated prediction, or the ordinary one without mitigations."""
        return (self.treated or self.ordinary).prediction


class Bench:
    """Where trials are run; one for all visitors."""

    def __init__(self, settings: AppSettings) -> None:
        self.settings = settings
        self.models = Models(settings)
        self.cache = Cache(settings.limits.cache_bytes)

    def run(self, trial: Trial) -> Outcome:
        """Everything that there is to see; a sentence where something cannot be done."""
        opened = self.models.open(trial.model, trial.task)
        stack = trial.mitigations
        text = stack_text(stack)
        mitigated = apply(stack, opened.predictor, opened.source) if stack else None
        self._refuse_work(stack, opened)
        shift = shift_of(trial.shift, trial.severity)
        shown = trial.picture if shift is None else self._shifted(trial.picture, shift)
        at = (shown.digest, opened.name, opened.predictor.task)
        clean_look, shown_look = (self._looked(opened, picture) for picture in (trial.picture, shown))
        ordinary = self.cache.get(
            "ordinary", at, lambda: opened.timed(lambda: opened.predictor.predict(shown.pixels))
        )
        treated = None
        if mitigated is not None:
            treated = self.cache.get(
                "treated", (*at, text), lambda: opened.timed(lambda: mitigated.predict(shown.pixels))
            )
        return Outcome(
            opened,
            shift,
            trial.picture,
            shown,
            _truth(clean_look.prediction, trial.picture, shift),
            clean_look,
            shown_look,
            ordinary,
            treated,
            None if treated is None else self._maps(opened, stack, shown, treated.prediction),
            replay_of(stack),
            text,
        )

    def _shifted(self, picture: Picture, shift: Shift) -> Picture:
        record = _record(picture, shift)
        key = (picture.digest, shift.suite, shift.condition.key)
        return self.cache.get("shift", key, lambda: Picture.of(shift.pixels(picture.pixels, record)))

    def _looked(self, opened: Opened, picture: Picture) -> Looked:
        key = (picture.digest, opened.name, opened.predictor.task)
        return self.cache.get("look", key, lambda: opened.looked(picture.pixels))

    def _maps(
        self, opened: Opened, stack: Sequence[Mitigation], shown: Picture, found: Prediction
    ) -> ReplayMaps | None:
        """A replay that gates without drift measures none, so it is run once more for the maps alone."""
        config = replay_of(stack)
        if found.trace is not None or config is None or not config.replays or len(stack_scales(stack)) > 1:
            return found.trace
        key = (shown.digest, opened.name, opened.predictor.task, stack_text(stack))
        mitigated = apply(stack, opened.predictor, opened.source)
        traced = self.cache.get(
            "maps", key, lambda: opened.timed(lambda: mitigated.predict(shown.pixels, trace=True))
        )
        return traced.prediction.trace

    def _refuse_work(self, stack: Sequence[Mitigation], opened: Opened) -> None:
        if not stack:
            return
        times = stack_cost(stack, opened.predictor).multiplier
        if times > self.settings.limits.work:
            raise GramLoopError(
                f"{stack_text(stack)} takes {times:,.0f} times the work of the ordinary forward; up to "
                f"{self.settings.limits.work:g} times is done here"
            )


def _truth(found: Prediction, picture: Picture, shift: Shift | None) -> Truth:
    task = task_of(found)
    truth: Truth = task.as_truth(found, TRUTH_SCORE)
    if shift is None or not shift.moves:
        return truth
    moved: Truth = task.move_truth(truth, _record(picture, shift), shift)
    return moved


def _record(picture: Picture, shift: Shift) -> ShiftedRecord:
    """The image as shifts know one; its name is its content, so that the same image is shifted alike every time."""
    height, width = picture.pixels.shape[:2]
    name = picture.digest[:16]
    return ShiftedRecord(name, Path(name), name, height, width, shift=shift)
