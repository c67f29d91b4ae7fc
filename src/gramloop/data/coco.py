"""Data sets annotated in COCO's JSON: COCO val2017 with boxes, masks or segments, the domains of COCO-O, custom sets.

``annotations/instances_<split>.json`` lists images, categories and objects. ``annotations/panoptic_<split>.json`` lists
categories (``isthing`` separates things from stuff) and, for every image, a PNG file of ``annotations/panoptic_<split>/``
whose colours are segments, with what each segment is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from gramloop.data.checks import Problems, check_records
from gramloop.data.records import DataSet, Record
from gramloop.data.truth import Annotation, mask_area
from gramloop.errors import GramLoopError
from gramloop.util.json_files import checked, read_json

Id = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # what every JSON parser reads exactly
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # neither infinite nor NaN, which is in no range
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PixelCount = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
FileName = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
CocoKind = Literal["instances", "panoptic"]
E = TypeVar("E")

COCO_CATEGORY_IDS = frozenset(range(1, 91)) - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
_STUFF = """92 93 95 100 107 109 112 118 119 122 125 128 130 133 138 141 144 145 147 148 149 151 154 155 156 159 161 166 168 171
175 176 177 178 180 181 184 185 186 187 188 189 190 191 192 193 194 195 196 197 198 199 200"""
STUFF_IDS = frozenset(map(int, _STUFF.split()))
LOOSE_FILES = ("instances.json", "annotations.json", "_annotations.coco.json")
LARGEST_COCO = 1 << 32  # bytes; COCO's training file of 860,000 objects has 450 million
COCO_FORMAT = "a file of annotations in COCO format, with images, annotations and categories"


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


class CocoFile(msgspec.Struct, Generic[E], gc=False):
    """The content of a file of objects, or of segments."""

    images: Annotated[list[ImageEntry], msgspec.Meta(min_length=1)]
    annotations: list[E]
    categories: list[CategoryEntry]


@dataclass(frozen=True)
class Expected:
    """What a public set is known to hold; None where nothing is known."""

    images: int | None = None
    annotations: int | None = None
    category_ids: frozenset[int] | None = None


COCO_VAL2017 = Expected(5000, 36781, COCO_CATEGORY_IDS)
PANOPTIC_VAL2017 = Expected(5000, 5000, COCO_CATEGORY_IDS | STUFF_IDS)


def open_coco(root: Path | str, *, expected: Expected | None = None) -> DataSet:
    """Open a COCO-format set and check it whole.

    Args:
        root: the folder with ``annotations/instances_<split>.json`` and ``<split>/``, or one that holds
            it as ``coco/``.
        expected: counts and categories that must be met.

    Returns:
        A data set whose records have ``instances`` and, where objects have segmentations, ``object_masks``.
    """
    root = Path(root)
    path = find_annotation_file(root, "instances")
    raw = read_coco(path)
    content = checked(raw, CocoFile[AnnotationEntry], str(path), COCO_FORMAT)
    problems = Problems(path)
    _check_lists(content, expected, problems)
    objects, notes = _objects(content, raw["annotations"], problems)
    records = []
    for record in check_records(_records(content, root, path), problems):
        found = objects.get(int(record.image_id), ())
        for _, one in found if record.height else ():
            problems.found += _object_problems(one, record.height, record.width)
        records.append(replace(record, annotations=tuple(entry for entry, _ in found)))
    problems.raise_if_any()
    return DataSet(root, "detection", tuple(records), _category_names(content), path, notes)


def open_panoptic(root: Path | str, *, expected: Expected | None = None) -> DataSet:
    """Open a panoptic set in COCO's format and check it whole.

    Args:
        root: the folder with ``annotations/panoptic_<split>.json``, a folder of that name with the PNG files, or these
            next to it, and ``<split>/``; or one that holds it as ``coco/``.
        expected: counts and categories that must be met.

    Returns:
        A data set whose records have ``segments``.
    """
    root = Path(root)
    path = find_annotation_file(root, "panoptic")
    raw = read_coco(path)
    content = checked(raw, CocoFile[SegmentsEntry], str(path), COCO_FORMAT)
    problems = Problems(path)
    _check_lists(content, expected, problems)
    segments = _segments(content, raw["annotations"], problems)
    records = []
    for record in _records(content, root, path):
        entry = segments[int(record.image_id)]
        colours, infos = maps_folder(path) / entry["file_name"], tuple(entry["segments_info"])
        records.append(replace(record, label_path=colours, annotations=infos))
    found = check_records(records, problems)
    problems.raise_if_any()
    things = frozenset(each.id for each in content.categories if each.isthing)
    return DataSet(root, "panoptic", found, _category_names(content), path, things=things)


def coco_root(root: Path, kind: CocoKind = "instances") -> Path | None:
    """The folder at or below ``root`` that holds COCO annotations of a kind, or None."""
    return next((folder for folder in (root, root / "coco") if _annotation_files(folder, kind)), None)


def find_annotation_file(root: Path, kind: CocoKind) -> Path:
    """The one file of annotations of a kind at or below a folder; that of val2017 where there are several."""
    preferred, folder = f"{kind}_val2017.json", coco_root(root, kind)
    if folder is None:
        raise GramLoopError(
            f"{root} has no COCO annotations: it needs annotations/{preferred} or another {kind}_*.json"
        )
    files = _annotation_files(folder, kind)
    chosen = [file for file in files if file.name == preferred] or files
    if len(chosen) > 1:
        raise GramLoopError(
            f"{folder} holds several annotation files ({', '.join(file.name for file in files)}); keep one there"
        )
    return chosen[0]


def _annotation_files(folder: Path, kind: CocoKind) -> list[Path]:
    loose = LOOSE_FILES if kind == "instances" else (f"{kind}.json",)
    files = sorted((folder / "annotations").glob(f"{kind}_*.json"))
    return files or [folder / name for name in loose if (folder / name).is_file()]


def maps_folder(file: Path) -> Path:
    """Where the PNG files of a panoptic JSON file lie: in the folder of its name, or next to it."""
    return file.with_suffix("") if file.with_suffix("").is_dir() else file.parent


def read_coco(file: Path) -> dict[str, Any]:
    """The content of a file of annotations as it is."""
    content: dict[str, Any] = read_json(file, COCO_FORMAT, largest=LARGEST_COCO, fast=True)
    return content


def _records(content: CocoFile[Any], root: Path, file: Path) -> list[Record]:
    """The images in the first usual folder that holds any of them, with the sizes that the file declares."""
    base = file.parent.parent if file.parent.name == "annotations" else file.parent
    split = file.stem.removeprefix("instances_").removeprefix("panoptic_")
    usual = [base / split, base / "images" / split, base / "images", base, root]
    names = [entry.file_name for entry in content.images[:20]]
    where = next((folder for folder in usual if any((folder / name).is_file() for name in names)), None)
    if where is None:
        searched = ", ".join(str(folder) for folder in usual[:3])
        raise GramLoopError(f"the images of {file} were not found; searched in {searched}")
    return [
        Record(entry.id, where / entry.file_name, entry.file_name, entry.height or 0, entry.width or 0)
        for entry in content.images
    ]


def _category_names(content: CocoFile[Any]) -> dict[int, str]:
    return {each.id: each.name or str(each.id) for each in content.categories}


def _check_lists(content: CocoFile[Any], expected: Expected | None, problems: Problems) -> None:
    """Refuse ids and names that occur twice or lead elsewhere; collect what is not as in the public set."""
    ids = {
        "image": [each.id for each in content.images],
        "category": [each.id for each in content.categories],
    }
    for what, listed in ids.items():
        for number, count in Counter(listed).items():
            if count > 1:
                problems.add(f"{what} id {number} occurs more than once")
    for name, count in Counter(entry.file_name for entry in content.images).items():
        problems.add(_name_problem(name))
        if count > 1:
            problems.add(f"file_name {name!r} occurs {count} times")
    problems.raise_if_any()
    if expected is None:
        return
    for what, wanted in (("images", expected.images), ("annotations", expected.annotations)):
        if wanted is not None and len(getattr(content, what)) != wanted:
            problems.add(f"it lists {len(getattr(content, what))} {what}, not {wanted}")
    known, found = expected.category_ids, set(ids["category"])
    if known is not None and found != known:
        problems.add(
            f"its category ids are not COCO's {len(known)} (lacking {sorted(known - found)}, "
            f"unknown {sorted(found - known)})"
        )


def _name_problem(name: str) -> str:
    """Why a file_name cannot be used, or an empty text."""
    path = PurePosixPath(name)
    if ".." in path.parts or path.is_absolute():
        return f"file_name {name!r} leads out of the folder it belongs in"
    if "\0" in name or max(len(part.encode()) for part in name.split("/")) > 255:
        return f"file_name {name[:60]!r} cannot be the name of a file"
    return ""


Objects = Mapping[int, list[tuple[Annotation, AnnotationEntry]]]  # by image: as in the file, and checked


def _objects(
    content: CocoFile[AnnotationEntry], listed: Sequence[Annotation], problems: Problems
) -> tuple[Objects, tuple[str, ...]]:
    """Annotations by image; id 0, which the reference evaluator counts as unmatched, gets a new number."""
    by_image: dict[int, list[tuple[Annotation, AnnotationEntry]]] = defaultdict(list)
    images, categories = ({each.id for each in part} for part in (content.images, content.categories))
    notes: tuple[str, ...] = ()
    seen: set[int] = set()
    for entry, one in zip(listed, content.annotations, strict=True):
        if one.id in seen:
            problems.add(f"annotation {one.id} occurs more than once")
        elif one.image_id not in images:
            problems.add(f"annotation {one.id} belongs to image {one.image_id}, which is not listed")
        elif one.category_id not in categories:
            problems.add(f"annotation {one.id} has category {one.category_id}, which is not listed")
        complete = {"area": one.bbox[2] * one.bbox[3], "iscrowd": 0, **entry}
        if one.id == 0:
            number = complete["id"] = 1 + max(other.id for other in content.annotations)
            notes = (f"annotation id 0 was renumbered to {number}: COCO's evaluator takes 0 for no match",)
        by_image[one.image_id].append((complete, one))
        seen.add(one.id)
    return by_image, notes


def _object_problems(one: AnnotationEntry, height: int, width: int) -> list[str]:
    """What is wrong between an object and the size of its image."""
    found, shape = [], one.segmentation
    if isinstance(shape, RunLengthEntry):
        try:
            mask_area({"size": list(shape.size), "counts": shape.counts})
        except (ValueError, TypeError, OverflowError) as error:
            found.append(f"has a segmentation that cannot be read: {error}")
        if tuple(shape.size) != (height, width):
            size = f"{shape.size[1]} x {shape.size[0]}"
            found.append(f"has run lengths of {size} pixels, but its image is {width} x {height}")
        elif isinstance(shape.counts, list) and sum(shape.counts) != height * width:
            found.append(f"has run lengths that add up to {sum(shape.counts)}, not to {height} x {width}")
    elif odd := next((len(polygon) for polygon in shape or () if len(polygon) % 2), 0):
        found.append(f"has a polygon of {odd} numbers, where every point has two")
    x, y, wide, high = one.bbox
    if x > width or y > height or x + wide < 0 or y + high < 0:
        found.append(f"has the box {list(one.bbox)}, which lies outside its image of {width} x {height}")
    return [f"annotation {one.id} {problem}" for problem in found]


def _segments(
    content: CocoFile[SegmentsEntry], listed: Sequence[Annotation], problems: Problems
) -> dict[int, Annotation]:
    """The entry of every image, its PNG file and segments; raises where one is wrong or missing."""
    by_image: dict[int, Annotation] = {}
    images, categories = ({each.id for each in part} for part in (content.images, content.categories))
    for each in content.categories:
        if each.isthing is None:
            problems.add(f"category {each.id} has isthing None; it is 1 or 0")
    for position, (entry, one) in enumerate(zip(listed, content.annotations, strict=True)):
        owner = f"the annotation of image {one.image_id}"
        if one.image_id not in images:
            problems.add(f"annotation {position} belongs to image {one.image_id}, which is not listed")
        if one.image_id in by_image:
            problems.add(f"image {one.image_id} has more than one annotation")
        if problem := _name_problem(one.file_name):
            problems.add(f"{owner} has a PNG file whose {problem}")
        for number, count in Counter(info.id for info in one.segments_info).items():
            if count > 1:
                problems.add(f"{owner} lists segment {number} more than once")
        for info in one.segments_info:
            if info.category_id not in categories:
                problems.add(f"{owner} has a segment of category {info.category_id}, which is not listed")
        by_image[one.image_id] = entry
    for image in sorted(images - by_image.keys()):
        problems.add(f"image {image} has no annotation")
    problems.raise_if_any()
    return by_image
