"""The entries of a COCO file, with every field that is read checked: its type, its range, and that it is finite.

All entries are compared with a schema at once, which costs little. Only where that fails are they checked one by one, so
that every wrong one is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from gramloop.data.checks import Problems
from gramloop.data.masks import parse_runs
from gramloop.errors import GramLoopError, short_repr

Id = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # what every JSON parser reads exactly
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # neither infinite nor NaN, which is in no range
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PixelCount = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]


class ImageEntry(msgspec.Struct, gc=False):
    """An image; its size may be left out."""

    id: Id
    file_name: FileName
    height: PixelCount | None = None
    width: PixelCount | None = None


class CategoryEntry(msgspec.Struct, gc=False):
    """A category; without a name it is called by its id."""

    id: Id
    name: str = ""
    isthing: Literal[0, 1] | None = None  # required in a panoptic set


class RunLengthEntry(msgspec.Struct, gc=False):
    """A mask as run lengths, or as COCO's letters for them."""

    size: tuple[PixelCount, PixelCount]
    counts: list[Annotated[int, msgspec.Meta(ge=0, le=2**62)]] | str


class AnnotationEntry(msgspec.Struct, gc=False):
    """An object; its area is that of its box where it is left out."""

    id: Id
    image_id: Id
    category_id: Id
    bbox: tuple[Number, Number, NonNegative, NonNegative]
    area: NonNegative = 0.0
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
    file_name: FileName
    segments_info: list[SegmentEntry]


_EXPECTED = {
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
    """Every entry as ``kind``, None for a wrong one; ``what`` is the name of the list in the file."""
    try:
        return list(msgspec.convert(entries, list[kind]))  # type: ignore[valid-type]
    except (msgspec.ValidationError, RecursionError):
        return [_checked(entry, kind, f"{what}[{place}]", problems) for place, entry in enumerate(entries)]


def _checked(entry: Any, kind: type[E], where: str, problems: Problems) -> E | None:
    try:
        return msgspec.convert(entry, kind)
    except RecursionError:
        problems.add(f"{where} is nested too deeply")
    except msgspec.ValidationError as error:
        problems.add(_problem(str(error), entry, where))
    return None


def _problem(reason: str, entry: Any, where: str) -> str:
    if not isinstance(entry, dict):
        return f"{where} is {short_repr(entry)}, not an object with fields"
    words, _, path = reason.partition(" - at `$.")
    path = path.rstrip("`")
    name = f"{where} (id {entry['id']})" if type(entry.get("id")) is int else where
    if not path:
        missing = next(field for field in _EXPECTED if f"field `{field}`" in words)
        return f"{name} lacks {missing}: {_EXPECTED[missing]}"
    field = path.split("[")[0].split(".")[0]
    inner = f" ({path}: {words[:1].lower()}{words[1:]})" if path != field or "missing" in words else ""
    return f"{name} has {field} {short_repr(entry.get(field))}, not {_EXPECTED[field]}{inner}"


def annotation_problems(one: AnnotationEntry, height: int, width: int) -> list[str]:
    """What is wrong between an object and the size of its image."""
    found = []
    x, y, wide, high = one.bbox
    if x > width or y > height or x + wide < 0 or y + high < 0:
        found.append(f"has the box {list(one.bbox)}, which lies outside its image of {width} x {height}")
    found.append(_segmentation_problem(one, height, width))
    return [f"annotation {one.id} {problem}" for problem in found if problem]


def _segmentation_problem(one: AnnotationEntry, height: int, width: int) -> str:
    found = one.segmentation
    if isinstance(found, list):
        odd = next((len(polygon) for polygon in found if len(polygon) % 2), 0)
        return f"has a polygon of {odd} numbers, where every point has two" if odd else ""
    if found is None:
        return ""
    if tuple(found.size) != (height, width):
        return f"has run lengths of {found.size[1]} x {found.size[0]} pixels, but its image is {width} x {height}"
    try:
        runs = parse_runs(found.counts)
    except GramLoopError as error:
        return f"has a segmentation whose counts {error}"
    if runs.min(initial=0) < 0:
        return f"has a run of {runs.min()} pixels"
    total = int(runs.sum())
    return (
        ""
        if total == height * width
        else f"has run lengths that add up to {total}, not to {height} x {width}"
    )
