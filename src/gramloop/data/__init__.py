"""Labelled image sets: readers for the public layouts, suites of shifted conditions, procedural scenes."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.data.coco import open_coco
    from gramloop.data.coco_panoptic import open_panoptic
    from gramloop.data.depth import open_depth
    from gramloop.data.depth_maps import DepthFormat, DepthMap
    from gramloop.data.labelled import LabelledImage, PixelLabels
    from gramloop.data.object_masks import ObjectMasks
    from gramloop.data.opening import OpenSuite, ReadOptions, open_set, open_suite
    from gramloop.data.photos import open_photos
    from gramloop.data.pool import write_suite
    from gramloop.data.records import ClassList, DataSet, Instances, Record
    from gramloop.data.scenes.drawing import Scene, scene
    from gramloop.data.scenes.files import write_scenes
    from gramloop.data.segment_maps import SegmentMap
    from gramloop.data.semantic import open_semantic
    from gramloop.data.shifted import Shift, shift_data_set
    from gramloop.data.suites import Condition, Suite, find_suite
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ClassList", "Condition", "DataSet", "DepthFormat", "DepthMap", "Instances", "LabelledImage",
    "ObjectMasks", "OpenSuite", "PixelLabels", "ReadOptions", "Record", "Scene", "SegmentMap", "Shift",
    "Suite", "find_suite", "open_coco", "open_depth", "open_panoptic", "open_photos", "open_semantic",
    "open_set", "open_suite", "scene", "shift_data_set", "write_scenes", "write_suite",
]  # fmt: skip
