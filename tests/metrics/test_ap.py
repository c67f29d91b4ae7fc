"""Average precision against pycocotools, and of weighted images against sets with the images repeated."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coco_reference import box_figures
from gramloop.errors import GramLoopError
from gramloop.metrics import ap
from gramloop.metrics.ap import (
    RECALLS,
    RankedMatches,
    rank_matches,
)
from gramloop.metrics.bootstrap import image_bootstrap, paired_delta
from gramloop.metrics.segmentation import mean_of_known
from random_boxes import CATEGORIES, FoundBoxes, TrueBoxes, average_precision, match_set, random_set
from resampling import picked_delta, resample

SAME = 1e-9  # of a percentage; the order of a few thousand additions changes it by less than 1e-11
REORDERED = 1e-11  # the same terms, added in another order
NOTHING = FoundBoxes(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))


def figures(result: dict[str, float]) -> list[float]:
    return list(result.values())


def by_category(truth: TrueBoxes, predictions: FoundBoxes) -> list[float]:
    images = len(truth.images)
    ranked = rank_matches(match_set(truth, predictions), truth.categories, images)
    return list(ranked.by_category(np.ones((1, images), np.int64), len(truth.categories))[0])


CASES: dict[str, dict[str, Any]] = {
    "random": {},
    "tied": {"scores": 4},
    "all-tied": {"scores": 1},
    "crowd": {"crowd": 0.3},
    "crowd-and-tied": {"crowd": 0.5, "scores": 3},
    "whole-pixels": {"whole_pixels": True, "scores": 10},
    "beyond-100-per-category": {"images": 2, "per_image": 900},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", range(4))
def test_equals_pycocotools(case: str, seed: int) -> None:
    truth, predictions = random_set(seed, **CASES[case])
    result = average_precision(truth, predictions)
    np.testing.assert_allclose(figures(result), box_figures(truth, predictions), rtol=0, atol=SAME)
    assert 0 < result["AP"] < 100


@given(
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(1, 8),
)
@settings(max_examples=60)
def test_equals_pycocotools_on_small_and_odd_sets(
    seed: int, images: int, scores: int | None, crowd: float, per_image: int
) -> None:
    truth, predictions = random_set(seed, images=images, scores=scores, crowd=crowd, per_image=per_image)
    expected = [math.nan] * 6 if not len(predictions.scores) else box_figures(truth, predictions)
    np.testing.assert_allclose(figures(average_precision(truth, predictions)), expected, rtol=0, atol=SAME)


def test_no_predictions_score_zero_and_no_objects_score_nothing() -> None:
    truth, _ = random_set(0)
    assert figures(average_precision(truth, NOTHING)) == [0] * 6
    large = truth.areas > 96**2
    names = ("image_ids", "boxes", "labels", "areas", "crowd")
    result = average_precision(
        replace(truth, **{name: getattr(truth, name)[large] for name in names}), NOTHING
    )
    assert (result["AP"], result["APl"]) == (0, 0)
    assert math.isnan(result["APs"])
    assert math.isnan(result["APm"])


def test_an_object_numbered_zero_is_found_like_any_other() -> None:
    """Two perfect boxes: pycocotools itself misses the one whose annotation has the number 0."""
    boxes, labels = np.array([[0.0, 0, 50, 50], [60, 60, 40, 40]]), np.array([2, 2])
    truth = TrueBoxes([1], [2], np.array([1, 1]), boxes, labels, np.array([2500.0, 1600]), np.zeros(2, bool))
    predictions = FoundBoxes(np.array([1, 1]), boxes, np.array([0.9, 0.8]), labels)
    assert average_precision(truth, predictions)["AP"] == pytest.approx(100, abs=SAME)
    assert box_figures(truth, predictions, first_id=0)[0] < 50


def test_the_limit_of_100_is_one_of_image_and_category() -> None:
    """100 objects of one category and one of another, all found: all 101 predictions count."""
    boxes = np.column_stack([np.arange(101) * 20.0, np.zeros(101), np.full((101, 2), 10.0)])
    ids, labels = np.ones(101, int), np.array([2] * 100 + [5])
    truth = TrueBoxes([1], [2, 5], ids, boxes, labels, np.full(101, 100.0), np.zeros(101, bool))
    scores = np.linspace(0.9, 0.1, 101)
    whole = FoundBoxes(ids, boxes, scores, labels)
    assert average_precision(truth, whole)["AP"] == pytest.approx(100, abs=SAME)
    cut = FoundBoxes(ids[:100], boxes[:100], scores[:100], labels[:100])
    assert average_precision(truth, cut)["AP"] == pytest.approx(50, abs=SAME)

    one_category, found = replace(truth, labels=np.full(101, 2)), replace(whole, labels=np.full(101, 2))
    result = average_precision(one_category, found)
    assert result["AP"] == pytest.approx(100 * 100 / 101, abs=SAME)  # recall 1.00 alone is out of reach
    assert result["AP"] == pytest.approx(box_figures(one_category, found)[0], abs=SAME)


def test_average_over_categories_that_occur() -> None:
    truth, predictions = random_set(1)
    more = replace(truth, categories=(*CATEGORIES, 91))
    each = by_category(more, predictions)
    assert average_precision(more, predictions)["AP"] == pytest.approx(np.mean(each[:3]), abs=SAME)
    assert math.isnan(each[3])
    for category, expected in zip(CATEGORIES, each, strict=False):
        rows, found = truth.labels == category, predictions.labels == category
        names = ("image_ids", "boxes", "labels", "areas", "crowd")
        alone = TrueBoxes(truth.images, [category], *(getattr(truth, name)[rows] for name in names))
        names = ("image_ids", "boxes", "scores", "labels")
        only = FoundBoxes(*(getattr(predictions, name)[found] for name in names))
        assert box_figures(alone, only)[0] == pytest.approx(expected, abs=SAME)


def test_a_category_that_the_truth_does_not_list_changes_nothing() -> None:
    truth, predictions = random_set(2)
    more = FoundBoxes(
        np.append(predictions.image_ids, truth.images[0]),
        np.concatenate([predictions.boxes, [[0, 0, 9, 9]]]),
        np.append(predictions.scores, 2.0),
        np.append(predictions.labels, 12),
    )
    assert average_precision(truth, more) == average_precision(truth, predictions)


def paired_set(seed: int, **options: Any) -> tuple[TrueBoxes, FoundBoxes, FoundBoxes]:
    """A truth, predictions, and the same with half of the boxes moved and all scored anew."""
    truth, baseline = random_set(seed, **options)
    rng = np.random.default_rng(seed)
    moved = baseline.boxes * np.where(rng.random((len(baseline.scores), 1)) < 0.5, 1.0, 1.1)
    return truth, baseline, FoundBoxes(baseline.image_ids, moved, rng.random(len(moved)), baseline.labels)


def score(truth: TrueBoxes, predictions: FoundBoxes) -> Any:
    return rank_matches(match_set(truth, predictions), truth.categories, len(truth.images)).average_precision


def delta(truth: TrueBoxes, *pair: FoundBoxes) -> Any:
    return paired_delta(*(score(truth, each) for each in pair))


def evaluated(truth: TrueBoxes, pair: list[FoundBoxes], picks: np.ndarray) -> float:
    """The gain by evaluating sets in which the images drawn are repeated."""
    first, second = (average_precision(*resample(truth, each, picks))["AP"] for each in pair)
    return second - first


@pytest.mark.parametrize("options", [{}, {"crowd": 0.4}, {"images": 3, "per_image": 400}], ids=str)
def test_weights_equal_repeated_images(options: dict[str, Any]) -> None:
    truth, *pair = paired_set(0, **options)
    images = len(truth.images)
    picks = np.random.default_rng(1).integers(0, images, (12, images))
    picks[0] = np.arange(images)
    weights = np.stack([np.bincount(row, minlength=images) for row in picks])
    expected = [evaluated(truth, pair, row) for row in picks]
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(delta(truth, *pair)(weights), expected, rtol=0, atol=SAME)


def test_the_interval_equals_that_of_evaluating_every_draw() -> None:
    truth, *pair = paired_set(2, images=20)
    fast = image_bootstrap(delta(truth, *pair), 20, replicates=150)
    slow = image_bootstrap(picked_delta(lambda picks: evaluated(truth, pair, picks)), 20, replicates=150)
    for name in ("estimate", "low", "high"):
        assert getattr(fast, name) == pytest.approx(getattr(slow, name), abs=SAME)


def test_how_much_is_held_at_once_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    truth, *pair = paired_set(3, crowd=0.2)
    weights = drawn(len(truth.images), 9)
    whole, exact = delta(truth, *pair)(weights), average_precision(truth, pair[0])
    monkeypatch.setattr(ap, "NUMBERS_AT_ONCE", 130)
    np.testing.assert_allclose(
        delta(truth, *pair)(weights), whole, rtol=0, atol=1e-12
    )  # numpy adds single rows in another order
    assert average_precision(truth, pair[0]) == exact


def test_a_method_that_finds_nothing_gains_what_the_other_loses() -> None:
    truth, found = random_set(5)
    weights = np.ones((1, len(truth.images)), dtype=np.int64)
    full = average_precision(truth, found)["AP"]
    assert delta(truth, NOTHING, found)(weights)[0] == pytest.approx(full, abs=SAME)
    assert delta(truth, found, NOTHING)(weights)[0] == pytest.approx(-full, abs=SAME)


def test_a_set_without_objects_has_no_interval() -> None:
    none = np.zeros(0, int), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0), np.zeros(0, bool)
    with pytest.raises(GramLoopError, match="nothing that can be scored"):
        image_bootstrap(delta(TrueBoxes([1, 2], [2], *none), NOTHING, NOTHING), 2, replicates=10)


def test_weights_of_zero_and_one_score_a_subset() -> None:
    truth, predictions = random_set(12, images=20)
    chosen = np.random.default_rng(13).random((4, 20)) < 0.5
    ranked = rank_matches(match_set(truth, predictions), truth.categories, len(truth.images))
    apart = ranked.by_category(chosen.astype(np.int64), len(truth.categories))
    scores = mean_of_known(apart)
    for row, picks in enumerate(chosen):
        drawn = resample(truth, predictions, np.flatnonzero(picks))
        assert scores[row] == pytest.approx(average_precision(*drawn)["AP"], abs=SAME)
        assert apart[row] == pytest.approx(by_category(*drawn), abs=SAME, nan_ok=True)


def drawn(images: int, draws: int = 300) -> np.ndarray:
    return np.random.default_rng(7).multinomial(images, np.full(images, 1 / images), size=draws)


def ranked(seed: int, **options: Any) -> RankedMatches:
    truth, predictions = random_set(seed, **options)
    return rank_matches(match_set(truth, predictions), truth.categories, len(truth.images))


@pytest.fixture
def small_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ap, "COMPILED_WORK", 0)


def compiled(found: RankedMatches, weights: np.ndarray) -> np.ndarray:
    assert found.uses_kernel(weights)
    return found.by_category(weights, 3)


def straight(found: RankedMatches, weights: np.ndarray) -> np.ndarray:
    """A few draws at a time, which are computed as the definition says."""
    parts = [weights[start : start + 60] for start in range(0, len(weights), 60)]
    assert not any(found.uses_kernel(part) for part in parts)
    return np.concatenate([found.by_category(part, 3) for part in parts])


@pytest.mark.usefixtures("small_is_compiled")
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
def test_compiled_draws_equal_the_definition(options: dict[str, Any], seed: int) -> None:
    found, weights = ranked(seed, **options), drawn(options["images"])
    expected = straight(found, weights)
    assert np.nanstd(expected) > 0
    np.testing.assert_allclose(compiled(found, weights), expected, rtol=0, atol=REORDERED)


@pytest.mark.usefixtures("small_is_compiled")
def test_a_category_that_is_never_found_scores_zero_where_it_was_drawn() -> None:
    truth, predictions = random_set(3, images=6)
    far = replace(predictions, boxes=predictions.boxes + 5000)
    found, weights = rank_matches(match_set(truth, far), truth.categories, 6), drawn(6)
    together = compiled(found, weights)
    np.testing.assert_array_equal(together, straight(found, weights))
    assert set(np.unique(together[~np.isnan(together)])) == {0.0}


@pytest.mark.usefixtures("small_is_compiled")
def test_a_score_depends_on_its_own_draw_alone() -> None:
    found, weights = ranked(4, images=20, crowd=0.2), drawn(20, 300)
    whole = compiled(found, weights)
    order = np.random.default_rng(1).permutation(300)
    np.testing.assert_array_equal(compiled(found, weights[order]), whole[order])
    parts = [compiled(found, part) for part in np.split(weights, [70, 200])]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.usefixtures("small_is_compiled")
@pytest.mark.parametrize(("name", "limit"), [("MAX_COUNT", 50), ("MAX_WEIGHT", 2)])
def test_counts_beyond_what_is_exact_are_not_compiled(
    name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, weights = ranked(5, images=20), drawn(20, 100)
    monkeypatch.setattr(ap, name, limit)
    assert not found.uses_kernel(weights)
    np.testing.assert_array_equal(found.by_category(weights, 3), straight(found, weights))


@pytest.mark.usefixtures("small_is_compiled")
@pytest.mark.parametrize("heavy", [255, 256, 70_000])
def test_an_image_that_was_drawn_very_often(heavy: int) -> None:
    found, weights = ranked(6, images=20), drawn(20, 100)
    weights[:, 3] *= heavy
    weights = np.minimum(weights, heavy)
    assert found.uses_kernel(weights) == (heavy < 256)
    np.testing.assert_allclose(
        found.by_category(weights, 3), straight(found, weights), rtol=0, atol=REORDERED
    )


@pytest.mark.usefixtures("small_is_compiled")
def test_without_numba_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    found, weights = ranked(5, images=20), drawn(20, 100)
    monkeypatch.delitem(sys.modules, "gramloop.metrics.ap_kernel", raising=False)
    monkeypatch.delattr("gramloop.metrics.ap_kernel", raising=False)
    monkeypatch.setitem(sys.modules, "numba", None)
    monkeypatch.setattr(ap, "_kernel", ap._kernel.__wrapped__)
    assert not found.uses_kernel(weights)
    np.testing.assert_array_equal(found.by_category(weights, 3), straight(found, weights))


def test_recalls_are_reached_as_floating_point_numbers_have_it() -> None:
    from gramloop.metrics.ap_kernel import recalls_reached

    for objects in (1, 2, 3, 7, 20, 25, 50, 99, 100, 101, 400, 1999, 10_000, 2**31 - 100):
        hits = np.unique(np.linspace(0, objects, 20_001).astype(np.int64))
        reached = [recalls_reached(float(each), float(objects), 1 / objects) for each in hits.tolist()]
        np.testing.assert_array_equal(reached, np.searchsorted(RECALLS, hits / objects, side="right"))


BOOTSTRAP = """
import sys
import numpy as np
from gramloop.metrics import ap
from random_boxes import match_set, random_set

ap.COMPILED_WORK = int(sys.argv[1])
truth, predictions = random_set(2, images=20)
weights = np.random.default_rng(7).multinomial(20, np.full(20, 1 / 20), size=100)
ranked = ap.rank_matches(match_set(truth, predictions), truth.categories, 20)
print(ranked.average_precision(weights).tolist(), "numba" in sys.modules)
"""


def bootstrap_elsewhere(work: int, cache: Path) -> str:
    """What another process prints, with numba's cache in a folder."""
    paths = os.pathsep.join([str(Path(__file__).parents[1] / "support"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": paths, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", BOOTSTRAP, str(work)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def test_a_small_bootstrap_does_not_import_numba(tmp_path: Path) -> None:
    assert bootstrap_elsewhere(10**9, tmp_path).endswith("False\n")
