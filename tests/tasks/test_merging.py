"""Predictions of several views merged into one."""

from dataclasses import replace

import numpy as np
import pytest

from gramloop.errors import GramLoopError
from gramloop.tasks.base import get_task
from gramloop.tasks.depth import Depth
from gramloop.tasks.semantic import Segmentation


def test_scores_and_metres_are_averaged():
    scores = np.array([[[0.6]], [[0.4]]], np.float32), np.array([[[0.1]], [[0.9]]], np.float32)
    views = [Segmentation(each.argmax(0).astype(np.int32), each, blocks=3) for each in scores]
    mean = get_task("semantic").merge(views)
    np.testing.assert_allclose(mean.scores[:, 0, 0], [0.35, 0.65])
    assert mean.labels.tolist() == [[1]]
    assert mean.blocks == 6
    depth = [Depth(np.full((2, 2), value, np.float32)) for value in (1.0, 4.0)]
    np.testing.assert_allclose(get_task("depth").merge(depth).values, 2.5)
    with pytest.raises(GramLoopError, match="labels without scores"):
        get_task("semantic").merge([replace(each, scores=None) for each in views])


def test_disparities_are_averaged_in_the_first_views_frame():
    first = np.random.default_rng(0).uniform(1, 5, (6, 8)).astype(np.float32)
    views = [Depth(first, disparity=True), Depth(3 * first + 2, disparity=True)]
    np.testing.assert_allclose(
        get_task("depth").merge(views).values, first, rtol=1e-5
    )  # found from float32 values
    metres = [Depth(first), Depth(3 * first + 2)]
    np.testing.assert_allclose(
        get_task("depth").merge(metres).values, (first + (3 * first + 2)) / 2, rtol=1e-6
    )
