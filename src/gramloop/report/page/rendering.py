"""From a document to one HTML file that opens from disk and asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Iterable
from functools import cache
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from gramloop.metrics.bootstrap import Interval, verdict
from gramloop.report.document import Document, RenderedFigure
from gramloop.util.table import BETTER, WORSE, Table

MINUS = "\u2212"
_HERE = Path(__file__).parent
_LONG = 24  # rows; a longer table scrolls inside a frame
_ENLARGED = 132  # CSS pixels for an inch of a figure: small print for paper is read at a distance on a screen
_TONES = {"helps": "gain", "hurts": "loss"}
_MARGIN = 4.0  # percent left free at both ends of an interval's axis, so that a dot at the limit stays whole
_CLASSES = {"text": "text", "mark": "sign"}  # of columns; others are numbers


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
    return (
        _environment()
        .get_template("page.html")
        .render(
            document=document,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            answers=answers,
            sections=sections,
        )
    )


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
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
    limits = [
        reach(row[place] for row in table.rows if isinstance(row[place], Interval))  # type: ignore[misc]
        for place in range(len(table.columns))
    ]
    cells = [
        [_cell(table, row, place, limits[place]) for place in range(len(table.columns))]
        for row in range(len(table.rows))
    ]
    last = len(cells) - table.footer
    return {
        "number": number,
        "table": table,
        "kinds": [_CLASSES.get(kind, "number") for kind in table.kinds],
        "body": cells[:last],
        "foot": cells[last:],
        "long": len(cells) > _LONG,
        "copies": {"CSV": whole.csv(), "Markdown": table.markdown(), "LaTeX": table.latex()},
        "links": _links("tables", table.key, ("csv", "md", "tex"), files),
    }


def _cell(table: Table, row: int, place: int, limit: float) -> dict[str, Any]:
    cell, column = table.rows[row][place], table.columns[place]
    text, classes = table.cell_text(row, place), [_CLASSES.get(table.kinds[place], "number")]
    drawing, value = Markup(""), None  # the value in full precision, for sorting
    if isinstance(cell, Interval):
        drawing, value = (
            interval_bar(cell, limit, _TONES.get(verdict(cell), "open"), height=14),
            cell.estimate,
        )
    elif isinstance(cell, int | float):
        value = cell
        if column.signed and value and math.isfinite(value):
            classes.append("gain" if value > 0 else "loss")
    elif column.kind == "mark":
        classes += {BETTER: ["gain"], WORSE: ["loss"]}.get(text, [])
    if (row, place) in table.best:
        classes.append("best")
    if not isinstance(cell, str):
        text = text.replace("-", MINUS)
    known = value is not None and math.isfinite(value)
    return {
        "text": text,
        "value": repr(value) if known else None,
        "classes": " ".join(classes),
        "drawing": drawing,
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


def reach(intervals: Iterable[Interval | None]) -> float:
    """How far from zero a common axis must go: the largest end of any interval, rounded up to 1, 2 or 5."""
    ends = [abs(end) for one in intervals if one is not None for end in (one.low, one.high, one.estimate)]
    largest = max((end for end in ends if math.isfinite(end)), default=0.0)
    if largest < 1e-12:  # nothing that a number with digits would show
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= largest * (1 - 1e-12))


def interval_bar(interval: Interval, limit: float, tone: str, *, height: int = 20) -> Markup:
    """The interval on an axis from -limit to +limit, as SVG; it decorates its text."""
    ends = (interval.low, interval.high, interval.estimate)
    if not all(map(math.isfinite, ends)):
        return Markup("")
    shares = [max(-1.0, min(1.0, value / limit)) for value in ends]
    low, high, at = (round(50 + share * (50 - _MARGIN), 2) for share in shares)
    drawing = (
        '<svg class="interval {tone}" width="100%" height="{height}" aria-hidden="true">'
        '<line class="axis" x1="0%" x2="100%" y1="{middle}" y2="{middle}"/>'
        '<line class="zero" x1="50%" x2="50%" y1="0" y2="{height}"/>'
        '<line class="range" x1="{low}%" x2="{high}%" y1="{middle}" y2="{middle}"/>'
        '<circle class="estimate" cx="{at}%" cy="{middle}" r="{radius}"/></svg>'
    )
    return Markup(drawing).format(
        tone=tone, height=height, middle=height / 2, low=low, high=high, at=at, radius=height / 5
    )
