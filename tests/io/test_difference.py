"""What sets two records apart is said in words, the first thing first."""

import pytest

from gramloop.io.difference import first_difference

RECORD = {"shards": 3, "versions": {"torch": "2", "numpy": "1"}, "window": [3, 4], "where": "here"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"where": "there"}, ""),
        ({"window": (3, 4)}, ""),  # stored, a tuple is a list
        ({"shards": 4}, "shards 3, not 4"),
        ({"shards": None}, "shards 3, not none"),
        ({"shards": 4, "window": [3, 5]}, "shards 3, not 4"),
        ({"window": [3, 5]}, "window [3, 4], not [3, 5]"),
        ({"versions": {"torch": "3", "numpy": "1"}}, "versions: torch = 2, not 3"),
        ({"versions": {"torch": "2"}}, "versions: numpy = 1, not nothing"),
        ({"versions": {"torch": "2", "numpy": "1", "scipy": None}}, "versions: scipy = nothing, not none"),
        ({"versions": None}, "versions {'torch': '2', 'numpy': '1'}, not none"),
        ({"added": 1}, "added nothing, not 1"),
        ({"shards": "x" * 64}, f"shards 3, not {'x' * 64}"),
        ({"shards": "x" * 65}, f"shards 3, not {'x' * 63}…"),
    ],
)
def test_the_first_difference_in_words(change, words):
    assert first_difference(RECORD, {**RECORD, **change}, skip=["where"]) == words


def test_what_is_no_longer_asked_for_is_a_difference():
    assert (
        first_difference(RECORD, {"versions": RECORD["versions"]}, skip=["where"]) == "shards 3, not nothing"
    )
