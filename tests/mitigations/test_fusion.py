"""Boxes of several looks made one list."""

import numpy as np

from gramloop.mitigations.fusion import fused
from gramloop.tasks.detection import Detection


def detection(boxes, scores, labels, blocks=4):
    return Detection(
        np.array(boxes, np.float32).reshape(-1, 4),
        np.array(scores, np.float32),
        np.array(labels, np.int64),
        blocks=blocks,
    )


def test_the_same_boxes_twice_stay_what_they_are():
    one = detection([[0, 0, 10, 10], [2, 0, 12, 10], [40, 40, 60, 70]], [0.9, 0.8, 0.3], [1, 1, 2])
    both = fused([one, one])
    np.testing.assert_allclose(both.boxes, one.boxes, rtol=1e-6)
    np.testing.assert_allclose(both.scores, one.scores, rtol=1e-6)
    assert both.labels.tolist() == [1, 1, 2]
    assert both.blocks == 8


def test_corners_are_weighted_by_score():
    both = fused([detection([[0, 0, 10, 10]], [0.9], [1]), detection([[2, 0, 12, 10]], [0.3], [1])])
    np.testing.assert_allclose(both.boxes, [[0.5, 0, 10.5, 10]], rtol=1e-6)
    np.testing.assert_allclose(both.scores, [0.6], rtol=1e-6)


def test_what_one_look_alone_found_counts_half():
    both = fused([detection([[0, 0, 10, 10]], [0.8], [1]), detection([], [], [])])
    np.testing.assert_allclose(both.scores, [0.4])


def test_classes_are_not_mixed_and_lists_do_not_grow():
    a = detection([[0, 0, 10, 10]], [0.8], [1])
    b = detection([[0, 0, 10, 10], [30, 30, 40, 40]], [0.6, 0.5], [2, 2])
    both = fused([a, b])
    assert both.labels.tolist() == [1, 2]


def test_nothing_with_nothing():
    both = fused([detection([], [], []), detection([], [], [])])
    assert both.boxes.shape == (0, 4)
    assert both.scores.shape == both.labels.shape == (0,)
