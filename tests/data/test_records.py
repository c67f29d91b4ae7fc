"""Annotations that move with the pixels, against rectangles whose true place is known."""

import math
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.data.opening import open_suite
from gramloop.data.records import Record, Shift, shift_record
from gramloop.data.suites import Condition
from gramloop.shifts import geometry
from gramloop.shifts.common import signs
from small_sets import rectangle, write_semantic

HEIGHT, WIDTH = 240, 320
DEGREES = {"rotate": (20, 30, 40, 50, 60), "shear": (5, 10, 15, 20, 25)}
PIXELS = (20, 40, 60, 80, 100)


def moved(box, name, severity, image_id=1, **more):
    annotation = {"id": 3, "category_id": 5, "bbox": list(box), "area": box[2] * box[3], "iscrowd": 0}
    annotation |= {"segmentation": rectangle(box), **more}
    record = Record(image_id, Path("none.png"), "none.png", HEIGHT, WIDTH, annotations=(annotation,))
    shifted = shift_record(record, Shift("mine-p", "p", Condition(name, severity)))
    return shifted.coco_entries()


def true_corners(box, name, severity, image_id):
    """The outermost pixel centres of a rectangle after the published move, in closed form."""
    sx, sy = signs(image_id, "mine-p")
    x, y, w, h = box
    corners = np.array([(x, y), (x + w - 1, y), (x + w - 1, y + h - 1), (x, y + h - 1)], dtype=float)
    cx, cy = (WIDTH - 1) / 2, (HEIGHT - 1) / 2
    if name == "translate":
        return corners + np.array([sx, sy]) * PIXELS[severity - 1]
    angle = math.radians(DEGREES[name][severity - 1]) * sx
    if name == "shear":
        return np.stack([corners[:, 0] - math.tan(angle) * (corners[:, 1] - cy), corners[:, 1]], axis=1)
    dx, dy = corners[:, 0] - cx, corners[:, 1] - cy  # y points down: a positive angle turns clockwise
    cos, sin = math.cos(angle), math.sin(angle)
    return np.stack([cx + cos * dx - sin * dy, cy + sin * dx + cos * dy], axis=1)


boxes_inside = st.tuples(st.integers(120, 170), st.integers(90, 120), st.integers(8, 40), st.integers(8, 40))


@settings(max_examples=60, deadline=None)
@given(boxes_inside, st.sampled_from(["rotate", "shear"]), st.integers(1, 5), st.integers(0, 30))
def test_boxes_of_turned_and_sheared_rectangles_are_the_true_ones(box, name, severity, image_id):
    corners = true_corners(box, name, severity, image_id)
    (entry,) = moved(box, name, severity, image_id)
    x, y, w, h = entry["bbox"]
    found = np.array([x, y, x + w - 1, y + h - 1])
    true = np.concatenate([corners.min(axis=0), corners.max(axis=0)])
    # a pixel is on or off and a corner is thin, so an edge may lie up to a pixel and a half inside the truth
    assert np.abs(found - true).max() <= 1.5
    expected_area = box[2] * box[3]  # both moves keep areas
    perimeter = 2 * (box[2] + box[3])
    assert abs(entry["area"] - expected_area) <= perimeter


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(0, 300), st.integers(0, 220), st.integers(3, 60), st.integers(3, 60)),
    st.integers(1, 5),
    st.integers(0, 30),
)
def test_boxes_of_translated_rectangles_are_exact_and_clipped(box, severity, image_id):
    x, y = box[:2]
    w, h = min(box[2], WIDTH - x), min(box[3], HEIGHT - y)
    sx, sy = signs(image_id, "mine-p")
    left, top = x + sx * PIXELS[severity - 1], y + sy * PIXELS[severity - 1]
    right, bottom = min(left + w, WIDTH), min(top + h, HEIGHT)
    left, top = max(left, 0), max(top, 0)
    entries = moved((x, y, w, h), "translate", severity, image_id)
    if right - left < 2 or bottom - top < 2:  # nothing, or a line that no outline of three points goes round
        assert entries == ()
        return
    (entry,) = entries
    assert entry["bbox"] == [left, top, right - left, bottom - top]
    assert entry["area"] == (right - left) * (bottom - top)
    assert all(isinstance(value, int) for value in entry["bbox"])
    assert (entry["id"], entry["category_id"], entry["iscrowd"]) == (3, 5, 0)


def test_crowds_keep_their_flag_and_boxes_without_outlines_move_as_boxes():
    runs = {"size": [HEIGHT, WIDTH], "counts": [WIDTH // 2 * HEIGHT, 40 * HEIGHT, (WIDTH // 2 - 40) * HEIGHT]}
    (crowd,) = moved((160, 0, 40, 240), "translate", 1, segmentation=runs, iscrowd=1)
    assert crowd["iscrowd"] == 1
    assert crowd["bbox"][2:] == [40, 220]
    assert isinstance(crowd["segmentation"], list)
    (bare,) = moved((100, 100, 30, 20), "translate", 2, segmentation=None)
    (outlined,) = moved((100, 100, 30, 20), "translate", 2)
    assert bare == outlined


@pytest.mark.parametrize("name", ["gaussian", "fog", "pixelate"])
def test_photometric_perturbations_leave_annotations_alone(name):
    (entry,) = moved((10.5, 20.25, 30.5, 40.75), name, 5)
    assert entry["bbox"] == [10.5, 20.25, 30.5, 40.75]


@pytest.mark.parametrize("name", ["rotate", "translate", "shear"])
@pytest.mark.parametrize("severity", [1, 5])
def test_label_maps_move_with_the_pixels(tmp_path, name, severity):
    root = write_semantic(tmp_path, 2)
    opened = open_suite("mine-p", root, conditions=[name], severities=[severity])
    clean = open_suite("mine", root).open(Condition("clean"))
    for before, after in zip(clean, opened.open(Condition(name, severity)), strict=True):
        affine = geometry.affine_matrix(name, severity, 96, 128, signs(before.image_id, "mine-p"))
        labels = after.labels()
        expected = cv2.warpAffine(
            before.labels(), affine, (128, 96), flags=cv2.INTER_NEAREST, borderValue=(255, 0, 0, 0)
        )
        assert np.array_equal(labels, expected)
        assert np.array_equal(after.image(), cv2.warpAffine(before.image(), affine, (128, 96)))
        uncovered = (
            cv2.warpAffine(np.ones((96, 128), np.uint8), affine, (128, 96), flags=cv2.INTER_NEAREST) == 0
        )
        assert uncovered.any()
        assert (labels[uncovered] == 255).all()
        assert labels.dtype == np.uint8


def test_directions_are_the_images_own_at_every_severity():
    drawn = {image_id: signs(image_id, "mine-p") for image_id in range(60)}
    assert set(drawn.values()) == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
    for image_id in range(6):
        centres = [moved((150, 110, 20, 20), "translate", s, image_id)[0]["bbox"][:2] for s in (1, 2, 3)]
        steps = [(x - 150, y - 110) for x, y in centres]
        sx, sy = drawn[image_id]
        assert steps == [(20 * sx, 20 * sy), (40 * sx, 40 * sy), (60 * sx, 60 * sy)]
