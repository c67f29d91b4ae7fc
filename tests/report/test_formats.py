from __future__ import annotations

import csv
import html
import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from gramloop.metrics.bootstrap import Interval
from gramloop.report import formats
from gramloop.report.document import Document, RenderedFigure, Section, Verdict
from gramloop.report.tables.table import Column, Table
from gramloop.report.writing import whole_markdown
from gramloop.util.table import text_cell

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
    "t-1",
    "A #title",
    "Caption_1.",
    COLUMNS,
    ROWS,
    ("score",),
    ("A note: --bootstrap “images” is ≥ 2 × 3.",),
    1,
    downwards=True,
)


def test_markdown_shows_what_the_table_shows() -> None:
    lines = formats.markdown(TABLE).splitlines()
    assert lines[0] == r"### A \#title"
    assert r"| fog\_3 \| 50% | 0.333 | -0.123 | [-0.300, +0.050] |" in lines
    assert r"| \[snow\] | **2.000** | – | – |" in lines
    assert "| :-- | --: | --: | --: |" in lines
    assert lines[-1].startswith("A note")


def test_csv_keeps_every_digit() -> None:
    rows = list(csv.reader(io.StringIO(formats.csv(TABLE))))
    assert rows[0] == ["name", "score", "gain", "interval estimate", "interval low", "interval high"]
    assert float(rows[1][1]) == 1 / 3
    assert float(rows[1][2]) == -0.1234567890123
    assert [float(text) for text in rows[1][3:]] == [-0.12, -0.3, 0.05]
    assert rows[2][2:] == ["", "", "", ""]
    assert rows[3][:2] == ["Mean", "1"]


@given(st.lists(st.floats(allow_infinity=False), min_size=1, max_size=20))
def test_csv_gives_back_what_it_was_given(values: list[float]) -> None:
    table = Table("t", "T", "", (Column("x", "X"),), tuple((value,) for value in values))
    lines = formats.csv(table).split("\n")[1:-1]
    back = [float(text) if text.strip('"') else np.nan for text in lines]
    np.testing.assert_array_equal(back, values)


def test_latex_with_booktabs() -> None:
    text = formats.latex(TABLE)
    lines = [line.strip() for line in text.splitlines()]
    assert r"\begin{tabular}{@{}lrrr@{}}" in lines
    assert r"fog\_3 | 50\% & 0.333 & $-$0.123 & {[}$-$0.300, +0.050] \\" in lines
    assert r"{[}snow] & \textbf{2.000} & -- & -- \\" in lines  # \\ before [ would take it for a length
    assert lines[lines.index(r"Mean & 1 & +0.500 & -- \\") - 1] == r"\midrule"
    assert [line for line in lines if line in (r"\toprule", r"\bottomrule")] == [r"\toprule", r"\bottomrule"]
    assert r"\caption{Caption\_1. A note: -{}-bootstrap ``images'' is ≥ 2 $\times$ 3.}" in lines
    assert r"\label{tab:t-1}" in lines


@given(st.text(min_size=1, max_size=40))
def test_latex_leaves_no_special_character_as_it_is(words: str) -> None:
    """Whatever a class is called, it can neither end the row nor begin a command."""
    table = Table("t", "T", "", (Column("x", "X", "text"), Column("y", "Y")), ((words, 1.0),))
    row = formats.latex(table).split("\\midrule\n")[1].split("\n    \\bottomrule")[0]
    assert "\n" not in row
    cell = row.removesuffix(r" & 1.00 \\")
    for allowed in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\textless{}"):
        cell = cell.replace(allowed, "")
    for allowed in (r"\textgreater{}", r"\ldots{}", r"$\times$", r"$\div$", r"$\Delta$", r"$\cdot$", "$-$"):
        cell = cell.replace(allowed, "")
    for allowed in ("-{}-", "{[}", "{*}", *(f"\\{sign}" for sign in "&%$#_{}")):
        cell = cell.replace(allowed, "")
    assert not set(cell) & set("\\&%$#_{}~^")


@pytest.mark.parametrize("make", [formats.markdown, formats.csv, formats.latex])
def test_a_table_without_rows(make: object) -> None:
    assert make(Table("t", "T", "", COLUMNS, ()))  # type: ignore[operator]


def test_the_terminal_shows_what_the_table_shows() -> None:
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(formats.terminal(TABLE))
    shown = console.export_text()
    assert "Caption_1." in shown
    assert "A note: --bootstrap" in shown
    for row in range(len(ROWS)):
        (line,) = (each for each in shown.splitlines() if TABLE.text(row, 0) in each)
        assert [cell.strip() for cell in line.strip("│ ").split("│")] == [
            TABLE.text(row, place) for place in range(4)
        ]


def test_an_interval_can_come_with_its_estimate() -> None:
    column = Column("gain", "Δ", "interval", estimate=True)
    table = Table("t", "T", "", (column,), ((Interval(-0.12, -0.3, 0.05),), (None,)))
    assert [table.text(row, 0) for row in range(2)] == ["-0.12 [-0.30, +0.05]", "–"]
    assert formats.csv(table).splitlines()[1] == "-0.12,-0.3,0.05"


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
    table = Table("t", "T", "", (Column("name", "N", "text"), Column("x", "X")), ((text, -0.5),))
    (_, (name, number)) = csv.reader(io.StringIO(formats.csv(table), newline=""))
    assert name == "'" + text.replace("\t", " ").replace("\r", " ")
    assert float(number) == -0.5


@pytest.mark.parametrize("text", ["-5", "+5.5e-3", "-.5", "fog", "a=b", "-inf", "", "5-3"])
def test_numbers_and_names_stay_as_they_are(text: str) -> None:
    assert text_cell(text) == text


@given(st.text())
def test_markdown_shows_any_text_as_it_is(text: str) -> None:
    shown = MarkdownIt("commonmark").render(formats.plain(text))
    clean = " ".join(text.split())
    expected = f"<p>{clean}</p>\n" if clean else ""
    assert html.unescape(shown) == expected.replace("\0", "\ufffd")


HOSTILE = "=x](http://evil) <img src=x onerror=alert(1)> **b** `c` # [l](javascript:1) - | 1. \n\n# title"


def test_a_report_in_markdown_shows_hostile_names_as_text() -> None:
    interval = Interval(1.0, 0.5, 2.0)
    figure = RenderedFigure("f", HOSTILE, HOSTILE, b"", None, HOSTILE)
    section = Section("s", HOSTILE, HOSTILE, (), (figure,))
    verdict = Verdict(HOSTILE, HOSTILE, "helps", interval, HOSTILE)
    document = Document(HOSTILE, HOSTILE, (verdict,), (HOSTILE,), (section,), {HOSTILE: {HOSTILE: HOSTILE}})
    tokens = MarkdownIt("commonmark").parse(whole_markdown(document))
    inline = [each for token in tokens for each in token.children or ()]
    assert {token.type for token in tokens if "html" in token.type or "code" in token.type} == set()
    assert {each.type for each in inline} == {"text", "strong_open", "strong_close", "image"}
    assert [each.attrs["src"] for each in inline if each.type == "image"] == ["figures/f.png"]
    headings = [token.tag for token in tokens if token.type == "heading_open"]
    assert headings == ["h1", "h2", "h2", "h2", "h3", "h2", "h3"]
