"""What a user ought to know of a set before it is evaluated: whether anything can be scored, and how it is turned."""

from __future__ import annotations

import warnings
from contextlib import suppress
from itertools import islice

from gramloop.data.checks import orientation
from gramloop.data.records import DataSet, Record, Task
from gramloop.errors import GramLoopError, GramLoopWarning


def refuse_unscorable(data: DataSet, images: int) -> None:
    """Refuse a set in whose first so many images there is nothing to be found; looks until it finds something."""
    for record in islice(data, images):
        with suppress(GramLoopError):  # an image that cannot be read is told where it is evaluated
            if _scorable(record, data.task):
                return
    what = {
        "semantic": "every pixel of their label pictures is unlabelled or ignored",
        "depth": "no pixel has a known depth in the range that is scored",
    }.get(data.task, "they show no objects, or crowds alone")
    raise GramLoopError(f"{data.root} cannot be evaluated: it has {images} images, and {what}")


def _scorable(record: Record, task: Task) -> bool:
    if task == "semantic":
        assert record.classes is not None
        return bool((record.labels() != record.classes.ignored).any())
    if task == "depth":
        return bool(record.depth().known.any())
    return any(not entry.get("iscrowd", 0) for entry in record.shown_annotations())


def warn_of_turned(data: DataSet, images: int) -> None:
    """Say so where images carry a tag that turns them: labels fit the pixels as stored, and predict turns them."""
    turned = [
        record.path for record in islice(data, images) if not record.upright and orientation(record.path) != 1
    ]
    if turned:
        warnings.warn(
            f"{len(turned)} of {images} images in {data.root} carry an EXIF tag that turns them, such as {turned[0].name}; "
            "they are evaluated as their pixels are stored, which is how labels fit them, but gramloop predict turns them",
            GramLoopWarning,
            stacklevel=3,
        )
