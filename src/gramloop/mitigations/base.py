"""What a mitigation is: a named change to how one image is predicted, at a stated cost, without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from gramloop.errors import GramLoopError
from gramloop.util.table import Table, TableRepr, settings_table

if TYPE_CHECKING:  # features are treated with torch alone, without what images need
    from gramloop.mitigations.calibration import CalibrationStats
    from gramloop.tasks.images import RGB
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import Predictor

Stage = Literal["pixels", "backbone", "features", "outputs"]
STAGES: tuple[Stage, ...] = ("pixels", "backbone", "features", "outputs")
"""Where a mitigation can act, in this order."""

# images of one size and their scale relative to the usual input size → for each the baseline version, if paired, and
# the last one
View = Callable[[Sequence["RGB"], float], list[list["Prediction"]]]


class Mitigation(TableRepr):
    """One change to a prediction. Subclasses are frozen dataclasses and override what they need."""

    name: ClassVar[str]
    stage: ClassVar[Stage]

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """Read what stands after the colon; by default nothing may."""
        if arguments:
            raise GramLoopError(f"{cls.name} takes no arguments, so not {arguments!r}")
        return cls()

    @property
    def arguments(self) -> str:
        """What `parse` reads back; empty for the default."""
        return ""

    @property
    def text(self) -> str:
        """Name and arguments, such as ``recentre:0.3``."""
        return f"{self.name}:{self.arguments}" if self.arguments else self.name

    @property
    def scales(self) -> tuple[float, ...]:
        """One entry per forward pass over the image: its scale relative to the usual input size."""
        return (1.0,)

    def _table(self) -> Table:
        acts_on = "blocks" if self.stage == "backbone" else self.stage
        return settings_table(f"{self.text}, which acts on {acts_on}", self)

    def check(
        self, predictor: Predictor[Prediction], stack: Sequence[Mitigation], stats: CalibrationStats | None
    ) -> None:
        """Refuse a predictor or a stack that it cannot work with; weights are not needed for that."""

    def filtered(self, pixels: RGB, stats: CalibrationStats | None) -> RGB:
        """The image that the model sees instead; the same array where nothing changes."""
        return pixels

    def hooked(self, model: object, stats: CalibrationStats | None) -> AbstractContextManager[object]:
        """Hooks on a predictor's model, or on a torch module, for forward passes of this thread."""
        return nullcontext()

    def around(self, view: View, predictor: Predictor[Prediction]) -> View:
        """Make one prediction of several views."""
        return view


def number(owner: str, given: object, least: float, most: float) -> float:
    """Check that a text or a value is a number between two others."""
    try:
        value = float("nan") if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if not least <= value <= most:
        raise GramLoopError(f"{owner} takes a number from {least:g} to {most:g}, not {given!r}")
    return value
