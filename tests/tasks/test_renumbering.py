"""Classes are matched by name, and by number where no name is shared."""

from __future__ import annotations

import numpy as np
import pytest

from gramloop import GramLoopError
from gramloop.tasks import FunctionPredictor, InstanceMasks, Panoptic, Segment
from gramloop.tasks.base import task_of
from gramloop.tasks.predictor import class_numbers

PIXELS = np.zeros((4, 4, 3), np.uint8)


def boxes(image):
    return [[0, 0, 1, 1]] * 3, [0.9, 0.8, 0.7], [0, 1, 2]


def quarters(image):
    return np.kron([[0, 1], [2, 1]], np.ones((2, 2), int))


def renumbered(predictor, categories):
    found = predictor.predict(PIXELS)
    return task_of(found).renumber(found, class_numbers(predictor.classes, categories))


def test_boxes_follow_names_and_others_are_left_out() -> None:
    mine = FunctionPredictor(boxes, "detection", ["person", "car", "kite"])
    assert class_numbers(mine.classes, {1: "Car", 18: "person"}) == {0: 18, 1: 1}
    assert renumbered(mine, {1: "Car", 18: "person"}).labels.tolist() == [18, 1]


def test_labels_follow_names() -> None:
    mine = FunctionPredictor(quarters, "semantic", ["traffic light", "road", "sky"])
    found = renumbered(mine, {0: "sky", 1: "traffic_light", 2: "Road"})
    assert found.labels[[0, 0, 2], [0, 2, 0]].tolist() == [1, 2, 0]


@pytest.mark.parametrize("names", [["LABEL_0", "LABEL_1", "LABEL_2"], ["sky", "road", "car"], None])
def test_numbers_stay_where_names_say_nothing_else(names: list[str] | None) -> None:
    mine = FunctionPredictor(boxes, "detection", names)
    assert not class_numbers(mine.classes, {0: "sky", 1: "road", 2: "car"})


def test_a_name_that_the_model_lacks_is_told() -> None:
    mine = FunctionPredictor(boxes, "detection", ["person", "car", "kite"])
    with pytest.raises(
        GramLoopError, match="lists 'zebra', which the model has no class for, although it knows 'car'"
    ):
        class_numbers(mine.classes, {1: "zebra", 2: "car"})


def test_segments_and_masks_follow_names_and_others_become_void() -> None:
    ids = quarters(None).astype(np.int32)
    infos = (Segment(1, 1, True, 0.9), Segment(2, 2, False, 0.8))
    mine = FunctionPredictor(lambda image: Panoptic(ids, infos), classes={1: "car", 2: "sky"})
    assert mine.task == "panoptic"
    found = renumbered(mine, {3: "car"})
    assert found.infos == (Segment(1, 3, True, 0.9),)
    assert np.array_equal(found.segments, ids == 1)

    masks = np.stack([ids == 1, ids == 2])
    many = InstanceMasks.from_masks(masks, np.array([0.2, 0.7]), np.array([1, 2]))
    own = FunctionPredictor(lambda image: many, classes={1: "car", 2: "sky"})
    kept = renumbered(own, {3: "car"})
    assert (own.task, kept.labels.tolist(), kept.scores.tolist()) == ("instance", [3], [np.float32(0.2)])
    assert np.array_equal(kept.mask(0), masks[0])
