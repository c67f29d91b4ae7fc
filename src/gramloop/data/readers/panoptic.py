"""Panoptic sets in COCO's format: a JSON file, and a folder of PNG files whose colours are segments.

``annotations/panoptic_<split>.json`` lists images, categories (``isthing`` separates things from stuff) and, for every
image, a PNG file of ``annotations/panoptic_<split>/`` with what each of its segments is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from gramloop.data.checks import check_records, name_problem
from gramloop.data.readers.coco import (
    COCO_CATEGORY_IDS,
    AnnotationFile,
    CocoOptions,
    Expected,
    SegmentsEntry,
    checked_entries,
    read_annotation_file,
)
from gramloop.data.records import DataSet

_STUFF = """92 93 95 100 107 109 112 118 119 122 125 128 130 133 138 141 144 145 147 148 149 151 154 155 156 159 161 166 168 171
175 176 177 178 180 181 184 185 186 187 188 189 190 191 192 193 194 195 196 197 198 199 200"""
STUFF_IDS = frozenset(map(int, _STUFF.split()))
PANOPTIC_VAL2017 = Expected(images=5000, annotations=5000, category_ids=COCO_CATEGORY_IDS | STUFF_IDS)
PANOPTIC_CATEGORIES_ONLY = Expected(category_ids=COCO_CATEGORY_IDS | STUFF_IDS)


def open_panoptic(root: Path | str, **options: Unpack[CocoOptions]) -> DataSet:
    """Open a panoptic set in COCO's format and check it whole.

    Args:
        root: the folder with ``annotations/panoptic_<split>.json``, a folder of that name with the PNG files, or these
            next to it, and ``<split>/``; or one that holds it as ``coco/``.
        **options: see `CocoOptions`.

    Returns:
        A data set whose records have ``segments``.
    """
    root = Path(root)
    file = read_annotation_file(root, "panoptic", options)
    things = _things(file)
    segments = _segments(file)
    file.problems.raise_if_any()
    records = []
    for record in file.records(root, options.get("images")):
        entry = segments[int(record.image_id)]
        colours, infos = maps_folder(file.path) / entry["file_name"], tuple(entry["segments_info"])
        records.append(replace(record, label_path=colours, annotations=infos))
    checked = check_records(records, options.get("check", "headers"), file.problems)
    file.problems.raise_if_any()
    return DataSet(root, "panoptic", checked, file.categories, file.path, things=things)


def maps_folder(file: Path) -> Path:
    """Where the PNG files of a JSON file lie: in the folder of its name, or next to it."""
    return file.with_suffix("") if file.with_suffix("").is_dir() else file.parent


def _things(file: AnnotationFile) -> frozenset[int]:
    for entry in file.content["categories"]:
        if entry.get("isthing") is None:
            file.problems.add(f"category {entry['id']} has isthing None; it is 1 or 0")
    return frozenset(entry["id"] for entry in file.content["categories"] if entry.get("isthing") == 1)


def _segments(file: AnnotationFile) -> dict[int, Mapping[str, Any]]:
    """The entry of every image: its PNG file and segments."""
    by_image: dict[int, Mapping[str, Any]] = {}
    listed, problems = file.content["annotations"], file.problems
    checked = checked_entries(listed, SegmentsEntry, "annotations", problems)
    for position, (entry, one) in enumerate(zip(listed, checked, strict=True)):
        if one is None:
            continue
        if one.image_id not in file.images:
            problems.add(f"annotation {position} belongs to image {one.image_id}, which is not listed")
        elif one.image_id in by_image:
            problems.add(f"image {one.image_id} has more than one annotation")
        elif problem := _entry_problem(one, file.categories):
            problems.add(f"the annotation of image {one.image_id} {problem}")
        else:
            by_image[one.image_id] = entry
    for image in sorted(file.images.keys() - by_image.keys()):
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
