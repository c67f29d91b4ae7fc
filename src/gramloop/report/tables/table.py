"""A table of a report: cells in full precision, and how each is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Interval

ColumnKind = Literal["text", "number", "interval", "mark"]  # a mark is one sign
Cell = str | int | float | Interval | None  # None is a number that there is not; notes say why
ABSENT = "–"
BETTER, WORSE, OPEN = "+", "−", "·"  # marks of one method against another


@dataclass(frozen=True)
class Column:
    """One column: what it is called, what its cells are, and how many digits of them are shown."""

    key: str
    title: str
    kind: ColumnKind = "number"
    digits: int = 2
    signed: bool = False  # gains: with their sign, and coloured by it
    unit: str = ""  # after the number: "×", " GB"
    estimate: bool = False  # intervals: with their estimate before them


@dataclass(frozen=True)
class Table:
    """Rows of full-precision cells; gains are differences of full numbers, rounded only when shown."""

    key: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    compared: tuple[str, ...] = ()  # keys of columns; the best cell of each row among them is marked
    notes: tuple[str, ...] = ()  # said below the table
    footer: int = 0  # how many last rows are means, kept at the end when sorting
    downwards: bool = False  # the best cell is that of each column instead
    lowest: bool = False  # the best number is the lowest

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise GramLoopError(
                    f"a row of the table {self.key} has {len(row)} cells for {len(self.columns)} columns"
                )
        if not 0 <= self.footer <= len(self.rows):
            raise GramLoopError(f"the table {self.key} has {len(self.rows)} rows, not {self.footer} means")

    def text(self, row: int, column: int) -> str:
        """The cell as it is shown."""
        cell, about = self.rows[row][column], self.columns[column]
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return ABSENT
        if isinstance(cell, Interval):
            ends = f"[{cell.low:+.{about.digits}f}, {cell.high:+.{about.digits}f}]"
            return f"{cell.estimate:+.{about.digits}f} {ends}" if about.estimate else ends
        if isinstance(cell, str):
            return cell
        sign = "+" if about.signed else ""
        shown = f"{cell:{sign},d}" if isinstance(cell, int) else f"{cell:{sign}.{about.digits}f}"
        return shown + about.unit

    def column(self, key: str) -> int:
        """Where the column of this key stands."""
        return next(index for index, column in enumerate(self.columns) if column.key == key)

    @cached_property
    def best(self) -> frozenset[tuple[int, int]]:
        """Row and column of the best cells, judged as they are shown: what reads alike is marked alike."""
        rows, places = (
            range(len(self.rows)),
            [i for i, each in enumerate(self.columns) if each.key in self.compared],
        )
        if self.downwards:
            groups = [[(row, place) for row in rows] for place in places]
        else:
            groups = [[(row, place) for place in places] for row in rows]
        return frozenset().union(*map(self._best_of, groups))

    def _best_of(self, group: list[tuple[int, int]]) -> set[tuple[int, int]]:
        values = {
            (row, place): round(float(cell), self.columns[place].digits)
            for row, place in group
            if isinstance(cell := self.rows[row][place], int | float) and math.isfinite(cell)
        }
        if len(set(values.values())) < 2:  # where all tie, none is best
            return set()
        top = (min if self.lowest else max)(values.values())
        return {place for place, value in values.items() if value == top}
