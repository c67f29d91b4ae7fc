"""Data sets annotated in COCO's JSON: COCO val2017, the domains of COCO-O, and custom sets."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, Unpack

import msgspec

from gramloop.data.checks import Check, Problems, check_records, name_problem
from gramloop.data.masks import parse_runs
from gramloop.data.records import DataSet, Record
from gramloop.data.truth import Annotation
from gramloop.errors import GramLoopError, short_repr
from gramloop.util.json_files import read_json

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
        words, _, path = str(error).partition(" - at `$.")
        path, reason = path.rstrip("`"), words[:1].lower() + words[1:]
        if not isinstance(entry, dict):
            problems.add(f"{where} is {short_repr(entry)}, not an object with fields")
            return None
        field = re.split(r"[.\[]", path)[0]
        value = f" has {field} {short_repr(entry.get(field))}; {path}" if path else ""
        name = f" (id {entry['id']})" if type(entry.get("id")) is int else ""
        problems.add(f"{where}{name}{value}: {reason}")
    return None


def annotation_problems(one: AnnotationEntry, height: int, width: int) -> list[str]:
    """What is wrong between an object and the size of its image."""
    found = [_segmentation_problem(one.segmentation, height, width)]
    x, y, wide, high = one.bbox
    if x > width or y > height or x + wide < 0 or y + high < 0:
        found.append(f"has the box {list(one.bbox)}, which lies outside its image of {width} x {height}")
    return [f"annotation {one.id} {problem}" for problem in found if problem]


def _segmentation_problem(found: list[Any] | RunLengthEntry | None, height: int, width: int) -> str:
    if not isinstance(found, RunLengthEntry):
        odd = next((len(polygon) for polygon in found or () if len(polygon) % 2), 0)
        return f"has a polygon of {odd} numbers, where every point has two" if odd else ""
    if tuple(found.size) != (height, width):
        return f"has run lengths of {found.size[1]} x {found.size[0]} pixels, but its image is {width} x {height}"
    try:
        runs = parse_runs(found.counts)
    except GramLoopError as error:
        return f"has a segmentation whose counts {error}"
    if runs.min(initial=0) < 0:
        return f"has a run of {runs.min()} pixels"
    fits = int(runs.sum()) == height * width
    return "" if fits else f"has run lengths that add up to {runs.sum()}, not to {height} x {width}"


COCO_CATEGORY_IDS = frozenset(range(1, 91)) - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
LOOSE_FILES = ("instances.json", "annotations.json", "_annotations.coco.json")
LARGEST_COCO = 1 << 32  # bytes; COCO's training file of 860,000 objects has 450 million

Objects = Mapping[int, list[tuple[Annotation, AnnotationEntry]]]  # by image: as in the file, and checked


@dataclass(frozen=True)
class Expected:
    """What a public set is known to hold; None where nothing is known."""

    images: int | None = None
    annotations: int | None = None
    category_ids: frozenset[int] | None = None


COCO_VAL2017 = Expected(images=5000, annotations=36781, category_ids=COCO_CATEGORY_IDS)
COCO_CATEGORIES_ONLY = Expected(category_ids=COCO_CATEGORY_IDS)


@dataclass(frozen=True)
class AnnotationFile:
    """A file in COCO's format whose images and categories are sound."""

    path: Path
    content: dict[str, Any]  # images, annotations, categories
    images: Mapping[int, ImageEntry]
    categories: Mapping[int, str]
    problems: Problems  # collects those of the annotations

    def records(self, root: Path, folder: Path | str | None) -> list[Record]:
        """The images, whose names start from ``folder`` if given, with the sizes that the file declares."""
        names = [entry.file_name for entry in self.images.values()]
        where = _find_images_folder(root, self.path, folder, names)
        return [
            Record(entry.id, where / entry.file_name, entry.file_name, entry.height or 0, entry.width or 0)
            for entry in self.images.values()
        ]


def coco_root(root: Path, kind: str = "instances") -> Path | None:
    """The folder at or below ``root`` that holds COCO annotations of a kind, or None."""
    return next((folder for folder in (root, root / "coco") if _annotation_files(folder, kind)), None)


class CocoOptions(TypedDict, total=False):
    """Where the parts of a set lie and how it is checked; all of it may be left out."""

    annotations: Path | str | None  # the JSON file, where it lies elsewhere or there are several
    images: Path | str | None  # the folder that ``file_name`` starts from, where it lies elsewhere
    check: Check  # ``headers`` opens every file, ``decode`` reads every pixel of it
    expected: Expected | None  # counts and categories that must be met


def open_coco(root: Path | str, **options: Unpack[CocoOptions]) -> DataSet:
    """Open a COCO-format set and check it whole.

    Args:
        root: the folder with ``annotations/instances_<split>.json`` and ``<split>/``, or one that holds
            it as ``coco/``.
        **options: see `CocoOptions`.

    Returns:
        A data set whose records have ``instances`` and, where objects have segmentations, ``object_masks``.
    """
    root = Path(root)
    file = read_annotation_file(root, "instances", options)
    objects, notes = _objects(file)
    records = []
    listed = file.records(root, options.get("images"))
    for record in check_records(listed, options.get("check", "headers"), file.problems):
        found = objects.get(int(record.image_id), ())
        for _, one in found if record.height else ():
            file.problems.found += annotation_problems(one, record.height, record.width)
        records.append(replace(record, annotations=tuple(entry for entry, _ in found)))
    file.problems.raise_if_any()
    return DataSet(root, "detection", tuple(records), file.categories, file.path, notes)


def _annotation_files(folder: Path, kind: str) -> list[Path]:
    """The files of annotations of a kind, ``instances`` or ``panoptic``, in a set's folder."""
    loose = LOOSE_FILES if kind == "instances" else (f"{kind}.json",)
    files = sorted((folder / "annotations").glob(f"{kind}_*.json"))
    return files or [folder / name for name in loose if (folder / name).is_file()]


def find_annotation_file(root: Path, kind: str) -> Path:
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
            f"{folder} holds several annotation files ({', '.join(file.name for file in files)}); name one"
        )
    return chosen[0]


def read_coco(file: Path) -> dict[str, Any]:
    """The content of a file of annotations, with its three lists at least."""
    content = read_json(file, "a file of annotations in COCO format", largest=LARGEST_COCO, fast=True)
    if not isinstance(content, dict):
        raise GramLoopError(f"{file} is not in COCO format: it needs images, annotations and categories")
    keys = ("images", "annotations", "categories")
    missing = [key for key in keys if not isinstance(content.get(key), list)]
    if missing:
        raise GramLoopError(f"{file} is not in COCO format: it has no list of {' or '.join(missing)}")
    return content


def read_annotation_file(root: Path, kind: str, options: CocoOptions) -> AnnotationFile:
    """Read the annotations of a kind; wrong images or categories are raised, other problems collected."""
    path = Path(options.get("annotations") or find_annotation_file(root, kind))
    content, problems = read_coco(path), Problems(path)
    if not content["images"]:
        problems.add("it lists no images")
    images = _by_id(checked_entries(content["images"], ImageEntry, "images", problems), "image", problems)
    for name, count in Counter(entry.file_name for entry in images.values()).items():
        problems.add(name_problem(name))
        if count > 1:
            problems.add(f"file_name {name!r} occurs {count} times")
    entries = checked_entries(content["categories"], CategoryEntry, "categories", problems)
    categories = {
        each.id: each.name or str(each.id) for each in _by_id(entries, "category", problems).values()
    }
    problems.raise_if_any()
    if (expected := options.get("expected")) is not None:
        _check_expected(content, categories, expected, problems)
    return AnnotationFile(path, content, images, categories, problems)


Listed = TypeVar("Listed", ImageEntry, CategoryEntry)


def _by_id(entries: Sequence[Listed | None], what: str, problems: Problems) -> dict[int, Listed]:
    found: dict[int, Listed] = {}
    for entry in entries:
        if entry is not None and entry.id in found:
            problems.add(f"{what} id {entry.id} occurs more than once")
        if entry is not None:
            found[entry.id] = entry
    return found


def _objects(file: AnnotationFile) -> tuple[Objects, tuple[str, ...]]:
    """Annotations by image; id 0, which the reference evaluator counts as unmatched, gets a new number."""
    by_image: dict[int, list[tuple[Annotation, AnnotationEntry]]] = defaultdict(list)
    notes: tuple[str, ...] = ()
    seen: set[int] = set()
    listed = file.content["annotations"]
    checked = checked_entries(listed, AnnotationEntry, "annotations", file.problems)
    for entry, one in zip(listed, checked, strict=True):
        if one is None:
            continue
        if one.id in seen:
            file.problems.add(f"annotation {one.id} occurs more than once")
        elif one.image_id not in file.images:
            file.problems.add(f"annotation {one.id} belongs to image {one.image_id}, which is not listed")
        elif one.category_id not in file.categories:
            file.problems.add(f"annotation {one.id} has category {one.category_id}, which is not listed")
        else:
            complete = {"area": one.bbox[2] * one.bbox[3], "iscrowd": 0, **entry}
            if one.id == 0:
                number = complete["id"] = 1 + max(other.id for other in checked if other is not None)
                notes = (
                    f"annotation id 0 was renumbered to {number}: COCO's evaluator takes 0 for no match",
                )
            by_image[one.image_id].append((complete, one))
        seen.add(one.id)
    return by_image, notes


def _check_expected(
    content: Mapping[str, Any], categories: Mapping[int, str], expected: Expected, problems: Problems
) -> None:
    for what, count in (("images", expected.images), ("annotations", expected.annotations)):
        if count is not None and len(content[what]) != count:
            problems.add(f"it lists {len(content[what])} {what}, not {count}")
    if expected.category_ids is not None and categories.keys() != expected.category_ids:
        lacking = sorted(expected.category_ids - categories.keys())
        strange = sorted(categories.keys() - expected.category_ids)
        problems.add(
            f"its category ids are not COCO's {len(expected.category_ids)} (lacking {lacking}, unknown {strange})"
        )


def _find_images_folder(root: Path, file: Path, named: Path | str | None, names: list[str]) -> Path:
    """The folder that the file names of images start from."""
    if named is not None:
        if not Path(named).is_dir():
            raise GramLoopError(f"the folder of images {named} does not exist")
        return Path(named)
    base = file.parent.parent if file.parent.name == "annotations" else file.parent
    split = file.stem.removeprefix("instances_").removeprefix("panoptic_")
    candidates = [base / split, base / "images" / split, base / "images", base, root]
    present = [folder for folder in candidates if any((folder / name).is_file() for name in names[:20])]
    if not present:
        searched = ", ".join(str(folder) for folder in candidates[:3])
        raise GramLoopError(f"the images of {file} were not found; searched in {searched}")
    return present[0]
