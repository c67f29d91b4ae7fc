"""Predictions show what is in them as a table, and draw themselves over their image."""

from __future__ import annotations

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest

from gramloop import GramLoopError
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic, Segment
from gramloop.tasks.prediction import Pair, Prediction, ReplayMaps
from gramloop.tasks.semantic import Segmentation
from html_tables import HOSTILE, Reader

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
ROWS = {
    "segmentation": [["0", "72", "75.0%"], ["3", "24", "25.0%"]],
    "detection": [["7", "0.9", "1.0", "2.0", "5.0", "6.0"], ["8", "0.3", "0.0", "0.0", "12.0", "8.0"]],
    "depth": [["1", "3", "5"]],
    "panoptic": [["1", "5", "thing", "0.75", "18"]],
    "instance": [["5", "0.6", "3", "2", "9", "5"]],
}


@pytest.fixture(autouse=True)
def _close() -> None:
    yield
    plt.close("all")


@pytest.mark.parametrize("kind", FOUND)
def test_the_table_holds_what_was_predicted(kind: str) -> None:
    read = Reader(FOUND[kind]._repr_html_())
    assert read.rows[1:] == ROWS[kind]
    assert f"{FOUND[kind].blocks} transformer block" in read.notes[-1]
    assert read.caption == str(FOUND[kind]).splitlines()[0]


def test_many_boxes_are_cut_and_it_says_so() -> None:
    many = Detection(np.zeros((25, 4), np.float32), np.zeros(25, np.float32), np.arange(25))
    read = Reader(many._repr_html_())
    assert len(read.rows) == 1 + 10
    assert read.notes[0] == "The first 10 of 25 boxes, best first."


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
    inner = [patch for patch in ax.patches if patch.get_linewidth() < 2]
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
    assert [ax.get_title() for ax in axes] == ["ordinary  (1 box ≥ 0.5)", "replayed  (1 box ≥ 0.5)"]


def test_replay_maps_are_drawn() -> None:
    drift = np.stack([np.eye(4, dtype=np.float32), 2 * np.eye(4, dtype=np.float32)])
    axes = ReplayMaps(drift, drift / 2, drift[0]).plot()
    assert axes.shape == (2, 3)
    np.testing.assert_array_equal(axes[0, 1].images[0].get_array(), drift[1])
    np.testing.assert_array_equal(axes[1, 1].images[0].get_array(), drift[1] / 2)


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(GramLoopError, match="the image has 5 x 4 pixels and the prediction 12 x 8"):
        FOUND["segmentation"].plot(np.zeros((4, 5, 3), np.uint8))


def test_a_prediction_of_no_known_kind_has_no_picture() -> None:
    with pytest.raises(GramLoopError, match="no picture of a Prediction"):
        Prediction().plot()
