"""An image in memory with what is known to be in it, read from a record or given by somebody."""

from __future__ import annotations

from dataclasses import dataclass

from gramloop.data.contents import ChangedFileError, refuse_change
from gramloop.data.depth_maps import DepthMap
from gramloop.data.object_masks import ObjectMasks
from gramloop.data.records import Image8, ImageId, Instances, LabelMap, Record, Task
from gramloop.data.segment_maps import SegmentMap
from gramloop.errors import GramLoopError


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
    truth: Truth | None


def read_labelled(record: Record | LabelledImage, task: Task, labels: bool = True) -> LabelledImage | str:
    """The image and, where ``labels`` are wanted, the truth of a record; or a sentence about what is wrong with them."""
    try:
        found = record if isinstance(record, LabelledImage) else _decoded(record, task, labels)
    except ChangedFileError:  # no image to be left out, but another one
        raise
    except GramLoopError as error:
        return str(error)
    name = record.image_id if isinstance(record, LabelledImage) else record.path
    return _misfit(found, str(name)) or found


def _misfit(found: LabelledImage, name: str) -> str:
    """What is wrong between an image and its truth, or nothing."""
    truth = found.truth
    if truth is None or isinstance(truth, Instances):
        return ""
    what, shape = _named_shape(truth)
    if shape != found.pixels.shape[:2]:
        verb = "is" if what == "depth" else "are"
        return f"the {what} of {name} {verb} {shape[1]} x {shape[0]}, unlike the image"
    if isinstance(truth, DepthMap) and not truth.known.any():
        return f"the depth of {name} is known at no pixel between {truth.near:g} and {truth.far:g} m"
    return ""


def _named_shape(truth: PixelLabels | DepthMap | SegmentMap | ObjectMasks) -> tuple[str, tuple[int, ...]]:
    if isinstance(truth, DepthMap):
        return "depth", truth.metres.shape
    if isinstance(truth, SegmentMap):
        return "segments", truth.ids.shape
    return ("masks", truth.size) if isinstance(truth, ObjectMasks) else ("labels", truth.indices.shape)


def _decoded(record: Record, task: Task, labels: bool) -> LabelledImage:
    refuse_change(record)
    pixels = record.image()
    high, wide = pixels.shape[:2]
    if (high, wide) != (record.height, record.width):
        raise GramLoopError(f"{record.path} is {wide} x {high}, but was {record.width} x {record.height}")
    if not labels:
        return LabelledImage(record.image_id, pixels, None)
    if task == "detection":
        return LabelledImage(record.image_id, pixels, record.instances())
    if task == "depth":
        return LabelledImage(record.image_id, pixels, record.depth())
    if task == "panoptic":
        return LabelledImage(record.image_id, pixels, record.segments())
    if task == "instance":
        return LabelledImage(record.image_id, pixels, record.object_masks())
    ignored = 255 if record.classes is None else record.classes.ignored
    return LabelledImage(record.image_id, pixels, PixelLabels(record.labels(), ignored))
