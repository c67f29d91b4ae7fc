"""Predictions say at once when their parts do not fit each other."""

from __future__ import annotations

import numpy as np
import pytest

from gramloop import GramLoopError
from gramloop.tasks import InstanceMasks, Panoptic, Segment


def test_a_panoptic_map_has_an_info_for_each_of_its_segments() -> None:
    ids = np.array([[0, 1], [3, 3]], np.int32)
    first, third = Segment(1, 7, True, 0.9), Segment(3, 2, False, 0.8)
    assert Panoptic(ids, (first, third)).blocks == 1
    for wrong in [(first,), (third, first), (first, third, Segment(4, 2, True, 0.5)), (first, first, third)]:
        with pytest.raises(GramLoopError, match=r"a panoptic map with the segments \[1, 3\] cannot have"):
            Panoptic(ids, wrong)
    with pytest.raises(GramLoopError, match="one int32 per pixel"):
        Panoptic(ids.astype(np.int64), (first, third))


def test_masks_come_best_first_with_boxes_around_them() -> None:
    masks = np.zeros((3, 5, 7), bool)
    masks[0, 1:3, 2:6] = True
    masks[2, 4, 0] = True
    found = InstanceMasks.from_masks(masks, np.array([0.1, 0.2, 0.3]), np.array([5, 6, 7]))
    assert found.labels.tolist() == [7, 6, 5]
    assert found.boxes.tolist() == [[0, 4, 1, 5], [0, 0, 0, 0], [2, 1, 6, 3]]
    assert all(np.array_equal(found.mask(place), masks[index]) for place, index in enumerate([2, 1, 0]))
    nothing = InstanceMasks.from_masks(masks[:0], np.zeros(0), np.zeros(0))
    assert (len(nothing.masks), nothing.boxes.shape, nothing.size) == (0, (0, 4), (5, 7))


def test_parts_of_instances_that_do_not_fit_are_refused() -> None:
    one = InstanceMasks.from_masks(np.ones((1, 2, 3), bool), np.ones(1), np.ones(1))
    with pytest.raises(GramLoopError, match="1 masks have scores"):
        InstanceMasks(one.masks, np.zeros(2, np.float32), one.labels, one.boxes, one.size)
    with pytest.raises(GramLoopError, match="a mask of 3 x 2 pixels does not fit an image of 4 x 2"):
        InstanceMasks(one.masks, one.scores, one.labels, one.boxes, (2, 4))
