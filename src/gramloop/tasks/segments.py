"""Predicted segments and masks in the form in which truth is kept."""

from __future__ import annotations

import numpy as np

from gramloop.data.object_masks import ObjectMasks
from gramloop.data.run_lengths import mask_area
from gramloop.data.segment_maps import SegmentMap
from gramloop.tasks.prediction import InstanceMasks, Panoptic


def segment_map(found: Panoptic) -> SegmentMap:
    """The segments of a prediction; none is a crowd."""
    return SegmentMap(
        found.segments,
        np.array([info.id for info in found.infos], dtype=np.int64),
        np.array([info.category for info in found.infos], dtype=np.int64),
        np.zeros(len(found.infos), dtype=np.bool_),
    )


def object_masks(found: InstanceMasks, score: float = 0.0) -> ObjectMasks:
    """The masks of a prediction that score at least so much and hold a pixel; none is a crowd."""
    areas = np.array([mask_area(mask) for mask in found.masks], dtype=np.float64)
    sure = (found.scores >= score) & (areas > 0)
    return ObjectMasks(
        tuple(mask for mask, kept in zip(found.masks, sure, strict=True) if kept),
        found.labels[sure].astype(np.int64),
        areas[sure],
        np.zeros(int(sure.sum()), dtype=np.bool_),
        found.size,
    )
