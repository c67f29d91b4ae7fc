import pytest

from gramloop.metrics.bootstrap import UNDECIDED, Interval, widened
from gramloop.tune.result import HoldoutResult
from html_tables import Reader

UP, DOWN, OPEN = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3)


def interval(low: float, high: float, units: int) -> Interval:
    return Interval((low + high) / 2, low, high, units=units)


@pytest.mark.parametrize(
    ("families", "images", "word"),
    [
        (interval(*UP, 10), interval(*UP, 30), "helps"),
        (interval(*DOWN, 10), interval(*DOWN, 30), "hurts"),
        (interval(*OPEN, 10), interval(*UP, 30), UNDECIDED),
        (interval(*UP, 10), interval(*OPEN, 30), UNDECIDED),
        (interval(*UP, 10), interval(*DOWN, 30), UNDECIDED),
        (
            interval(*UP, 2),
            interval(*UP, 30),
            UNDECIDED,
        ),  # two families say little: the interval is far wider
        (interval(*UP, 10), None, "helps"),
        (interval(*UP, 3), None, UNDECIDED),
        (None, interval(*DOWN, 30), "hurts"),
        (None, None, UNDECIDED),
    ],
    ids=str,
)
def test_a_word_is_that_of_the_one_interval_over_everything(families, images, word):
    assert HoldoutResult("searched families", 30, 10, 50.0, 50.2, families, images).word == word


def test_the_interval_spans_both_and_the_file_has_each():
    result = HoldoutResult("clean", 30, 0, 50.0, 50.2, interval(0.1, 0.2, 10), interval(-0.1, 0.2, 30))
    assert result.interval.low == widened(result.over_images).low
    assert result.interval.high == widened(result.over_families).high
    assert result.as_json()["over families"]["drawn from"] == 10
    assert result.as_json()["gain"] == pytest.approx(0.2)


ONE = widened(interval(0.5, 2.0, 15))
SPAN = f"[{ONE.low:+.2f}, {ONE.high:+.2f}]"


@pytest.mark.parametrize(
    ("result", "row"),
    [
        (
            HoldoutResult("other families", 40, 6, 50.0, 51.25, None, interval(0.5, 2.0, 15)),
            ["6 other families", "40", "50.00", "+1.25", SPAN, "helps"],
        ),
        (
            HoldoutResult("clean", 40, 0, 100.0, 99.5, None, None, label_free=True),
            ["clean images", "40", "–", "–", "–", "0.50 points changed"],
        ),
    ],
    ids=["a gain", "clean images without labels"],
)
def test_a_result_is_a_row(result: HoldoutResult, row: list[str]):
    assert Reader(result._repr_html_()).rows[1] == row
