from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gramloop.metrics.coco_ap import matched
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.metrics.boxes import BoxPredictions, GroundTruthBoxes
from gramloop.metrics.matching import THRESHOLDS, match_boxes
from random_boxes import random_set

SETS: list[dict[str, Any]] = [
    {},
    {"crowd": 0.4},
    {"images": 3, "per_image": 400},  # more than 100 of one image and category
    {"scores": 4},  # many equal scores
    {"whole_pixels": True, "crowd": 0.3, "scores": 3},  # equal overlaps, too
    {"images": 40, "per_image": 1},
]


def evaluated(truth: GroundTruthBoxes, found: BoxPredictions, evaluator: Any) -> dict[int, tuple[NDArray[Any], ...]]:
    """By category: images, finds and what counts, best first and of equals by image, and the objects of every image."""
    entries: dict[int, list[dict[str, Any]]] = {}
    for entry in matched(truth, found, areas=("all",), evaluator=evaluator).evalImgs:
        if entry is not None:
            entries.setdefault(int(entry["category_id"]), []).append(entry)
    told = {}
    for number, each in entries.items():
        each.sort(key=lambda entry: int(entry["image_id"]))
        scores = np.concatenate([entry["dtScores"] for entry in each])
        order = np.argsort(-scores, kind="stable")
        owners = np.repeat([e["image_id"] - 1 for e in each], [len(e["dtScores"]) for e in each])
        hit = np.concatenate([np.asarray(e["dtMatches"]) > 0 for e in each], axis=1)
        counted = ~np.concatenate([np.asarray(e["dtIgnore"], dtype=bool) for e in each], axis=1)
        objects = np.zeros(len(truth.images), dtype=int)
        for entry in each:
            objects[entry["image_id"] - 1] = np.sum(~np.asarray(entry["gtIgnore"], dtype=bool))
        told[number] = owners[order], (hit & counted)[:, order], counted[:, order], objects
    return told


@pytest.mark.parametrize("evaluator", ["hotcoco", "pycocotools"])
@pytest.mark.parametrize("options", SETS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_every_match_is_that_of_the_evaluators(options: dict[str, Any], seed: int, evaluator: Any) -> None:
    truth, found = random_set(seed, **options)
    told, ours = evaluated(truth, found, evaluator), match_boxes(truth, found)
    assert set(ours.categories) | set(ours.true_categories) == set(told)
    for number, (owners, hits, counted, objects) in told.items():
        own, true = ours.categories == number, ours.true_categories == number
        np.testing.assert_array_equal(ours.places[own], owners)
        np.testing.assert_array_equal(ours.found[:, own], hits)
        np.testing.assert_array_equal(ours.counted[:, own], counted)
        found_there = np.bincount(ours.true_places[true & ours.to_find], minlength=ours.images)
        np.testing.assert_array_equal(found_there, objects)


def test_the_thresholds_are_the_evaluators() -> None:
    for evaluator in ("hotcoco", "pycocotools"):
        np.testing.assert_array_equal(matched(*random_set(0), evaluator=evaluator).params.iouThrs, THRESHOLDS)


def test_a_set_without_objects_or_without_detections() -> None:
    truth, found = random_set(1)
    nothing = BoxPredictions(np.zeros(0, int), np.zeros((0, 4)), np.zeros(0), np.zeros(0, int))
    assert match_boxes(truth, nothing).found.shape == (10, 0)
    none = np.zeros(0, int), np.zeros((0, 4)), np.zeros(0, int), np.zeros(0), np.zeros(0, bool)
    empty = GroundTruthBoxes(truth.images, truth.categories, *none)
    ours = match_boxes(empty, found)
    assert not ours.found.any()
    assert ours.counted.all()


def test_detections_of_other_categories_alone_are_refused() -> None:
    truth, found = random_set(2)
    with pytest.raises(GramLoopError, match="no detection has a category of the truth"):
        match_boxes(truth, BoxPredictions(found.image_ids, found.boxes, found.scores, found.labels + 1000))
