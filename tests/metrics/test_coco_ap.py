from __future__ import annotations

import contextlib
import io
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from gramloop.data.records import DataSet, Record
from gramloop.errors import GramLoopError
from gramloop.metrics import coco_ap
from gramloop.metrics.ap import ApResult, average_precision
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from random_boxes import CATEGORIES, random_set
from resampling import resample

EVALUATORS = ("hotcoco", "pycocotools")
FIGURES = ("ap", "ap50", "ap75", "small", "medium", "large")
SAME = 1e-9  # of a percentage; the order of a few thousand additions changes it by less than 1e-11


def reference(truth: GroundTruthBoxes, detections: BoxPredictions, first_id: int = 1) -> list[float]:
    """The six figures of pycocotools' own summary, used as its documentation says."""
    annotations = [
        {"id": k, "image_id": i, "bbox": b, "category_id": c, "area": a, "iscrowd": int(s)}
        for k, (i, b, c, a, s) in enumerate(
            zip(
                truth.image_ids.tolist(),
                truth.boxes.tolist(),
                truth.labels.tolist(),
                truth.areas.tolist(),
                truth.crowd.tolist(),
                strict=True,
            ),
            start=first_id,
        )
    ]
    results = [
        {"image_id": i, "bbox": b, "score": s, "category_id": c}
        for i, b, s, c in zip(
            detections.image_ids.tolist(),
            detections.boxes.tolist(),
            detections.scores.tolist(),
            detections.labels.tolist(),
            strict=True,
        )
    ]
    with contextlib.redirect_stdout(io.StringIO()):
        annotated = COCO()
        annotated.dataset = {
            "info": {},
            "images": [{"id": i} for i in truth.images],
            "categories": [{"id": c} for c in truth.categories],
            "annotations": annotations,
        }
        annotated.createIndex()
        evaluation = COCOeval(annotated, annotated.loadRes(results), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return [100 * value if value > -1 else math.nan for value in evaluation.stats[:6]]


def figures(result: ApResult) -> list[float]:
    return [getattr(result, name) for name in FIGURES]


CASES: dict[str, dict[str, Any]] = {
    "random": {},
    "tied": {"scores": 4},
    "all-tied": {"scores": 1},
    "crowd": {"crowd": 0.3},
    "crowd-and-tied": {"crowd": 0.5, "scores": 3},
    "whole-pixels": {"whole_pixels": True, "scores": 10},
    "beyond-100-per-category": {"images": 2, "per_image": 900},
}


@pytest.mark.parametrize("evaluator", EVALUATORS)
@pytest.mark.parametrize("case", CASES)
def test_equals_pycocotools(case: str, evaluator: Any) -> None:
    for seed in range(4):
        truth, detections = random_set(seed, **CASES[case])
        result = average_precision(truth, detections, evaluator=evaluator)
        np.testing.assert_allclose(figures(result), reference(truth, detections), rtol=0, atol=SAME)
        assert 0 < result.ap < 100


@given(
    st.integers(0, 10**6),
    st.integers(1, 6),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(1, 8),
)
@settings(max_examples=60, deadline=None)
def test_equals_pycocotools_on_small_and_odd_sets(
    seed: int, images: int, scores: int | None, crowd: float, per_image: int
) -> None:
    truth, detections = random_set(seed, images=images, scores=scores, crowd=crowd, per_image=per_image)
    expected = [math.nan] * 6 if not len(detections.scores) else reference(truth, detections)
    for evaluator in EVALUATORS:
        result = average_precision(truth, detections, evaluator=evaluator)
        np.testing.assert_allclose(figures(result), expected, rtol=0, atol=SAME)


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_no_detections_score_zero_and_no_objects_score_nothing(evaluator: Any) -> None:
    truth, _ = random_set(0)
    nothing = BoxPredictions(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))
    assert figures(average_precision(truth, nothing, evaluator=evaluator)) == [0] * 6
    large = truth.areas > 96**2
    without_small = replace(
        truth,
        **{name: getattr(truth, name)[large] for name in ("image_ids", "boxes", "labels", "areas", "crowd")},
    )
    result = average_precision(without_small, nothing, evaluator=evaluator)
    assert (result.ap, result.large) == (0, 0)
    assert math.isnan(result.small)
    assert math.isnan(result.medium)


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_an_object_numbered_zero_is_found_like_any_other(evaluator: Any) -> None:
    """Two perfect boxes: pycocotools itself misses the one whose annotation has the number 0."""
    boxes, labels = np.array([[0.0, 0, 50, 50], [60, 60, 40, 40]]), np.array([2, 2])
    truth = GroundTruthBoxes([1], [2], np.array([1, 1]), boxes, labels, np.array([2500.0, 1600]), np.zeros(2, bool))
    detections = BoxPredictions(np.array([1, 1]), boxes, np.array([0.9, 0.8]), labels)
    assert average_precision(truth, detections, evaluator=evaluator).ap == pytest.approx(100, abs=SAME)
    assert reference(truth, detections)[0] == pytest.approx(100, abs=SAME)
    assert reference(truth, detections, first_id=0)[0] < 50


@pytest.mark.parametrize("evaluator", EVALUATORS)
def test_the_limit_of_100_is_one_of_image_and_category(evaluator: Any) -> None:
    """100 objects of one category and one of another, all found: all 101 detections count."""
    boxes = np.column_stack([np.arange(101) * 20.0, np.zeros(101), np.full((101, 2), 10.0)])
    ids, labels = np.ones(101, int), np.array([2] * 100 + [5])
    truth = GroundTruthBoxes([1], [2, 5], ids, boxes, labels, np.full(101, 100.0), np.zeros(101, bool))
    scores = np.linspace(0.9, 0.1, 101)
    whole = average_precision(truth, BoxPredictions(ids, boxes, scores, labels), evaluator=evaluator)
    assert whole.ap == pytest.approx(100, abs=SAME)
    cut = BoxPredictions(ids[:100], boxes[:100], scores[:100], labels[:100])
    assert average_precision(truth, cut, evaluator=evaluator).ap == pytest.approx(50, abs=SAME)

    one_category = replace(truth, labels=np.full(101, 2))
    found = BoxPredictions(ids, boxes, scores, np.full(101, 2))
    result = average_precision(one_category, found, evaluator=evaluator)
    assert result.ap == pytest.approx(100 * 100 / 101, abs=SAME)  # recall 1.00 alone is out of reach
    assert result.ap == pytest.approx(reference(one_category, found)[0], abs=SAME)


def test_average_over_categories_that_occur() -> None:
    truth, detections = random_set(1)
    result = average_precision(replace(truth, categories=(*CATEGORIES, 91)), detections)
    assert result.ap == pytest.approx(np.mean([result.by_category[each] for each in CATEGORIES]), abs=SAME)
    assert math.isnan(result.by_category[91])
    for category in CATEGORIES:
        rows, found = truth.labels == category, detections.labels == category
        alone = GroundTruthBoxes(
            truth.images,
            [category],
            *(getattr(truth, name)[rows] for name in ("image_ids", "boxes", "labels", "areas", "crowd")),
        )
        only = BoxPredictions(
            *(getattr(detections, name)[found] for name in ("image_ids", "boxes", "scores", "labels"))
        )
        assert reference(alone, only)[0] == pytest.approx(result.by_category[category], abs=SAME)


def test_names_as_image_ids_and_categories_the_truth_does_not_know() -> None:
    truth, detections = random_set(2)
    named = {number: f"{number:06d}.png" for number in truth.images}  # names that sort as the numbers do
    result = average_precision(
        replace(
            truth,
            images=[named[each] for each in truth.images],
            image_ids=np.array([named[each] for each in truth.image_ids.tolist()]),
        ),
        BoxPredictions(
            np.array([named[each] for each in detections.image_ids.tolist()] + [named[truth.images[0]]]),
            np.concatenate([detections.boxes, [[0, 0, 9, 9]]]),
            np.append(detections.scores, 2.0),
            np.append(detections.labels, 12),  # a category that no annotation has and no list names
        ),
    )
    assert figures(result) == figures(average_precision(truth, detections))


def test_from_a_data_set_and_from_predictions() -> None:
    truth, detections = random_set(5)
    records = tuple(
        Record(
            image,
            Path(f"{image}.jpg"),
            f"{image}.jpg",
            600,
            800,
            annotations=tuple(
                {
                    "id": 10 * row,
                    "image_id": image,
                    "bbox": truth.boxes[row].tolist(),
                    "category_id": int(truth.labels[row]),
                    "area": float(truth.areas[row]),
                    "iscrowd": 0,
                }
                for row in np.flatnonzero(truth.image_ids == image)
            ),
        )
        for image in truth.images
    )
    data = DataSet(Path("set"), "detection", records, dict.fromkeys(CATEGORIES, "thing"))
    corners = detections.boxes.copy()
    corners[:, 2:] += corners[:, :2]
    predictions = {
        image: SimpleNamespace(
            boxes=corners[rows], scores=detections.scores[rows], labels=detections.labels[rows]
        )
        for image in truth.images
        for rows in [np.flatnonzero(detections.image_ids == image)]
    }
    result = average_precision(GroundTruthBoxes.of(data), BoxPredictions.of(predictions))
    np.testing.assert_allclose(figures(result), reference(truth, detections), rtol=0, atol=SAME)

    some = records[:4]
    result = average_precision(
        GroundTruthBoxes.of(data, some), BoxPredictions.of({each.image_id: predictions[each.image_id] for each in some})
    )
    assert result != average_precision(GroundTruthBoxes.of(data), BoxPredictions.of(predictions))


def test_a_resample_repeats_whole_images() -> None:
    truth, detections = random_set(6)
    picks = np.arange(len(truth.images))
    assert figures(average_precision(*resample(truth, detections, picks))) == pytest.approx(
        figures(average_precision(truth, detections)), abs=SAME
    )
    drawn, found = resample(truth, detections, np.array([3, 0, 3]))
    for place, pick in enumerate([3, 0, 3]):
        image = truth.images[pick]
        np.testing.assert_array_equal(
            drawn.boxes[drawn.image_ids == place], truth.boxes[truth.image_ids == image]
        )
        np.testing.assert_array_equal(
            found.scores[found.image_ids == place], detections.scores[detections.image_ids == image]
        )
    assert average_precision(drawn, found).ap == pytest.approx(reference(drawn, found)[0], abs=SAME)


def test_mistakes_are_named() -> None:
    truth, detections = random_set(8)
    with pytest.raises(GramLoopError, match="image 4711 has boxes"):
        average_precision(truth, replace(detections, image_ids=np.full_like(detections.image_ids, 4711)))
    with pytest.raises(GramLoopError, match=r"no detection has a category of the truth.*\[17\]"):
        average_precision(truth, replace(detections, labels=np.full_like(detections.labels, 17)))
    with pytest.raises(GramLoopError, match="category 90, which it does not list"):
        replace(truth, categories=(2, 5))
    with pytest.raises(GramLoopError, match="score nan"):
        replace(
            detections, scores=np.where(np.arange(len(detections.scores)) == 3, np.nan, detections.scores)
        )
    with pytest.raises(GramLoopError, match="each once"):
        replace(truth, images=[*truth.images, truth.images[0]])
    with pytest.raises(GramLoopError, match="four numbers"):
        replace(detections, boxes=detections.boxes[:, :3])
    with pytest.raises(GramLoopError, match="columns of shapes"):
        replace(detections, scores=detections.scores[:-1])


def test_pycocotools_stands_in_where_hotcoco_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert coco_ap.installed_evaluator() == "hotcoco"
    monkeypatch.setattr(coco_ap, "find_spec", lambda name: name == "pycocotools" or None)
    assert coco_ap.installed_evaluator() == "pycocotools"
    monkeypatch.setattr(coco_ap, "find_spec", lambda name: None)
    with pytest.raises(GramLoopError, match="needs the package hotcoco"):
        coco_ap.installed_evaluator()
