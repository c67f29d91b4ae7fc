"""A scene's segments: every thing for itself, and all that is there of one kind of stuff together."""

from __future__ import annotations

from typing import Any

import numpy as np

from gramloop.data.scenes.drawing import CLASSES, STUFF, THINGS, Scene
from gramloop.data.segment_maps import SegmentMap

# things have the numbers of the instances' file, and stuff those that follow
CATEGORIES = dict(enumerate(THINGS + STUFF, start=1))
THING_NUMBERS = frozenset(range(1, len(THINGS) + 1))
_NUMBER_OF_LABEL = np.array([0, *(1 + (THINGS + STUFF).index(name) for name in CLASSES)])


def scene_segments(one: Scene) -> SegmentMap:
    """Stuff has its category as id; things follow in the order of their boxes."""
    ids = _NUMBER_OF_LABEL[one.labels].astype(np.int32)
    ids[ids <= len(THINGS)] = 0
    for index, mask in enumerate(one.masks):
        ids[mask] = len(CATEGORIES) + 1 + index
    numbers = np.unique(ids[ids > 0]).astype(np.int64)
    kinds = np.append(np.arange(len(CATEGORIES) + 1), one.categories + 1)
    return SegmentMap(ids, numbers, kinds[numbers], np.zeros(len(numbers), dtype=np.bool_))


def category_entries() -> list[dict[str, Any]]:
    """The categories of a panoptic file."""
    return [
        {"id": number, "name": name, "isthing": int(number in THING_NUMBERS)}
        for number, name in CATEGORIES.items()
    ]
