"""A gate for continuous integration: how many points a model may lose, on clean images and under shift."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from gramloop.compare.paired import CLEAN, SHIFT, ModelComparison, PairedRow
from gramloop.errors import GramLoopError

GateWord = Literal["passed", "failed", "undecided"]
_RULE = re.compile(r"(\w+)\s+([+-]?\d+(?:\.\d+)?)")


@dataclass(frozen=True)
class Gate:
    """The least difference in points that is accepted, for "clean", "shift" or both."""

    least: dict[str, float]

    def judge(self, row: PairedRow) -> GateWord:
        """Failed where the interval lies below the margin, passed where it does not reach below it."""
        least = self.least[row.scope]
        if row.deciding.high < least:
            return "failed"
        return "passed" if row.deciding.low >= least else "undecided"

    def judged(self, comparison: ModelComparison) -> list[tuple[PairedRow, GateWord]]:
        """Every row that the gate names, with its word."""
        self.check(comparison.scopes)
        return [(row, self.judge(row)) for row in comparison.rows if row.scope in self.least]

    def check(self, scopes: tuple[str, ...]) -> None:
        """Refuse a gate on something that is not measured."""
        if lacking := [scope for scope in self.least if scope not in scopes]:
            raise GramLoopError(
                f"the gate names {lacking[0]}, which is not measured; there is {', '.join(scopes)}"
            )

    def code(self, comparison: ModelComparison) -> int:
        """The exit code: 1 where a row failed, otherwise 3 where one is undecided, otherwise 0."""
        words = {word for _, word in self.judged(comparison)}
        return 1 if "failed" in words else 3 if "undecided" in words else 0


def parse_gate(text: str) -> Gate:
    """The gate of a text such as "clean -0.5, shift -1.0"."""
    least: dict[str, float] = {}
    for part in text.split(","):
        found = _RULE.fullmatch(part.strip())
        if found is None or found[1] not in (CLEAN, SHIFT) or found[1] in least or float(found[2]) > 0:
            raise GramLoopError(
                f"the gate {text!r} cannot be read at {part.strip()!r}; it is clean, shift or both, once each, with the "
                'points that may be lost: "clean -0.5, shift -1.0"'
            )
        least[found[1]] = float(found[2])
    return Gate(least)
