import math

import numpy as np
import pytest
from scipy import stats

from gramloop.metrics.segmentation import mean_iou
from gramloop.tasks.base import Categories, Row, get_task
from gramloop.tune.gain import (
    CandidateRow,
    GainEstimate,
    Scoring,
    _add_variances,
    estimate_gain,
)
from gramloop.tune.schedule import Sample

SEMANTIC = Scoring(get_task("semantic"), Categories({0: "a", 1: "b", 2: "c"}))
Cells = dict[str, list[CandidateRow]]


def counts(intersection: object, prediction: object, label: object) -> Row:
    columns = {"intersection": intersection, "prediction": prediction, "label": label}
    return {name: np.asarray(value) for name, value in columns.items()}


def measured(rng: np.random.Generator, images: int) -> list[CandidateRow]:
    found = []
    for number in range(images):
        truth = rng.integers(20, 60, 3)
        right = rng.integers(5, 20, (2, 3))
        versions = [counts(each, each + rng.integers(0, 30, 3), truth) for each in right]
        found.append(CandidateRow(Sample(number, str(number), number), *versions))
    return found


def score(rows: list[CandidateRow], version: str) -> float:
    each = [[getattr(one, version)[name] for name in SEMANTIC.task.columns] for one in rows]
    return float(mean_iou(np.sum(each, axis=0)))


def gain(cells: Cells, left_out: int | None = None, folds: int = 5) -> float:
    kept = [[one for one in rows if one.sample.unit % folds != left_out] for rows in cells.values()]
    return float(np.mean([score(rows, "candidate") - score(rows, "baseline") for rows in kept]))


def test_gain_and_error_against_the_textbook():
    rng = np.random.default_rng(0)
    cells = {name: measured(rng, 5) for name in ("fog/3", "snow/3", "frost/3")}
    found = estimate_gain(SEMANTIC, {**cells, "clean": measured(rng, 5)})
    jackknife = [gain(cells, left_out=fold) for fold in range(5)]
    over_images = 4 / 5 * np.sum((np.array(jackknife) - np.mean(jackknife)) ** 2)
    families = [gain({key: each}) for key, each in cells.items()]
    over_families = np.var(families, ddof=1) / 3
    assert found.gain == pytest.approx(gain(cells), rel=1e-12)  # the same sums in another order
    assert found.error == pytest.approx(math.sqrt(over_images + over_families), rel=1e-9)


def test_severities_of_a_family_count_as_one():
    rng = np.random.default_rng(1)
    cells = {name: measured(rng, 4) for name in ("fog/1", "fog/3", "fog/5", "snow/3")}
    by_condition = [gain({key: each}) for key, each in cells.items()]
    found = estimate_gain(SEMANTIC, cells)
    assert found.gain == pytest.approx((np.mean(by_condition[:3]) + by_condition[3]) / 2, rel=1e-9)
    assert math.isnan(found.clean)
    assert found.harmless(0.0)


def test_degrees_of_freedom_are_those_of_welch():
    rng = np.random.default_rng(2)
    one, two = rng.normal(size=7), rng.normal(scale=3, size=4)
    error, freedom = _add_variances(one.var(ddof=1) / 7, 6, two.var(ddof=1) / 4, 3)
    welch = stats.ttest_ind(one, two, equal_var=False)
    assert freedom == pytest.approx(welch.df, rel=1e-9)
    assert error == pytest.approx(abs(one.mean() - two.mean()) / abs(welch.statistic), rel=1e-9)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_beating_nothing_is_students_test(confidence):
    bar = float(stats.t.ppf(confidence, 5)) * 0.2
    assert GainEstimate(bar + 1e-9, 0.2, 5, 0.0, 0.0).beats_nothing(confidence)
    assert not GainEstimate(bar - 1e-9, 0.2, 5, 0.0, 0.0).beats_nothing(confidence)
    assert not GainEstimate(math.nan, 0.2, 5, 0.0, 0.0).beats_nothing(confidence)
    assert not GainEstimate(1.0, math.nan, 0, 0.0, 0.0).beats_nothing(confidence)


def test_a_candidate_that_changes_nothing_gains_nothing():
    rows = [
        CandidateRow(one.sample, one.baseline, one.baseline) for one in measured(np.random.default_rng(3), 6)
    ]
    found = estimate_gain(SEMANTIC, {"fog/3": rows, "snow/3": rows, "clean": rows})
    assert (found.gain, found.error, found.clean) == (0.0, 0.0, 0.0)
    assert not found.beats_nothing(0.95)


def test_detections_are_scored_as_coco_does():
    scoring = Scoring(get_task("detection"), Categories({1: "a", 2: "b"}))
    rng = np.random.default_rng(3)
    rows = []
    for number in range(6):
        corners = np.sort(rng.uniform(0, 100, (4, 2, 2)), axis=1).reshape(4, 4)
        truth = {
            "truth_boxes": np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).ravel(),
            "truth_labels": np.array([1, 2, 1, 2]),
            "truth_areas": np.full(4, 500.0),
            "truth_crowd": np.zeros(4, np.bool_),
        }
        versions = [
            {
                "boxes": (corners + rng.normal(0, spread, corners.shape)).ravel(),
                "scores": rng.random(4),
                "labels": np.array([1, 2, 1, 2]),
                **truth,
            }
            for spread in (6.0, 2.0)
        ]
        rows.append(CandidateRow(Sample(number, str(number), number), *versions))
    found = estimate_gain(scoring, {"fog/3": rows, "snow/3": rows})
    ap = [scoring.score([getattr(one, version) for one in rows]) for version in ("baseline", "candidate")]
    assert ap[1] > ap[0] > 0
    assert found.gain == pytest.approx(ap[1] - ap[0], abs=1e-9)


# rules for single images

BLOCK = 1
TWO_CLASSES = Scoring(get_task("semantic"), Categories({0: "a", 1: "b"}))


def cell(number: int, right: int, replayed: int, length: float, spread: float = 0.5) -> CandidateRow:
    """An image of 100 pixels of two classes, of which so many are labelled right."""
    versions = [counts([correct // 2] * 2, [50, 50], [50, 50]) for correct in (right, replayed)]
    signals = {"length": [9.0, length], "spread": [9.0, spread]}
    return CandidateRow(Sample(number, str(number), number), *versions, signals)


def noisy_and_clean() -> Cells:
    """Replay gains where patches are long, and loses elsewhere, clean images among them."""
    return {
        "clean": [cell(i, 80, 70, 1.0 + 0.01 * i) for i in range(6)],
        "noise/3": [cell(i, 40, 50, 2.0 + 0.01 * i) for i in range(6)],
        "blur/3": [cell(i, 40, 36, 0.5 + 0.01 * i) for i in range(6)],
    }
