"""The page's parts as HTML: everything that came from outside is escaped, and pictures are part of the text."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gramloop.app.panes import Pane, Panes
    from gramloop.util.plotting import Legend
    from gramloop.util.table import Table


def notice(text: str, kind: str = "problem") -> str:
    """A sentence in a box; ``problem`` or ``hint``."""
    role = "alert" if kind == "problem" else "status"
    sentence = text if text.endswith((".", "…", "!")) else f"{text}."
    return f'<p class="gl-notice gl-{kind}" role="{role}">{escape(sentence[:1].upper() + sentence[1:])}</p>'


def figure(pane: Pane) -> str:
    """A picture with its caption."""
    data = base64.b64encode(pane.png).decode()
    words = f"{pane.title}: {pane.note}" if pane.note else pane.title
    note = f"<small>{escape(pane.note)}</small>" if pane.note else ""
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{escape(words, quote=True)}">'
        f"<figcaption><b>{escape(pane.title)}</b>{note}</figcaption></figure>"
    )


def figures(panes: Sequence[Pane], kind: str = "") -> str:
    """Pictures beside each other, as many as the window has room for."""
    return f'<div class="gl-grid {kind}">{"".join(map(figure, panes))}</div>'


def legend(entries: Legend) -> str:
    """Colours and what they stand for."""
    items = "".join(
        f'<li><i style="background:{escape(colour, quote=True)}"></i>{escape(label)}</li>'
        for colour, label in entries
    )
    return f'<ul class="gl-legend">{items}</ul>' if entries else ""


def panes(found: Panes) -> str:
    """A row of pictures and its legend."""
    return figures(found.panes) + legend(found.legend)


def beside(*parts: str) -> str:
    """Parts beside each other where there is room."""
    return f'<div class="gl-tables">{"".join(parts)}</div>'


def heading(text: str) -> str:
    """A heading inside a tab."""
    return f"<h3>{escape(text)}</h3>"


def paragraph(text: str) -> str:
    """A sentence or two."""
    return f'<p class="gl-text">{escape(text)}</p>' if text else ""


def line(text: str) -> str:
    """What is shown, in one line."""
    return f'<p class="gl-line">{escape(text)}</p>'


def table(found: Table) -> str:
    """A table of the report, its caption above and its notes below."""
    head = "".join(
        f'<th class="gl-{kind}" scope="col">{escape(each.heading)}</th>'
        for each, kind in zip(found.columns, found.kinds, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(_cell(found, row, column) for column in range(len(found.columns))) + "</tr>"
        for row in range(len(found.rows))
    )
    notes = "".join(f'<p class="gl-text">{escape(note)}</p>' for note in found.notes)
    caption = f"<caption>{escape(found.caption)}</caption>" if found.caption else ""
    return (
        f'<div><div class="gl-scroll"><table class="gl-table" data-key="{escape(found.key, quote=True)}">{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{notes}</div>"
    )


def _cell(found: Table, row: int, column: int) -> str:
    text, about = found.cell_text(row, column), found.columns[column]
    value = found.rows[row][column]
    kinds = [f"gl-{found.kinds[column]}"]
    if about.signed and isinstance(value, int | float) and value == value:
        kinds.append("gl-up" if value > 0 else "gl-down" if value < 0 else "")
    if (row, column) in found.best:
        kinds.append("gl-best")
    tag = "th scope=row" if found.kinds[column] == "text" and column == 0 else "td"
    return f'<{tag} class="{" ".join(filter(None, kinds))}">{escape(text)}</{tag.split()[0]}>'
