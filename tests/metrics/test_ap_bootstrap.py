from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gramloop.metrics.ap_bootstrap import ap_delta

from gramloop.errors import GramLoopError
from gramloop.metrics import ap_bootstrap
from gramloop.metrics.ap import average_precision, weighted_ap
from gramloop.metrics.bootstrap import image_bootstrap
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from random_boxes import random_set
from resampling import picked_delta, resample

SAME = 1e-9  # of a percentage, as for average precision itself
NOTHING = BoxPredictions(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))


def paired_set(seed: int, **options: Any) -> tuple[GroundTruthBoxes, BoxPredictions, BoxPredictions]:
    """A truth, what was found, and the same with half of the boxes moved and all scored anew."""
    truth, baseline = random_set(seed, **options)
    rng = np.random.default_rng(seed)
    moved = baseline.boxes * np.where(rng.random((len(baseline.scores), 1)) < 0.5, 1.0, 1.1)
    return truth, baseline, BoxPredictions(baseline.image_ids, moved, rng.random(len(moved)), baseline.labels)


def evaluated(truth: GroundTruthBoxes, pair: tuple[BoxPredictions, BoxPredictions], picks: np.ndarray) -> float:
    """The gain by evaluating sets in which the images drawn are repeated."""
    first, second = (average_precision(*resample(truth, each, picks)).ap for each in pair)
    return second - first


@pytest.mark.parametrize("options", [{}, {"crowd": 0.4}, {"images": 3, "per_image": 400}], ids=str)
def test_weights_equal_repeated_images(options: dict[str, Any]) -> None:
    truth, *pair = paired_set(0, **options)
    images = len(truth.images)
    picks = np.random.default_rng(1).integers(0, images, (12, images))
    picks[0] = np.arange(images)
    weights = np.stack([np.bincount(row, minlength=images) for row in picks])
    expected = [evaluated(truth, (pair[0], pair[1]), row) for row in picks]
    assert np.ptp(expected) > 0.1
    gains = ap_delta(truth, pair[0], pair[1])(weights)
    np.testing.assert_allclose(gains, expected, rtol=0, atol=SAME)


def test_the_interval_equals_that_of_evaluating_every_draw() -> None:
    truth, baseline, method = paired_set(2, images=20)
    fast = image_bootstrap(ap_delta(truth, baseline, method), 20, replicates=150)
    slow = image_bootstrap(
        picked_delta(lambda picks: evaluated(truth, (baseline, method), picks)), 20, replicates=150
    )
    assert [fast.estimate, fast.low, fast.high] == pytest.approx(
        [slow.estimate, slow.low, slow.high], abs=SAME
    )


def test_how_much_is_held_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, baseline, method = paired_set(3, crowd=0.2)
    images = len(truth.images)
    weights = np.random.default_rng(4).multinomial(images, np.full(images, 1 / images), size=9)
    whole = ap_delta(truth, baseline, method)(weights)
    monkeypatch.setattr(ap_bootstrap, "NUMBERS_AT_ONCE", 130)
    parts = ap_delta(truth, baseline, method)(weights)
    np.testing.assert_allclose(parts, whole, rtol=0, atol=1e-12)  # numpy adds single rows in another order


def test_a_method_that_finds_nothing_gains_what_the_other_loses() -> None:
    truth, found = random_set(5)
    weights = np.ones((1, len(truth.images)), dtype=np.int64)
    full = average_precision(truth, found).ap
    assert ap_delta(truth, NOTHING, found)(weights)[0] == pytest.approx(full, abs=SAME)
    assert ap_delta(truth, found, NOTHING)(weights)[0] == pytest.approx(-full, abs=SAME)


def test_a_set_without_objects_has_no_interval() -> None:
    empty = GroundTruthBoxes(
        [1, 2], [2], np.zeros(0, int), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0), np.zeros(0, bool)
    )
    with pytest.raises(GramLoopError, match="nothing that can be scored"):
        image_bootstrap(ap_delta(empty, NOTHING, NOTHING), 2, replicates=10)


def test_weights_of_zero_and_one_score_a_subset() -> None:
    truth, detections = random_set(12, images=20)
    chosen = np.random.default_rng(13).random((4, 20)) < 0.5
    scores, by_category = weighted_ap(truth, detections, chosen.astype(np.int64))
    for row, picks in enumerate(chosen):
        expected = average_precision(*resample(truth, detections, np.flatnonzero(picks)))
        assert scores[row] == pytest.approx(expected.ap, abs=1e-9)
        assert by_category[row] == pytest.approx(
            [expected.by_category[category] for category in sorted(truth.categories)], abs=1e-9, nan_ok=True
        )
