"""From a document to HTML: what the template needs of each table, figure and verdict, and the page's policy."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from gramloop.metrics.bootstrap import Interval, verdict
from gramloop.report.document import Document, RenderedFigure, Section, Verdict
from gramloop.report.formats import csv, latex, markdown
from gramloop.report.page.intervals import MINUS, bar, reach
from gramloop.util.table import BETTER, WORSE, Column, Table

_HERE = Path(__file__).parent
_LONG = 24  # rows; a longer table scrolls inside its own frame
_ENLARGED = 132  # CSS pixels for an inch of a figure: small print for paper is read at a distance on a screen
_TONES = {"helps": "gain", "hurts": "loss"}


def render(document: Document, files: Collection[str] = ()) -> str:
    """The page, complete in itself.

    Args:
        document: what it says.
        files: paths below the page's folder, such as ``figures/gains.pdf``: those of the document's tables and
            figures that are named here are offered for download.
    """
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    numbers = _Numbers()
    return (
        _environment()
        .get_template("page.html")
        .render(
            document=document,
            policy=_policy(style, script),
            style=Markup(style),
            script=Markup(script),
            verdicts=list(_verdicts(document.verdicts)),
            sections=[_section(section, numbers, files) for section in document.sections],
        )
    )


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["unbroken"] = _unbroken
    return made


@dataclass
class _Numbers:
    """Tables and figures are numbered through the whole page."""

    table: int = 0
    figure: int = 0


@dataclass(frozen=True)
class _CellView:
    text: str
    value: str | None  # in full precision, for sorting; nothing where there is no number
    classes: str
    drawing: Markup


@dataclass(frozen=True)
class _TableView:
    number: int
    table: Table
    kinds: list[str]
    body: list[list[_CellView]]
    foot: list[list[_CellView]]
    long: bool
    copies: dict[str, str]  # by format
    links: list[tuple[str, str]]  # what is offered and where it lies


@dataclass(frozen=True)
class _FigureView:
    number: int
    figure: RenderedFigure
    source: str
    width: int
    height: int
    links: list[tuple[str, str]]


@dataclass(frozen=True)
class _SectionView:
    section: Section
    paragraphs: list[str]
    tables: list[_TableView]
    figures: list[_FigureView]


@dataclass(frozen=True)
class _VerdictView:
    verdict: Verdict
    tone: str
    drawing: Markup
    numbers: str
    limit: str


def _policy(style: str, script: str) -> str:
    """Nothing may be fetched, and nothing may run or style the page but what is written here."""
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (style, script)]
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{hashes[0]}'; script-src 'sha256-{hashes[1]}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _unbroken(text: str) -> Markup:
    """Words with a hyphen (names of suites, dates) stay on one line."""
    whole = Markup('<span class="whole">{}</span>')
    return Markup(" ").join(whole.format(word) if "-" in word else word for word in text.split())


def _verdicts(verdicts: tuple[Verdict, ...]) -> Iterator[_VerdictView]:
    limit = reach(said.interval for said in verdicts)
    for said in verdicts:
        one, tone = said.interval, _TONES.get(said.words, "open")
        drawing = Markup("") if one is None else bar(one, limit, tone, height=24, label=_interval_words(one))
        numbers = "" if one is None else str(one).replace("-", MINUS)
        yield _VerdictView(said, tone, drawing, numbers, f"{limit:g}")


def _interval_words(interval: Interval) -> str:
    low, high, estimate = (
        f"{value:+.3f}".replace("-", MINUS) for value in (interval.low, interval.high, interval.estimate)
    )
    return f"gain {estimate}, {interval.level:.0%} interval from {low} to {high}"


def _section(section: Section, numbers: _Numbers, files: Collection[str]) -> _SectionView:
    tables, figures = [], []
    for table in section.tables:
        numbers.table += 1
        tables.append(_table(table, numbers.table, files))
    for figure in section.figures:
        numbers.figure += 1
        figures.append(_figure(figure, numbers.figure, files))
    paragraphs = [part.strip() for part in section.text.split("\n\n") if part.strip()]
    return _SectionView(section, paragraphs, tables, figures)


def _table(table: Table, number: int, files: Collection[str]) -> _TableView:
    limits = [
        reach(row[place] for row in table.rows if isinstance(row[place], Interval))  # type: ignore[misc]
        for place in range(len(table.columns))
    ]
    cells = [
        [_cell(table, row, place, limits[place]) for place in range(len(table.columns))]
        for row in range(len(table.rows))
    ]
    last = len(cells) - table.footer
    kinds = [_kind(column) for column in table.columns]
    copies = {"CSV": csv(table), "Markdown": markdown(table), "LaTeX": latex(table)}
    offers = _links("tables", table.key, ("csv", "md", "tex", "json"), files)
    return _TableView(number, table, kinds, cells[:last], cells[last:], len(cells) > _LONG, copies, offers)


def _kind(column: Column) -> str:
    return {"text": "text", "mark": "sign"}.get(column.kind, "number")


def _cell(table: Table, row: int, place: int, limit: float) -> _CellView:
    cell, column = table.rows[row][place], table.columns[place]
    text, classes, drawing, value = table.text(row, place), [_kind(column)], Markup(""), None
    if isinstance(cell, Interval):
        drawing, value = bar(cell, limit, _TONES.get(verdict(cell), "open"), height=14), cell.estimate
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
    return _CellView(text, repr(value) if known else None, " ".join(classes), drawing)


def _figure(figure: RenderedFigure, number: int, files: Collection[str]) -> _FigureView:
    with Image.open(BytesIO(figure.png)) as image:
        pixels, density = image.size, image.info.get("dpi", (_ENLARGED, _ENLARGED))
    width, height = (
        max(1, round(side * _ENLARGED / float(each))) for side, each in zip(pixels, density, strict=True)
    )
    source = "data:image/png;base64," + base64.b64encode(figure.png).decode()
    offers = _links("figures", figure.key, ("png", "pdf"), files)
    return _FigureView(number, figure, source, width, height, offers)


def _links(folder: str, key: str, endings: tuple[str, ...], files: Collection[str]) -> list[tuple[str, str]]:
    names = {ending: f"{folder}/{key}.{ending}" for ending in endings}
    return [(ending.upper(), name) for ending, name in names.items() if name in files]
