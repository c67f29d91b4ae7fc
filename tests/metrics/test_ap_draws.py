from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gramloop.metrics import ap_bootstrap
from gramloop.metrics.ap_bootstrap import Matched
from gramloop.metrics.ap_draws import RECALLS, _reached
from random_boxes import random_set

SAME = 1e-11  # of a percentage: the same terms, added in another order


def drawn(images: int, draws: int = 300) -> np.ndarray:
    return np.random.default_rng(7).multinomial(images, np.full(images, 1 / images), size=draws)


def straight(found: Matched, weights: np.ndarray, many: int) -> np.ndarray:
    """The same a few draws at a time, which are computed as the definition says."""
    few = ap_bootstrap.MANY - 1
    return np.concatenate(
        [found.by_category(weights[start : start + few], many) for start in range(0, len(weights), few)]
    )


@pytest.mark.parametrize(
    "options",
    [
        {"images": 40},
        {"images": 30, "crowd": 0.4},  # what counts differs by threshold
        {"images": 4, "per_image": 300},  # some draws hold no object of a category
        {"images": 25, "scores": 5, "whole_pixels": True, "crowd": 0.2},
        {"images": 200, "per_image": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("seed", range(3))
def test_many_draws_together_equal_the_definition(options: dict[str, Any], seed: int) -> None:
    truth, detections = random_set(seed, **options)
    found, weights = Matched.of(truth, detections), drawn(len(truth.images))
    together = found.by_category(weights, len(truth.categories))
    expected = straight(found, weights, len(truth.categories))
    assert np.nanstd(expected) > 0
    np.testing.assert_allclose(together, expected, rtol=0, atol=SAME)


def test_a_category_that_is_never_found_scores_zero_where_it_was_drawn() -> None:
    truth, detections = random_set(3, images=6)
    far = type(detections)(
        detections.image_ids, detections.boxes + 5000, detections.scores, detections.labels
    )
    found, weights = Matched.of(truth, far), drawn(6)
    together = found.by_category(weights, len(truth.categories))
    np.testing.assert_array_equal(together, straight(found, weights, len(truth.categories)))
    assert set(np.unique(together[~np.isnan(together)])) == {0.0}


def test_more_draws_than_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, detections = random_set(4, images=20, crowd=0.2)
    found, weights = Matched.of(truth, detections), drawn(20, 200)
    whole = found.average_precision(weights)
    monkeypatch.setattr(ap_bootstrap, "DRAWS_AT_ONCE", 70)
    np.testing.assert_allclose(found.average_precision(weights), whole, rtol=0, atol=SAME)


def test_counts_beyond_what_is_exact_are_computed_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, detections = random_set(5, images=20)
    found, weights = Matched.of(truth, detections), drawn(20, 100)
    monkeypatch.setattr(ap_bootstrap, "EXACT", 50)
    np.testing.assert_allclose(found.by_category(weights, 3), straight(found, weights, 3), rtol=0, atol=SAME)


def test_recalls_are_reached_as_floating_point_numbers_have_it() -> None:
    for objects in (1, 2, 3, 7, 20, 25, 50, 99, 100, 101, 400, 1999, 10_000):
        share = np.arange(objects + 1) / objects
        np.testing.assert_array_equal(_reached(objects), np.searchsorted(RECALLS, share, side="right"))
