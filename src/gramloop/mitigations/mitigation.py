"""What a mitigation is: a stage, a text, a refusal, the looks it takes at an image, and how it acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal, Self

from gramloop.errors import GramLoopError
from gramloop.mitigations.source import Source
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.util.table import Shown, ShownTable, settings_table

Stage = Literal["pixels", "backbone", "features", "outputs"]
STAGES: tuple[Stage, ...] = ("pixels", "backbone", "features", "outputs")
"""Where a mitigation can act, in this order."""
_ACTS_ON = {"pixels": "pixels", "backbone": "blocks", "features": "features", "outputs": "outputs"}

# an image and the size it is shown in, relative to the usual one → the ordinary version, if paired, and the last
Look = Callable[[RGB, float], list[Prediction]]


class Mitigation(Shown):
    """One way to predict differently. Subclasses are frozen dataclasses and override what they need."""

    name: ClassVar[str]
    stage: ClassVar[Stage]

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """The mitigation of what stands after the colon; by default nothing may."""
        if arguments:
            raise GramLoopError(f"{cls.name} takes no arguments, so not {arguments!r}")
        return cls()

    @property
    def arguments(self) -> str:
        """What `parse` reads back; empty where there is nothing to say."""
        return ""

    @property
    def text(self) -> str:
        """Its name with its arguments, such as ``recentre:0.3``."""
        return f"{self.name}:{self.arguments}" if self.arguments else self.name

    @property
    def sizes(self) -> tuple[float, ...]:
        """The looks it takes at an image, each with its size relative to the usual one."""
        return (1.0,)

    @property
    def carries_state(self) -> bool:
        """Whether a prediction depends on the images before it."""
        return False

    def _shown(self) -> ShownTable:
        return settings_table(f"{self.text}, which acts on {_ACTS_ON[self.stage]}", self)

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], source: Source | None
    ) -> None:
        """Refuse a predictor or a stack in which it makes no sense; no weights are needed for that."""

    def prepare(self, predictor: Predictor[Prediction], source: Source | None) -> Predictor[Prediction]:
        """The predictor with its features treated; it shares the weights, and the given one stays as it is."""
        return predictor

    def around(self, look: Look, source: Source | None) -> Look:
        """The same look with pixels treated before it, or outputs after it."""
        return look


def number(owner: str, text: str, least: float, most: float) -> float:
    """A number between two others."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise GramLoopError(f"{owner} takes a number from {least:g} to {most:g}, not {text!r}")
    return value
