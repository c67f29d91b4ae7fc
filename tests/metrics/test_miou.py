from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gramloop.errors import GramLoopError
from gramloop.metrics.segmentation import class_iou, count_pixels, mean_iou

CLASSES = 5


def direct_iou(predictions: list[np.ndarray], truths: list[np.ndarray], classes: int) -> list[float]:
    """Pixel sets, class by class, in float64; None of the code under test."""
    prediction = np.concatenate([each.ravel() for each in predictions])
    truth = np.concatenate([each.ravel() for each in truths])
    prediction, truth = prediction[truth != 255], truth[truth != 255]
    shares = []
    for number in range(classes):
        both = np.logical_and(prediction == number, truth == number).sum(dtype=np.float64)
        either = np.logical_or(prediction == number, truth == number).sum(dtype=np.float64)
        shares.append(100 * (both / either) if either else np.nan)
    return shares


@st.composite
def pairs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=9))
    dtype = draw(st.sampled_from([np.uint8, np.int16, np.int64]))
    prediction = draw(hnp.arrays(dtype, shape, elements=st.integers(0, CLASSES - 1)))
    truth = draw(hnp.arrays(dtype, shape, elements=st.sampled_from([0, 1, 3, 4, 255])))
    return prediction, truth


@given(st.lists(pairs(), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_equals_a_direct_computation_over_all_pixels(images: list[tuple[np.ndarray, np.ndarray]]) -> None:
    merged = sum(count_pixels(*image, CLASSES) for image in images)
    expected = direct_iou([image[0] for image in images], [image[1] for image in images], CLASSES)
    np.testing.assert_array_equal(class_iou(merged), expected)  # the same division of the same whole numbers
    seen = [share for share in expected if not np.isnan(share)]
    if seen:
        assert mean_iou(merged) == pytest.approx(np.mean(seen), rel=1e-15)  # five additions, in another order
    else:
        assert np.isnan(mean_iou(merged))


def test_a_worked_example() -> None:
    truth = np.array([[0, 0, 1, 255], [2, 1, 1, 255]], dtype=np.uint8)
    prediction = np.array([[0, 1, 1, 3], [2, 1, 0, 255]], dtype=np.uint8)
    counts = count_pixels(prediction, truth, 5)
    assert counts.dtype == np.int64
    # class 3 and the 255 of the prediction lie on ignored pixels
    assert counts.tolist() == [[1, 2, 1, 0, 0], [2, 3, 1, 0, 0], [2, 3, 1, 0, 0]]
    np.testing.assert_allclose(class_iou(counts), [100 / 3, 50, 100, np.nan, np.nan], rtol=1e-15)
    assert mean_iou(counts) == pytest.approx((100 / 3 + 50 + 100) / 3, rel=1e-15)


def test_a_class_predicted_but_never_true_counts_as_zero() -> None:
    counts = count_pixels(np.array([[1, 0]]), np.array([[0, 0]]), 3)
    np.testing.assert_array_equal(class_iou(counts), [50, 0, np.nan])
    assert mean_iou(counts) == 25


def test_subsets_of_stacked_counts_add_up(rng: np.random.Generator) -> None:
    images = [
        (rng.integers(0, 7, (11, 13)).astype(np.uint8), rng.integers(0, 7, (11, 13)).astype(np.uint8))
        for _ in range(6)
    ]
    stacked = np.stack([count_pixels(*image, 7) for image in images])  # (6, 3, 7)
    subset = stacked[:2].sum(axis=0)
    assert mean_iou(stacked).shape == (6,)
    np.testing.assert_array_equal(
        mean_iou(stacked), [mean_iou(count_pixels(*image, 7)) for image in images]
    )  # leading axes are carried along
    expected = direct_iou([image[0] for image in images[:2]], [image[1] for image in images[:2]], 7)
    np.testing.assert_array_equal(class_iou(subset), expected)


def test_more_classes_than_a_byte_holds(rng: np.random.Generator) -> None:
    truth = rng.integers(0, 300, (40, 40)).astype(np.uint16)
    truth[:3] = 65535
    prediction = np.where(rng.random(truth.shape) < 0.5, truth % 300, 299).astype(np.uint16)
    counts = count_pixels(prediction, truth, 300, ignore=65535)
    assert counts.sum(axis=1).tolist() == [(prediction == truth).sum(), 37 * 40, 37 * 40]


@pytest.mark.parametrize(
    ("prediction", "truth", "message"),
    [
        (np.zeros((2, 3), int), np.zeros((3, 2), int), r"\(2, 3\).*\(3, 2\)"),
        (np.zeros((2, 2)), np.zeros((2, 2), int), "float64"),
        (np.full((2, 2), 4), np.zeros((2, 2), int), r"prediction holds the class 4.*0\.\.3"),
        (np.full((2, 2), -1), np.zeros((2, 2), int), "prediction holds the class -1"),
        (np.zeros((2, 2), int), np.full((2, 2), 4), "truth holds the class 4"),
        (np.zeros((2, 2), int), np.full((2, 2), -1), "truth holds the class -1"),
    ],
    ids=["shapes", "floats", "prediction-high", "prediction-negative", "truth-high", "truth-negative"],
)
def test_maps_that_do_not_fit_are_refused(prediction: np.ndarray, truth: np.ndarray, message: str) -> None:
    with pytest.raises(GramLoopError, match=message):
        count_pixels(prediction, truth, 4)


def test_counts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(GramLoopError, match=r"\(4, 2\)"):
        mean_iou(np.ones((4, 2)))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)
