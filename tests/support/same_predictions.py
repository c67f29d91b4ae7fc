"""Predictions that are equal to the bit."""

import numpy as np


def same(one, two):
    """Fail where labels, boxes, scores or values of two predictions differ in a bit."""
    assert type(one) is type(two)
    for name in ("labels", "boxes", "scores", "values"):
        first, second = getattr(one, name, None), getattr(two, name, None)
        assert (first is None) == (second is None), name
        if first is not None:
            np.testing.assert_array_equal(first, second)
