"""Objects that show themselves: one table, as text, to rich, and as HTML in a notebook."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from html import escape
from typing import Any

Cell = str | int | float | None
ABSENT = "–"
_NUMBER = re.compile(r"[+−-]?(\d[\d.,]*([eE][+-]?\d+)?|inf)[ ]?[%×]?")


@dataclass(frozen=True)
class ShownTable:
    """A few rows under a title; ``notes`` are sentences below them."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def text(self) -> str:
        """The table in columns of plain text; needs no package."""
        lines = [[_spaced(name) for name in self.columns], *self._cells()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(self.columns))]
        right = self._right()

        def aligned(line: list[str]) -> str:
            cells = zip(line, widths, right, strict=True)
            return "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in cells).rstrip()

        ruled = [aligned(lines[0]), "  ".join("─" * width for width in widths), *map(aligned, lines[1:])]
        return "\n".join([self.title, *(ruled if self.rows else []), *self.notes])

    def html(self) -> str:
        """The table as HTML; whatever a name or a note holds, it is shown as text."""
        sides = ["right" if right else "left" for right in self._right()]
        head = "".join(_tag("th", *each) for each in zip(self.columns, sides, strict=True))
        body = "".join(
            f"<tr>{''.join(_tag('td', *each) for each in zip(line, sides, strict=True))}</tr>"
            for line in self._cells()
        )
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        table = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>" if self.rows else ""
        return f"<table><caption>{escape(self.title)}</caption>{table}</table>{notes}"

    def rich(self) -> Any:
        """The table as rich draws it."""
        from rich import box
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, title=Text(self.title), title_justify="left", title_style="bold")
        for name, right in zip(self.columns, self._right(), strict=True):
            table.add_column(Text(name), justify="right" if right else "left")
        for line in self._cells():
            table.add_row(*(Text(cell) for cell in line))  # a text holds no markup, whatever is in a name
        return Group(table, *(Text(note) for note in self.notes)) if self.rows else Text(self.text())

    def _cells(self) -> list[list[str]]:
        return [[_spaced(said(cell)) for cell in row] for row in self.rows]

    def _right(self) -> list[bool]:
        """The columns of numbers."""
        columns = list(zip(*self._cells(), strict=True)) or [()] * len(self.columns)
        return [
            any(cell != ABSENT for cell in column)
            and all(cell == ABSENT or _NUMBER.fullmatch(cell) for cell in column)
            for column in columns
        ]


class Shown:
    """A mixin: ``_shown`` says what there is to see, and print, rich and notebooks show it."""

    def _shown(self) -> ShownTable:
        raise NotImplementedError

    def __str__(self) -> str:
        """The table as plain text."""
        return self._shown().text()

    def __rich__(self) -> Any:
        """The table for rich."""
        return self._shown().rich()

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return self._shown().html()


def said(cell: Cell) -> str:
    """A cell as it is shown: four digits of a number that is not whole."""
    if cell is None or (isinstance(cell, float) and math.isnan(cell)):
        return ABSENT
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def settings_table(title: str, owner: Any, notes: Iterable[str] = ()) -> ShownTable:
    """The fields of a dataclass of settings, with their values."""
    rows = tuple((field.name, _setting(getattr(owner, field.name))) for field in fields(owner))
    return ShownTable(title, ("setting", "value"), rows, tuple(notes))


def _setting(value: object) -> Cell:
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else _words(value)


def _words(value: object) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value))
    return "none" if value is None else str(value)


def _spaced(text: str) -> str:
    """One line of a text, without what would move the cursor of a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in " ".join(text.split()))


def _tag(name: str, text: str, side: str) -> str:
    return f'<{name} style="text-align:{side}">{escape(text)}</{name}>'


_BREAK = re.compile(r"[\t\r\n\v\f\x00]")
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_CSV_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def text_cell(text: str) -> str:
    """A text as one line of a CSV cell; one that a spreadsheet would run as a formula gets an apostrophe."""
    text = _BREAK.sub(" ", text)
    return f"'{text}" if _FORMULA.match(text) and not _CSV_NUMBER.fullmatch(text) else text
