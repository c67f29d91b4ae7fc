"""Procedural scenes: an endless labelled data set that needs no download.

A scene is a small landscape or street: textured stuff up to a horizon, textured things standing on it, lit
from one side, with semantic labels, instance masks, boxes and depth. Scene ``i`` of a split is the same to the byte
in any order, process and batch.

Depth follows from how a scene is drawn: the ground is a plane seen by an eye 1.6 m above it, so a row of pixels below
the horizon lies at 1.6 m over its share of the picture below the horizon; a thing stands upright at the row of its
foot; walls and mountains stand on the horizon, 40 m away, and no ground is farther. The sky has no depth.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import cv2
import numpy as np

from gramloop.data.scenes.painting import SURFACES, THING_SHAPES, Array, Brush, Sprite, hsv, value_noise
from gramloop.errors import GramLoopError

STUFF = tuple(SURFACES)
THINGS = tuple(THING_SHAPES)
CLASSES = STUFF + THINGS
RECIPE = 1  # part of every seed: raise it when the pictures change

_SMALLEST = 64
FAR = 40.0  # metres to what stands on the horizon
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


@dataclass(frozen=True)
class _Layer:
    name: str
    top: Array  # (W,) float32: the row at which it begins


@dataclass(frozen=True)
class _SceneObject:
    kind: int
    top: int
    left: int
    height: int
    width: int
    seed: int


def scene(index: int, size: int = 192, split: str = "train", seed: int = 0) -> Scene:
    """Draw scene number ``index`` of a split, ``size`` pixels square."""
    check_scene(index, size)
    rng = np.random.Generator(np.random.PCG64(_seed_of(index, split, seed)))
    light = float(rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.0))
    layers, horizon = _lay_out(rng, size)
    image, labels = _paint_stuff(rng, layers, size)
    owner = np.zeros((size, size), np.uint8)
    objects = _place_things(rng, labels, horizon, size)
    for number, thing in enumerate(objects, start=1):
        _paint_thing(image, owner, labels, thing, number, light)
    return _finish(rng, image, labels, owner, objects, horizon)


def check_scene(index: int, size: int) -> None:
    """Refuse an index or a size that no scene has."""
    if index < 0:
        raise GramLoopError(f"a scene's index is 0 or more, not {index}")
    if size < _SMALLEST:
        raise GramLoopError(f"a scene is at least {_SMALLEST} px wide, not {size}")


def _seed_of(index: int, split: str, seed: int) -> int:
    key = f"gramloop scenes|{RECIPE}|{seed}|{split}|{index}".encode()
    return int.from_bytes(hashlib.sha256(key).digest()[:16], "big")


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
        own = np.random.Generator(np.random.PCG64(int(rng.integers(1 << 62))))
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


def _place_things(rng: np.random.Generator, labels: Array, horizon: float, size: int) -> list[_SceneObject]:
    objects: list[_SceneObject] = []
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
        shape = THING_SHAPES[THINGS[kind]]
        height, width = round(shape.height * scale), round(shape.width * scale)
        top, left = round(foot * size) - height, round(centre * size - width / 2)
        thing = _SceneObject(kind, top, left, height, width, seed)
        if all(_overlap(thing, other) < 0.35 for other in objects):
            objects.append(thing)
        if len(objects) == wanted:
            break
    return sorted(objects, key=lambda thing: thing.top + thing.height)


def _overlap(a: _SceneObject, b: _SceneObject) -> float:
    width = min(a.left + a.width, b.left + b.width) - max(a.left, b.left)
    height = min(a.top + a.height, b.top + b.height) - max(a.top, b.top)
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / min(a.width * a.height, b.width * b.height)


def _paint_thing(
    image: Array, owner: Array, labels: Array, thing: _SceneObject, number: int, light: float
) -> None:
    size = len(image)
    _cast_shadow(image, thing, light)
    own = np.random.Generator(np.random.PCG64(thing.seed))
    sprite = Sprite(own, thing.height, thing.width, light, size / 192)
    THING_SHAPES[THINGS[thing.kind]].draw(sprite)
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


def _cast_shadow(image: Array, thing: _SceneObject, light: float) -> None:
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


def _finish(
    rng: np.random.Generator,
    image: Array,
    labels: Array,
    owner: Array,
    objects: list[_SceneObject],
    horizon: float,
) -> Scene:
    tint = 0.94 + 0.1 * hsv(rng.uniform(0.05, 0.65), 0.6, 1.0)
    image *= (tint * rng.uniform(0.85, 1.08)).astype(np.float32)
    pixels = cv2.convertScaleAbs(np.clip(image, 0, 1), alpha=255)
    visible = [number for number in range(1, len(objects) + 1) if (owner == number).any()]
    masks = (
        np.stack([owner == number for number in visible]) if visible else np.zeros((0, *owner.shape), bool)
    )
    boxes = np.array([cv2.boundingRect(mask.astype(np.uint8)) for mask in masks], np.int64).reshape(-1, 4)
    categories = np.array([objects[number - 1].kind for number in visible], np.int64)
    return Scene(pixels, labels, boxes, categories, masks, _depth(labels, owner, objects, horizon))


def _depth(labels: Array, owner: Array, objects: list[_SceneObject], horizon: float) -> Array:
    size = len(labels)
    metres = np.repeat(_distance(np.arange(size) + 0.5, horizon, size)[:, None], size, axis=1)
    upright = np.isin(labels, [CLASSES.index(name) + 1 for name in ("brick", "mountain")])
    metres[upright] = FAR
    metres[labels == CLASSES.index("sky") + 1] = 0
    for number, thing in enumerate(objects, start=1):
        foot = np.array([thing.top + thing.height])
        metres[owner == number] = _distance(foot, horizon, size)
    return metres


def _distance(rows: Array, horizon: float, size: int) -> Array:
    """How far the ground is at these rows, (n,) in pixels from the top."""
    below = rows / size - horizon
    return (_EYE / np.maximum(below, _EYE / FAR)).astype(np.float32)
