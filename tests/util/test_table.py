"""What objects show of themselves: aligned text, rich's table, and HTML in which a hostile name is a text."""

from __future__ import annotations

import io

import pytest

from gramloop.util.table import Shown, ShownTable
from html_tables import HOSTILE, Reader


class Thing(Shown):
    def _shown(self) -> ShownTable:
        rows = ((HOSTILE, 1.5, 10), ("[red]name[/red]", None, -7))
        return ShownTable(f"about {HOSTILE}", ("name", "value", "count"), rows, (f"note {HOSTILE}",))


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
    table = ShownTable("title", ("name", "value"), (("a", 1.25), ("longer", 100)))
    assert table.text().splitlines() == [
        "title",
        "name    value",
        "──────  ─────",
        "a        1.25",
        "longer    100",
    ]


def test_a_name_moves_no_cursor_and_breaks_no_line() -> None:
    text = ShownTable("t", ("name",), (("two\nlines\x1b[2Jgone\r",),)).text()
    assert text.splitlines()[-1] == "two lines�[2Jgone"


def test_rich_takes_a_name_for_no_markup() -> None:
    rich_console = pytest.importorskip("rich.console")
    stream = io.StringIO()
    rich_console.Console(file=stream, width=200).print(Thing())
    assert "[red]name[/red]" in stream.getvalue()
    assert HOSTILE in stream.getvalue()


def test_a_table_without_rows_is_its_title_and_notes() -> None:
    empty = ShownTable("nothing here", ("a",), (), ("why",))
    assert empty.text() == "nothing here\nwhy"
    assert Reader(empty.html()).caption == "nothing here"
