"""What a sound COCO file is, said once more and plainly: an oracle for what may be accepted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any


def sound_coco(file: Path, images: Path) -> bool:
    """Whether every field of a COCO file that a metric reads is right; images are 64 x 64."""
    try:
        content = json.loads(file.read_bytes())
        return _sound(content, images)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OSError):
        return False


def _sound(content: dict[str, Any], images: Path) -> bool:
    ids = [_whole(entry["id"]) for entry in content["images"]]
    kinds = [_whole(entry["id"]) for entry in content["categories"]]
    names = [entry["file_name"] for entry in content["images"]]
    sizes = [entry.get(side) for entry in content["images"] for side in ("height", "width")]
    return (
        len(ids) == len(set(ids)) > 0
        and len(kinds) == len(set(kinds))
        and len(names) == len(set(names))
        and all(isinstance(name, str) and ".." not in name and (images / name).is_file() for name in names)
        and all(size is None or (_whole(size) == 64) for size in sizes)
        and all(isinstance(entry.get("name", ""), str) for entry in content["categories"])
        and _sound_objects(content["annotations"], set(ids), set(kinds))
    )


def _sound_objects(entries: list[dict[str, Any]], images: set[int], kinds: set[int]) -> bool:
    numbers = [_whole(entry["id"]) for entry in entries]
    return len(numbers) == len(set(numbers)) and all(
        _whole(entry["image_id"]) in images
        and _whole(entry["category_id"]) in kinds
        and len(entry["bbox"]) == 4
        and isinstance(entry["bbox"], list)
        and all(_finite(side) for side in entry["bbox"])
        and min(entry["bbox"][2:]) >= 0
        and ("area" not in entry or (_finite(entry["area"]) and entry["area"] >= 0))
        and ("iscrowd" not in entry or (entry["iscrowd"] in (0, 1) and type(entry["iscrowd"]) is int))
        and _sound_segmentation(entry.get("segmentation"))
        for entry in entries
    )


def _sound_segmentation(value: Any) -> bool:
    if value is None or value == []:
        return True
    if isinstance(value, dict):
        return value["size"] == [64, 64]
    return isinstance(value, list) and all(
        isinstance(polygon, list)
        and len(polygon) >= 6
        and len(polygon) % 2 == 0
        and all(_finite(point) for point in polygon)
        for polygon in value
    )


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value
