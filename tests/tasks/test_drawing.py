"""Predictions print what is in them, and are drawn over their image, alone and in whole pictures."""

from __future__ import annotations

import io
from dataclasses import replace

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from gramloop import GramLoopError
from gramloop.tasks.class_names import ADE20K, COCO
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic, Segment
from gramloop.tasks.prediction import Pair, Prediction, ReplayMaps, draw_prediction
from gramloop.tasks.semantic import Segmentation
from html_tables import HOSTILE

matplotlib.use("Agg")
IMAGE = np.full((8, 12, 3), 200, dtype=np.uint8)
LABELS = np.zeros((8, 12), dtype=np.int32)
LABELS[:2] = 3
MASK = np.zeros((8, 12), dtype=bool)
MASK[2:5, 3:9] = True
BOXES = Detection(
    np.array([[1, 2, 5, 6], [0, 0, 12, 8]], dtype=np.float32),
    np.array([0.9, 0.3], dtype=np.float32),
    np.array([7, 8]),
    blocks=12,
)
FOUND: dict[str, Prediction] = {
    "segmentation": Segmentation(LABELS),
    "detection": BOXES,
    "depth": Depth(np.linspace(1, 5, 96, dtype=np.float32).reshape(8, 12)),
    "panoptic": Panoptic(MASK.astype(np.int32), (Segment(1, 5, True, 0.75),)),
    "instance": InstanceMasks.from_masks(MASK[None], np.array([0.6]), np.array([5])),
}


@pytest.fixture(autouse=True)
def _close() -> None:
    yield
    plt.close("all")


def test_a_prediction_prints_shapes_and_not_numbers() -> None:
    assert repr(BOXES) == "Detection(boxes (2, 4), scores (2,), labels (2,), blocks 12)"


@pytest.mark.parametrize("kind", FOUND)
@pytest.mark.parametrize("image", [IMAGE, None], ids=["over its image", "alone"])
def test_it_is_drawn_into_new_or_given_axes(kind: str, image: np.ndarray | None) -> None:
    ax = FOUND[kind].plot(image, classes={3: HOSTILE, 5: "dog"})
    assert ax.images[0].get_array().shape[:2] == (8, 12)
    _, given = plt.subplots()
    assert FOUND[kind].plot(image, ax=given) is given
    ax.figure.canvas.draw()


def test_colours_tell_classes_apart_and_names_stand_beside() -> None:
    ax = FOUND["segmentation"].plot(IMAGE, classes={0: "road", 3: "sky"})
    picture = ax.images[0].get_array()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["road", "sky"]
    assert not np.array_equal(picture[0, 0], picture[7, 0])
    assert (picture[:2] == picture[0, 0]).all()


def test_boxes_are_where_they_are_and_the_threshold_counts() -> None:
    ax = BOXES.plot(IMAGE, classes={7: "cat"}, threshold=0.5)
    inner = [patch for patch in ax.patches if patch.get_linewidth() < 1]  # each lies on a white one
    assert [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in inner] == [(1, 2, 4, 4)]
    assert [text.get_text() for text in ax.texts] == ["cat 0.90"]
    assert len(BOXES.plot(IMAGE, threshold=0.0).texts) == 2


def test_depth_has_its_values_and_unit() -> None:
    ax = FOUND["depth"].plot()
    np.testing.assert_array_equal(ax.images[0].get_array(), FOUND["depth"].values)
    assert ax.get_title() == "depth in m"
    assert Depth(np.ones((2, 2), np.float32), disparity=True).plot().get_title() == "disparity"


def test_a_pair_is_drawn_side_by_side() -> None:
    axes = Pair(BOXES, BOXES).plot(IMAGE)
    assert [ax.get_title() for ax in axes] == ["baseline, 1 box ≥ 0.5", "replayed, 1 box ≥ 0.5"]


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(GramLoopError, match="the image has 5 x 4 pixels and the prediction 12 x 8"):
        FOUND["segmentation"].plot(np.zeros((4, 5, 3), np.uint8))


def test_a_prediction_of_no_known_kind_has_no_picture() -> None:
    with pytest.raises(GramLoopError, match="a Prediction belongs to no task"):
        Prediction().plot()


# whole pictures


BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)
PHOTO = np.full((60, 90, 3), 200, np.uint8)
MAPS = ReplayMaps(np.linspace(0, 2e-4, 24).reshape(1, 4, 6), np.linspace(0, 1, 24).reshape(1, 4, 6))


def opened(png: bytes) -> np.ndarray:
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def amount(picture: np.ndarray, colour: tuple[int, int, int]) -> int:
    return int((picture == colour).all(-1).sum())


def boxes(*rows: tuple[float, ...], trace: ReplayMaps | None = None) -> Detection:
    table = np.array(rows, dtype=float).reshape(-1, 6)
    return Detection(table[:, :4], table[:, 4], table[:, 5].astype(int), trace=trace)


@pytest.mark.parametrize("kind", FOUND)
def test_a_picture_has_a_pane_for_everything_there_is(kind: str) -> None:
    found = FOUND[kind]
    widths = [
        opened(draw_prediction(IMAGE, found, changed, {})).shape[1]
        for changed in (None, found, replace(found, trace=MAPS))
    ]
    assert [round(width / widths[0] * 2) for width in widths] == [2, 3, 5]


def test_boxes_that_only_one_prediction_has_are_orange() -> None:
    one = boxes((10, 10, 40, 40, 0.9, 1), (50, 10, 80, 40, 0.8, 1))
    same = opened(draw_prediction(PHOTO, one, one, COCO))
    other_class = boxes((10, 10, 40, 40, 0.9, 1), (50, 10, 80, 40, 0.8, 2))
    changed = opened(draw_prediction(PHOTO, one, other_class, COCO))
    assert amount(changed, ORANGE) > amount(same, ORANGE) + 200
    assert amount(changed, BLUE) < amount(same, BLUE)


def test_boxes_below_the_threshold_are_not_drawn() -> None:
    weak = boxes((10, 10, 80, 50, 0.3, 1))
    assert amount(opened(draw_prediction(PHOTO, weak, None, {})), BLUE) == 0
    assert amount(opened(draw_prediction(PHOTO, weak, None, {}, threshold=0.2)), BLUE) > 100


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (3, 2)])
def test_extreme_shapes_are_drawn(size: tuple[int, int]) -> None:
    labels = (np.arange(size[0] * size[1]).reshape(size[1], size[0]) % 12).astype(np.int32)
    found = Segmentation(labels, trace=MAPS)
    assert opened(draw_prediction(np.zeros((size[1], size[0], 3), np.uint8), found, found, {})).size


def test_pictures_of_nothing() -> None:
    still = ReplayMaps(np.zeros((1, 4, 6)), np.ones((1, 4, 6)))  # a drift of zero everywhere
    assert opened(draw_prediction(PHOTO, boxes(), boxes(trace=still), {})).size
    flat = Depth(np.full((60, 90), 3, np.float32), disparity=True)
    assert opened(draw_prediction(PHOTO, flat, None, {})).size


def test_class_names_are_those_of_the_sets() -> None:
    assert len(ADE20K) == 150
    assert (ADE20K[0], ADE20K[12], ADE20K[149]) == ("wall", "person", "flag")
    assert len(COCO) == 80
    assert len(set(COCO.values())) == 80
    gaps = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # numbers that COCO's categories leave out
    assert set(COCO) == set(range(1, 91)) - gaps
    assert (COCO[1], COCO[44], COCO[90]) == ("person", "bottle", "toothbrush")
