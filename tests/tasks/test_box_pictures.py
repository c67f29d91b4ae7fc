"""Boxes in pictures: greedy matching against a plain reading of its rule, and against cases made by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.data.truth import Instances
from gramloop.tasks.base import Categories
from gramloop.tasks.detection import Detection, DetectionTask, recovered_boxes, sure_boxes
from gramloop.tasks.prediction import DrawStyle
from gramloop.util.plotting import GAINED, LOST

CAT, DOG = 1, 2
CATEGORIES = Categories({CAT: "cat", DOG: "dog"})

TASK = DetectionTask()


def found(*rows):
    """Rows of box, score, label."""
    boxes = np.array([row[0] for row in rows], dtype=float).reshape(-1, 4)
    return Detection(
        boxes, np.array([row[1] for row in rows], float), np.array([row[2] for row in rows], int)
    )


def annotated(*rows):
    boxes = np.array([row[0] for row in rows], dtype=float).reshape(-1, 4)
    return Detection(boxes, np.full(len(rows), np.nan), np.array([row[1] for row in rows], dtype=int))


def plain_overlap(one, two):
    width = max(0.0, min(one[2], two[2]) - max(one[0], two[0]))
    height = max(0.0, min(one[3], two[3]) - max(one[1], two[1]))
    union = (one[2] - one[0]) * (one[3] - one[1]) + (two[2] - two[0]) * (two[3] - two[1]) - width * height
    return width * height / union if union else 0.0


def plain_match(predictions, truth):
    """The rule, word by word, with loops."""
    order = sorted(range(len(predictions.scores)), key=lambda i: (-predictions.scores[i], i))
    free, partner = set(range(len(truth.scores))), [-1] * len(predictions.scores)
    for i in order:
        candidates = [
            (plain_overlap(predictions.boxes[i], truth.boxes[j]), -j)
            for j in free
            if truth.labels[j] == predictions.labels[i]
        ]
        if candidates and max(candidates)[0] >= 0.5:
            partner[i] = -max(candidates)[1]
            free.discard(partner[i])
    return partner


corner = st.integers(0, 6)
box = st.tuples(corner, corner, st.integers(1, 6), st.integers(1, 6)).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)
label = st.sampled_from([CAT, DOG])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(box, st.sampled_from([0.1, 0.4, 0.5, 0.9]), label), max_size=7),
    st.lists(st.tuples(box, label), max_size=7),
)
def test_matching_is_its_rule(rows, objects):
    predictions, truth = found(*rows), annotated(*objects)
    assert recovered_boxes(predictions, truth).tolist() == plain_match(predictions, truth)


def test_the_surer_box_is_served_first_and_takes_the_best():
    truth = annotated(((0, 0, 10, 10), CAT), ((0, 0, 10, 12), CAT))
    predictions = found(((0, 0, 10, 12), 0.6, CAT), ((0, 0, 10, 11), 0.9, CAT), ((0, 0, 10, 10), 0.95, DOG))
    # the surest cat box_iou the taller object more (11/12 > 10/11); what is left for the other is the first
    assert recovered_boxes(predictions, truth).tolist() == [0, 1, -1]


def test_an_overlap_of_exactly_one_half_matches_and_less_does_not():
    truth = annotated(((0, 0, 10, 10), CAT))
    assert recovered_boxes(found(((0, 0, 10, 5), 1.0, CAT)), truth).tolist() == [0]
    assert recovered_boxes(found(((0, 0, 10, 4.99), 1.0, CAT)), truth).tolist() == [-1]


def test_sure_boxes_come_by_falling_score_and_truth_stays():
    predictions = found(((0, 0, 2, 2), 0.39, CAT), ((0, 0, 2, 2), 0.40, CAT), ((4, 4, 6, 6), 0.7, CAT))
    assert sure_boxes(predictions, 0.4).scores.tolist() == [0.7, 0.4]
    assert len(sure_boxes(annotated(((0, 0, 1, 1), CAT)), 0.4).scores) == 1


def test_objects_that_one_method_alone_finds():
    a, b, c = (0, 0, 10, 10), (20, 0, 30, 10), (40, 0, 50, 10)
    truth = annotated((a, CAT), (b, CAT), (c, DOG))
    baseline = found((a, 0.9, CAT), (b, 0.8, CAT), ((60, 0, 70, 10), 0.7, DOG))
    method = found((a, 0.9, CAT), (c, 0.8, DOG), (b, 0.3, CAT))  # the last is too weak to be shown
    changes = TASK.changes(baseline, method, truth, DrawStyle(threshold=0.4))
    assert [(tuple(box), colour) for box, colour in changes.boxes] == [(b, LOST), (c, GAINED)]
    assert changes.text == "of 3 objects 2 are found before and 2 after"


def row(predictions, truth):
    objects = Instances(
        np.arange(len(truth.scores)),
        np.concatenate([truth.boxes[:, :2], truth.boxes[:, 2:] - truth.boxes[:, :2]], axis=1),
        truth.labels,
        np.ones(len(truth.scores)),
        np.zeros(len(truth.scores), bool),
    )
    return TASK.statistics(predictions, objects, CATEGORIES)


def test_an_image_is_scored_by_its_own_average_precision():
    assert np.isnan(TASK.image_score(row(found(), annotated()), CATEGORIES))
    assert TASK.image_score(row(found(), annotated(((0, 0, 1, 1), CAT))), CATEGORIES) == 0.0
    truth = annotated(((0, 0, 10, 10), CAT), ((20, 0, 30, 10), DOG))  # the first is found, the other missed
    predictions = found(((0, 0, 10, 10), 0.9, CAT), ((50, 0, 60, 10), 0.9, DOG))
    assert TASK.image_score(row(predictions, truth), CATEGORIES) == pytest.approx(50.0)
