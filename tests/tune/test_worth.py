import math

import numpy as np
import pytest
from scipy import stats

from gramloop.metrics.ap import average_precision
from gramloop.metrics.miou import mean_iou
from gramloop.mitigations.replay import Replay
from gramloop.tune.search.bench import Bench, Trial
from gramloop.tune.search.split import Sample
from gramloop.tune.search.worth import PairedStatistics, Worth, _combined, detections_of, truth_of, worth
from laws import Lawful, lawful_subject, nothing

CLASSES = (0, 1, 2)


def measured(rng: np.random.Generator, images: int) -> list[PairedStatistics]:
    found = []
    for number in range(images):
        truth = rng.integers(20, 60, 3)
        versions = []
        for _ in range(2):
            right = rng.integers(5, 20, 3)
            versions.append(
                {"counts": [right.tolist(), (right + rng.integers(0, 30, 3)).tolist(), truth.tolist()]}
            )
        found.append(PairedStatistics(Sample(number, str(number), number), *versions, None, 6))
    return found


def score(each: list[PairedStatistics], version: str) -> float:
    return float(mean_iou(np.sum([getattr(one, version)["counts"] for one in each], axis=0)))


def gain(cells: dict[str, list[PairedStatistics]], left_out: int | None = None, folds: int = 5) -> float:
    each = [[one for one in row if one.sample.unit % folds != left_out] for row in cells.values()]
    return float(np.mean([score(row, "mitigated") - score(row, "ordinary") for row in each]))


def test_gain_and_error_against_the_textbook():
    rng = np.random.default_rng(0)
    cells = {name: measured(rng, 5) for name in ("fog/3", "snow/3", "frost/3")}
    found = worth("semantic", CLASSES, {**cells, "clean": measured(rng, 5)})
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
    found = worth("semantic", CLASSES, cells)
    assert found.gain == pytest.approx((np.mean(by_condition[:3]) + by_condition[3]) / 2, rel=1e-9)
    assert math.isnan(found.clean)
    assert found.harmless(0.0)


def test_degrees_of_freedom_are_those_of_welch():
    rng = np.random.default_rng(2)
    one, two = rng.normal(size=7), rng.normal(scale=3, size=4)
    error, freedom = _combined(one.var(ddof=1) / 7, 6, two.var(ddof=1) / 4, 3)
    welch = stats.ttest_ind(one, two, equal_var=False)
    assert freedom == pytest.approx(welch.df, rel=1e-9)
    assert error == pytest.approx(abs(one.mean() - two.mean()) / abs(welch.statistic), rel=1e-9)


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
def test_beating_no_replay_is_students_test(confidence):
    bar = float(stats.t.ppf(confidence, 5)) * 0.2
    assert Worth(bar + 1e-9, 0.2, 5, 0.0, 0.0).beats_nothing(confidence)
    assert not Worth(bar - 1e-9, 0.2, 5, 0.0, 0.0).beats_nothing(confidence)
    assert not Worth(math.nan, 0.2, 5, 0.0, 0.0).beats_nothing(confidence)
    assert not Worth(1.0, math.nan, 0, 0.0, 0.0).beats_nothing(confidence)


def test_a_setting_that_changes_nothing_is_worth_nothing():
    subject = lawful_subject(Lawful(nothing), images=12, families=3)
    bench = Bench(subject)
    cells: dict[str, list[PairedStatistics]] = {}
    from gramloop.replay.config import ReplayConfig

    for key, ids in subject.images.items():
        for place, image_id in enumerate(ids):
            result = bench.run(Trial(key, place, image_id, (0,), ((Replay(ReplayConfig(window=(1, 1))),),)))
            one = PairedStatistics(
                Sample(place, image_id, place), result["ordinary"], result["replayed"][0], None, 6
            )
            cells.setdefault(key, []).append(one)
    found = worth("semantic", CLASSES, cells)
    assert (found.gain, found.error, found.clean) == (0.0, 0.0, 0.0)
    assert not found.beats_nothing(0.95)


def test_detections_are_scored_as_coco_does():
    rng = np.random.default_rng(3)
    each = []
    for number in range(6):
        corners = np.sort(rng.uniform(0, 100, (4, 2, 2)), axis=1).reshape(4, 4)
        truth = {
            "boxes": np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1).tolist(),
            "labels": [1, 2, 1, 2],
            "areas": [500.0] * 4,
            "crowd": [False] * 4,
        }
        versions = [
            {
                "boxes": (corners + rng.normal(0, spread, corners.shape)).tolist(),
                "scores": rng.random(4).tolist(),
                "labels": [1, 2, 1, 2],
            }
            for spread in (6.0, 2.0)
        ]
        each.append(PairedStatistics(Sample(number, str(number), number), *versions, truth, 6))
    found = worth("detection", (1, 2), {"fog/3": each, "snow/3": each})
    ap = [
        average_precision(truth_of(each, (1, 2)), detections_of(each, version)).ap
        for version in ("ordinary", "mitigated")
    ]
    assert ap[1] > ap[0] > 0
    assert found.gain == pytest.approx(ap[1] - ap[0], abs=1e-9)
