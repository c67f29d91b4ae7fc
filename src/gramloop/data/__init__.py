"""Labelled image sets: readers for the public layouts, suites of shifted conditions, procedural scenes."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.data.coco import open_coco, open_panoptic
    from gramloop.data.folders import open_depth, open_photos, open_semantic
    from gramloop.data.opening import READERS, OpenSuite, Reader, ReadOptions, open_set, open_suite
    from gramloop.data.records import DataSet, LabelledImage, Record, Shift, shift_data_set
    from gramloop.data.scenes import Scene, scene, write_scenes
    from gramloop.data.suites import Condition, Suite, find_suite
    from gramloop.data.truth import (
        ClassList,
        DepthFormat,
        DepthMap,
        Instances,
        ObjectMasks,
        PixelLabels,
        SegmentMap,
    )
    from gramloop.data.writing import write_suite
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "READERS", "ClassList", "Condition", "DataSet", "DepthFormat", "DepthMap", "Instances", "LabelledImage",
    "ObjectMasks", "OpenSuite", "PixelLabels", "ReadOptions", "Reader", "Record", "Scene", "SegmentMap", "Shift",
    "Suite", "find_suite", "open_coco", "open_depth", "open_panoptic", "open_photos", "open_semantic",
    "open_set", "open_suite", "scene", "shift_data_set", "write_scenes", "write_suite",
]  # fmt: skip
