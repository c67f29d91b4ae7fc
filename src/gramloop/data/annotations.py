"""The entries of a COCO file, every field that is read checked: its type, its range, and that it is finite.

All entries are compared with a schema at once, which costs little. Only where that fails are they looked at one by
one, so that every wrong one is told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from gramloop.data.checks import Problems
from gramloop.data.run_lengths import runs_of
from gramloop.errors import GramLoopError, short_repr

Entry = Mapping[str, Any]
Id = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # what every reader of JSON can count to
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # neither infinite nor NaN, which is in no range
Size = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
Pixels = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
Run = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class ImageEntry(msgspec.Struct, gc=False):
    """An image; its size may be left out."""

    id: Id
    file_name: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    height: Pixels | None = None
    width: Pixels | None = None


class CategoryEntry(msgspec.Struct, gc=False):
    """A category; without a name it is called by its id."""

    id: Id
    name: str = ""
    isthing: Literal[0, 1] | None = None  # of a panoptic set, where every category says it


class RunLengthEntry(msgspec.Struct, gc=False):
    """A mask as run lengths, or as COCO's letters for them."""

    size: tuple[Pixels, Pixels]
    counts: list[Run] | str


class AnnotationEntry(msgspec.Struct, gc=False):
    """An object; its area is that of its box where it is left out."""

    id: Id
    image_id: Id
    category_id: Id
    bbox: tuple[Number, Number, Size, Size]
    area: Size = 0.0
    iscrowd: Literal[0, 1] = 0
    segmentation: list[Annotated[list[Number], msgspec.Meta(min_length=6)]] | RunLengthEntry | None = None


class SegmentEntry(msgspec.Struct, gc=False):
    """What a segment of a panoptic map is; its id is a colour."""

    id: Annotated[int, msgspec.Meta(ge=1, lt=256**3)]
    category_id: Id
    iscrowd: Literal[0, 1] = 0


class SegmentsEntry(msgspec.Struct, gc=False):
    """The panoptic map of an image."""

    image_id: Id
    file_name: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
    segments_info: list[SegmentEntry]


_RIGHT = {
    "id": "a whole number",
    "image_id": "a whole number",
    "category_id": "a whole number",
    "file_name": "the path of an image",
    "name": "a text",
    "height": "a number of pixels",
    "width": "a number of pixels",
    "isthing": "0 or 1",
    "segments_info": "a list of segments, whose ids are colours, 1 to 16777215",
    "area": "a finite number, 0 or more",
    "iscrowd": "0 or 1",
    "bbox": "four finite numbers x, y, width, height",
    "segmentation": "polygons x0, y0, x1, y1, x2, y2, … of finite numbers, or run lengths",
}

E = TypeVar("E", ImageEntry, CategoryEntry, AnnotationEntry, SegmentsEntry)


def checked_entries(entries: Sequence[Any], kind: type[E], what: str, problems: Problems) -> list[E | None]:
    """Every entry as ``kind``, None for one that is none; ``what`` is the name of the list in the file."""
    try:
        return list(msgspec.convert(entries, list[kind]))  # type: ignore[valid-type]
    except (msgspec.ValidationError, RecursionError):
        return [_checked(entry, kind, what, place, problems) for place, entry in enumerate(entries)]


def _checked(entry: Any, kind: type[E], what: str, place: int, problems: Problems) -> E | None:
    try:
        return msgspec.convert(entry, kind)
    except RecursionError:
        problems.add(f"{what}[{place}] is nested too deeply")
    except msgspec.ValidationError as error:
        problems.add(_problem(str(error), entry, what, place))
    return None


def _problem(said: str, entry: Any, what: str, place: int) -> str:
    if not isinstance(entry, dict):
        return f"{what}[{place}] is {short_repr(entry)}, not an object with fields"
    words, _, path = said.partition(" - at `$.")
    path = path.rstrip("`")
    name = _name(entry, what, place)
    if not path:
        missing = next(field for field in _RIGHT if f"field `{field}`" in words)
        return f"{name} lacks {missing}: {_RIGHT[missing]}"
    field = path.split("[")[0].split(".")[0]
    inner = f" ({path}: {words[:1].lower()}{words[1:]})" if path != field or "missing" in words else ""
    return f"{name} has {field} {short_repr(entry.get(field))}, not {_RIGHT[field]}{inner}"


def _name(entry: Entry, what: str, place: int) -> str:
    """An entry by its place in the file, and by its id where it has one."""
    number = entry.get("id")
    return f"{what}[{place}]" + (f" (id {number})" if type(number) is int else "")


def segmentation_problem(annotation: AnnotationEntry, height: int, width: int) -> str:
    """What is wrong between an object's segmentation and the size of its image, or nothing."""
    found = annotation.segmentation
    if isinstance(found, list):
        odd = next((len(polygon) for polygon in found if len(polygon) % 2), 0)
        return f"has a polygon of {odd} numbers, where every point has two" if odd else ""
    if found is None:
        return ""
    if tuple(found.size) != (height, width):
        return f"has run lengths of {found.size[1]} x {found.size[0]} pixels, but its image is {width} x {height}"
    try:
        runs = runs_of(found.counts)
    except GramLoopError as error:
        return f"has a segmentation whose counts {error}"
    total = int(runs.sum())
    if runs.min(initial=0) < 0:
        return f"has a run of {runs.min()} pixels"
    return (
        ""
        if total == height * width
        else f"has run lengths that add up to {total}, not to {height} x {width}"
    )


def outside(annotation: AnnotationEntry, height: int, width: int) -> bool:
    """Whether an object's box has no point in common with its image."""
    x, y, wide, high = annotation.bbox
    return x > width or y > height or x + wide < 0 or y + high < 0
