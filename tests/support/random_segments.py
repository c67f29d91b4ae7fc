"""Random panoptic maps, as hypothesis draws them: a truth with void and crowds, and a prediction that resembles it."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gramloop.data.truth import SegmentMap

CATEGORIES = {3: "cat", 7: "dog", 20: "grass", 21: "sky"}
THINGS = (3, 7)


@st.composite
def segment_pairs(draw: st.DrawFn) -> tuple[SegmentMap, SegmentMap]:
    """A prediction and its truth; of each category at most one segment is a crowd, as in COCO."""
    shape = draw(st.tuples(st.integers(2, 8), st.integers(2, 8)))
    ids = draw(hnp.arrays(np.int32, shape, elements=st.integers(0, 5)))
    categories = draw(st.lists(st.sampled_from(list(CATEGORIES)), min_size=6, max_size=6))
    crowded = draw(st.sets(st.integers(1, 5), max_size=3))
    crowd = [
        number in crowded and all(other not in crowded or categories[other] != categories[number] for other in range(1, number))
        for number in range(6)
    ]  # fmt: skip
    changed = draw(hnp.arrays(np.bool_, shape))  # false where it shrinks to nothing
    predicted = np.where(changed, draw(hnp.arrays(np.int32, shape, elements=st.integers(0, 5))), ids)
    told = [
        each if same else draw(st.sampled_from(list(CATEGORIES)))
        for each, same in zip(categories, draw(st.lists(st.booleans(), min_size=6, max_size=6)), strict=True)
    ]
    return of_maps(predicted, told, [False] * 6), of_maps(ids, categories, crowd)


def of_maps(ids: np.ndarray, categories: list[int], crowd: list[bool]) -> SegmentMap:
    """A map whose segment k is of ``categories[k]``."""
    numbers = np.unique(ids[ids > 0]).astype(np.int64)
    return SegmentMap(
        ids.astype(np.int32), numbers, np.array(categories)[numbers], np.array(crowd, dtype=np.bool_)[numbers]
    )
