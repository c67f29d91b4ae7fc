"""Data sets annotated in COCO's JSON: COCO val2017 with boxes, masks or segments, the domains of COCO-O, custom sets.

``annotations/instances_<split>.json`` lists images, categories and objects. ``annotations/panoptic_<split>.json`` lists
categories (``isthing`` separates things from stuff) and, for every image, a PNG file of ``annotations/panoptic_<split>/``
whose colours are segments, with what each segment is.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec

from gramloop.data.checks import check_headers, raise_problems
from gramloop.data.records import DataSet, Record
from gramloop.data.truth import Annotation, mask_area
from gramloop.errors import GramLoopError
from gramloop.util.json_files import checked, read_json

Id = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]  # what every JSON parser reads exactly
Number = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]  # neither infinite nor NaN, which is in no range
NonNegative = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
PixelCount = Annotated[int, msgspec.Meta(ge=1, le=2**31)]
FileName = Annotated[str, msgspec.Meta(min_length=1)]
CocoKind = Literal["instances", "panoptic"]
_C = TypeVar("_C")
_E = TypeVar("_E")

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


class PanopticCategory(CategoryEntry, kw_only=True, gc=False):
    """A category of a panoptic set: things can be counted, stuff cannot."""

    isthing: Literal[0, 1]


class RunLengthEntry(msgspec.Struct, gc=False):
    """A mask as run lengths, or as COCO's letters for them."""

    size: tuple[PixelCount, PixelCount]
    counts: list[Annotated[int, msgspec.Meta(ge=0, le=2**62)]] | str


class ObjectEntry(msgspec.Struct, gc=False):
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


class CocoFile(msgspec.Struct, Generic[_E, _C], gc=False):
    """The content of a file of objects, or of segments."""

    images: Annotated[list[ImageEntry], msgspec.Meta(min_length=1)]
    annotations: list[_E]
    categories: list[_C]


def open_coco(root: Path | str) -> DataSet:
    """Open a COCO-format set and check it whole.

    Args:
        root: the folder with ``annotations/instances_<split>.json`` and ``<split>/``, or one that holds
            it as ``coco/``.

    Returns:
        A data set whose records have ``instances`` and, where objects have segmentations, ``object_masks``.
    """
    path = find_annotation_file(Path(root), "instances")
    raw = read_coco(path)
    content = checked(raw, CocoFile[ObjectEntry, CategoryEntry], str(path), COCO_FORMAT)
    data = _opened(content, Path(root), path, "detection")
    problems = _repeated("annotation", (entry["id"] for entry in raw["annotations"]))
    by_image: dict[int, list[Annotation]] = defaultdict(list)
    for entry in raw["annotations"]:
        by_image[entry["image_id"]].append(
            {"area": entry["bbox"][2] * entry["bbox"][3], "iscrowd": 0, **entry}
        )
        if entry["category_id"] not in data.categories:
            problems.append(
                f"annotation {entry['id']} has category {entry['category_id']}, which is not listed"
            )
    problems += _unlisted_images(by_image, data)
    notes = []
    for zero in (entry for entries in by_image.values() for entry in entries if entry["id"] == 0):
        number = zero["id"] = 1 + max(entry["id"] for entry in raw["annotations"])  # type: ignore[index]
        notes.append(f"annotation id 0 was renumbered to {number}: COCO's evaluator takes 0 for no match")
    records = tuple(replace(one, annotations=tuple(by_image.get(int(one.image_id), ()))) for one in data)
    data = check_headers(replace(data, records=records, notes=tuple(notes)), problems)
    problems += (problem for record in data if record.height for problem in _object_problems(record))
    raise_problems(path, problems)
    return data


def open_panoptic(root: Path | str) -> DataSet:
    """Open a panoptic set in COCO's format and check it whole.

    Args:
        root: the folder with ``annotations/panoptic_<split>.json``, a folder of that name with the PNG files, or these
            next to it, and ``<split>/``; or one that holds it as ``coco/``.

    Returns:
        A data set whose records have ``segments``.
    """
    path = find_annotation_file(Path(root), "panoptic")
    raw = read_coco(path)
    content = checked(raw, CocoFile[SegmentsEntry, PanopticCategory], str(path), COCO_FORMAT)
    data = _opened(content, Path(root), path, "panoptic")
    by_image = {entry["image_id"]: entry for entry in raw["annotations"]}
    problems = _repeated("the annotation of image", (entry["image_id"] for entry in raw["annotations"]))
    problems += _unlisted_images(by_image, data)
    records = []
    for record in data:
        if (entry := by_image.get(record.image_id)) is None:
            problems.append(f"image {record.image_id} has no annotation")
            continue
        owner, infos = f"the annotation of image {record.image_id}", entry["segments_info"]
        if _leads_out(entry["file_name"]):
            problems.append(f"{owner} has a PNG file {entry['file_name']!r} outside of its folder")
        problems += _repeated(f"{owner}: segment", (info["id"] for info in infos))
        for category in {info["category_id"] for info in infos} - data.categories.keys():
            problems.append(f"{owner} has a segment of category {category}, which is not listed")
        colours = maps_folder(path) / entry["file_name"]
        records.append(replace(record, label_path=colours, annotations=tuple(infos)))
    raise_problems(path, problems)
    things = frozenset(each.id for each in content.categories if each.isthing)
    data = check_headers(replace(data, records=tuple(records), things=things), problems)
    raise_problems(path, problems)
    return data


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
    content: dict[str, Any] = read_json(file, COCO_FORMAT, largest=LARGEST_COCO)
    return content


def _opened(content: CocoFile[Any, Any], root: Path, file: Path, task: str) -> DataSet:
    """The images in the first usual folder that holds any of them, without annotations."""
    names = [entry.file_name for entry in content.images]
    problems = [
        *_repeated("image id", (each.id for each in content.images)),
        *_repeated("category id", (each.id for each in content.categories)),
        *_repeated("file_name", names),
        *(f"file_name {name!r} leads out of the folder it belongs in" for name in names if _leads_out(name)),
    ]
    raise_problems(file, problems)
    base = file.parent.parent if file.parent.name == "annotations" else file.parent
    split = file.stem.removeprefix("instances_").removeprefix("panoptic_")
    usual = [base / split, base / "images" / split, base / "images", base, root]
    where = next((each for each in usual if any(os.path.isfile(each / name) for name in names[:20])), None)
    if where is None:
        searched = ", ".join(str(folder) for folder in usual[:3])
        raise GramLoopError(f"the images of {file} were not found; searched in {searched}")
    records = tuple(
        Record(entry.id, where / entry.file_name, entry.file_name, entry.height or 0, entry.width or 0)
        for entry in content.images
    )
    categories = {each.id: each.name or str(each.id) for each in content.categories}
    return DataSet(root, task, records, categories, file)


def _repeated(what: str, values: Iterable[Any]) -> list[str]:
    return [f"{what} {value!r} occurs {count} times" for value, count in Counter(values).items() if count > 1]


def _leads_out(name: str) -> bool:
    """Whether a file_name is not one of a file below the folder it belongs in."""
    return ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute()


def _unlisted_images(found: Iterable[int], data: DataSet) -> list[str]:
    listed = {record.image_id for record in data}
    return [
        f"an annotation belongs to image {each}, which is not listed" for each in found if each not in listed
    ]


def _object_problems(record: Record) -> Iterator[str]:
    """What is wrong between the objects of an image and its size."""
    height, width = record.height, record.width
    for entry in record.annotations or ():
        shape, owner = entry.get("segmentation"), f"annotation {entry['id']} has"
        if isinstance(shape, dict):
            counts, (high, wide) = shape["counts"], shape["size"]
            try:
                mask_area(shape)
            except (ValueError, TypeError, OverflowError) as error:
                yield f"{owner} a segmentation that cannot be read: {error}"
            if (high, wide) != (height, width):
                yield f"{owner} run lengths of {wide} x {high} pixels, but its image is {width} x {height}"
            elif isinstance(counts, list) and sum(counts) != height * width:
                yield f"{owner} run lengths that add up to {sum(counts)}, not to {height} x {width}"
        elif odd := next((len(polygon) for polygon in shape or () if len(polygon) % 2), 0):
            yield f"{owner} a polygon of {odd} numbers, where every point has two"
        x, y, wide, high = entry["bbox"]
        if x > width or y > height or x + wide < 0 or y + high < 0:
            yield f"{owner} the box {entry['bbox']}, which lies outside its image of {width} x {height}"
