"""Panoptic sets in COCO's format: a JSON file, and beside it a folder of PNG files whose colours are segments.

``annotations/panoptic_<split>.json`` lists images, categories (``isthing`` tells things from stuff) and, for every image,
a PNG file of ``annotations/panoptic_<split>/`` with what each of its segments is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gramloop.data.annotations import ImageEntry, SegmentsEntry, checked_entries
from gramloop.data.checks import Check, Problems, image_problem, name_problem, read_headers
from gramloop.data.coco import (
    COCO_CATEGORY_IDS,
    Expected,
    check_expected,
    find_images_folder,
    image_entries,
    read_categories,
    read_coco,
)
from gramloop.data.records import DataSet, Record
from gramloop.data.segment_maps import SegmentMap
from gramloop.errors import GramLoopError
from gramloop.shifts.geometry import area, visible_box
from gramloop.util.progress import tracked

_STUFF = """92 93 95 100 107 109 112 118 119 122 125 128 130 133 138 141 144 145 147 148 149 151 154 155 156 159 161 166 168 171
175 176 177 178 180 181 184 185 186 187 188 189 190 191 192 193 194 195 196 197 198 199 200"""
STUFF_IDS = frozenset(map(int, _STUFF.split()))
PANOPTIC_VAL2017 = Expected(images=5000, annotations=5000, category_ids=COCO_CATEGORY_IDS | STUFF_IDS)
PANOPTIC_CATEGORIES_ONLY = Expected(category_ids=COCO_CATEGORY_IDS | STUFF_IDS)
PREFERRED_FILE = "panoptic_val2017.json"


def panoptic_root(root: Path) -> Path | None:
    """The folder at or below ``root`` that holds panoptic annotations, or None."""
    return next((folder for folder in (root, root / "coco") if _files(folder)), None)


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
            same name without ``.json``, or beside it.
        images: the folder that ``file_name`` starts from, where it lies elsewhere.
        check: ``headers`` looks into every file, ``decode`` reads every pixel of it.
        expected: counts and categories that must be met.
    """
    root = Path(root)
    file = _annotation_file(root, annotations)
    problems = Problems(file)
    content = read_coco(file)
    entries = image_entries(content, problems)
    categories = read_categories(content, problems)
    things = _things(content, problems)
    problems.raise_if_any()
    by_image = _segments(content, entries, categories, problems)
    if expected is not None:
        check_expected(content, categories, expected, problems)
    problems.raise_if_any()
    folder = find_images_folder(root, file, images, [entry.file_name for entry in entries.values()])
    records = _records(entries, by_image, folder, maps_folder(file), check, problems)
    problems.raise_if_any()
    if check == "decode":
        _check_segments(records, problems)
    return DataSet(root, "panoptic", tuple(records), categories, file, things=things)


def maps_folder(file: Path) -> Path:
    """Where the PNG files of a JSON file lie: in the folder of its name, or beside it."""
    return file.with_suffix("") if file.with_suffix("").is_dir() else file.parent


def segments_info(found: SegmentMap) -> list[dict[str, Any]]:
    """What each segment of a map is: id, category, whether a crowd, area and box."""
    infos = []
    for number, category, crowd in zip(found.numbers, found.categories, found.crowd, strict=True):
        mask = found.ids == number
        infos.append(
            {
                "id": int(number),
                "category_id": int(category),
                "iscrowd": int(crowd),
                "area": area(mask),
                "bbox": list(visible_box(mask) or (0, 0, 0, 0)),
            }
        )
    return infos


def _files(folder: Path) -> list[Path]:
    found = sorted((folder / "annotations").glob("panoptic_*.json"))
    return found or [each for each in (folder / "panoptic.json",) if each.is_file()]


def _annotation_file(root: Path, named: Path | str | None) -> Path:
    if named is not None:
        return Path(named)
    folder = panoptic_root(root)
    if folder is None:
        raise GramLoopError(
            f"{root} is no panoptic set: it needs annotations/{PREFERRED_FILE} or another panoptic_*.json, with its folder "
            "of PNG files"
        )
    files = _files(folder)
    preferred = [file for file in files if file.name == PREFERRED_FILE]
    if len(files) > 1 and not preferred:
        raise GramLoopError(
            f"{folder} holds several panoptic files ({', '.join(file.name for file in files)}); name one"
        )
    return (preferred or files)[0]


def _things(content: dict[str, Any], problems: Problems) -> frozenset[int]:
    problems.raise_if_any()  # of the categories, which were read before
    for entry in content["categories"]:
        if entry.get("isthing") is None:
            problems.add(f"category {entry['id']} has isthing None; it is 1 or 0")
    return frozenset(entry["id"] for entry in content["categories"] if entry.get("isthing") == 1)


def _segments(
    content: dict[str, Any], entries: Mapping[int, Any], categories: Mapping[int, str], problems: Problems
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
    paths = {number: images / entry.file_name for number, entry in entries.items()}
    colours = {number: maps / by_image[number]["file_name"] for number in entries}
    headers = read_headers(list(paths.values()), check, "images")
    map_headers = read_headers(list(colours.values()), check, "segments")
    records = []
    for (number, entry), header, segments in zip(entries.items(), headers, map_headers, strict=True):
        declared = (entry.height, entry.width) if entry.height and entry.width else None
        if problem := image_problem(paths[number], header, declared) or segments.problem:
            problems.add(problem)
        elif (segments.height, segments.width) != (header.height, header.width):
            problems.add(
                f"{colours[number]} is {segments.width} x {segments.height}, but its image is "
                f"{header.width} x {header.height}"
            )
        records.append(
            Record(
                number,
                paths[number],
                entry.file_name,
                header.height,
                header.width,
                colours[number],
                annotations=tuple(by_image[number]["segments_info"]),
            )
        )
    return records


def _check_segments(records: list[Record], problems: Problems) -> None:
    for record in tracked(records, "checking segments", len(records)):
        try:
            record.segments()
        except GramLoopError as error:
            problems.add(str(error))
    problems.raise_if_any()
