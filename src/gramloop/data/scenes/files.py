"""Writing procedural scenes to disk in all layouts: label pictures with a class list, COCO's JSON, depth, segments.

``images/validation/*.png`` serves all; ``annotations/validation/*.png`` and ``classes.txt`` are the first,
``annotations/instances_val.json`` the second, ``depth/validation/*.png`` in millimetres and ``depth.json`` the third,
``annotations/panoptic_val.json`` with ``annotations/panoptic_val/*.png`` the fourth. Every file is whole or absent, and
resuming after a stop gives the same bytes as one run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from gramloop.data.folders import FORMAT_FILE
from gramloop.data.scenes.drawing import CLASSES, FAR, RECIPE, STUFF, THINGS, Scene, check_scene, scene
from gramloop.data.scenes.painting import Array
from gramloop.data.truth import DepthFormat, SegmentMap, segments_info, segments_png
from gramloop.errors import GramLoopError, short_repr
from gramloop.util.files import atomic_write, is_taken, remove_leftovers
from gramloop.util.json_files import read_json
from gramloop.util.processes import in_order, worker_count

# things have the numbers of the instances' file, and stuff those that follow
SCENE_CATEGORIES = dict(enumerate(THINGS + STUFF, start=1))
THING_NUMBERS = frozenset(range(1, len(THINGS) + 1))
_NUMBER_OF_LABEL = np.array([0, *(1 + (THINGS + STUFF).index(name) for name in CLASSES)])
SETTINGS_FILE = "scenes.json"
ANNOTATIONS = Path("annotations", "instances_val.json")  # written last
PANOPTIC_FILE = Path("annotations", "panoptic_val.json")
SUITE, COUNT = "scenes", 100  # the base set where no folder is given, and how many images of it
SCENE_DEPTH = DepthFormat(scale=1000.0, near=1e-3, far=FAR)  # how depth is written
_CHUNK = 16
_Annotated = tuple[list[dict[str, Any]], list[dict[str, Any]]]  # the objects and segments of a scene
_ZOOM = 4  # outlines are traced this much enlarged, so that they lie within 1/8 pixel of the pixels' edges


@dataclass(frozen=True)
class SceneFiles:
    """Which scenes are written."""

    count: int
    start: int = 0
    size: int = 192
    split: str = "val"
    seed: int = 0
    recipe: int = RECIPE

    def __post_init__(self) -> None:
        if self.count < 1:
            raise GramLoopError(f"the number of scenes must be at least 1, not {self.count}")
        check_scene(self.start, self.size)


def write_scenes(
    folder: Path,
    wanted: SceneFiles,
    *,
    workers: int | None = None,
    on_scenes: Callable[[int], None] | None = None,
) -> None:
    """Write scenes to a folder.

    Args:
        folder: the folder; what an earlier call with the same settings wrote is kept.
        wanted: which scenes.
        workers: processes; one per core by default.
        on_scenes: called with a number whenever so many more scenes are done.
    """
    workers, stop = worker_count(workers), wanted.start + wanted.count
    calls = [
        (folder, wanted, range(first, min(first + _CHUNK, stop)))
        for first in range(wanted.start, stop, _CHUNK)
    ]
    try:
        _begin(folder, wanted)
        annotations: list[_Annotated] = []
        for part in in_order(_write_chunk, calls, min(workers, len(calls))):
            annotations += part
            if on_scenes is not None:
                on_scenes(len(part))
        _finish(folder, wanted, annotations)
    except OSError as error:
        raise GramLoopError(f"cannot continue writing to {folder}: {error}") from error


def draw_scenes(folder: Path, wanted: SceneFiles) -> Path:
    """Write the scenes that a command without a data set uses, unless the folder holds them; returns the folder."""
    if not (folder / ANNOTATIONS).is_file() or _settings(folder) != asdict(wanted):
        write_scenes(folder, wanted, workers=1)
    return folder


def _settings(folder: Path) -> Any:
    path = folder / SETTINGS_FILE
    return read_json(path, "a file of settings written by gramloop scenes") if path.is_file() else None


def _begin(folder: Path, wanted: SceneFiles) -> None:
    found = _settings(folder)
    if found is None and is_taken(folder):
        raise GramLoopError(f"{folder} is not empty and has no {SETTINGS_FILE}; choose a new folder")
    if found not in (None, asdict(wanted)):
        raise GramLoopError(f"{folder} holds other scenes ({short_repr(found)}); choose a new folder")
    atomic_write(folder / SETTINGS_FILE, (json.dumps(asdict(wanted), indent=2) + "\n").encode())
    atomic_write(folder / "classes.txt", "".join(f"{name}\n" for name in CLASSES).encode())


def _write_chunk(folder: Path, wanted: SceneFiles, chunk: range) -> list[_Annotated]:
    annotations = []
    for index in chunk:
        one = scene(index, wanted.size, wanted.split, wanted.seed)
        segments = scene_segments(one)
        depth = np.round(one.depth * SCENE_DEPTH.scale).astype(np.uint16)
        pictures = {
            "images/validation": cv2.imencode(".png", one.image[..., ::-1])[1].tobytes(),
            "annotations/validation": cv2.imencode(".png", one.labels)[1].tobytes(),
            "depth/validation": cv2.imencode(".png", depth)[1].tobytes(),
            str(PANOPTIC_FILE.with_suffix("")): segments_png(segments.ids),
        }
        for part, data in pictures.items():
            path = folder / part / file_name(index)
            if not path.is_file():
                atomic_write(path, data)
        annotations.append((coco_annotations(one), segments_info(segments)))
    return annotations


def file_name(index: int) -> str:
    """The name of a scene's pictures."""
    return f"{index:08d}.png"


def scene_segments(one: Scene) -> SegmentMap:
    """Stuff has its category as id; things follow in the order of their boxes."""
    ids = _NUMBER_OF_LABEL[one.labels].astype(np.int32)
    ids[ids <= len(THINGS)] = 0
    for index, mask in enumerate(one.masks):
        ids[mask] = len(SCENE_CATEGORIES) + 1 + index
    numbers = np.unique(ids[ids > 0]).astype(np.int64)
    kinds = np.append(np.arange(len(SCENE_CATEGORIES) + 1), one.categories + 1)
    return SegmentMap(ids, numbers, kinds[numbers], np.zeros(len(numbers), dtype=np.bool_))


def coco_annotations(one: Scene) -> list[dict[str, Any]]:
    """The things of a scene as COCO annotations, without their ids."""
    return [
        {
            "category_id": int(kind) + 1,
            "bbox": [int(side) for side in box],
            "area": int(mask.sum()),
            "iscrowd": 0,
            "segmentation": outlines(mask),
        }
        for kind, box, mask in zip(one.categories, one.boxes, one.masks, strict=True)
    ]


def outlines(mask: Array) -> list[list[float]]:
    """Polygons x0, y0, x1, y1, … around a mask (H, W); a mask with a hole is cut in two at the hole."""
    large = cv2.resize(mask.astype(np.uint8), None, fx=_ZOOM, fy=_ZOOM, interpolation=cv2.INTER_NEAREST)
    contours, tree = cv2.findContours(large, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    nested = zip(contours, tree[0], strict=True) if contours else ()
    holes = [contour for contour, links in nested if links[3] >= 0]
    if holes:
        x, _, width, _ = cv2.boundingRect(max(holes, key=len))
        column = round((x + width / 2) / _ZOOM)
        left, right = mask.copy(), mask.copy()
        left[:, column:] = False
        right[:, :column] = False
        return outlines(left) + outlines(right)
    points = [(contour[:, 0, :] + 0.5) / _ZOOM for contour in contours]
    return [[float(value) for value in polygon.ravel()] for polygon in points]


def _finish(folder: Path, wanted: SceneFiles, annotated: list[_Annotated]) -> None:
    """Write the files that describe all scenes."""
    scenes = list(enumerate(annotated, start=wanted.start))  # an image's id is its index plus 1
    objects = [{"image_id": index + 1, **entry} for index, (found, _) in scenes for entry in found]
    size = {"height": wanted.size, "width": wanted.size}
    shared = {
        "info": {"description": "GramLoop procedural scenes", **asdict(wanted)},
        "images": [
            {"id": index + 1, "file_name": f"validation/{file_name(index)}", **size} for index, _ in scenes
        ],
    }
    panoptic = {
        "annotations": [
            {"image_id": index + 1, "file_name": file_name(index), "segments_info": infos}
            for index, (_, infos) in scenes
        ],
        "categories": [
            {"id": number, "name": name, "isthing": int(number in THING_NUMBERS)}
            for number, name in SCENE_CATEGORIES.items()
        ],
    }
    instances = {
        "annotations": [{"id": number, **entry} for number, entry in enumerate(objects, start=1)],
        "categories": [{"id": number, "name": name} for number, name in enumerate(THINGS, start=1)],
    }
    stored = {"scale": SCENE_DEPTH.scale, "near": SCENE_DEPTH.near, "far": SCENE_DEPTH.far}
    atomic_write(folder / FORMAT_FILE, f"{json.dumps(stored)}\n".encode())
    for path, content in ((PANOPTIC_FILE, panoptic), (ANNOTATIONS, instances)):
        atomic_write(folder / path, json.dumps({**shared, **content}, separators=(",", ":")).encode())
    remove_leftovers(folder)
