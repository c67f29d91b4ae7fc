import math

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gramloop.errors import GramLoopError
from gramloop.shifts import geometry

HEIGHT, WIDTH = 120, 161
SIGNS = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
ANGLES = {"rotate": (20, 30, 40, 50, 60), "shear": (5, 10, 15, 20, 25)}


def moved(affine, x, y):
    return affine @ [x, y, 1]


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("signs", SIGNS, ids=str)
class TestAgainstOpenCV:
    def test_rotation(self, severity, signs, photo):
        image = photo(0, HEIGHT, WIDTH)
        turn = cv2.getRotationMatrix2D(
            ((WIDTH - 1) / 2, (HEIGHT - 1) / 2), -ANGLES["rotate"][severity - 1] * signs[0], 1.0
        )
        expected = cv2.warpAffine(image, turn, (WIDTH, HEIGHT))
        affine = geometry.affine_matrix("rotate", severity, HEIGHT, WIDTH, signs)
        assert np.array_equal(geometry.warp_image(image, affine), expected)

    def test_shear(self, severity, signs, photo):
        image = photo(0, HEIGHT, WIDTH)
        slope = np.tan(np.deg2rad(ANGLES["shear"][severity - 1] * signs[0]))
        shear = np.array([[1, -slope, slope * (HEIGHT - 1) / 2], [0, 1, 0]])
        expected = cv2.warpAffine(image, shear, (WIDTH, HEIGHT))
        affine = geometry.affine_matrix("shear", severity, HEIGHT, WIDTH, signs)
        assert np.array_equal(geometry.warp_image(image, affine), expected)

    def test_translation_copies_pixels(self, severity, signs, photo):
        image = photo(0, HEIGHT, WIDTH)
        by = 20 * severity
        expected = np.zeros_like(image)
        to = (
            np.s_[by:] if signs[1] > 0 else np.s_[: HEIGHT - by],
            np.s_[by:] if signs[0] > 0 else np.s_[: WIDTH - by],
        )
        source = (
            np.s_[: HEIGHT - by] if signs[1] > 0 else np.s_[by:],
            np.s_[: WIDTH - by] if signs[0] > 0 else np.s_[by:],
        )
        expected[to] = image[source]
        affine = geometry.affine_matrix("translate", severity, HEIGHT, WIDTH, signs)
        assert np.array_equal(geometry.warp_image(image, affine), expected)


def test_a_positive_rotation_is_clockwise_on_the_screen():
    affine = geometry.affine_matrix("rotate", 1, 101, 101, (1, 1))
    x, y = moved(affine, 90, 50)
    assert (x, y) == (
        pytest.approx(50 + 40 * math.cos(math.radians(20))),
        pytest.approx(50 + 40 * math.sin(math.radians(20))),
    )


def test_a_positive_shear_moves_the_top_right_and_keeps_the_middle_row():
    affine = geometry.affine_matrix("shear", 3, 101, 101, (1, 1))
    assert moved(affine, 30, 0) == pytest.approx([30 + 50 * math.tan(math.radians(15)), 0])
    assert moved(affine, 30, 50) == pytest.approx([30, 50])


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16, np.int32, np.int64])
def test_labels_move_to_their_nearest_neighbours(dtype):
    labels = np.arange(1, HEIGHT * WIDTH + 1).reshape(HEIGHT, WIDTH) % 120
    affine = geometry.affine_matrix("rotate", 2, HEIGHT, WIDTH, (-1, 1))
    warped = geometry.warp_labels(labels.astype(dtype), affine, 125)
    back = cv2.invertAffineTransform(affine)
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    source = np.einsum("ij,jyx->iyx", back, np.stack([x, y, np.ones_like(x)]))
    columns, rows = np.rint(source).astype(int)
    inside = (columns >= 0) & (columns < WIDTH) & (rows >= 0) & (rows < HEIGHT)
    expected = np.full((HEIGHT, WIDTH), 125)
    expected[inside] = labels[rows[inside], columns[inside]]
    assert warped.dtype == dtype
    # A point halfway between two pixels may go either way.
    halfway = np.abs(np.abs(source - np.floor(source)) - 0.5).min(axis=0) < 0.02
    assert np.array_equal(warped[~halfway], expected[~halfway])
    assert halfway.mean() < 0.1


def test_labels_beyond_float32_survive():
    labels = np.full((40, 40), 2**30 + 1, np.int64)
    warped = geometry.warp_labels(labels, geometry.affine_matrix("translate", 1, 40, 40, (1, 1)), -1)
    assert np.unique(warped).tolist() == [-1, 2**30 + 1]


@settings(deadline=None)
@given(st.sampled_from(geometry.GEOMETRIC), st.integers(1, 5), st.sampled_from(SIGNS), st.integers(0, 99))
def test_warping_makes_no_new_labels(name, severity, signs, seed):
    labels = np.random.default_rng(seed).choice([3, 50, 149], (40, 57)).astype(np.uint8)
    warped = geometry.warp_labels(labels, geometry.affine_matrix(name, severity, 40, 57, signs), 255)
    assert set(np.unique(warped)) <= {3, 50, 149, 255}


def rectangle(x, y, width, height):
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[y : y + height, x : x + width] = True
    return mask


@pytest.mark.parametrize(
    ("box", "severity", "signs", "expected"),
    [
        ((30, 40, 25, 10), 1, (1, 1), (50, 60, 25, 10)),
        ((30, 40, 25, 10), 2, (-1, 1), (0, 80, 15, 10)),
        ((130, 40, 25, 10), 1, (1, -1), (150, 20, 11, 10)),
        ((30, 40, 25, 10), 3, (-1, 1), None),
        ((0, 100, 5, 20), 5, (1, 1), None),
    ],
)
def test_boxes_of_moved_rectangles(box, severity, signs, expected):
    affine = geometry.affine_matrix("translate", severity, HEIGHT, WIDTH, signs)
    mask = geometry.warp_mask(rectangle(*box), affine)
    assert geometry.visible_box(mask) == expected
    assert geometry.area(mask) == (expected[2] * expected[3] if expected else 0)
    assert bool(geometry.polygons(mask)) == (expected is not None)


@pytest.mark.parametrize("name", ["rotate", "shear"])
@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("sign", [1, -1])
def test_the_box_of_a_turned_rectangle_is_that_of_its_corners(name, severity, sign):
    """Corners are known in closed form; a pixel is seen when at least half of its interpolated mask is."""
    x, y, width, height = 60, 45, 40, 24
    affine = geometry.affine_matrix(name, severity, HEIGHT, WIDTH, (sign, 1))
    corners = [(x + i * (width - 1), y + j * (height - 1)) for i in (0, 1) for j in (0, 1)]
    xs, ys = np.array([moved(affine, *corner) for corner in corners]).T
    mask = geometry.warp_mask(rectangle(x, y, width, height), affine)
    left, top, box_width, box_height = geometry.visible_box(mask)
    found = [left, top, left + box_width - 1, top + box_height - 1]
    assert found == pytest.approx([xs.min(), ys.min(), xs.max(), ys.max()], abs=1.01)
    # Neither transform changes areas; a pixel of tolerance along the outline.
    assert geometry.area(mask) == pytest.approx(width * height, abs=width + height)


def test_masks_stay_zero_and_one():
    mask = np.random.default_rng(0).random((HEIGHT, WIDTH)) > 0.5
    warped = geometry.warp_mask(mask, geometry.affine_matrix("rotate", 3, HEIGHT, WIDTH, (1, 1)))
    assert (warped.shape, warped.dtype, np.unique(warped).tolist()) == (mask.shape, np.uint8, [0, 1])


@pytest.mark.parametrize("severity", [1, 3, 5])
def test_polygons_fill_to_the_mask(severity):
    mask = rectangle(20, 30, 50, 40) | rectangle(100, 60, 30, 30)
    warped = geometry.warp_mask(mask, geometry.affine_matrix("rotate", severity, HEIGHT, WIDTH, (1, 1)))
    outlines = geometry.polygons(warped)
    filled = np.zeros_like(warped)
    cv2.fillPoly(filled, [np.array(o, np.int32).reshape(-1, 2) for o in outlines], 1)
    assert np.array_equal(filled, warped)


def test_pycocotools_reads_the_polygons():
    mask_api = pytest.importorskip("pycocotools.mask")
    mask = rectangle(20, 30, 50, 40)
    runs = mask_api.merge(mask_api.frPyObjects(geometry.polygons(mask), HEIGHT, WIDTH))
    # COCO's polygons run through pixel centres, hence lose up to half a pixel along the outline.
    assert mask_api.area(runs) == pytest.approx(geometry.area(mask), abs=50 + 40)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 5)])
def test_specks_have_a_box_but_no_polygon(shape):
    mask = rectangle(10, 20, shape[1], shape[0])
    assert geometry.visible_box(mask) == (10, 20, shape[1], shape[0])
    assert geometry.polygons(mask) == []


def test_what_is_wrong_is_named():
    with pytest.raises(GramLoopError, match=r"signs \(0, 1\) of shear"):
        geometry.affine_matrix("shear", 1, 10, 10, (0, 1))
    with pytest.raises(GramLoopError, match="severity 18 of rotate"):
        geometry.affine_matrix("rotate", 18, 10, 10, (1, 1))
