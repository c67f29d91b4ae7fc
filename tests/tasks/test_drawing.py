"""Predictions print what is in them, and are drawn over their image, alone and in whole pictures."""

from __future__ import annotations

import io
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from PIL import Image

from gramloop import GramLoopError
from gramloop.tasks.class_names import ADE20K, COCO
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import Pair, Prediction, ReplayMaps, draw_predictions
from gramloop.tasks.segments import InstanceMasks, Panoptic, Segment
from gramloop.tasks.semantic import Segmentation
from gramloop.util.plotting import CaptionedFigure
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


def test_a_prediction_prints_shapes_and_not_numbers() -> None:
    assert repr(BOXES) == "Detection(boxes (2, 4), scores (2,), labels (2,), blocks 12)"


def panels(figure):
    """Axes that show an image, without colour bars, from left to right."""
    return [axes for axes in figure.axes if axes.get_images()]


@pytest.mark.parametrize("kind", FOUND)
def test_it_is_drawn_next_to_its_image(kind: str) -> None:
    shown = panels(FOUND[kind].plot(IMAGE, classes={3: HOSTILE, 5: "dog"}))
    assert [axes.images[0].get_array().shape[:2] for axes in shown] == [(8, 12), (8, 12)]
    shown[0].figure.canvas.draw()


def test_colours_tell_classes_apart_and_names_stand_below() -> None:
    figure = FOUND["segmentation"].plot(IMAGE, classes={0: "road", 3: "sky"})
    picture = panels(figure)[1].images[0].get_array()
    assert [text.get_text() for text in figure.texts] == ["road", "sky"]
    assert not np.array_equal(picture[0, 0], picture[7, 0])
    assert (picture[:2] == picture[0, 0]).all()


def test_boxes_are_where_they_are_and_the_threshold_counts() -> None:
    ax = panels(BOXES.plot(IMAGE, classes={7: "cat"}, threshold=0.5))[1]
    inner = [patch for patch in ax.patches if patch.get_linewidth() < 1]  # each lies on a white one
    assert [(p.get_x(), p.get_y(), p.get_width(), p.get_height()) for p in inner] == [(1, 2, 4, 4)]
    assert [text.get_text() for text in ax.texts] == ["cat 0.90"]
    assert len(panels(BOXES.plot(IMAGE, threshold=0.0))[1].texts) == 2


def test_depth_has_its_values_and_unit() -> None:
    ax = panels(FOUND["depth"].plot(IMAGE))[1]
    np.testing.assert_array_equal(ax.images[0].get_array(), FOUND["depth"].values)
    assert ax.get_title() == "depth in m"
    inverse = Depth(np.ones((8, 12), np.float32), disparity=True)
    assert panels(inverse.plot(IMAGE))[1].get_title() == "disparity"


def test_a_pair_is_drawn_side_by_side() -> None:
    shown = panels(Pair(BOXES, BOXES).plot(IMAGE))
    assert [ax.get_title() for ax in shown] == ["input", "baseline, 1 box ≥ 0.5", "replayed, 1 box ≥ 0.5"]


def test_a_prediction_of_no_known_kind_has_no_picture() -> None:
    with pytest.raises(GramLoopError, match="a Prediction belongs to no task"):
        Prediction().plot(IMAGE)


# whole pictures


BLUE = (0x00, 0x72, 0xB2)
PHOTO = np.full((60, 90, 3), 200, np.uint8)
MAPS = ReplayMaps(np.stack([np.linspace(0, top, 24).reshape(4, 6) for top in (2e-4, 1)]))


def drawn(*found: Prediction, image: np.ndarray = PHOTO, **options: object) -> np.ndarray:
    figure = draw_predictions(image, dict(zip("ab", found, strict=False)), COCO, **options)
    image = Image.open(io.BytesIO(CaptionedFigure(figure, "", "", "").png()))
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
        drawn(found, *changed, image=IMAGE).shape[1]
        for changed in ([], [found], [replace(found, trace=MAPS)])
    ]
    assert [round(width / widths[0] * 2) for width in widths] == [2, 3, 5]


def test_boxes_below_the_threshold_are_not_drawn() -> None:
    weak = boxes((10, 10, 80, 50, 0.3, 1))
    assert amount(drawn(weak), BLUE) == 0
    assert amount(drawn(weak, threshold=0.2), BLUE) > 100


@pytest.mark.parametrize("size", [(1, 400), (400, 1), (3, 2)])
def test_extreme_shapes_are_drawn(size: tuple[int, int]) -> None:
    labels = (np.arange(size[0] * size[1]).reshape(size[1], size[0]) % 12).astype(np.int32)
    found = Segmentation(labels, trace=MAPS)
    assert drawn(found, found, image=np.zeros((size[1], size[0], 3), np.uint8)).size


def test_pictures_of_nothing() -> None:
    still = ReplayMaps(np.stack([np.zeros((4, 6)), np.ones((4, 6))]))  # a drift of zero everywhere
    assert drawn(boxes(), boxes(trace=still)).size
    flat = Depth(np.full((60, 90), 3, np.float32), disparity=True)
    assert drawn(flat).size


def test_class_names_are_those_of_the_sets() -> None:
    assert len(ADE20K) == 150
    assert (ADE20K[0], ADE20K[12], ADE20K[149]) == ("wall", "person", "flag")  # from 0 on, as heads count
    assert len(COCO) == 80
    assert len(set(COCO.values())) == 80
    gaps = {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}  # numbers that COCO's categories leave out
    assert set(COCO) == set(range(1, 91)) - gaps
    assert (COCO[1], COCO[44], COCO[90]) == ("person", "bottle", "toothbrush")
