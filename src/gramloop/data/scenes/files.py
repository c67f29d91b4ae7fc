"""Writing procedural scenes to disk in all layouts: label pictures with a class list, COCO's JSON, depth, segments.

``images/validation/*.png`` serves all; ``annotations/validation/*.png`` and ``classes.txt`` are the first,
``annotations/instances_val.json`` the second, ``depth/validation/*.png`` in millimetres and ``depth.json`` the third,
``annotations/panoptic_val.json`` with ``annotations/panoptic_val/*.png`` the fourth. Every file is whole or absent, and
resuming after a stop gives the same bytes as one run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from gramloop.data.readers.depth import FORMAT_FILE
from gramloop.data.scenes.drawing import CLASSES, FAR, RECIPE, STUFF, THINGS, Scene, scene
from gramloop.data.scenes.textures import Array
from gramloop.data.truth import DepthFormat, SegmentMap, segments_info, segments_png
from gramloop.errors import GramLoopError, short_repr
from gramloop.util.files import atomic_write, is_taken, remove_leftovers
from gramloop.util.json_files import read_json
from gramloop.util.processes import process_context, process_pool, run_unordered, worker_count

# things have the numbers of the instances' file, and stuff those that follow
SCENE_CATEGORIES = dict(enumerate(THINGS + STUFF, start=1))
THING_NUMBERS = frozenset(range(1, len(THINGS) + 1))
_NUMBER_OF_LABEL = np.array([0, *(1 + (THINGS + STUFF).index(name) for name in CLASSES)])
SETTINGS_FILE = "scenes.json"
_WHAT = "a file of settings written by gramloop scenes"
ANNOTATIONS = Path("annotations", "instances_val.json")  # written last
PANOPTIC_FILE = Path("annotations", "panoptic_val.json")
SUITE, COUNT = "scenes", 100  # the base set where no folder is given, and how many images of it
SCENE_DEPTH = DepthFormat(scale=1000.0, near=1e-3, far=FAR)  # how depth is written
_CHUNK = 16
_ZOOM = 4  # outlines are traced this much enlarged, so that they lie within 1/8 pixel of the pixels' edges


class _Annotated(NamedTuple):
    """What the JSON files say of one scene."""

    objects: list[dict[str, Any]]
    segments: list[dict[str, Any]]


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
        if self.start < 0:
            raise GramLoopError(f"the first scene's index is 0 or more, not {self.start}")
        if self.size < 64:
            raise GramLoopError(f"a scene is at least 64 px wide, not {self.size}")

    def chunks(self) -> Iterator[range]:
        """The indices in parts of a few scenes."""
        stop = self.start + self.count
        return (range(first, min(first + _CHUNK, stop)) for first in range(self.start, stop, _CHUNK))


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
    workers = worker_count(workers)
    try:
        _begin(folder, wanted)
        annotations: dict[int, _Annotated] = {}
        for part in _results(folder, wanted, min(workers, -(-wanted.count // _CHUNK))):
            annotations.update(part)
            if on_scenes is not None:
                on_scenes(len(part))
        _finish(folder, wanted, annotations)
    except OSError as error:
        raise GramLoopError(f"cannot continue writing to {folder}: {error}") from error


def draw_scenes(folder: Path, wanted: SceneFiles) -> Path:
    """Write the scenes that a command without a data set uses, unless the folder holds them; returns the folder."""
    settings = folder / SETTINGS_FILE
    if (
        settings.is_file()
        and (folder / ANNOTATIONS).is_file()
        and read_json(settings, _WHAT) == asdict(wanted)
    ):
        return folder
    write_scenes(folder, wanted, workers=1)
    return folder


def _begin(folder: Path, wanted: SceneFiles) -> None:
    settings = folder / SETTINGS_FILE
    if settings.is_file():
        found = read_json(settings, _WHAT)
        if found != asdict(wanted):
            raise GramLoopError(f"{folder} holds other scenes ({short_repr(found)}); choose a new folder")
    elif is_taken(folder):
        raise GramLoopError(f"{folder} is not empty and has no {SETTINGS_FILE}; choose a new folder")
    atomic_write(settings, (json.dumps(asdict(wanted), indent=2) + "\n").encode())
    atomic_write(folder / "classes.txt", "".join(f"{name}\n" for name in CLASSES).encode())


def _results(folder: Path, wanted: SceneFiles, workers: int) -> Iterator[dict[int, _Annotated]]:
    calls = ((folder, wanted, chunk) for chunk in wanted.chunks())
    if workers == 1:
        yield from starmap(_write_chunk, calls)
        return
    with process_pool(workers, process_context()) as pool:
        for _, written in run_unordered(pool, _write_chunk, calls):
            yield written


def _write_chunk(folder: Path, wanted: SceneFiles, chunk: range) -> dict[int, _Annotated]:
    annotations: dict[int, _Annotated] = {}
    for index in chunk:
        one = scene(index, wanted.size, wanted.split, wanted.seed)
        depth = np.round(one.depth * SCENE_DEPTH.scale).astype(np.uint16)
        pictures = {"images": one.image[..., ::-1], "annotations": one.labels, "depth": depth}
        for part, picture in pictures.items():
            path = folder / part / "validation" / file_name(index)
            if not path.is_file():
                atomic_write(path, cv2.imencode(".png", picture)[1].tobytes())
        segments = scene_segments(one)
        colours = folder / PANOPTIC_FILE.with_suffix("") / file_name(index)
        if not colours.is_file():
            atomic_write(colours, segments_png(segments.ids))
        annotations[index] = _Annotated(coco_annotations(one), segments_info(segments))
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
    holes = (
        [contour for contour, links in zip(contours, tree[0], strict=True) if links[3] >= 0]
        if contours
        else []
    )
    if holes:
        x, _, width, _ = cv2.boundingRect(max(holes, key=len))
        column = round((x + width / 2) / _ZOOM)
        left, right = mask.copy(), mask.copy()
        left[:, column:] = False
        right[:, :column] = False
        return outlines(left) + outlines(right)
    points = [(contour[:, 0, :] + 0.5) / _ZOOM for contour in contours]
    return [[float(value) for value in polygon.ravel()] for polygon in points]


def _finish(folder: Path, wanted: SceneFiles, by_scene: dict[int, _Annotated]) -> None:
    listed = [(index, entry) for index in sorted(by_scene) for entry in by_scene[index].objects]
    shared = {
        "info": {"description": "GramLoop procedural scenes", **asdict(wanted)},
        "images": [
            {
                "id": index + 1,
                "file_name": f"validation/{file_name(index)}",
                "height": wanted.size,
                "width": wanted.size,
            }
            for index in sorted(by_scene)
        ],
    }
    content = {
        **shared,
        "annotations": [
            {"id": number, "image_id": index + 1, **entry}
            for number, (index, entry) in enumerate(listed, start=1)
        ],
        "categories": [{"id": number, "name": name} for number, name in enumerate(THINGS, start=1)],
    }
    panoptic = {
        **shared,
        "annotations": [
            {"image_id": index + 1, "file_name": file_name(index), "segments_info": by_scene[index].segments}
            for index in sorted(by_scene)
        ],
        "categories": [
            {"id": number, "name": name, "isthing": int(number in THING_NUMBERS)}
            for number, name in SCENE_CATEGORIES.items()
        ],
    }
    atomic_write(folder / PANOPTIC_FILE, json.dumps(panoptic, separators=(",", ":")).encode())
    stored = json.dumps({"scale": SCENE_DEPTH.scale, "near": SCENE_DEPTH.near, "far": SCENE_DEPTH.far})
    atomic_write(folder / FORMAT_FILE, f"{stored}\n".encode())
    data = json.dumps(content, separators=(",", ":")).encode()
    atomic_write(folder / ANNOTATIONS, data)
    remove_leftovers(folder)
