"""Masks against pycocotools, to the pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as oracle

from gramloop.data.truth import annotation_mask, box_mask, decode_mask, encode_mask

coordinate = st.floats(-20, 90, allow_nan=False, width=32)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=9),
    st.integers(1, 70),
    st.integers(1, 70),
)
def test_polygons_fill_like_pycocotools(corners, height, width):
    polygon = [float(value) for corner in corners for value in corner]
    expected = oracle.decode(oracle.frPyObjects([polygon], height, width))[:, :, 0]
    found = annotation_mask({"segmentation": [polygon]}, height, width)
    assert np.array_equal(found, expected)
    assert found.flags.c_contiguous


@pytest.mark.parametrize("compressed", [True, False])
def test_run_lengths_decode_like_pycocotools(compressed):
    rng = np.random.default_rng(5)
    for _ in range(40):
        height, width = rng.integers(1, 90, 2)
        mask = (rng.random((height, width)) < rng.random()).astype(np.uint8)
        if rng.random() < 0.5:  # long runs need several characters each
            mask = np.kron(mask, np.ones((13, 17), dtype=np.uint8))
        runs = oracle.encode(np.asfortranarray(mask))
        if not compressed:
            flat = mask.T.reshape(-1)
            edges = np.flatnonzero(np.diff(flat)) + 1
            counts = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
            runs = {"size": list(mask.shape), "counts": counts if flat[0] == 0 else [0, *counts]}
        assert np.array_equal(decode_mask(runs), mask)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_run_lengths_encode_like_pycocotools(height, width, side, seed):
    rng = np.random.default_rng(seed)
    coarse = rng.random((height, width)) < rng.random()
    mask = np.repeat(coarse, side, axis=1)  # long runs need several characters each
    expected = oracle.encode(np.asfortranarray(mask.astype(np.uint8)))
    found = encode_mask(mask)
    assert found["counts"] == expected["counts"].decode()
    assert found["size"] == list(expected["size"])
    assert np.array_equal(decode_mask(found), mask)


def test_a_polygon_far_beyond_the_image_costs_nothing():
    far = [[0, 0, 1e12, 0, 1e12, 1e12, 0, 1e12]]
    assert annotation_mask({"segmentation": far}, 30, 40).all()


def test_two_polygons_are_one_mask_and_no_segmentation_is_the_box():
    squares = [[1, 1, 4, 1, 4, 4, 1, 4], [6, 6, 9, 6, 9, 9, 6, 9]]
    mask = annotation_mask({"segmentation": squares, "bbox": [1, 1, 8, 8]}, 10, 10)
    assert mask.sum() == 18
    assert annotation_mask({"bbox": [1, 2, 5, 3]}, 10, 10).sum() == 15
    assert box_mask([-3, 8, 5, 9], 10, 10).sum() == 4
