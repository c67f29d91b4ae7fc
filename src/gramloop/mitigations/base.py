"""What a mitigation is: a named change to how one image is predicted, at a stated cost, without training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import MISSING, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias

from gramloop.errors import GramLoopError

if TYPE_CHECKING:  # features are treated with torch alone, without what images need
    from gramloop.mitigations.calibration import CalibrationStats
    from gramloop.tasks.base import AnyTask
    from gramloop.tasks.images import RGB
    from gramloop.tasks.prediction import Prediction
    from gramloop.tasks.predictor import AnyPredictor

Stats: TypeAlias = "CalibrationStats | None"  # of in-distribution images, if there are any
Stage = Literal["pixels", "backbone", "features", "outputs"]
CalibrationNeed = Literal["", "optional", "required"]
STAGES: tuple[Stage, ...] = ("pixels", "backbone", "features", "outputs")
"""Where a mitigation can act, in this order."""

# images of one size and their scale relative to the usual input size → for each the baseline version, if paired, and
# the last one
ViewFunction = Callable[[Sequence["RGB"], float], list[list["Prediction"]]]


def setting(low: float, high: float, default: Any = MISSING, mark: str = "") -> Any:
    """A field that is a number between two others, or None if that is the default.

    Args:
        low, high: the least and the largest number.
        default: what it is where nothing is given.
        mark: names it in text, as in ``c=1``; numbers without one come in the order of their fields.
    """
    return field(default=default, metadata={"limits": (low, high), "mark": mark})


class Mitigation:
    """One change to a prediction. Subclasses are frozen dataclasses and override what they need.

    usage: its arguments in words, if it needs some.
    learns: the field of `CalibrationStats` that it uses, if it uses one.
    """

    name: ClassVar[str]
    stage: ClassVar[Stage]
    usage: ClassVar[str] = ""
    learns: ClassVar[str] = ""

    def __post_init__(self) -> None:
        settings = [each for each in fields(self) if each.metadata]  # type: ignore[arg-type]
        for each in settings:
            value = getattr(self, each.name)
            if value is not None or each.default is not None:
                owner = (
                    self.name if len(settings) == 1 else f"{self.name}'s {each.metadata['mark'] or each.name}"
                )
                object.__setattr__(self, each.name, number(owner, value, *each.metadata["limits"]))

    @classmethod
    def parse(cls, arguments: str) -> Self:
        """Read what follows the colon: numbers, divided by commas."""
        marks = {each.name: each.metadata["mark"] for each in fields(cls)}  # type: ignore[arg-type]
        given: dict[str, str] = {}
        for part in arguments.split(",") if arguments else ():
            mark, _, value = part.strip().rpartition("=")
            free = [name for name in marks if marks[name] == mark and name not in given]
            if not free:
                raise GramLoopError(f"{cls.name} takes {cls._takes()}, not {arguments!r}")
            given[free[0]] = value
        if cls.usage and not given:
            raise GramLoopError(f"{cls.name} takes {cls._takes()}; none is given")
        return cls(**given)

    @classmethod
    def _takes(cls) -> str:
        return cls.usage or ("one number" if fields(cls) else "no arguments")  # type: ignore[arg-type]

    @property
    def arguments(self) -> str:
        """What `parse` reads back; empty for the default."""
        settings = [(each, getattr(self, each.name)) for each in fields(self) if each.metadata]  # type: ignore[arg-type]
        given = [(each.metadata["mark"], value) for each, value in settings if value != each.default]
        return ",".join(f"{mark}={value:g}" if mark else f"{value:g}" for mark, value in given)

    @property
    def text(self) -> str:
        """Name and arguments, such as ``recentre:0.3``."""
        return f"{self.name}:{self.arguments}" if self.arguments else self.name

    @property
    def scales(self) -> tuple[float, ...]:
        """One entry per forward pass over the image: its scale relative to the usual input size."""
        return (1.0,)

    def check(self, predictor: AnyPredictor, stack: Sequence[Mitigation], stats: Stats) -> None:
        """Refuse a predictor or a stack that it cannot work with; weights are not needed for that."""

    def calibration(self, predictor: AnyPredictor) -> CalibrationNeed:
        """Whether it uses calibration statistics, or cannot do without them."""
        return "required" if self.learns else ""

    def learnt(self, stats: Stats) -> Any:
        """What it uses of the calibration statistics, or an error if that is not there."""
        found = getattr(stats, self.learns, None)
        if not found:
            raise GramLoopError(
                f"{self.text} needs calibration statistics of in-distribution images, with {self.learns}; calibrate on a few "
                "dozen of them (gramloop calibrate) and give the file"
            )
        return found

    def filtered(self, pixels: RGB, stats: Stats) -> RGB:
        """The image that the model sees instead; the same array where nothing changes."""
        return pixels

    def hooked(self, model: object, stats: Stats) -> AbstractContextManager[object]:
        """Hooks on a predictor's model, or on a torch module, for forward passes of this thread."""
        return nullcontext()

    def merged(
        self, view: ViewFunction, task: AnyTask, images: Sequence[RGB], scale: float
    ) -> list[list[Prediction]]:
        """One prediction of several views of each image; like ``view``, which it may call for each of them."""
        return view(images, scale)


def number(owner: str, given: object, least: float, most: float) -> float:
    """Check that a text or a value is a number between two others."""
    try:
        value = float("nan") if isinstance(given, bool) else float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        value = float("nan")
    if not least <= value <= most:
        raise GramLoopError(f"{owner} takes a number from {least:g} to {most:g}, not {given!r}")
    return value
