"""An image in memory with what is known to be in it, read from a record or given by somebody."""

from __future__ import annotations

from dataclasses import dataclass

from gramloop.data.records import Image8, ImageId, Instances, LabelMap, Record, Task
from gramloop.errors import GramLoopError


@dataclass(frozen=True)
class PixelLabels:
    """The class of every pixel of an image."""

    indices: LabelMap  # (H, W)
    ignored: int = 255  # the index of pixels that are not scored


Truth = PixelLabels | Instances


@dataclass(frozen=True)
class LabelledImage:
    """An image with its truth."""

    image_id: ImageId
    pixels: Image8  # (H, W, 3) RGB
    truth: Truth


def read_labelled(record: Record | LabelledImage, task: Task) -> LabelledImage | str:
    """The image and the truth of a record, decoded; or a sentence about what is wrong with them."""
    try:
        found = record if isinstance(record, LabelledImage) else _decoded(record, task)
    except GramLoopError as error:
        return str(error)
    if isinstance(found.truth, PixelLabels) and found.truth.indices.shape != found.pixels.shape[:2]:
        name = record.image_id if isinstance(record, LabelledImage) else record.path
        high, wide = found.truth.indices.shape
        return f"the labels of {name} are {wide} x {high}, unlike the image"
    return found


def _decoded(record: Record, task: Task) -> LabelledImage:
    pixels = record.image()
    high, wide = pixels.shape[:2]
    if (high, wide) != (record.height, record.width):
        raise GramLoopError(f"{record.path} is {wide} x {high}, but was {record.width} x {record.height}")
    if task == "detection":
        return LabelledImage(record.image_id, pixels, record.instances())
    ignored = 255 if record.classes is None else record.classes.ignored
    return LabelledImage(record.image_id, pixels, PixelLabels(record.labels(), ignored))
