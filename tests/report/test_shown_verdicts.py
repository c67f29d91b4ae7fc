"""Verdicts and intervals show their numbers; names from outside are text in a notebook."""

from __future__ import annotations

import io

import pytest

from gramloop.metrics.bootstrap import Interval
from gramloop.mitigations import parse_mitigations
from gramloop.report.document import Verdict
from html_tables import HOSTILE, Reader

INTERVAL = Interval(1.25, 0.5, 2.0, units=15)


def test_a_verdict_shows_its_interval_and_sentence() -> None:
    verdict = Verdict("coco-c", HOSTILE, "helps", INTERVAL, f"about {HOSTILE}")
    read = Reader(verdict._repr_html_())
    assert read.rows[1] == ["coco-c", HOSTILE, "helps", "+1.250", "+0.500", "+2.000"]
    assert read.notes == [f"about {HOSTILE}"]
    assert "script" not in read.tags
    assert "+1.250" in str(verdict)
    assert repr(verdict).startswith("Verdict(suite='coco-c'")


def test_a_verdict_without_an_interval_has_no_numbers() -> None:
    row = Reader(Verdict("s", "m", "inconclusive", None, "why")._repr_html_()).rows[1]
    assert row[3:] == ["–", "–", "–"]


def test_an_interval_keeps_its_short_text_and_has_a_table() -> None:
    assert str(INTERVAL) == "+1.250 [+0.500, +2.000]"
    read = Reader(INTERVAL._repr_html_())
    assert dict(zip(*read.rows, strict=True)) == {
        "estimate": "+1.250",
        "low": "+0.500",
        "high": "+2.000",
        "level": "95%",
        "drawn from": "15",
        "replicates": "10000",
        "verdict": "helps",
    }


@pytest.mark.parametrize(
    ("text", "title", "setting"),
    [
        ("recentre:0.5,c=1", "recentre:0.5,c=1", ["beyond", "1"]),
        ("norms:0.1", "norms:0.1, which acts on features", ["weight", "0.1"]),
        ("median", None, None),
        ("replay:window=2-3", "Replay: blocks 2 to 3 twice, gram gate", ["window", "2-3", "none"]),
    ],
)
def test_mitigations_show_their_settings(text: str, title: str | None, setting: list[str] | None) -> None:
    (found,) = parse_mitigations(text)
    read = Reader(found._repr_html_())
    assert read.caption == title or (title is None and "acts on pixels" in read.caption)
    assert setting is None or setting in read.rows


def test_rich_shows_the_same_table() -> None:
    console = pytest.importorskip("rich.console")
    stream = io.StringIO()
    console.Console(file=stream, width=120).print(
        Verdict("coco-c", "[b]gramloop[/b]", "helps", INTERVAL, "so")
    )
    assert "[b]gramloop[/b]" in stream.getvalue()
    assert "+1.250" in stream.getvalue()
