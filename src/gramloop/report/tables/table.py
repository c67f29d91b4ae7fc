"""A table of a report: cells in full precision, and how each is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Interval

ColumnKind = Literal["text", "number", "interval"]
Cell = str | int | float | Interval | None  # None is a number that there is not; notes say why
ABSENT = "–"


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
    best: frozenset[tuple[int, int]] = frozenset()  # (row, column), by value; ties are marked alike
    notes: tuple[str, ...] = ()  # said below the table
    footer: int = 0  # how many last rows are means, kept at the end when sorting

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


def mark_best(
    columns: tuple[Column, ...], rows: tuple[tuple[Cell, ...], ...], keys: tuple[str, ...]
) -> frozenset[tuple[int, int]]:
    """The best cells of some columns, judged as they are shown: what reads alike is marked alike.

    A column in which all cells tie has no best.
    """
    places = [index for index, column in enumerate(columns) if column.key in keys]
    return frozenset().union(
        *(_best(columns, rows, [(row, index) for row in range(len(rows))], False) for index in places)
    )


def mark_best_of_rows(
    columns: tuple[Column, ...],
    rows: tuple[tuple[Cell, ...], ...],
    keys: tuple[str, ...],
    *,
    lowest: bool = False,
) -> frozenset[tuple[int, int]]:
    """The same within each row, over the columns of these keys."""
    places = [index for index, column in enumerate(columns) if column.key in keys]
    return frozenset().union(
        *(_best(columns, rows, [(row, index) for index in places], lowest) for row in range(len(rows)))
    )


def _best(
    columns: tuple[Column, ...],
    rows: tuple[tuple[Cell, ...], ...],
    places: list[tuple[int, int]],
    lowest: bool,
) -> set[tuple[int, int]]:
    values = {
        (row, index): round(float(cell), columns[index].digits)
        for row, index in places
        if isinstance(cell := rows[row][index], int | float) and math.isfinite(cell)
    }
    if len(set(values.values())) < 2:
        return set()
    top = (min if lowest else max)(values.values())
    return {place for place, value in values.items() if value == top}
