"""A table as Markdown, CSV, LaTeX and on a terminal: as it is shown, but for CSV, which has full precision."""

from __future__ import annotations

import csv as csv_module
import io
import re
from typing import TYPE_CHECKING, Literal

from gramloop.metrics.bootstrap import Interval
from gramloop.report.tables.table import ABSENT, Cell, Column, Table
from gramloop.util.table import text_cell

if TYPE_CHECKING:
    from rich.console import Group

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "--": "-{}-",
    "–": "--",
    "—": "---",
    "−": "$-$",
    "×": r"$\times$",
    "÷": r"$\div$",
    "Δ": r"$\Delta$",
    "·": r"$\cdot$",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
}
_SPECIAL = re.compile("|".join(map(re.escape, _LATEX)))
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~&!])")
_LIST = re.compile(r"([-+=]|\d+(?=[.)]))")  # at the beginning of a line


def markdown(table: Table, level: int = 3) -> str:
    """A heading, the caption, a pipe table with the best cells in bold, and the notes."""
    lines = [f"{'#' * level} {plain(table.title)}", ""]
    if table.caption:
        lines += [plain(table.caption), ""]
    lines.append(_piped([plain(column.title) for column in table.columns]))
    lines.append(_piped([":--" if column.kind == "text" else "--:" for column in table.columns]))
    for row in range(len(table.rows)):
        cells = [_markdown_cell(table, row, column) for column in range(len(table.columns))]
        shown = [f"**{text}**" if (row, place) in table.best else text for place, text in enumerate(cells)]
        lines.append(_piped(shown))
    for note in table.notes:
        lines += ["", plain(note)]
    return "\n".join(lines) + "\n"


def csv(table: Table) -> str:
    """One line per row in full precision; an interval takes three columns, a missing number is empty."""
    stream = io.StringIO()
    writer = csv_module.writer(stream, lineterminator="\n")
    writer.writerow([name for column in table.columns for name in _csv_names(column)])
    for row in table.rows:
        writer.writerow(
            [
                text
                for cell, column in zip(row, table.columns, strict=True)
                for text in _csv_cells(cell, column)
            ]
        )
    return stream.getvalue()


def latex(table: Table) -> str:
    r"""A table environment for the package booktabs, with \textbf around the best cells."""
    places = "".join("l" if column.kind == "text" else "r" for column in table.columns)
    lines = [r"\begin{table}[t]", r"  \centering", r"  \small", rf"  \begin{{tabular}}{{@{{}}{places}@{{}}}}"]
    lines += [r"    \toprule", _latex_row([rf"\textbf{{{_escaped(c.title)}}}" for c in table.columns])]
    lines.append(r"    \midrule")
    for row in range(len(table.rows)):
        if table.footer and row == len(table.rows) - table.footer and row:
            lines.append(r"    \midrule")
        lines.append(_latex_row([_latex_cell(table, row, place) for place in range(len(table.columns))]))
    notes = " ".join([table.caption or table.title, *table.notes])
    lines += [r"    \bottomrule", r"  \end{tabular}", rf"  \caption{{{_escaped(notes)}}}"]
    lines += [rf"  \label{{tab:{table.key}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def terminal(table: Table) -> Group:
    """For a console: the caption, a table with its means in bold, and the notes."""
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    # narrow and folded, for a number that is cut off is none
    grid = Grid(title=Text(table.caption or table.title), title_justify="left", padding=0)
    for column in table.columns:
        side: Literal["left", "right"] = "left" if column.kind == "text" else "right"
        grid.add_column(Text(column.title, overflow="fold"), justify=side, overflow="fold")
    last = len(table.rows) - table.footer
    for row in range(len(table.rows)):
        texts = [Text(table.text(row, place), overflow="fold") for place in range(len(table.columns))]
        grid.add_row(*texts, style="bold" if row >= last else "", end_section=row == last - 1)
    return Group(grid, *map(Text, table.notes))


def _markdown_cell(table: Table, row: int, place: int) -> str:
    text = table.text(row, place)
    return plain(text) if isinstance(table.rows[row][place], str) else text  # a number has no marks


def plain(text: str) -> str:
    """Text in which Markdown sees no marks, on one line."""
    escaped = _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
    begun = _LIST.match(escaped)
    if begun is None:
        return escaped
    end = begun.end()
    return f"{escaped[:end]}\\{escaped[end:]}" if escaped[0].isdigit() else f"\\{escaped}"


def _piped(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _csv_names(column: Column) -> list[str]:
    if column.kind == "interval":
        return [text_cell(f"{column.key} {end}") for end in ("estimate", "low", "high")]
    return [text_cell(column.key)]


def _csv_cells(cell: Cell, column: Column) -> list[str]:
    if column.kind == "interval":
        ends = (cell.estimate, cell.low, cell.high) if isinstance(cell, Interval) else (None,) * 3
        return ["" if end is None else repr(float(end)) for end in ends]
    if cell is None:
        return [""]
    if isinstance(cell, float):
        return ["" if cell != cell else repr(float(cell))]  # not a number is no number
    return [text_cell(str(cell))]


def _latex_row(cells: list[str]) -> str:
    return f"    {' & '.join(cells)} \\\\"


def _latex_cell(table: Table, row: int, place: int) -> str:
    text = table.text(row, place)
    is_number = not isinstance(table.rows[row][place], str) and text != ABSENT
    shown = _escaped(text).replace("-", "$-$") if is_number else _escaped(text)  # a minus, not a hyphen
    if shown.startswith(("[", "*")):  # which \\ would take for its own argument
        shown = "{" + shown[0] + "}" + shown[1:]
    return rf"\textbf{{{shown}}}" if (row, place) in table.best else shown


def _escaped(text: str) -> str:
    return _SPECIAL.sub(lambda found: _LATEX[found.group()], " ".join(text.split()))
