"""From a document to one HTML file that opens from disk and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from gramloop.metrics.bootstrap import Interval
from gramloop.report.document import Document, RenderedFigure
from gramloop.util.table import Table

MINUS = "\u2212"
_HERE = Path(__file__).parent
_LONG = 24  # rows; a longer table scrolls inside a frame
_ENLARGED = 132  # CSS pixels for an inch of a figure: small print for paper is read at a distance on a screen


def render(document: Document, files: Collection[str] = ()) -> str:
    """The page, complete in itself.

    Args:
        document: What it says.
        files: Paths below the page's folder, such as ``figures/gains.pdf``: those of the document's tables and
            figures that are named here are offered for download.
    """
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    tables = count(1)
    answers = [
        {"answer": answer, "figures": [_figure(figure, files) for figure in document.figures_of(answer)]}
        for answer in document.answers
    ]
    sections = [
        {
            "section": section,
            "tables": [_table(table, next(tables), files) for table in section.tables],
            "figures": [_figure(figure, files) for figure in section.figures],
        }
        for section in document.sections
    ]
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        document=document,
        policy=_policy(style, script),
        style=Markup(style),
        script=Markup(script),
        answers=answers,
        sections=sections,
    )


def _policy(style: str, script: str) -> str:
    """Nothing may be fetched, and nothing may run or style the page but what is written here."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _table(whole: Table, number: int, files: Collection[str]) -> dict[str, Any]:
    table = whole.visible
    cells = [
        [_cell(table, row, place) for place in range(len(table.columns))] for row in range(len(table.rows))
    ]
    last = len(cells) - table.footer
    return {
        "number": number,
        "table": table,
        "kinds": [_kind(table, place) for place in range(len(table.columns))],
        "body": cells[:last],
        "foot": cells[last:],
        "long": len(cells) > _LONG,
        "links": _links("tables", table.key, ("csv", "md", "tex"), files),
    }


def _kind(table: Table, place: int) -> str:
    return "text" if table.kinds[place] == "text" else "number"


def _cell(table: Table, row: int, place: int) -> dict[str, Any]:
    cell, text, classes = table.rows[row][place], table.cell_text(row, place), [_kind(table, place)]
    value = cell.estimate if isinstance(cell, Interval) else cell
    known = value if isinstance(value, int | float) and math.isfinite(value) else None
    if table.columns[place].signed and known:
        classes.append("gain" if known > 0 else "loss")
    if (row, place) in table.best:
        classes.append("best")
    return {
        "text": text if isinstance(cell, str) else text.replace("-", MINUS),
        "value": None if known is None else repr(known),  # in full precision, for sorting
        "classes": " ".join(classes),
    }


def _figure(figure: RenderedFigure, files: Collection[str]) -> dict[str, Any]:
    with Image.open(BytesIO(figure.png)) as image:
        pixels, density = image.size, image.info.get("dpi", (_ENLARGED, _ENLARGED))
    width, height = (
        max(1, round(side * _ENLARGED / float(each))) for side, each in zip(pixels, density, strict=True)
    )
    return {
        "figure": figure,
        "source": _data_url(figure.png),
        "dark": figure.dark and _data_url(figure.dark),
        "width": width,
        "height": height,
        "links": _links("figures", figure.key, ("png", "pdf"), files),
    }


def _data_url(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _links(folder: str, key: str, endings: tuple[str, ...], files: Collection[str]) -> list[tuple[str, str]]:
    names = {ending: f"{folder}/{key}.{ending}" for ending in endings}
    return [(ending.upper(), name) for ending, name in names.items() if name in files]
