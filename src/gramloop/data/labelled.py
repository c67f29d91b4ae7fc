"""An image in memory with its truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gramloop.data.depth_maps import DepthMap
from gramloop.data.object_masks import ObjectMasks
from gramloop.data.records import Image8, ImageId, Instances, LabelMap
from gramloop.data.segment_maps import SegmentMap


@dataclass(frozen=True)
class PixelLabels:
    """The class of every pixel of an image."""

    indices: LabelMap  # (H, W)
    ignored: int = 255  # the index of pixels that are not scored


Truth = PixelLabels | Instances | DepthMap | SegmentMap | ObjectMasks


@dataclass(frozen=True)
class LabelledImage:
    """An image with its truth; None where it has no labels, or they are not asked for."""

    image_id: ImageId
    pixels: Image8  # (H, W, 3) RGB
    truth: Any  # as the task has it, a `Truth` for those built in
