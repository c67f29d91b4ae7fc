import math

import numpy as np
import pytest

from gramloop.data.truth import Instances
from gramloop.metrics.segmentation import mean_iou
from gramloop.tasks.base import Categories, Row, Rows, get_task
from gramloop.tasks.detection import Detection
from gramloop.tune.evidence import Measured, Scoring, estimate_gain
from gramloop.tune.schedule import Sample

SEMANTIC = Scoring(get_task("semantic"), Categories({0: "a", 1: "b", 2: "c"}))
Cells = dict[str, Measured]


def counts(intersection: object, prediction: object, label: object) -> Row:
    columns = {"intersection": intersection, "prediction": prediction, "label": label}
    return {name: np.asarray(value) for name, value in columns.items()}


def measured(rng: np.random.Generator, images: int) -> Measured:
    rows: list[list[Row]] = [[], []]
    for _ in range(images):
        truth = rng.integers(20, 60, 3)
        for version, right in zip(rows, rng.integers(5, 20, (2, 3)), strict=True):
            version.append(counts(right, right + rng.integers(0, 30, 3), truth))
    return Measured(samples(images), *map(Rows.of, rows))


def samples(images: int) -> list[Sample]:
    return [Sample(number, str(number), number) for number in range(images)]


def score(rows: Rows) -> float:
    return float(mean_iou(np.array([rows.matrix(name).sum(axis=0) for name in SEMANTIC.task.columns])))


def gain(cells: Cells, left_out: int | None = None, folds: int = 5) -> float:
    kept = [
        each.take([place for place, unit in enumerate(each.units) if unit % folds != left_out])
        for each in cells.values()
    ]
    return float(np.mean([score(each.candidate) - score(each.baseline) for each in kept]))


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


def test_a_candidate_that_changes_nothing_gains_nothing():
    one = measured(np.random.default_rng(3), 6)
    same = Measured(one.samples, one.baseline, one.baseline)
    found = estimate_gain(SEMANTIC, {"fog/3": same, "snow/3": same, "clean": same})
    assert (found.gain, found.error, found.clean) == (0.0, 0.0, 0.0)


def test_detections_are_scored_as_coco_does():
    scoring = Scoring(get_task("detection"), Categories({1: "a", 2: "b"}))
    rng = np.random.default_rng(3)
    rows: list[list[Row]] = [[], []]
    labels = np.array([1, 2, 1, 2])
    for _ in range(6):
        corners = np.sort(rng.uniform(0, 100, (4, 2, 2)), axis=1).reshape(4, 4)
        sizes = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        truth = Instances(labels, sizes, labels, np.full(4, 500.0), np.zeros(4, np.bool_))
        for version, spread in zip(rows, (6.0, 2.0), strict=True):
            found = Detection(corners + rng.normal(0, spread, corners.shape), rng.random(4), labels)
            version.append(scoring.task.statistics(found, truth, scoring.categories))
    measured = Measured(samples(6), *map(Rows.of, rows))
    estimate = estimate_gain(scoring, {"fog/3": measured, "snow/3": measured})
    ap = [scoring.score(each) for each in (measured.baseline, measured.candidate)]
    assert ap[1] > ap[0] > 0
    assert estimate.gain == pytest.approx(ap[1] - ap[0], abs=1e-9)
