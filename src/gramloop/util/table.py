"""One table for terminals, notebooks, reports and the app: full-precision cells, and how each is formatted."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from html import escape
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

ABSENT = "–"
_NUMBER = re.compile(r"[+−-]?(\d[\d.,]*([eE][+-]?\d+)?|inf)[ ]?[%×]?")
_TEXT_WIDTH = 20  # characters to which a column of text may shrink on a terminal


class IntervalLike(Protocol):
    """An estimate and the range around it."""

    @property
    def estimate(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...


class SignedNumber(float):
    """A number shown with its sign, whatever its column does."""


Cell = str | int | float | IntervalLike | None  # None is a number that does not exist; notes say why


@dataclass(frozen=True)
class Column:
    """One column and the format of its cells.

    Args:
        key: The name in CSV files.
        title: The heading; the key by default.
        kind: What the cells are; by default it follows from them.
        digits: Decimals shown; four significant digits by default.
        signed: Show gains with their sign, coloured by it.
        unit: Appended to numbers, such as "×".
        estimate: Show the estimate in front of an interval.
        visible: Whether people see it; CSV files have all columns.
    """

    key: str
    title: str | None = None
    kind: Literal["", "text", "number", "interval"] = ""
    digits: int | None = None
    signed: bool = False
    unit: str = ""
    estimate: bool = False
    visible: bool = True

    @property
    def heading(self) -> str:
        """The text above the column."""
        return self.key if self.title is None else self.title

    def format(self, cell: Cell) -> str:
        """The cell as it is displayed."""
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return ABSENT
        if isinstance(cell, str):
            return cell
        if not isinstance(cell, int | float) and hasattr(cell, "low"):
            digits = 2 if self.digits is None else self.digits
            ends = f"[{cell.low:+.{digits}f}, {cell.high:+.{digits}f}]"
            return f"{cell.estimate:+.{digits}f} {ends}" if self.estimate else ends
        sign = "+" if self.signed or isinstance(cell, SignedNumber) else ""
        if self.digits is None:
            return (f"{cell:{sign}.4g}" if isinstance(cell, float) else str(cell)) + self.unit
        return (f"{cell:{sign},d}" if isinstance(cell, int) else f"{cell:{sign}.{self.digits}f}") + self.unit


@dataclass(frozen=True)
class Table:
    """Rows of full-precision cells under columns; numbers are rounded only when they are displayed.

    Args:
        title: One line.
        columns: Columns, or just their names.
        rows: A cell for each column.
        notes: Sentences below the table.
        caption: What the numbers are.
        key: Names the table's files.
        compared: Keys of the columns among which the best cell of each row is marked.
        footer: How many of the last rows are means, which stay last when a reader sorts.
        lowest: The best number is the lowest.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    caption: str = ""
    key: str = ""
    compared: tuple[str, ...] = ()
    footer: int = 0
    lowest: bool = False

    def __init__(
        self,
        title: str,
        columns: Iterable[Column | str],
        rows: Iterable[Sequence[Cell]],
        notes: Iterable[str] = (),
        *,
        caption: str = "",
        key: str = "",
        compared: Iterable[str] = (),
        footer: int = 0,
        lowest: bool = False,
    ) -> None:
        made = tuple(Column(each) if isinstance(each, str) else each for each in columns)
        values = (title, made, tuple(map(tuple, rows)), tuple(notes), caption, key, tuple(compared))
        for field, value in zip(fields(self), (*values, footer, lowest), strict=True):
            object.__setattr__(self, field.name, value)
        for row in self.rows:
            if len(row) != len(made):
                raise GramLoopError(
                    f"a row of the table {key or title!r} has {len(row)} cells for {len(made)} columns"
                )
        if not 0 <= footer <= len(self.rows):
            raise GramLoopError(f"the table {key or title!r} has {len(self.rows)} rows, not {footer} means")

    def cell_text(self, row: int, column: int) -> str:
        """A cell as it is displayed."""
        return self.columns[column].format(self.rows[row][column])

    @cached_property
    def visible(self) -> Table:
        """The table with the columns that people see."""
        if all(column.visible for column in self.columns):
            return self
        places = [place for place, column in enumerate(self.columns) if column.visible]
        columns = tuple(self.columns[place] for place in places)
        return replace(
            self, columns=columns, rows=tuple(tuple(row[place] for place in places) for row in self.rows)
        )

    def column(self, key: str) -> int:
        """The index of a column."""
        return next(index for index, column in enumerate(self.columns) if column.key == key)

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """The kind of every column."""
        return tuple(each.kind or self._kind(index) for index, each in enumerate(self.columns))

    def _kind(self, index: int) -> str:
        known = [row[index] for row in self.rows if row[index] is not None]
        numbers = (not isinstance(cell, str) or _NUMBER.fullmatch(cell) for cell in known)
        return "number" if (known and all(numbers)) or self.columns[index].digits is not None else "text"

    @cached_property
    def best(self) -> frozenset[tuple[int, int]]:
        """Row and column of the best cells, compared as displayed: what reads alike is marked alike."""
        places = [index for index, each in enumerate(self.columns) if each.key in self.compared]
        return frozenset().union(*(self._best_of(row, places) for row in range(len(self.rows))))

    def _best_of(self, row: int, places: Sequence[int]) -> set[tuple[int, int]]:
        values = {
            (row, place): round(float(cell), self.columns[place].digits or 15)
            for place in places
            if isinstance(cell := self.rows[row][place], int | float) and math.isfinite(cell)
        }
        if len(set(values.values())) < 2:  # where all tie, none is best
            return set()
        top = (min if self.lowest else max)(values.values())
        return {place for place, value in values.items() if value == top}

    def _lines(self) -> list[list[str]]:
        """Headings, then all cells, each on one line and free of control characters."""
        texts = [
            [self.cell_text(row, place) for place in range(len(self.columns))]
            for row in range(len(self.rows))
        ]
        return [
            [_one_line(text) for text in line] for line in ([each.heading for each in self.columns], *texts)
        ]

    def text(self) -> str:
        """Aligned plain text; needs no package."""
        lines, kinds = self.visible._lines(), self.visible.kinds
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

        def aligned(line: list[str]) -> str:
            cells = zip(line, widths, kinds, strict=True)
            padded = (text.ljust(w) if kind == "text" else text.rjust(w) for text, w, kind in cells)
            return "  ".join(padded).rstrip()

        ruled = [aligned(lines[0]), "  ".join("─" * width for width in widths), *map(aligned, lines[1:])]
        caption = [self.caption] if self.caption else []
        return "\n".join([self.title, *caption, *(ruled if self.rows else []), *self.notes])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For a terminal of any width: columns that do not fit follow below, next to the first columns again."""
        from rich.text import Text

        if self.visible is not self:
            yield self.visible
            return
        yield Text(self.title, style="bold")
        if self.caption:
            yield Text(self.caption)
        lines = self._lines()
        for places in self._fitting(lines, options.max_width) if self.rows else ():
            yield self._grid(lines, places)
        yield from map(Text, self.notes)

    def _fitting(self, lines: list[list[str]], width: int) -> Iterator[list[int]]:
        """The columns of each part of a table on a terminal of this width."""
        from rich.cells import cell_len

        widths = [max(cell_len(line[place]) for line in lines) + 2 for place in range(len(self.columns))]
        least = [
            min(w, _TEXT_WIDTH) if kind == "text" else w for w, kind in zip(widths, self.kinds, strict=True)
        ]
        heads = 0
        while heads < min(2, len(least) - 1) and self.kinds[heads] == "text":
            heads += 1
        part = list(range(heads))
        for place in range(heads, len(least)):
            if len(part) > heads and sum(least[each] for each in (*part, place)) - 2 > width:
                yield part
                part = list(range(heads))
            part.append(place)
        yield part

    def _grid(self, lines: list[list[str]], places: list[int]) -> Any:
        from rich import box
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        for place in places:
            text = self.kinds[place] == "text"
            grid.add_column(
                Text(lines[0][place]), justify="left" if text else "right", no_wrap=not text, overflow="fold"
            )
        last = len(self.rows) - self.footer
        for row, line in enumerate(lines[1:]):  # cells are Text, so that no name is taken for markup
            style = "bold" if self.footer and row >= last else ""
            cells = [Text(line[place], style="bold" if (row, place) in self.best else "") for place in places]
            grid.add_row(*cells, style=style, end_section=row == last - 1 and bool(self.footer))
        return grid

    def html(self) -> str:
        """For a notebook; whatever a name or a note contains is shown as text."""
        sides = ["left" if kind == "text" else "right" for kind in self.visible.kinds]

        def line(name: str, texts: list[str]) -> str:
            cells = zip(texts, sides, strict=True)
            made = (f'<{name} style="text-align:{side}">{escape(text)}</{name}>' for text, side in cells)
            return f"<tr>{''.join(made)}</tr>"

        head, *lines = self.visible._lines()
        body = "".join(line("td", texts) for texts in lines)
        table = f"<thead>{line('th', head)}</thead><tbody>{body}</tbody>" if self.rows else ""
        above, *below = (f"<p>{escape(text)}</p>" if text else "" for text in (self.caption, *self.notes))
        return f"{above}<table><caption>{escape(self.title)}</caption>{table}</table>{''.join(below)}"

    def _marked(self, form: Callable[[str, bool], str], bold: str) -> list[list[str]]:
        """All cells in a markup, the best ones in ``bold``; ``form`` takes a text and whether it is a number's."""
        lines = []
        for row, cells in enumerate(self.rows):
            texts = [
                form(self.cell_text(row, place), cell is not None and not isinstance(cell, str))
                for place, cell in enumerate(cells)
            ]
            best = (
                bold.replace("…", text) if (row, place) in self.best else text
                for place, text in enumerate(texts)
            )
            lines.append(list(best))
        return lines

    def markdown(self, level: int = 3) -> str:
        """A heading, the caption, a pipe table with the best cells in bold, and the notes."""
        table = self.visible
        lines = [f"{'#' * level} {markdown_text(self.title)}", ""]
        lines += [markdown_text(self.caption), ""] if self.caption else []
        heads = [markdown_text(column.heading) for column in table.columns]
        sides = [":--" if kind == "text" else "--:" for kind in table.kinds]
        # numbers hold no marks
        cells = table._marked(lambda text, number: text if number else markdown_text(text), "**…**")
        lines += [f"| {' | '.join(line)} |" for line in (heads, sides, *cells)]
        for note in self.notes:
            lines += ["", markdown_text(note)]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """One line per row in full precision; an interval takes three columns, a missing number is empty."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        spans = [kind == "interval" for kind in self.kinds]
        names = [
            [f"{column.key} {end}" for end in ("estimate", "low", "high")] if span else [column.key]
            for column, span in zip(self.columns, spans, strict=True)
        ]
        writer.writerow([spreadsheet_text(name) for group in names for name in group])
        for row in self.rows:
            cells = (_csv_cells(cell, span) for cell, span in zip(row, spans, strict=True))
            writer.writerow([text for group in cells for text in group])
        return stream.getvalue()

    def latex(self) -> str:
        r"""A table environment for the package booktabs, with \textbf around the best cells."""
        table = self.visible
        places = "".join("l" if kind == "text" else "r" for kind in table.kinds)
        heads = [rf"\textbf{{{latex_text(column.heading)}}}" for column in table.columns]
        rows = [f"    {' & '.join(cells)} \\\\" for cells in table._marked(_latex_cell, r"\textbf{…}")]
        if 0 < self.footer < len(rows):
            rows.insert(len(rows) - self.footer, r"    \midrule")
        words = " ".join([self.caption or self.title, *self.notes])
        lines = [
            r"\begin{table}[t]",
            r"  \centering",
            r"  \small",
            rf"  \begin{{tabular}}{{@{{}}{places}@{{}}}}",
            r"    \toprule",
            f"    {' & '.join(heads)} \\\\",
            r"    \midrule",
            *rows,
            r"    \bottomrule",
            r"  \end{tabular}",
            rf"  \caption{{{latex_text(words)}}}",
            rf"  \label{{tab:{self.key}}}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"


def _latex_cell(text: str, number: bool) -> str:
    escaped = latex_text(text)
    if number and text != ABSENT:
        escaped = escaped.replace("-", "$-$")  # a minus, not a hyphen
    # which \\ would take for its argument
    return "{" + escaped[0] + "}" + escaped[1:] if escaped.startswith(("[", "*")) else escaped


class TableRepr:
    """A mixin for objects that print, and display in notebooks and with rich, as the table of ``_table``."""

    def _table(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        """The table as plain text."""
        return self._table().text()

    def __rich__(self) -> Table:
        """The table for rich."""
        return self._table()

    def _repr_html_(self) -> str:
        """The table for a notebook."""
        return self._table().html()


def _one_line(text: str) -> str:
    """A text on one line, without what would move the cursor of a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in " ".join(text.split()))


_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~&!])")
_LIST = re.compile(r"([-+=]|\d+(?=[.)]))")  # at the beginning of a line


def markdown_text(text: str) -> str:
    """Text on one line, escaped so that Markdown displays it as it is."""
    escaped = _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
    begun = _LIST.match(escaped)
    if begun is None:
        return escaped
    end = begun.end()
    return f"{escaped[:end]}\\{escaped[end:]}" if escaped[0].isdigit() else f"\\{escaped}"


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "--": "-{}-", "–": "--", "—": "---", "−": "$-$", "×": r"$\times$", "÷": r"$\div$", "Δ": r"$\Delta$",
    "·": r"$\cdot$", "…": r"\ldots{}", "“": "``", "”": "''",
}  # fmt: skip
_SPECIAL = re.compile("|".join(map(re.escape, _LATEX)))


def latex_text(text: str) -> str:
    """Text on one line, escaped for LaTeX."""
    return _SPECIAL.sub(lambda found: _LATEX[found.group()], " ".join(text.split()))


_BREAK = re.compile(r"[\t\r\n\v\f\x00]")
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_PLAIN_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)", re.IGNORECASE)


def spreadsheet_text(text: str) -> str:
    """Text of a CSV cell on one line; what a spreadsheet would run as a formula gets an apostrophe."""
    text = _BREAK.sub(" ", text)
    return f"'{text}" if _FORMULA.match(text) and not _PLAIN_NUMBER.fullmatch(text) else text


def _csv_cells(cell: Cell, span: bool) -> list[str]:
    if span:
        ends = (None,) * 3 if cell is None else (cell.estimate, cell.low, cell.high)  # type: ignore[union-attr]
        return ["" if end is None else repr(float(end)) for end in ends]
    if cell is None:
        return [""]
    if isinstance(cell, float):
        return ["" if cell != cell else repr(float(cell))]  # not a number is no number
    return [spreadsheet_text(str(cell))]
