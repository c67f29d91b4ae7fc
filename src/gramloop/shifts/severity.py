"""The published strengths of a shift, and how they go on beyond the fifth.

A shift has five published severities. Beyond them a parameter either goes on by its last step (`add`: impulse
noise replaces 17% and 27% of the values at severities 4 and 5, hence 37% at 6 and 77% at 10), goes on by its
last ratio (`multiply`: rates and scales, which must stay positive), or has no rule, and then asking is an
error. Parameters that leave the range in which they mean something end there.
"""

import math
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from gramloop.errors import GramLoopError

PUBLISHED = 5

T = TypeVar("T")


def check_severity(name: str, severity: int) -> int:
    """The severity as a plain int, or an error if it is no whole number from 1."""
    whole = hasattr(severity, "__index__") and not isinstance(severity, bool)
    if not whole or severity < 1:
        raise GramLoopError(f"severity {severity!r} of {name}: a whole number from 1 is expected")
    return int(severity)


@dataclass(frozen=True)
class Scale:
    """One parameter over the severities: five published values and the rule beyond them."""

    values: tuple[float, ...]
    beyond: Literal["add", "multiply"]
    least: float = -math.inf
    most: float = math.inf

    def __post_init__(self) -> None:
        if len(self.values) != PUBLISHED:
            raise GramLoopError(
                f"{len(self.values)} values {self.values}: one per published severity is expected"
            )

    def at(self, name: str, severity: int) -> float:
        """The value at a severity; `name` is the shift, for the message if there is none."""
        severity = check_severity(name, severity)
        if severity <= PUBLISHED:
            return self.values[severity - 1]
        before, last = self.values[-2:]
        steps = severity - PUBLISHED
        value = last + steps * (last - before) if self.beyond == "add" else last * (last / before) ** steps
        value = round(value, 9)
        if not self.least <= value <= self.most:
            raise GramLoopError(
                f"severity {severity} of {name}: its parameter would be {value:g}, "
                f"outside [{self.least:g}, {self.most:g}]"
            )
        return value


@dataclass(frozen=True)
class Steps(Generic[T]):
    """Settings of several parameters that follow no common rule: severities 1 to 5 only."""

    settings: tuple[T, ...]

    def at(self, name: str, severity: int) -> T:
        """The setting at a severity; `name` is the shift, for the message if there is none."""
        severity = check_severity(name, severity)
        if severity > len(self.settings):
            raise GramLoopError(
                f"severity {severity} of {name}: its published settings follow no rule that goes on beyond 5"
            )
        return self.settings[severity - 1]
