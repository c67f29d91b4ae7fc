"""Panoptic sets in COCO's format: a JSON file, and a folder of PNG files whose colours are segments.

``annotations/panoptic_<split>.json`` lists images, categories (``isthing`` separates things from stuff) and, for every
image, a PNG file of ``annotations/panoptic_<split>/`` with what each of its segments is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gramloop.data.checks import (
    Check,
    Problems,
    check_annotations,
    image_problem,
    name_problem,
    read_headers,
    size_problem,
)
from gramloop.data.readers.coco import (
    COCO_CATEGORY_IDS,
    Content,
    Expected,
    ImageEntry,
    SegmentsEntry,
    annotation_files,
    check_expected,
    checked_entries,
    find_annotation_file,
    find_images_folder,
    image_entries,
    read_categories,
    read_coco,
)
from gramloop.data.records import DataSet, Record

_STUFF = """92 93 95 100 107 109 112 118 119 122 125 128 130 133 138 141 144 145 147 148 149 151 154 155 156 159 161 166 168 171
175 176 177 178 180 181 184 185 186 187 188 189 190 191 192 193 194 195 196 197 198 199 200"""
STUFF_IDS = frozenset(map(int, _STUFF.split()))
PANOPTIC_VAL2017 = Expected(images=5000, annotations=5000, category_ids=COCO_CATEGORY_IDS | STUFF_IDS)
PANOPTIC_CATEGORIES_ONLY = Expected(category_ids=COCO_CATEGORY_IDS | STUFF_IDS)


def panoptic_root(root: Path) -> Path | None:
    """The folder at or below ``root`` that holds panoptic annotations, or None."""
    return next((folder for folder in (root, root / "coco") if annotation_files(folder, "panoptic")), None)


def open_panoptic(
    root: Path | str,
    *,
    annotations: Path | str | None = None,
    images: Path | str | None = None,
    check: Check = "headers",
    expected: Expected | None = None,
) -> DataSet:
    """Open a panoptic set in COCO's format and check it whole.

    Args:
        root: the folder with ``annotations/panoptic_<split>.json``, the PNG files and ``<split>/``, or one that holds
            it as ``coco/``.
        annotations: the JSON file, where it lies elsewhere or there are several; the PNG files lie in a folder of the
            same name without ``.json``, or next to it.
        images: the folder that ``file_name`` starts from, where it lies elsewhere.
        check: ``headers`` opens every file, ``decode`` reads every pixel of it.
        expected: counts and categories that must be met.

    Returns:
        A data set whose records have ``segments``.
    """
    root = Path(root)
    file = Path(annotations) if annotations is not None else find_annotation_file(root, "panoptic")
    problems = Problems(file)
    content = read_coco(file)
    entries = image_entries(content, problems)
    categories = read_categories(content, problems)
    things = _things(content, problems)
    by_image = _segments(content, entries, categories, problems)
    if expected is not None:
        check_expected(content, categories, expected, problems)
    problems.raise_if_any()
    folder = find_images_folder(root, file, images, [entry.file_name for entry in entries.values()])
    records = _records(entries, by_image, folder, maps_folder(file), check, problems)
    problems.raise_if_any()
    if check == "decode":
        check_annotations(records, "segments", "segments", problems)
    return DataSet(root, "panoptic", tuple(records), categories, file, things=things)


def maps_folder(file: Path) -> Path:
    """Where the PNG files of a JSON file lie: in the folder of its name, or next to it."""
    return file.with_suffix("") if file.with_suffix("").is_dir() else file.parent


def _things(content: Content, problems: Problems) -> frozenset[int]:
    problems.raise_if_any()  # of the categories, which were read before
    for entry in content["categories"]:
        if entry.get("isthing") is None:
            problems.add(f"category {entry['id']} has isthing None; it is 1 or 0")
    problems.raise_if_any()
    return frozenset(entry["id"] for entry in content["categories"] if entry["isthing"] == 1)


def _segments(
    content: Content, entries: Mapping[int, Any], categories: Mapping[int, str], problems: Problems
) -> dict[int, Mapping[str, Any]]:
    """The entry of every image: its PNG file and segments."""
    by_image: dict[int, Mapping[str, Any]] = {}
    checked = checked_entries(content["annotations"], SegmentsEntry, "annotations", problems)
    for position, (entry, one) in enumerate(zip(content["annotations"], checked, strict=True)):
        if one is None:
            continue
        if one.image_id not in entries:
            problems.add(f"annotation {position} belongs to image {one.image_id}, which is not listed")
        elif one.image_id in by_image:
            problems.add(f"image {one.image_id} has more than one annotation")
        elif problem := _entry_problem(one, categories):
            problems.add(f"the annotation of image {one.image_id} {problem}")
        else:
            by_image[one.image_id] = entry
    for image in sorted(entries.keys() - by_image.keys()):
        problems.add(f"image {image} has no annotation")
    return by_image


def _entry_problem(entry: SegmentsEntry, categories: Mapping[int, str]) -> str:
    if problem := name_problem(entry.file_name):
        return f"has a PNG file whose {problem}"
    seen: set[int] = set()
    for info in entry.segments_info:
        if info.id in seen:
            return f"lists segment {info.id} more than once"
        if info.category_id not in categories:
            return f"has a segment of category {info.category_id}, which is not listed"
        seen.add(info.id)
    return ""


def _records(
    entries: Mapping[int, ImageEntry],
    by_image: Mapping[int, Mapping[str, Any]],
    images: Path,
    maps: Path,
    check: Check,
    problems: Problems,
) -> list[Record]:
    paths = [images / entry.file_name for entry in entries.values()]
    colours = [maps / by_image[number]["file_name"] for number in entries]
    headers = read_headers(paths, check, "images"), read_headers(colours, check, "segments")
    records = []
    for entry, path, colour, header, segments in zip(entries.values(), paths, colours, *headers, strict=True):
        if problem := image_problem(path, header, (entry.height, entry.width)) or segments.problem:
            problems.add(problem)
        else:
            problems.add(size_problem(colour, segments.size, header.size))
        infos = tuple(by_image[entry.id]["segments_info"])
        records.append(Record(entry.id, path, entry.file_name, *header.size, colour, annotations=infos))
    return records
