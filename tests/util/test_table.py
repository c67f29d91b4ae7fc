"""One table: cells as they are displayed, and every format of it; a hostile name stays a text."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Interval
from gramloop.util.table import Column, Table, TableRepr, markdown_text, spreadsheet_text
from html_tables import HOSTILE, Reader


class Thing(TableRepr):
    def _table(self) -> Table:
        rows = ((HOSTILE, 1.5, 10), ("[red]name[/red]", None, -7))
        return Table(f"about {HOSTILE}", ("name", "value", "count"), rows, (f"note {HOSTILE}",))


def test_html_holds_hostile_names_as_text() -> None:
    read = Reader(Thing()._repr_html_())
    assert read.tags == {"table", "caption", "thead", "tbody", "tr", "th", "td", "p"}
    assert read.rows == [
        ["name", "value", "count"],
        [HOSTILE, "1.5", "10"],
        ["[red]name[/red]", "–", "-7"],
    ]
    assert read.caption == f"about {HOSTILE}"
    assert read.notes == [f"note {HOSTILE}"]


def test_text_is_aligned_and_needs_no_package() -> None:
    table = Table("title", ("name", "value"), (("a", 1.25), ("longer", 100)))
    assert table.text().splitlines() == [
        "title",
        "name    value",
        "──────  ─────",
        "a        1.25",
        "longer    100",
    ]


def test_a_name_moves_no_cursor_and_breaks_no_line() -> None:
    text = Table("t", ("name",), (("two\nlines\x1b[2Jgone\r",),)).text()
    assert text.splitlines()[-1] == "two lines�[2Jgone"


def test_rich_takes_a_name_for_no_markup() -> None:
    rich_console = pytest.importorskip("rich.console")
    stream = io.StringIO()
    rich_console.Console(file=stream, width=200).print(Thing())
    assert "[red]name[/red]" in stream.getvalue()
    assert HOSTILE in stream.getvalue()


def test_a_table_without_rows_is_its_title_and_notes() -> None:
    empty = Table("nothing here", ("a",), (), ("why",))
    assert empty.text() == "nothing here\nwhy"
    assert Reader(empty.html()).caption == "nothing here"


SMALL = (Column("a", digits=2), Column("b", digits=2, signed=True), Column("c", "C", "interval", digits=3))


def test_cells_as_they_are_shown() -> None:
    rows = ((1.005, -0.5, Interval(0.1, -0.02, 0.3)), (None, float("nan"), None), (1234, 0.0, None))
    table = Table("T", SMALL, rows)
    shown = [[table.cell_text(row, place) for place in range(3)] for row in range(3)]
    assert shown == [["1.00", "-0.50", "[-0.020, +0.300]"], ["–", "–", "–"], ["1,234", "+0.00", "–"]]


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GramLoopError, match="2 cells for 3 columns"):
        Table("T", SMALL, ((1, 2),))
    with pytest.raises(GramLoopError, match="1 rows, not 2 means"):
        Table("T", SMALL, ((1, 2, None),), footer=2)


def test_the_best_is_the_largest_as_shown_and_ties_share_it() -> None:
    rows = ((1.001, 5.0, None), (1.004, 4.0, None), (0.2, None, None))
    table = Table("T", SMALL, rows, compared=("a", "b"))
    assert table.best == {(0, 1), (1, 1)}
    assert replace(table, lowest=True).best == {(0, 0), (1, 0)}
    assert replace(table, rows=((1.001, 1.0, None),)).best == set()  # they read alike


COLUMNS = (
    Column("name", "Name & co", "text"),
    Column("score", "mIoU", digits=3),
    Column("gain", "Δ", digits=3, signed=True),
    Column("interval", "95% CI", "interval", digits=3),
)
ROWS = (
    ("fog_3 | 50%", 1 / 3, -0.1234567890123, Interval(-0.12, -0.3, 0.05)),
    ("[snow]", 2.0, None, None),
    ("Mean", 1, 0.5, None),
)
TABLE = Table(
    "A #title",
    COLUMNS,
    ROWS,
    ("A note: --bootstrap “images” is ≥ 2 × 3.",),
    key="t-1",
    caption="Caption_1.",
    compared=("score", "gain"),
    footer=1,
)


def test_markdown_shows_what_the_table_shows() -> None:
    lines = TABLE.markdown().splitlines()
    assert lines[0] == r"### A \#title"
    assert r"| fog\_3 \| 50% | **0.333** | -0.123 | [-0.300, +0.050] |" in lines
    assert r"| \[snow\] | 2.000 | – | – |" in lines
    assert "| :-- | --: | --: | --: |" in lines
    assert lines[-1].startswith("A note")


def test_csv_keeps_every_digit() -> None:
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == ["name", "score", "gain", "interval estimate", "interval low", "interval high"]
    assert float(rows[1][1]) == 1 / 3
    assert float(rows[1][2]) == -0.1234567890123
    assert [float(text) for text in rows[1][3:]] == [-0.12, -0.3, 0.05]
    assert rows[2][2:] == ["", "", "", ""]
    assert rows[3][:2] == ["Mean", "1"]


@given(st.lists(st.floats(allow_infinity=False), min_size=1, max_size=20))
def test_csv_gives_back_what_it_was_given(values: list[float]) -> None:
    table = Table("T", (Column("x"),), [(value,) for value in values])
    lines = table.csv().split("\n")[1:-1]
    back = [float(text) if text.strip('"') else np.nan for text in lines]
    np.testing.assert_array_equal(back, values)


def test_latex_with_booktabs() -> None:
    text = TABLE.latex()
    lines = [line.strip() for line in text.splitlines()]
    assert r"\begin{tabular}{@{}lrrr@{}}" in lines
    assert r"fog\_3 | 50\% & \textbf{0.333} & $-$0.123 & {[}$-$0.300, +0.050] \\" in lines
    assert r"{[}snow] & 2.000 & -- & -- \\" in lines  # \\ before [ would take it for a length
    assert lines[lines.index(r"Mean & \textbf{1} & +0.500 & -- \\") - 1] == r"\midrule"
    assert [line for line in lines if line in (r"\toprule", r"\bottomrule")] == [r"\toprule", r"\bottomrule"]
    assert r"\caption{Caption\_1. A note: -{}-bootstrap ``images'' is ≥ 2 $\times$ 3.}" in lines
    assert r"\label{tab:t-1}" in lines


@given(st.text(min_size=1, max_size=40))
def test_latex_leaves_no_special_character_as_it_is(words: str) -> None:
    """Whatever a class is called, it can neither end the row nor begin a command."""
    table = Table("T", (Column("x", "X", "text"), Column("y", digits=2)), ((words, 1.0),))
    row = table.latex().split("\\midrule\n")[1].split("\n    \\bottomrule")[0]
    assert "\n" not in row
    cell = row.removesuffix(r" & 1.00 \\")
    for allowed in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\textless{}"):
        cell = cell.replace(allowed, "")
    for allowed in (r"\textgreater{}", r"\ldots{}", r"$\times$", r"$\div$", r"$\Delta$", r"$\cdot$", "$-$"):
        cell = cell.replace(allowed, "")
    for allowed in ("-{}-", "{[}", "{*}", *(f"\\{sign}" for sign in "&%$#_{}")):
        cell = cell.replace(allowed, "")
    assert not set(cell) & set("\\&%$#_{}~^")


@pytest.mark.parametrize("make", [Table.markdown, Table.csv, Table.latex, Table.html, Table.text])
def test_a_table_without_rows(make: Callable[[Table], str]) -> None:
    assert make(Table("T", COLUMNS, ()))


def printed(table: Table, width: int) -> list[str]:
    stream = io.StringIO()
    console = pytest.importorskip("rich.console").Console(width=width, file=stream)
    console.print(table)
    return stream.getvalue().splitlines()


def test_a_terminal_shows_every_cell() -> None:
    shown = printed(TABLE, 80)
    assert shown[:2] == ["A #title", "Caption_1."]
    assert any("A note: --bootstrap" in line for line in shown)
    for row in range(len(ROWS)):
        (line,) = (each for each in shown if TABLE.cell_text(row, 0) in each)
        assert re.split(r"\s{2,}", line.strip()) == [TABLE.cell_text(row, place) for place in range(4)]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_wide_table_is_cut_into_parts_that_fit(width: int) -> None:
    names = [f"method-{place:02d}" for place in range(15)]
    rows = [(f"condition {row}", *(row + place / 100 for place in range(15))) for row in range(3)]
    table = Table("T", (Column("c", "Condition", "text"), *(Column(name, digits=3) for name in names)), rows)
    shown = printed(table, width)
    assert max(map(len, shown)) <= width
    text = "\n".join(shown)
    assert all(text.count(name) == 1 for name in names)
    assert all(table.cell_text(row, place) in text for row in range(3) for place in range(16))
    parts = sum("condition 1" in line for line in shown)
    assert parts == text.count("Condition") > 1


def test_an_interval_can_come_with_its_estimate() -> None:
    column = Column("gain", "Δ", "interval", 2, estimate=True)
    table = Table("T", (column,), ((Interval(-0.12, -0.3, 0.05),), (None,)))
    assert [table.cell_text(row, 0) for row in range(2)] == ["-0.12 [-0.30, +0.05]", "–"]
    assert table.csv().splitlines()[1] == "-0.12,-0.3,0.05"


RUN_BY_A_SPREADSHEET = (
    "=1+1",
    "+A1",
    "-A1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    " =1",
    '=HYPERLINK("x")',
    "-1+cmd|' /C calc'!A0",
)


@pytest.mark.parametrize("text", RUN_BY_A_SPREADSHEET)
def test_no_cell_of_a_csv_file_is_a_formula(text: str) -> None:
    table = Table("T", (Column("name", "N", "text"), Column("x")), ((text, -0.5),))
    (_, (name, number)) = csv.reader(io.StringIO(table.csv(), newline=""))
    assert name == "'" + text.replace("\t", " ").replace("\r", " ")
    assert float(number) == -0.5


@pytest.mark.parametrize("text", ["-5", "+5.5e-3", "-.5", "fog", "a=b", "-inf", "", "5-3"])
def test_numbers_and_names_stay_as_they_are(text: str) -> None:
    assert spreadsheet_text(text) == text


@given(st.text())
def test_markdown_shows_any_text_as_it_is(text: str) -> None:
    shown = MarkdownIt("commonmark").render(markdown_text(text))
    clean = " ".join(text.split())
    expected = f"<p>{clean}</p>\n" if clean else ""
    assert html.unescape(shown) == expected.replace("\0", "\ufffd")
