"""What a mitigation is: a named change to how one image is predicted, at a stated cost, without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal, Self, TypeAlias

from gramloop.errors import GramLoopError
from gramloop.util.table import Table, TableRepr, settings_table

if TYPE_CHECKING:  # features are treated with torch alone, without what images need
    from gramloop.mitigations.calibration import CalibrationStats
    from gramloop.tasks.images import RGB
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import AnyPredictor

Stats: TypeAlias = "CalibrationStats | None"  # of in-distribution images, if there are any
Stage = Literal["pixels", "backbone", "features", "outputs"]
STAGES: tuple[Stage, ...] = ("pixels", "backbone", "features", "outputs")
"""Where a mitigation can act, in this order."""

# images of one size and their scale relative to the usual input size → for each the baseline version, if paired, and
# the last one
ViewFunction = Callable[[Sequence["RGB"], float], list[list["Prediction"]]]


class Mitigation(TableRepr):
    """One change to a prediction. Subclasses are frozen dataclasses and override what they need."""

    name: ClassVar[str]
    stage: ClassVar[Stage]

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """Read what follows the colon; by default nothing may."""
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

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        """Refuse a predictor or a stack that it cannot work with; weights are not needed for that."""

    def filtered(self, pixels: RGB, stats: Stats) -> RGB:
        """The image that the model sees instead; the same array where nothing changes."""
        return pixels

    def hooked(self, model: object, stats: Stats) -> AbstractContextManager[object]:
        """Hooks on a predictor's model, or on a torch module, for forward passes of this thread."""
        return nullcontext()

    def around(self, view: ViewFunction, predictor: AnyPredictor) -> ViewFunction:
        """Make one prediction of several views."""
        return view


@dataclass(frozen=True)
class NumberMitigation(Mitigation):
    """A mitigation whose only field is a number; one with a default need not be given."""

    limits: ClassVar[tuple[float, float]]

    @classmethod
    def parse(cls, arguments: str) -> Self:
        if not arguments and fields(cls)[0].default is not MISSING:
            return cls()
        return cls(number(cls.name, arguments, *cls.limits))  # type: ignore[call-arg]

    @property
    def arguments(self) -> str:
        [one] = fields(self)
        value = getattr(self, one.name)
        return "" if value == one.default else f"{value:g}"


def number(owner: str, given: object, least: float, most: float) -> float:
    """Check that a text or a value is a number between two others."""
    try:
        value = float("nan") if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if not least <= value <= most:
        raise GramLoopError(f"{owner} takes a number from {least:g} to {most:g}, not {given!r}")
    return value
