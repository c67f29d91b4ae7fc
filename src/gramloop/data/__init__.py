"""Labelled image sets: readers for the public layouts, suites of shifted conditions, procedural scenes."""

from typing import TYPE_CHECKING

from gramloop.lazy import lazy_names

if TYPE_CHECKING:
    from gramloop.data.opening import (
        READERS,
        OpenSuite,
        Reader,
        ReadOptions,
        open_photos,
        open_set,
        open_suite,
    )
    from gramloop.data.readers.coco import open_coco
    from gramloop.data.readers.depth import open_depth
    from gramloop.data.readers.panoptic import open_panoptic
    from gramloop.data.readers.semantic import open_semantic
    from gramloop.data.records import ClassList, DataSet, LabelledImage, Record
    from gramloop.data.scenes.drawing import Scene, scene
    from gramloop.data.scenes.files import write_scenes
    from gramloop.data.shifted import Shift, shift_data_set
    from gramloop.data.suites import Condition, Suite, find_suite
    from gramloop.data.truth import DepthFormat, DepthMap, Instances, ObjectMasks, PixelLabels, SegmentMap
    from gramloop.data.writing import write_suite
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "READERS", "ClassList", "Condition", "DataSet", "DepthFormat", "DepthMap", "Instances", "LabelledImage",
    "ObjectMasks", "OpenSuite", "PixelLabels", "ReadOptions", "Reader", "Record", "Scene", "SegmentMap", "Shift",
    "Suite", "find_suite", "open_coco", "open_depth", "open_panoptic", "open_photos", "open_semantic",
    "open_set", "open_suite", "scene", "shift_data_set", "write_scenes", "write_suite",
]  # fmt: skip
