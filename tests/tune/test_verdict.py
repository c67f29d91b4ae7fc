import pytest

from gramloop.metrics.bootstrap import Interval
from gramloop.tune.verdict import MIN_UNITS, HoldoutResult
from html_tables import Reader

UP, DOWN, OPEN = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3)


def interval(low: float, high: float, units: int) -> Interval:
    return Interval((low + high) / 2, low, high, units=units)


@pytest.mark.parametrize(
    ("families", "images", "word"),
    [
        (interval(*UP, 10), interval(*UP, 30), "helps"),
        (interval(*DOWN, 10), interval(*DOWN, 30), "hurts"),
        (interval(*OPEN, 10), interval(*UP, 30), "inconclusive"),
        (interval(*UP, 10), interval(*OPEN, 30), "inconclusive"),
        (interval(*UP, 10), interval(*DOWN, 30), "inconclusive"),
        (interval(*UP, 2), interval(*UP, MIN_UNITS["images"]), "helps"),
        (interval(*UP, 10), interval(*UP, MIN_UNITS["images"] - 1), "inconclusive"),
        (interval(*UP, MIN_UNITS["families"]), None, "helps"),
        (interval(*UP, MIN_UNITS["families"] - 1), None, "inconclusive"),
        (None, interval(*DOWN, 30), "hurts"),
        (None, None, "inconclusive"),
    ],
    ids=str,
)
def test_a_word_needs_agreement_and_enough_units(families, images, word):
    assert HoldoutResult("searched families", 30, 10, 50.0, 50.2, families, images).word == word


def test_the_widest_interval_is_quoted():
    result = HoldoutResult("clean", 30, 0, 50.0, 50.2, interval(0.1, 0.2, 10), interval(-0.1, 0.2, 30))
    assert result.widest == result.over_images
    assert result.as_json()["over families"]["drawn from"] == 10
    assert result.as_json()["gain"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("result", "row"),
    [
        (
            HoldoutResult("other families", 40, 6, 50.0, 51.25, None, interval(0.5, 2.0, 15)),
            ["6 other families", "40", "50.00", "+1.25", "–", "[+0.50, +2.00]", "helps"],
        ),
        (
            HoldoutResult("clean", 40, 0, 100.0, 99.5, None, None, label_free=True),
            ["clean images", "40", "–", "–", "–", "–", "0.50 points changed"],
        ),
    ],
    ids=["a gain", "clean images without labels"],
)
def test_a_result_is_a_row(result: HoldoutResult, row: list[str]):
    assert Reader(result._repr_html_()).rows[1] == row
