import pytest

from gramloop.metrics.bootstrap import UNDECIDED, Interval, widened
from gramloop.tune.evidence import holdout_result
from gramloop.tune.result import evidence_tables

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
    assert holdout_result(30, 10, 50.0, 50.2, families, images)["verdict"] == word


def test_the_interval_spans_both_and_the_file_has_each():
    families, images = interval(0.1, 0.2, 10), interval(-0.1, 0.2, 30)
    result = holdout_result(30, 0, 50.0, 50.2, families, images)
    assert result["95% interval"] == [widened(images).low, widened(families).high]
    assert result["over families"]["drawn from"] == 10
    assert result["gain"] == pytest.approx(0.2)


def test_a_stored_result_is_a_row_with_the_interval_that_decides():
    result = holdout_result(40, 6, 50.0, 51.25, None, interval(0.5, 2.0, 15))
    parts = {"other families": result, "clean": {"images": 40, "families": 0, "agreement": 99.5}}
    [row] = evidence_tables({"unseen images": parts, "finalists": []})[0].rows
    assert row[:5] == ("other families", 40, 50.0, 51.25, 1.25)
    assert (row[5].low, row[5].high) == tuple(result["95% interval"])
    assert row[6] == "helps"
