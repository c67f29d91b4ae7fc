"""What a report says, before it is a page: verdicts, warnings, and sections of tables and figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gramloop.metrics.bootstrap import Interval, VerdictWord
from gramloop.report.tables.table import Table
from gramloop.util.table import Shown, ShownTable

_VERBS: Mapping[VerdictWord, str] = {
    "helps": "helps",
    "hurts": "hurts",
    "inconclusive": "may help or hurt: inconclusive",
}


@dataclass(frozen=True)
class RenderedFigure:
    """A figure, drawn already."""

    key: str  # names its files
    title: str
    caption: str
    png: bytes
    pdf: bytes | None
    alt: str  # what it shows, for those who do not see it
    section: str = ""  # the key of the section it belongs to


@dataclass(frozen=True)
class Verdict(Shown):
    """What the evidence says of one method on one suite, in plain words."""

    suite: str
    method: str
    words: VerdictWord
    interval: Interval | None
    sentence: str

    def _shown(self) -> ShownTable:
        ends: tuple[str | None, ...] = (None, None, None)
        if (found := self.interval) is not None:
            ends = tuple(f"{value:+.3f}" for value in (found.estimate, found.low, found.high))
        columns = ("suite", "method", "verdict", "gain", "low", "high")
        row = (self.suite, self.method, self.words, *ends)
        return ShownTable(f"{self.method} {_VERBS[self.words]}", columns, (row,), (self.sentence,))


@dataclass(frozen=True)
class Answer:
    """Which method to take on one suite, in sentences, the most important first."""

    suite: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A part of the report under one heading; ``text`` is plain paragraphs, divided by empty lines."""

    key: str
    title: str
    text: str
    tables: tuple[Table, ...] = ()
    figures: tuple[RenderedFigure, ...] = ()


@dataclass(frozen=True)
class Document:
    """The whole report."""

    title: str
    subtitle: str
    verdicts: tuple[Verdict, ...]
    warnings: tuple[str, ...]
    sections: tuple[Section, ...]
    facts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # configuration and versions
    answers: tuple[Answer, ...] = ()  # said before all else
