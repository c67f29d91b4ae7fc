"""Data sets annotated in COCO's JSON: COCO val2017, COCO-O's domains, and anybody's own."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from gramloop.data.checks import Check, Problems, image_problem, read_headers
from gramloop.data.records import Annotation, DataSet, Record
from gramloop.errors import GramLoopError

COCO_CATEGORY_IDS = frozenset(range(1, 91)) - {12, 26, 29, 30, 45, 66, 68, 69, 71, 83}
PREFERRED_FILE = "instances_val2017.json"
LOOSE_FILES = ("instances.json", "annotations.json", "_annotations.coco.json")


@dataclass(frozen=True)
class Expected:
    """What a public set is known to hold; None where nothing is known."""

    images: int | None = None
    annotations: int | None = None
    category_ids: frozenset[int] | None = None


COCO_VAL2017 = Expected(images=5000, annotations=36781, category_ids=COCO_CATEGORY_IDS)
COCO_CATEGORIES_ONLY = Expected(category_ids=COCO_CATEGORY_IDS)


def coco_root(root: Path) -> Path | None:
    """The folder at or below ``root`` that holds COCO annotations, or None."""
    return next((folder for folder in (root, root / "coco") if _annotation_files(folder)), None)


def open_coco(
    root: Path | str,
    *,
    annotations: Path | str | None = None,
    images: Path | str | None = None,
    check: Check = "headers",
    expected: Expected | None = None,
) -> DataSet:
    """Open a COCO-format set and check it whole.

    Args:
        root: the folder with ``annotations/instances_<split>.json`` and ``<split>/``, or one that holds
            it as ``coco/``.
        annotations: the JSON file, where it lies elsewhere or there are several.
        images: the folder that ``file_name`` starts from, where it lies elsewhere.
        check: ``headers`` looks into every image, ``decode`` reads every pixel of it.
        expected: counts and categories that must be met.
    """
    root = Path(root)
    file = _annotation_file(root, annotations)
    content = read_coco(file)
    problems = Problems(file)
    entries = image_entries(content, problems)
    categories = read_categories(content, problems)
    problems.raise_if_any()  # what follows needs sound images and categories
    by_image, notes = _annotations(content, entries, categories, problems)
    if expected is not None:
        check_expected(content, categories, expected, problems)
    folder = find_images_folder(root, file, images, [entry["file_name"] for entry in entries.values()])
    records = _records(entries, by_image, folder, check, problems)
    problems.raise_if_any()
    return DataSet(root, "detection", tuple(records), categories, file, notes)


def _annotation_files(folder: Path) -> list[Path]:
    files = sorted((folder / "annotations").glob("instances_*.json"))
    return files or [folder / name for name in LOOSE_FILES if (folder / name).is_file()]


def _annotation_file(root: Path, named: Path | str | None) -> Path:
    if named is not None:
        return Path(named)
    folder = coco_root(root)
    if folder is None:
        raise GramLoopError(
            f"{root} is no COCO-format set: it needs annotations/{PREFERRED_FILE} or another instances_*.json"
        )
    files = _annotation_files(folder)
    preferred = [file for file in files if file.name == PREFERRED_FILE]
    if len(files) > 1 and not preferred:
        raise GramLoopError(
            f"{folder} holds several annotation files ({', '.join(file.name for file in files)}); name one"
        )
    return (preferred or files)[0]


def read_coco(file: Path) -> dict[str, Any]:
    """What a file of annotations holds, its three lists at least."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise GramLoopError(f"cannot read the annotation file {file}: {error}") from error
    except json.JSONDecodeError as error:
        raise GramLoopError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise GramLoopError(f"{file} is not in COCO format: it needs images, annotations and categories")
    missing = [
        key for key in ("images", "annotations", "categories") if not isinstance(content.get(key), list)
    ]
    if missing:
        raise GramLoopError(f"{file} is not in COCO format: it has no list of {' or '.join(missing)}")
    return content


def image_entries(content: dict[str, Any], problems: Problems) -> dict[int, dict[str, Any]]:
    """The listed images by id."""
    entries: dict[int, dict[str, Any]] = {}
    names: Counter[str] = Counter()
    for position, entry in enumerate(content["images"]):
        image_id, name = entry.get("id"), entry.get("file_name")
        if not isinstance(image_id, int) or not isinstance(name, str):
            problems.add(f"image entry {position} lacks an integer id or a file_name")
            continue
        if image_id in entries:
            problems.add(f"image id {image_id} occurs more than once")
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            problems.add(f"file_name {name!r} leads out of the folder of images")
        entries[image_id] = entry
        names[name] += 1
    for name, count in names.items():
        if count > 1:
            problems.add(f"file_name {name!r} occurs {count} times")
    if not entries:
        problems.add("it lists no images")
    return entries


def read_categories(content: dict[str, Any], problems: Problems) -> dict[int, str]:
    """The names of the listed categories by id."""
    categories: dict[int, str] = {}
    for entry in content["categories"]:
        if not isinstance(entry.get("id"), int):
            problems.add(f"category {entry.get('name')!r} lacks an integer id")
        elif entry["id"] in categories:
            problems.add(f"category id {entry['id']} occurs more than once")
        else:
            categories[entry["id"]] = str(entry.get("name", entry["id"]))
    return categories


def _annotations(
    content: dict[str, Any],
    entries: Mapping[int, Any],
    categories: Mapping[int, str],
    problems: Problems,
) -> tuple[dict[int, list[Annotation]], tuple[str, ...]]:
    """Annotations by image; id 0, which the reference evaluator counts as unmatched, gets a new number."""
    by_image: dict[int, list[Annotation]] = defaultdict(list)
    seen: set[int] = set()
    notes: list[str] = []
    largest = max(
        (entry["id"] for entry in content["annotations"] if isinstance(entry.get("id"), int)), default=0
    )
    for position, entry in enumerate(content["annotations"]):
        if problem := _annotation_problem(entry, entries, categories, seen):
            problems.add(f"annotation {entry.get('id', f'at position {position}')} {problem}")
            continue
        seen.add(entry["id"])
        width, height = entry["bbox"][2:]
        complete = {"area": width * height, "iscrowd": 0, **entry}
        if entry["id"] == 0:
            complete["id"] = largest + 1
            notes.append(
                f"annotation id 0 was renumbered to {largest + 1}: COCO's evaluator takes 0 for no match"
            )
        by_image[entry["image_id"]].append(complete)
    return by_image, tuple(notes)


def _annotation_problem(
    entry: Mapping[str, Any], entries: Mapping[int, Any], categories: Mapping[int, str], seen: set[int]
) -> str:
    box = entry.get("bbox")
    if not isinstance(entry.get("id"), int):
        return "lacks an integer id"
    if entry["id"] in seen:
        return "occurs more than once"
    if entry.get("image_id") not in entries:
        return f"belongs to image {entry.get('image_id')}, which is not listed"
    if entry.get("category_id") not in categories:
        return f"has category {entry.get('category_id')}, which is not listed"
    if not isinstance(box, list) or len(box) != 4 or not all(_is_finite(value) for value in box):
        return f"has the box {box}, not four finite numbers x, y, width, height"
    if box[2] < 0 or box[3] < 0:
        return f"has the box {box} of negative size"
    if not _is_segmentation(entry.get("segmentation")):
        return "has a segmentation that is neither polygons x0, y0, x1, y1, … nor run lengths"
    return ""


def _is_segmentation(value: Any) -> bool:
    if not value:
        return True
    if isinstance(value, dict):
        return isinstance(value.get("counts"), list | str) and len(value.get("size", ())) == 2
    return isinstance(value, list) and all(isinstance(part, list) and len(part) % 2 == 0 for part in value)


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def check_expected(
    content: dict[str, Any], categories: Mapping[int, str], expected: Expected, problems: Problems
) -> None:
    """Add what differs from a public set."""
    for what, count in (("images", expected.images), ("annotations", expected.annotations)):
        if count is not None and len(content[what]) != count:
            problems.add(f"it lists {len(content[what])} {what}, not {count}")
    if expected.category_ids is not None and categories.keys() != expected.category_ids:
        lacking = sorted(expected.category_ids - categories.keys())
        strange = sorted(categories.keys() - expected.category_ids)
        problems.add(
            f"its category ids are not COCO's {len(expected.category_ids)} (lacking {lacking}, unknown {strange})"
        )


def find_images_folder(root: Path, file: Path, named: Path | str | None, names: list[str]) -> Path:
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
        looked = ", ".join(str(folder) for folder in candidates[:3])
        raise GramLoopError(f"the images of {file} were not found; looked in {looked}")
    return present[0]


def _records(
    entries: Mapping[int, dict[str, Any]],
    by_image: Mapping[int, list[Annotation]],
    folder: Path,
    check: Check,
    problems: Problems,
) -> list[Record]:
    paths = {image_id: folder / entry["file_name"] for image_id, entry in entries.items()}
    headers = read_headers(list(paths.values()), check, "images")
    records: list[Record] = []
    for (image_id, entry), header in zip(entries.items(), headers, strict=True):
        declared = (entry["height"], entry["width"]) if {"height", "width"} <= entry.keys() else None
        if problem := image_problem(paths[image_id], header, declared):
            problems.add(problem)
        annotations = tuple(by_image.get(image_id, ()))
        records.append(
            Record(
                image_id,
                paths[image_id],
                entry["file_name"],
                header.height,
                header.width,
                annotations=annotations,
            )
        )
    return records
