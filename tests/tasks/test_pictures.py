import io
from dataclasses import replace

import numpy as np
import pytest
from gramloop.tasks.pictures import draw_detections, draw_segmentation
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import ADE20K, COCO
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.drawing import draw_prediction
from gramloop.tasks.prediction import Prediction, ReplayMaps
from gramloop.tasks.semantic import Segmentation
from gramloop.tune.search.verdict import _shared

BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)
PHOTO = np.full((60, 90, 3), 200, np.uint8)
MAPS = ReplayMaps(np.linspace(0, 2e-4, 24).reshape(1, 4, 6), np.linspace(0, 1, 24).reshape(1, 4, 6))


def opened(png):
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def amount(picture, colour):
    return int((picture == colour).all(-1).sum())


def boxes(*rows, trace=None):
    table = np.array(rows, dtype=float).reshape(-1, 6)
    return Detection(table[:, :4], table[:, 4], table[:, 5].astype(int), trace=trace)


def test_a_picture_has_a_pane_for_everything_there_is():
    found = Segmentation(np.zeros((60, 90), int))
    widths = [
        opened(draw_segmentation(PHOTO, found)).shape[1],
        opened(draw_segmentation(PHOTO, found, found)).shape[1],
        opened(draw_segmentation(PHOTO, found, replace(found, trace=MAPS))).shape[1],
    ]
    assert [round(width / widths[0] * 2) for width in widths] == [2, 3, 5]


def test_boxes_that_only_one_prediction_has_are_orange():
    one = boxes((10, 10, 40, 40, 0.9, 1), (50, 10, 80, 40, 0.8, 1))
    same = opened(draw_detections(PHOTO, one, replace(one, trace=MAPS), COCO))
    other_class = boxes((10, 10, 40, 40, 0.9, 1), (50, 10, 80, 40, 0.8, 2))
    changed = opened(draw_detections(PHOTO, one, replace(other_class, trace=MAPS), COCO))
    assert amount(changed, ORANGE) > amount(same, ORANGE) + 200
    assert amount(changed, BLUE) < amount(same, BLUE)


def test_boxes_below_the_threshold_are_not_drawn():
    weak = boxes((10, 10, 80, 50, 0.3, 1))
    assert amount(opened(draw_detections(PHOTO, weak)), BLUE) == 0
    assert amount(opened(draw_detections(PHOTO, weak, threshold=0.2)), BLUE) > 100


def test_no_boxes_at_all_make_a_picture():
    assert opened(draw_detections(PHOTO, boxes(), boxes(trace=MAPS))).size
    assert not _shared(boxes((0, 0, 1, 1, 1, 1)), boxes()).any()


def test_sharing_is_half_an_overlap_in_the_same_class():
    one = boxes((0, 0, 10, 10, 1, 1), (0, 0, 10, 10, 1, 2), (100, 0, 110, 10, 1, 1))
    other = boxes((0, 0, 10, 20, 1, 1), (100, 0, 110, 21, 1, 1))  # overlaps of 1/2 and of 10/21
    assert _shared(one, other).tolist() == [True, False, False]


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (3, 2)])
def test_extreme_shapes_are_drawn(size):
    found = Segmentation(np.arange(size[0] * size[1]).reshape(size[1], size[0]) % 12, trace=MAPS)
    assert opened(draw_segmentation(np.zeros((size[1], size[0], 3), np.uint8), found, found)).size


def test_a_drift_of_zero_everywhere_is_drawn():
    still = ReplayMaps(np.zeros((1, 4, 6)), np.ones((1, 4, 6)))
    assert opened(draw_detections(PHOTO, boxes(), boxes(trace=still))).size


def test_every_task_has_its_picture():
    one, labels = boxes((10, 10, 80, 50, 0.9, 1)), Segmentation(np.ones((60, 90), int))
    assert draw_prediction(PHOTO, one, one, COCO, 0.95) == draw_detections(PHOTO, one, one, COCO, 0.95)
    assert draw_prediction(PHOTO, labels, None, ADE20K) == draw_segmentation(PHOTO, labels, classes=ADE20K)
    near = Depth(np.linspace(1, 9, 60 * 90, dtype=np.float32).reshape(60, 90), trace=MAPS)
    assert (
        opened(draw_prediction(PHOTO, near, near, {})).shape[1]
        > opened(draw_prediction(PHOTO, near, None, {})).shape[1]
    )
    flat = Depth(np.full((60, 90), 3, np.float32), disparity=True)
    assert opened(draw_prediction(PHOTO, flat, None, {})).size
    with pytest.raises(GramLoopError, match="no picture of a Prediction"):
        draw_prediction(PHOTO, Prediction(), None, {})


def test_class_names_are_those_of_the_sets():
    assert len(ADE20K) == 150
    assert (ADE20K[0], ADE20K[12], ADE20K[149]) == ("wall", "person", "flag")
    assert len(COCO) == 80
    assert len(set(COCO.values())) == 80
    gaps = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # numbers that COCO's categories leave out
    assert set(COCO) == set(range(1, 91)) - gaps
    assert (COCO[1], COCO[44], COCO[90]) == ("person", "bottle", "toothbrush")
