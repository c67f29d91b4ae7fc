import pytest

from gramloop.metrics.bootstrap import Interval
from gramloop.tune.search.verdict import FEW_FAMILIES, FEW_IMAGES, JudgedPart


def interval(low: float, high: float, units: int) -> Interval:
    return Interval((low + high) / 2, low, high, units=units)


UP, DOWN, OPEN = (0.1, 0.3), (-0.3, -0.1), (-0.1, 0.3)


@pytest.mark.parametrize(
    ("families", "images", "word"),
    [
        (interval(*UP, 10), interval(*UP, 30), "helps"),
        (interval(*DOWN, 10), interval(*DOWN, 30), "hurts"),
        (interval(*OPEN, 10), interval(*UP, 30), "inconclusive"),
        (interval(*UP, 10), interval(*OPEN, 30), "inconclusive"),
        (interval(*UP, 10), interval(*DOWN, 30), "inconclusive"),
        (interval(*UP, 2), interval(*UP, FEW_IMAGES), "helps"),
        (interval(*UP, 10), interval(*UP, FEW_IMAGES - 1), "inconclusive"),
        (interval(*UP, FEW_FAMILIES), None, "helps"),
        (interval(*UP, FEW_FAMILIES - 1), None, "inconclusive"),
        (None, interval(*DOWN, 30), "hurts"),
        (None, None, "inconclusive"),
    ],
    ids=lambda each: str(each),
)
def test_a_word_needs_agreement_and_enough_to_rest_on(families, images, word):
    assert JudgedPart("searched families", 30, 10, 50.0, 50.2, families, images).word == word


def test_the_interval_that_is_quoted_reaches_furthest():
    part = JudgedPart("clean", 30, 0, 50.0, 50.2, interval(0.1, 0.2, 10), interval(-0.1, 0.2, 30))
    assert part.widest == part.over_images
    assert part.as_json()["over families"]["drawn from"] == 10
    assert part.as_json()["gain"] == pytest.approx(0.2)
