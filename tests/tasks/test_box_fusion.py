"""Boxes of several views fused into one list."""

import time

import numpy as np
import pytest

from gramloop.tasks.base import get_task
from gramloop.tasks.detection import Detection

fused = get_task("detection").merge


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


def test_what_one_view_alone_found_counts_half():
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


def views_of(seed, count=2, boxes=60, classes=3, side=200, ties=False):
    rng = np.random.default_rng(seed)
    corners = rng.uniform(0, 0.9 * side, (boxes, 2))
    base = np.concatenate([corners, corners + rng.uniform(5, 0.2 * side, (boxes, 2))], 1)
    labels = rng.integers(0, classes, boxes)
    views = []
    for _ in range(count):
        moved, scores = base + rng.normal(0, 3, base.shape), rng.uniform(0, 1, boxes)
        if ties:
            moved, scores = moved.round(), scores.round(1)
        order = np.argsort(-scores)
        views.append(detection(moved[order], scores[order], labels[order]))
    return views


def slowly_fused(views, overlap=0.55):
    """The published algorithm, one box and one fused box at a time."""
    groups = []  # label, members as (view, box, score), fused box
    flat = [(v, box.astype(float), float(s), int(c)) for v, view in enumerate(views)
            for box, s, c in zip(view.boxes, view.scores, view.labels, strict=True)]  # fmt: skip
    for label in sorted({each[3] for each in flat}):
        mine = []
        for v, box, score, _ in sorted(
            (each for each in flat if each[3] == label), key=lambda each: -each[2]
        ):
            ious = [-1.0 if v in {m[0] for m in members} else iou(box, whole) for members, whole in mine]
            at = int(np.argmax(ious)) if ious else -1
            if at < 0 or ious[at] <= overlap:
                mine.append(([(v, box, score)], box))
                continue
            members = [*mine[at][0], (v, box, score)]
            weights = np.maximum([m[2] for m in members], np.finfo(float).tiny)
            mine[at] = (members, weights / weights.sum() @ np.stack([m[1] for m in members]))
        groups += [(label, members) for members, _ in mine]
    return sorted(
        ((sum(m[2] for m in members) / len(views), label) for label, members in groups),
        key=lambda each: -each[0],
    )


def iou(one, two):
    shared = np.clip(np.minimum(one[2:], two[2:]) - np.maximum(one[:2], two[:2]), 0, None).prod()
    return shared / max(
        (one[2:] - one[:2]).prod() + (two[2:] - two[:2]).prod() - shared, np.finfo(float).tiny
    )


@pytest.mark.parametrize("seed", range(12))
def test_they_are_those_of_the_plain_algorithm(seed):
    views = views_of(seed, count=2 + seed % 3, ties=seed % 2 == 1)
    found, expected = fused(views), slowly_fused(views)[:60]
    np.testing.assert_allclose(found.scores, [score for score, _ in expected], rtol=1e-6)
    assert 0 < len(found.scores) <= 60


def test_thousands_of_boxes_take_no_time():
    views = views_of(0, boxes=1500, classes=1, side=1000)
    began = time.perf_counter()
    assert len(fused(views).scores) == 1500
    assert time.perf_counter() - began < 2  # seconds; 0.1 on an idle machine, 14 when it compared one by one
