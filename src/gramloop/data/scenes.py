"""Procedural scenes: an endless labelled data set that needs no download, in memory or on disk in every layout.

A scene is a small landscape or street: textured stuff up to a horizon, textured things standing on it, lit
from one side, with semantic labels, instance masks, boxes and depth. Scene ``i`` of a split is the same to the byte
in any order, process and batch.

Depth follows from how a scene is drawn: the ground is a plane seen by an eye 1.6 m above it, so a row of pixels below
the horizon lies at 1.6 m over its share of the picture below the horizon; a thing stands upright at the row of its
foot; walls and mountains stand on the horizon, 40 m away, and no ground is farther. The sky has no depth.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np

from gramloop.data.folders import FORMAT_FILE
from gramloop.data.painting import SURFACES, THING_SHAPES, Array, Brush, Sprite, hsv, value_noise
from gramloop.data.truth import DepthFormat, SegmentMap, segments_info, segments_png
from gramloop.errors import GramLoopError
from gramloop.util.files import TEMPORARY, atomic_write, is_taken
from gramloop.util.json_files import read_json
from gramloop.util.processes import in_order, worker_count

STUFF = tuple(SURFACES)
THINGS = tuple(THING_SHAPES)
CLASSES = STUFF + THINGS
RECIPE = 1  # part of every seed: raise it when the pictures change
SUITE, COUNT = "scenes", 100  # the base set where no folder is given, and how many images of it
FAR = 40.0  # metres to what stands on the horizon

_SMALLEST = 64
_EYE = 1.6  # metres above the ground, for a picture as high as it is far away
_GROUNDS = {  # what stands where, as weights in the order of THINGS
    "grass": (2, 2, 4, 3, 2, 0.3, 3, 1.5),
    "water": (2, 0.5, 0, 0, 0, 9, 0, 0.3),
    "sand": (3, 3, 1.5, 2, 2, 2, 1.5, 3),
    "pavement": (2, 3, 2, 2, 4, 0.2, 1, 3),
}


@dataclass(frozen=True)
class Scene:
    """One picture and everything that is known about it."""

    image: Array  # (H, W, 3) uint8, RGB
    labels: Array  # (H, W) uint8, 0 = unlabelled, k = CLASSES[k - 1]
    boxes: Array  # (n, 4) int64, x, y, width, height of the visible part
    categories: Array  # (n,) int64, index into THINGS
    masks: Array  # (n, H, W) bool, the visible part
    depth: Array  # (H, W) float32, metres, 0 = sky


class _Layer(NamedTuple):
    name: str
    top: Array  # (W,) float32: the row at which it begins


class _Thing(NamedTuple):
    kind: int
    top: int
    left: int
    height: int
    width: int
    seed: int


def scene(index: int, size: int = 192, split: str = "train", seed: int = 0) -> Scene:
    """Draw scene number ``index`` of a split, ``size`` pixels square."""
    check_scene(index, size)
    key = f"gramloop scenes|{RECIPE}|{seed}|{split}|{index}".encode()
    rng = _generator(int.from_bytes(hashlib.sha256(key).digest()[:16], "big"))
    light = float(rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.0))
    layers, horizon = _lay_out(rng, size)
    image, labels = _paint_stuff(rng, layers, size)
    owner = np.zeros((size, size), np.uint8)  # the number of the thing that a pixel belongs to
    things = _place_things(rng, labels, horizon, size)
    for number, thing in enumerate(things, start=1):
        _paint_thing(image, owner, labels, thing, number, light)
    tint = 0.94 + 0.1 * hsv(rng.uniform(0.05, 0.65), 0.6, 1.0)
    image *= (tint * rng.uniform(0.85, 1.08)).astype(np.float32)
    pixels = cv2.convertScaleAbs(np.clip(image, 0, 1), alpha=255)
    visible = [number for number in range(1, len(things) + 1) if (owner == number).any()]
    masks = owner == np.array(visible, np.uint8).reshape(-1, 1, 1)
    boxes = np.array([cv2.boundingRect(mask.astype(np.uint8)) for mask in masks], np.int64).reshape(-1, 4)
    categories = np.array([things[number - 1].kind for number in visible], np.int64)
    return Scene(pixels, labels, boxes, categories, masks, _depth(labels, owner, things, horizon))


def check_scene(index: int, size: int) -> None:
    """Refuse an index or a size that no scene has."""
    if index < 0:
        raise GramLoopError(f"a scene's index is 0 or more, not {index}")
    if size < _SMALLEST:
        raise GramLoopError(f"a scene is at least {_SMALLEST} px wide, not {size}")


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def _lay_out(rng: np.random.Generator, size: int) -> tuple[list[_Layer], float]:
    horizon = float(rng.uniform(0.3, 0.52))
    ground = [str(name) for name in rng.choice(list(_GROUNDS), 2, replace=False)]
    above = np.full(size, -1, np.float32)  # one row out of sight, so that the first row is covered in full
    layers = [_Layer("sky", above)]
    if rng.random() < 0.4:
        if rng.random() < 0.35:
            layers = [_Layer("brick", above)]
        else:
            layers.append(_Layer("brick", _edge(rng, size, rng.uniform(0.35, 0.7) * horizon, 0.0)))
    elif rng.random() < 0.5:
        layers.append(_Layer("mountain", _edge(rng, size, rng.uniform(0.35, 0.6) * horizon, 0.3 * horizon)))
    flat = ground[0] in ("water", "pavement") or layers[-1].name == "brick"
    layers.append(_Layer(ground[0], _edge(rng, size, horizon, 0.0 if flat else 0.07)))
    if rng.random() < 0.6:
        middle = rng.uniform(horizon + 0.18, 0.82)
        tilt = rng.uniform(-0.12, 0.12)
        layers.append(_Layer(ground[1], _edge(rng, size, middle, 0.06, tilt)))
    return layers, horizon


def _edge(rng: np.random.Generator, size: int, height: float, bumps: float, tilt: float = 0.0) -> Array:
    line = value_noise(rng, 2, size, 2, size / 5)[0]
    slope = np.linspace(-tilt, tilt, size, dtype=np.float32)
    edge: Array = np.clip(height + bumps * line + slope, 0, 1).astype(np.float32) * size
    return edge


def _paint_stuff(rng: np.random.Generator, layers: list[_Layer], size: int) -> tuple[Array, Array]:
    image = np.zeros((size, size, 3), np.float32)
    labels = np.zeros((size, size), np.uint8)
    lowest = [float(layer.top.max()) for layer in layers[1:]] + [float(size)]
    for layer, bottom in zip(layers, lowest, strict=True):
        own = _generator(int(rng.integers(1 << 62)))
        first, last = max(0, int(layer.top.min())), min(size, int(bottom) + 2)
        if last - first < 2:
            continue
        surface = SURFACES[layer.name](Brush(own, last - first, size, size / 192))
        rows = np.arange(first, last, dtype=np.float32)[:, None]
        cover = np.clip(rows - layer.top + 0.5, 0, 1)
        part = image[first:last]
        part += cover[..., None] * (surface - part)
        labels[first:last][cover >= 0.5] = CLASSES.index(layer.name) + 1
    return image, labels


def _place_things(rng: np.random.Generator, labels: Array, horizon: float, size: int) -> list[_Thing]:
    things: list[_Thing] = []
    wanted = int(rng.integers(2, 7))
    for _ in range(3 * wanted):
        foot = rng.uniform(horizon + 0.06, 0.97)
        centre = rng.uniform(0.06, 0.94)
        ground = CLASSES[labels[min(size - 1, int(foot * size)), int(centre * size)] - 1]
        seed, jitter, pick = int(rng.integers(1 << 62)), rng.uniform(0.85, 1.15), rng.random()
        if ground not in _GROUNDS:
            continue
        weights = np.cumsum(_GROUNDS[ground])
        kind = int(np.searchsorted(weights, pick * weights[-1]))
        near = (foot - horizon) / (1 - horizon)
        scale = (0.5 + 0.6 * near) * jitter * size / 192
        height, width = (round(side * scale) for side in THING_SHAPES[THINGS[kind]][1:])
        top, left = round(foot * size) - height, round(centre * size - width / 2)
        thing = _Thing(kind, top, left, height, width, seed)
        if all(_overlap(thing, other) < 0.35 for other in things):
            things.append(thing)
        if len(things) == wanted:
            break
    return sorted(things, key=lambda thing: thing.top + thing.height)


def _overlap(a: _Thing, b: _Thing) -> float:
    width = min(a.left + a.width, b.left + b.width) - max(a.left, b.left)
    height = min(a.top + a.height, b.top + b.height) - max(a.top, b.top)
    return max(width, 0) * max(height, 0) / min(a.width * a.height, b.width * b.height)


def _paint_thing(image: Array, owner: Array, labels: Array, thing: _Thing, number: int, light: float) -> None:
    size = len(image)
    _cast_shadow(image, thing, light)
    sprite = Sprite(_generator(thing.seed), thing.height, thing.width, light, size / 192)
    THING_SHAPES[THINGS[thing.kind]][0](sprite)
    top, left = max(0, thing.top), max(0, thing.left)
    bottom, right = min(size, thing.top + thing.height), min(size, thing.left + thing.width)
    if bottom <= top or right <= left:
        return
    window = np.s_[top - thing.top : bottom - thing.top, left - thing.left : right - thing.left]
    target = np.s_[top:bottom, left:right]
    alpha = sprite.alpha[window]
    image[target] += alpha[..., None] * (sprite.rgb[window] - image[target])
    owner[target][alpha >= 0.5] = number
    labels[target][alpha >= 0.5] = len(STUFF) + 1 + thing.kind


def _cast_shadow(image: Array, thing: _Thing, light: float) -> None:
    size = len(image)
    reach, half = 0.25 * thing.width, 0.5 * thing.width
    x, y = thing.left + half - np.sign(light) * reach, thing.top + 0.97 * thing.height
    flat = max(2.0, 0.09 * thing.height)
    x0, x1 = int(max(0, x - half - 4)), int(min(size, x + half + 4))
    y0, y1 = int(max(0, y - flat - 4)), int(min(size, y + flat + 4))
    if x1 - x0 < 2 or y1 - y0 < 2:
        return
    across = (np.arange(x0, x1, dtype=np.float32) - np.float32(x)) / np.float32(half)
    down = (np.arange(y0, y1, dtype=np.float32) - np.float32(y)) / np.float32(flat)
    inside = np.clip(1.15 - np.sqrt(across[None, :] ** 2 + down[:, None] ** 2), 0, 0.35) / 0.35
    image[y0:y1, x0:x1] *= (1 - np.float32(0.45) * inside)[..., None]


def _depth(labels: Array, owner: Array, things: list[_Thing], horizon: float) -> Array:
    size = len(labels)

    def distance(row: Array | float) -> Array:
        """How far the ground is at a row, in pixels from the top."""
        below = np.asarray(row) / size - horizon
        return (_EYE / np.maximum(below, _EYE / FAR)).astype(np.float32)

    metres = np.repeat(distance(np.arange(size) + 0.5)[:, None], size, axis=1)
    metres[np.isin(labels, [CLASSES.index(name) + 1 for name in ("brick", "mountain")])] = FAR
    metres[labels == CLASSES.index("sky") + 1] = 0
    for number, thing in enumerate(things, start=1):
        metres[owner == number] = distance(thing.top + thing.height)
    return metres


# On disk: ``images/validation/*.png`` serves all tasks; ``annotations/validation/*.png`` and ``classes.txt`` are label
# pictures, ``depth/validation/*.png`` and ``depth.json`` depth in millimetres, and two files of annotations COCO's.

# things have the numbers of the instances' file, and stuff those that follow
SCENE_CATEGORIES = dict(enumerate(THINGS + STUFF, start=1))
THING_NUMBERS = frozenset(range(1, len(THINGS) + 1))
_NUMBER_OF_LABEL = np.array([0, *(1 + (THINGS + STUFF).index(name) for name in CLASSES)])
SETTINGS_FILE = "scenes.json"
ANNOTATIONS = Path("annotations", "instances_val.json")  # written last
PANOPTIC_FILE = Path("annotations", "panoptic_val.json")
SCENE_DEPTH = DepthFormat(scale=1000.0, near=1e-3, far=FAR)  # how depth is written
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
    on_scenes: Callable[[int], None] = lambda scenes: None,
) -> None:
    """Write scenes to a folder, all or none; where they are already, nothing is drawn.

    Args:
        folder: a new folder, or one that holds exactly these.
        wanted: which scenes.
        workers: processes; one per core by default.
        on_scenes: called with a number whenever so many more scenes are done.
    """
    path, stop = folder / SETTINGS_FILE, wanted.start + wanted.count
    settings = read_json(path, "a file of settings written by gramloop scenes") if path.is_file() else None
    if settings == asdict(wanted) and (folder / ANNOTATIONS).is_file():
        on_scenes(wanted.count)
        return
    if is_taken(folder):
        raise GramLoopError(
            f"{folder} is not empty: it holds other scenes, not all of these, or something else; choose a new folder"
        )
    part = folder / f"{TEMPORARY}scenes-{secrets.token_hex(8)}"
    try:
        atomic_write(part / SETTINGS_FILE, (json.dumps(asdict(wanted), indent=2) + "\n").encode())
        atomic_write(part / "classes.txt", "".join(f"{name}\n" for name in CLASSES).encode())
        calls = [(part, wanted, index) for index in range(wanted.start, stop)]
        annotations: list[_Annotated] = []
        for annotated in in_order(_write_scene, calls, min(worker_count(workers), len(calls))):
            annotations.append(annotated)
            on_scenes(1)
        _write_descriptions(part, wanted, annotations)
        for place in sorted(part.iterdir(), key=lambda place: place.name == ANNOTATIONS.parts[0]):
            place.rename(folder / place.name)  # annotations last
    finally:
        shutil.rmtree(part, ignore_errors=True)


def draw_scenes(folder: Path, wanted: SceneFiles) -> Path:
    """Write the scenes that a command without a data set uses, unless the folder holds them; returns the folder."""
    write_scenes(folder, wanted, workers=1)
    return folder


def file_name(index: int) -> str:
    """The name of a scene's pictures."""
    return f"{index:08d}.png"


def _write_scene(folder: Path, wanted: SceneFiles, index: int) -> _Annotated:
    drawn = scene(index, wanted.size, wanted.split, wanted.seed)
    segments = scene_segments(drawn)
    depth = np.round(drawn.depth * SCENE_DEPTH.scale).astype(np.uint16)
    pictures = {
        "images/validation": cv2.imencode(".png", drawn.image[..., ::-1])[1].tobytes(),
        "annotations/validation": cv2.imencode(".png", drawn.labels)[1].tobytes(),
        "depth/validation": cv2.imencode(".png", depth)[1].tobytes(),
        str(PANOPTIC_FILE.with_suffix("")): segments_png(segments.ids),
    }
    for part, data in pictures.items():
        atomic_write(folder / part / file_name(index), data)
    return coco_annotations(drawn), segments_info(segments)


def scene_segments(drawn: Scene) -> SegmentMap:
    """Stuff has its category as id; things follow in the order of their boxes."""
    ids = _NUMBER_OF_LABEL[drawn.labels].astype(np.int32)
    ids[ids <= len(THINGS)] = 0
    for index, mask in enumerate(drawn.masks):
        ids[mask] = len(SCENE_CATEGORIES) + 1 + index
    numbers = np.unique(ids[ids > 0]).astype(np.int64)
    kinds = np.append(np.arange(len(SCENE_CATEGORIES) + 1), drawn.categories + 1)
    return SegmentMap(ids, numbers, kinds[numbers], np.zeros(len(numbers), dtype=np.bool_))


def coco_annotations(drawn: Scene) -> list[dict[str, Any]]:
    """The things of a scene as COCO annotations, without their ids."""
    return [
        {
            "category_id": int(kind) + 1,
            "bbox": [int(side) for side in box],
            "area": int(mask.sum()),
            "iscrowd": 0,
            "segmentation": outlines(mask),
        }
        for kind, box, mask in zip(drawn.categories, drawn.boxes, drawn.masks, strict=True)
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


def _write_descriptions(folder: Path, wanted: SceneFiles, annotated: list[_Annotated]) -> None:
    """Write the files that describe all scenes; an image's id is its index plus 1."""
    scenes = list(enumerate(annotated, start=wanted.start))
    objects = [{"image_id": index + 1, **entry} for index, (entries, _) in scenes for entry in entries]
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
