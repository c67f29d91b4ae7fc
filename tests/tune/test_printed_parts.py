"""Parts of a search and mitigations print their numbers and settings."""

from __future__ import annotations

import pytest

from gramloop.metrics.bootstrap import Interval
from gramloop.mitigations import parse_mitigations
from gramloop.tune.search.verdict import JudgedPart
from html_tables import Reader

INTERVAL = Interval(1.25, 0.5, 2.0, units=15)


@pytest.mark.parametrize(
    ("part", "row"),
    [
        (
            JudgedPart("other families", 40, 6, 50.0, 51.25, None, INTERVAL),
            ["other families", "40", "6", "50.000", "51.250", "+1.250", "+0.500", "+2.000", "helps"],
        ),
        (
            JudgedPart("clean", 40, 0, 100.0, 99.5, None, None, label_free=True),
            ["clean", "40", "–", "–", "99.500", "–", "–", "–", "agreement only"],
        ),
    ],
    ids=["a gain", "clean images without labels"],
)
def test_a_part_of_a_search_shows_what_it_tells(part: JudgedPart, row: list[str]) -> None:
    assert Reader(part._repr_html_()).rows[1] == row


@pytest.mark.parametrize(
    ("text", "title", "setting"),
    [
        ("recentre:0.5,c=1", "recentre:0.5,c=1, which acts on features", ["beyond", "1"]),
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
