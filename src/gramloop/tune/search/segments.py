"""What a search keeps of segments and masks: PQ's statistics of an image, or how its masks were matched; plain lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import Task
from gramloop.data.truth import ObjectMasks, SegmentMap, Truth
from gramloop.metrics.ap import mask_ap_score
from gramloop.metrics.bootstrap import Score
from gramloop.metrics.matching import AREAS, Matches
from gramloop.metrics.panoptic import panoptic_statistics, pq_score
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic, segment_map
from gramloop.tasks.prediction import Prediction

SEGMENTS: tuple[Task, ...] = ("panoptic", "instance")


def segment_statistic(
    found: Prediction, truth: Truth | None, categories: Sequence[int]
) -> dict[str, object] | None:
    """The statistics of one image; None of another task."""
    if isinstance(found, Panoptic) and isinstance(truth, SegmentMap):
        return {"quality": panoptic_statistics(segment_map(found), truth, categories).tolist()}
    if isinstance(found, InstanceMasks) and isinstance(truth, ObjectMasks):
        columns = get_task("instance").statistics(found, truth, Categories(dict.fromkeys(categories, "")))
        return {name: np.asarray(column).tolist() for name, column in columns.items()}
    return None


def segment_score(task: Task, categories: Sequence[int], images: Sequence[Mapping[str, Any]]) -> Score:
    """PQ, or mask AP, of images with these statistics, for any weights of them."""
    if task == "panoptic":
        return pq_score(np.array([each["quality"] for each in images], dtype=np.float64))
    owners = [
        np.repeat(np.arange(len(images)), [len(each[name]) for each in images])
        for name in ("scores", "truth_labels")
    ]
    matches = Matches(
        owners[0],
        _column(images, "scores", np.float64),
        _column(images, "labels", np.int64),
        _column(images, "found", np.uint16).reshape(-1, len(AREAS)),
        _column(images, "counted", np.uint16).reshape(-1, len(AREAS)),
        owners[1],
        _column(images, "truth_labels", np.int64),
        _column(images, "to_find", np.uint8),
    )
    return mask_ap_score(matches, categories, len(images))


def _column(images: Sequence[Mapping[str, Any]], name: str, kind: type[np.generic]) -> NDArray[Any]:
    return np.array([value for each in images for value in each[name]], dtype=kind)
