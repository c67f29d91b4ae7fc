"""What procedural scenes are painted of: surfaces (sky, grass, …), and things drawn into sprites, lit from one side."""

from __future__ import annotations

import colorsys
from collections.abc import Callable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Range = tuple[float, float]
Points = Sequence[tuple[float, float]]
_FRACTION_BITS = 4


class Brush:
    """A part of a picture with the random numbers that draw it.

    ``unit`` is the number of pixels that one pixel of the 192 px scene has become.
    """

    def __init__(self, rng: np.random.Generator, height: int, width: int, unit: float) -> None:
        self.rng, self.height, self.width, self.unit = rng, height, width, unit

    def noise(self, cell_y: float, cell_x: float, wider: int = 0) -> Array:
        """Smooth noise (height, width + wider), about -0.5..0.5, with cells in pixels of the 192 px scene."""
        size = self.height, self.width + wider
        return value_noise(self.rng, *size, cell_y * self.unit, cell_x * self.unit)

    def colour(self, hue: Range, saturation: Range, value: Range) -> Array:
        """A random colour within ranges of hue, saturation and value."""
        return hsv(*(self.rng.uniform(*limits) for limits in (hue, saturation, value)))

    def down(self, first: float = 0, last: float = 1) -> Array:
        """Numbers from the first row to the last, (height, 1)."""
        return np.linspace(first, last, self.height, dtype=np.float32)[:, None]


def hsv(hue: float, saturation: float, value: float) -> Array:
    """A colour from hue (turns), saturation and value as float32 RGB."""
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value), np.float32)


def value_noise(rng: np.random.Generator, height: int, width: int, cell_y: float, cell_x: float) -> Array:
    """Smooth noise around 0, about -0.5..0.5, with cells of the given size in pixels; (height, width)."""
    rows = max(2, round(height / max(cell_y, 1.0)) + 1)
    columns = max(2, round(width / max(cell_x, 1.0)) + 1)
    grid = rng.random((rows, columns), dtype=np.float32) - 0.5
    resized: Array = cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
    return resized


def mix(first: Array, second: Array | np.float32, weight: Array) -> Array:
    """Blend colours, (3,) or (H, W, 3), by a weight map (H, W) into (H, W, 3)."""
    blended: Array = first + weight[..., None] * (second - first)
    return blended


def shaded(colour: Array, shade: Array) -> Array:
    """A colour, (3,) or (H, W, 3), times a shade (H, W)."""
    result: Array = colour * shade[..., None]
    return result


def brick(c: Brush) -> Array:
    """A running bond of bricks between lighter mortar, every brick of its own shade."""
    brick_w, brick_h = c.unit * c.rng.uniform(15, 21), c.unit * c.rng.uniform(7.5, 10)
    joint = 1.5 * c.unit
    y = np.arange(c.height, dtype=np.float32)[:, None] + c.rng.uniform(0, brick_h)
    x = np.arange(c.width, dtype=np.float32)[None, :] + c.rng.uniform(0, brick_w)
    row = np.floor(y / brick_h)
    shifted = x + (row % 2) * brick_w / 2
    column = np.floor(shifted / brick_w).astype(np.intp)
    row = row.astype(np.intp)
    inside_y = np.clip((y % brick_h) / joint, 0, 1)
    inside_x = np.clip((shifted % brick_w) / joint, 0, 1)
    tones = c.rng.random((row.max() + 1, column.max() + 1), dtype=np.float32)
    face = c.colour((-0.02, 0.06), (0.4, 0.65), (0.45, 0.7))
    mortar = np.full(3, c.rng.uniform(0.6, 0.8), np.float32)
    shade = 0.78 + 0.36 * tones[row, column] + 0.18 * c.noise(2, 2)
    return mix(mortar, shaded(face, shade), np.minimum(inside_y, inside_x))


def sky(c: Brush) -> Array:
    """A vertical gradient of one of four times of day, with soft clouds."""
    palettes = (
        ((0.58, 0.60, 0.88), (0.54, 0.18, 0.97)),  # a clear day
        ((0.60, 0.15, 0.72), (0.58, 0.06, 0.88)),  # overcast
        ((0.68, 0.35, 0.62), (0.06, 0.48, 0.97)),  # evening
        ((0.62, 0.45, 0.75), (0.92, 0.18, 0.93)),  # early morning
    )
    top, bottom = palettes[c.rng.choice(4, p=[0.5, 0.2, 0.15, 0.15])]
    turn = c.rng.uniform(-0.02, 0.02)
    fall = c.down() ** c.rng.uniform(0.7, 1.3)
    gradient = mix(hsv(top[0] + turn, *top[1:]), hsv(bottom[0] + turn, *bottom[1:]), fall)
    puffs = c.noise(16, 36) + 0.4 * c.noise(6, 11)
    cover = np.clip((puffs + c.rng.uniform(-0.25, 0.15)) * 3.0, 0, 0.85)
    return mix(gradient, np.float32(c.rng.uniform(0.85, 1.0)), cover)


def mountain(c: Brush) -> Array:
    """Slanted facets of rock that fade into haze towards the foot, sometimes under snow."""
    base = c.colour((0.58, 0.78), (0.12, 0.32), (0.38, 0.55))
    facets = c.noise(22, 9, wider=c.height)
    slant = (np.arange(c.height)[:, None] * (1 if c.rng.random() < 0.5 else 0.6)).astype(np.intp)
    facets = facets[np.arange(c.height)[:, None], np.arange(c.width)[None, :] + slant]
    rock = shaded(base, 1.0 + 0.7 * facets + 0.3 * c.noise(4, 4))
    fall = c.down()
    if c.rng.random() < 0.5:
        line = c.rng.uniform(0.25, 0.4)
        rock = mix(rock, np.float32(0.93), np.clip((line - fall + 0.35 * facets) * 9, 0, 1))
    return mix(rock, np.float32(0.75), 0.35 * fall)


def grass(c: Brush) -> Array:
    """Upright blades, longer towards the viewer, over patches of two greens."""
    green = c.colour((0.20, 0.33), (0.5, 0.75), (0.42, 0.66))
    other = c.colour((0.16, 0.30), (0.5, 0.7), (0.5, 0.7))
    patches = np.clip(0.5 + 1.2 * c.noise(12, 30), 0, 1)
    blades, far, near = c.noise(5, 1.6), c.noise(2, 2.2), c.down()
    return shaded(mix(green, other, patches), 0.92 + 0.75 * (near * blades + (1 - near) * 0.6 * far))


def water(c: Brush) -> Array:
    """Long horizontal ripples that widen towards the viewer, with glints."""
    deep = c.colour((0.50, 0.62), (0.5, 0.75), (0.38, 0.62))
    light = c.colour((0.50, 0.58), (0.15, 0.35), (0.8, 0.95))
    waves = c.noise(2.2, 14) + 0.6 * c.noise(5, 34)
    rows = (np.linspace(0, 1, c.height) ** 0.6 * (c.height - 1)).astype(np.intp)
    return mix(deep, light, np.clip(0.22 + c.down(0.3, -0.05) + 0.65 * waves[rows], 0, 1))


def sand(c: Brush) -> Array:
    """Fine grain over wind ripples."""
    base = c.colour((0.09, 0.14), (0.28, 0.48), (0.75, 0.93))
    grain, dunes = c.noise(1.3, 1.3), c.noise(7, 32)
    rows = np.arange(c.height, dtype=np.float32)[:, None]
    ripples = np.sin(rows * (2 * np.pi / (c.rng.uniform(6, 9) * c.unit)) + 9 * dunes)
    return shaded(base, 0.95 + 0.26 * grain + 0.16 * dunes + 0.05 * ripples)


def pavement(c: Brush) -> Array:
    """Grey slabs in perspective, every slab of its own shade."""
    t = c.down(0.10, 1.0)
    centre = c.width * c.rng.uniform(0.3, 0.7)
    slab = c.rng.uniform(24, 34) * c.unit
    x = (np.arange(c.width, dtype=np.float32)[None, :] - centre) / (slab * (0.35 + 0.65 * t))
    z = c.rng.uniform(5, 7) * np.sqrt(t) + np.zeros_like(x)
    column, row = np.floor(x).astype(np.intp), np.floor(z).astype(np.intp)
    tones = c.rng.random((16, 32), dtype=np.float32)[row % 16, column % 32]
    edge_x = np.minimum(x - column, 1 - (x - column)) * slab * (0.35 + 0.65 * t)
    edge_z = np.minimum(z - row, 1 - (z - row)) * slab * 0.5
    joint = np.clip(np.minimum(edge_x, edge_z) / (1.4 * c.unit), 0, 1)
    base = c.colour((0.55, 0.75), (0.02, 0.10), (0.5, 0.7))
    return shaded(base, (0.86 + 0.24 * tones + 0.14 * c.noise(2, 2)) * (0.62 + 0.38 * joint))


SURFACES: dict[str, Callable[[Brush], Array]] = {
    surface.__name__: surface for surface in (sky, mountain, grass, water, sand, brick, pavement)
}


class Sprite(Brush):
    """A small picture with coverage; coordinates run from (0, 0) top left to (1, 1) bottom right."""

    def __init__(self, rng: np.random.Generator, height: int, width: int, light: float, unit: float) -> None:
        super().__init__(rng, height, width, unit)
        self.light = light
        self.rgb = np.zeros((height, width, 3), np.float32)
        self.alpha = np.zeros((height, width), np.float32)
        self.u = ((np.arange(width, dtype=np.float32) + 0.5) / width)[None, :]
        self.v = ((np.arange(height, dtype=np.float32) + 0.5) / height)[:, None]

    def cover(self, points: Points | Array) -> Array:
        """The anti-aliased coverage of a polygon, (height, width)."""
        scale = np.array([self.width - 2, self.height - 2], np.float64)
        pixels = np.asarray(points, np.float64) * scale + 0.5
        canvas = np.zeros((self.height, self.width), np.uint8)
        fixed = np.round(pixels * (1 << _FRACTION_BITS)).astype(np.int32)
        cv2.fillPoly(canvas, [fixed], 255, cv2.LINE_AA, _FRACTION_BITS)
        return canvas.astype(np.float32) / np.float32(255)

    def ellipse(self, cx: float, cy: float, rx: float, ry: float) -> Array:
        """The anti-aliased coverage of an ellipse."""
        return self.cover(arc(cx, cy, rx, ry))

    def fill(self, coverage: Array, colour: Array, shade: Array | float = 1.0) -> None:
        """Paint a colour, (3,) or (height, width, 3), over what is there."""
        shaded = colour * (shade[..., None] if isinstance(shade, np.ndarray) else np.float32(shade))
        self.rgb += coverage[..., None] * (shaded - self.rgb)
        self.alpha = np.maximum(self.alpha, coverage)

    def polygon(self, points: Points | Array, colour: Array, shade: Array | float = 1.0) -> None:
        """Paint a polygon."""
        self.fill(self.cover(points), colour, shade)

    def box(
        self, x0: float, y0: float, x1: float, y1: float, colour: Array, shade: Array | float = 1.0
    ) -> None:
        """Paint an upright rectangle."""
        self.polygon([(x0, y0), (x1, y0), (x1, y1), (x0, y1)], colour, shade)

    def sideways(self, strength: float = 0.45) -> Array:
        """A shade that falls away from the light, (height, width)."""
        across = 1 + np.float32(strength * self.light) * (self.u - 0.5) - np.float32(0.12) * self.v
        return np.broadcast_to(across, (self.height, self.width)).astype(np.float32)

    def vivid(self) -> Array:
        """A random strong colour of any hue."""
        return hsv(self.rng.random(), self.rng.uniform(0.6, 0.9), self.rng.uniform(0.65, 0.95))


def arc(cx: float, cy: float, rx: float, ry: float, start: float = 0.0, end: float = 1.0) -> Array:
    """Points along an ellipse between two angles in turns, clockwise from the right."""
    angles = np.linspace(start, end, 36) * 2 * np.pi
    return np.stack([cx + rx * np.cos(angles), cy + ry * np.sin(angles)], axis=1)


def _grey(value: float) -> Array:
    return np.full(3, value, np.float32)


def _ball(s: Sprite) -> None:
    x, y = 2 * s.u - 1, 2 * s.v - 1
    depth = np.sqrt(np.clip(1 - x * x - y * y, 0, 1))
    turn = s.rng.uniform(0, 2 * np.pi)
    along = np.float32(np.cos(turn)) * x + np.float32(np.sin(turn)) * y
    if s.rng.random() < 0.5:
        sector = np.arctan2(y - 0.25, x + 0.2) * (6 / (2 * np.pi)) + turn
        second = np.floor(sector) % 2
    else:
        second = np.abs(along) < s.rng.uniform(0.2, 0.4)
    first, other = s.vivid(), s.vivid() if s.rng.random() < 0.4 else _grey(0.95)
    colour = np.where(second[..., None], other, first)
    lambert = 0.45 + 0.65 * np.clip(0.55 * s.light * x - 0.6 * y + 0.58 * depth, 0, 1)
    s.fill(s.ellipse(0.5, 0.5, 0.5, 0.5), colour, lambert.astype(np.float32))
    s.fill(s.ellipse(0.5 + 0.17 * s.light, 0.26, 0.09, 0.07) * 0.6, _grey(1))


def _crate(s: Sprite) -> None:
    base = s.colour((0.06, 0.11), (0.4, 0.62), (0.55, 0.8))
    planks = s.rng.random(5, dtype=np.float32)[np.floor(s.v * 4.99).astype(np.intp)]
    wood = base * (0.85 + 0.25 * planks + 0.35 * s.noise(1.6, 14))[..., None]
    left, right, top, rim = (0.0, 0.78, 0.2, 0.09) if s.light < 0 else (0.22, 1.0, 0.2, 0.09)
    edge, skew = (right, 0.22) if s.light < 0 else (left, -0.22)
    s.polygon([(left, top), (right, top), (right + skew, 0), (left + skew, 0)], wood, 1.2)
    s.polygon([(edge, top), (edge + skew, 0), (edge + skew, 0.8), (edge, 1)], wood, 0.55)
    s.box(left, top, right, 1, wood, 0.85 + 0.15 * (0.5 + 0.5 * s.light))
    dark = wood * np.float32(0.66)
    s.box(left, top, right, top + rim, dark)
    s.box(left, 1 - rim, right, 1, dark)
    s.box(left, top, left + rim, 1, dark)
    s.box(right - rim, top, right, 1, dark)
    lower, upper = [(left, 1 - rim), (left, 1), (left + rim, 1)], [(right, top + rim), (right, top)]
    s.polygon([*lower, *upper, (right - rim, top)], dark)


def _tree(s: Sprite) -> None:
    bark = s.colour((0.05, 0.1), (0.35, 0.6), (0.3, 0.5))
    trunk = [(0.42, 0.55), (0.58, 0.55), (0.62, 1), (0.38, 1)]
    s.polygon(trunk, bark, s.sideways(1.2) * (1 + 0.5 * s.noise(8, 2)))
    leaf = s.colour((0.22, 0.40), (0.5, 0.8), (0.3, 0.55))
    if s.rng.random() < 0.15:
        leaf = hsv(s.rng.uniform(0.04, 0.12), 0.75, s.rng.uniform(0.6, 0.8))
    texture = s.sideways(0.7) * (1.05 + 1.1 * s.noise(3.5, 3.5) - 0.25 * s.v)
    if s.rng.random() < 0.4:
        for top, bottom, half in ((0.44, 0.82, 0.5), (0.22, 0.6, 0.41), (0.0, 0.36, 0.29)):
            branches = [(0.5, top), (0.5 + half, bottom), (0.5 - half, bottom)]
            s.polygon(branches, leaf, texture * (0.8 + 0.5 * (bottom - s.v)))
        return
    left = s.ellipse(s.rng.uniform(0.22, 0.3), s.rng.uniform(0.36, 0.46), 0.22, 0.2)
    right = s.ellipse(s.rng.uniform(0.7, 0.78), s.rng.uniform(0.36, 0.46), 0.22, 0.2)
    middle = np.maximum(s.ellipse(0.5, 0.34, 0.34, 0.34), s.ellipse(0.5, 0.52, 0.3, 0.16))
    s.fill(np.maximum.reduce([middle, left, right]), leaf, texture)


def _house(s: Sprite) -> None:
    wall = hsv(s.rng.random(), s.rng.uniform(0.08, 0.4), s.rng.uniform(0.72, 0.95))
    face = wall * (1 + 0.12 * s.noise(3, 3))[..., None]
    if s.rng.random() < 0.25:
        face = brick(Brush(s.rng, s.height, s.width, 0.75 * s.unit))
    s.box(0.08, 0.4, 0.92, 1, face, s.sideways())
    roof = hsv(s.rng.choice([0.0, 0.03, 0.6, 0.75]), s.rng.uniform(0.3, 0.65), s.rng.uniform(0.35, 0.6))
    tiles = 1 + 0.16 * np.sign(np.sin(s.v * np.float32(2 * np.pi * 9))) + 0.5 * s.noise(3, 5)
    ridge = s.rng.uniform(0.1, 0.5)
    s.polygon([(0, 0.45), (ridge, 0), (1 - ridge, 0), (1, 0.45)], roof, s.sideways(0.6) * tiles)
    door = hsv(s.rng.random(), 0.5, s.rng.uniform(0.25, 0.45))
    x = s.rng.uniform(0.2, 0.62)
    s.box(x, 0.62, x + 0.18, 1, door)
    pane = hsv(0.57, 0.3, s.rng.uniform(0.35, 0.8))
    for left in (0.14, 0.42, 0.68):
        if abs(left - x) > 0.2:
            s.box(left, 0.54, left + 0.19, 0.79, _grey(0.93))
            s.box(left + 0.03, 0.57, left + 0.16, 0.76, pane, 1.1 - 0.5 * s.v + 0 * s.u)


def _car(s: Sprite) -> None:
    paint = s.vivid() if s.rng.random() < 0.75 else _grey(s.rng.uniform(0.2, 0.9))
    flip = s.rng.random() < 0.5

    def draw(points: Points | Array, colour: Array, shade: Array | float = 1.0) -> None:
        turned = np.array(points, np.float64)
        if flip:
            turned[:, 0] = 1 - turned[:, 0]
        s.polygon(turned, colour, shade)

    front = s.rng.uniform(0.16, 0.26)
    body = [(0.0, 0.56), (0.06, 0.42), (0.94, 0.38), (1.0, 0.55), (1.0, 0.84), (0.0, 0.84)]
    sheen = s.sideways(0.25) * (1.12 - 0.75 * np.clip(s.v - 0.35, 0, 1))
    draw([(front, 0.45), (front + 0.13, 0.0), (0.72, 0.0), (0.86, 0.45)], paint, sheen)
    draw(body, paint, sheen)
    glass = hsv(0.57, 0.25, s.rng.uniform(0.25, 0.5))
    shine = 1.3 - 1.2 * s.v + 0 * s.u
    draw([(front + 0.06, 0.41), (front + 0.15, 0.09), (0.49, 0.09), (0.49, 0.41)], glass, shine)
    draw([(0.54, 0.41), (0.54, 0.09), (0.69, 0.09), (0.79, 0.41)], glass, shine)
    draw([(0.0, 0.56), (0.05, 0.5), (0.09, 0.56), (0.05, 0.64)], hsv(0.14, 0.4, 1.0))
    aspect = s.width / s.height
    for x in (0.22, 0.77):
        draw(arc(x, 0.81, 0.19 / aspect, 0.19), _grey(0.1))
        draw(arc(x, 0.81, 0.09 / aspect, 0.09), _grey(0.7))


def _boat(s: Sprite) -> None:
    hull, stripe = s.vivid(), _grey(0.95)
    shade = s.sideways(0.5) * (1.25 - 0.45 * s.v)
    s.polygon([(0, 0.72), (1, 0.72), (0.84, 1), (0.16, 1)], hull, shade)
    s.polygon([(0, 0.72), (1, 0.72), (0.96, 0.79), (0.04, 0.79)], stripe, shade)
    lean = 1 if s.rng.random() < 0.5 else -1
    if s.rng.random() < 0.65:
        cloth = _grey(0.95) if s.rng.random() < 0.5 else s.vivid()
        folds = s.sideways(0.35) * (1 + 0.25 * s.noise(16, 5))
        s.box(0.47, 0.0, 0.53, 0.74, hsv(0.08, 0.5, 0.4))
        for side, top, reach in ((lean, 0.02, 0.42), (-lean, 0.1, 0.34)):
            mast = 0.5 + 0.03 * side
            s.polygon([(mast, top), (0.5 + reach * side, 0.66), (mast, 0.66)], cloth, folds)
        return
    s.polygon([(0.24, 0.42), (0.76, 0.42), (0.8, 0.74), (0.2, 0.74)], stripe, s.sideways(0.4))
    for x in (0.29, 0.45, 0.61):
        s.box(x, 0.49, x + 0.1, 0.62, hsv(0.57, 0.4, 0.35))
    x = 0.5 + 0.12 * lean
    s.box(x - 0.09, 0.1, x + 0.09, 0.44, s.vivid(), s.sideways(1))


def _mushroom(s: Sprite) -> None:
    cream = hsv(0.11, s.rng.uniform(0.08, 0.25), s.rng.uniform(0.82, 0.95))
    stem = np.concatenate([[(0.37, 0.45)], [(0.63, 0.45)], arc(0.5, 0.88, 0.2, 0.12, 0.0, 0.5)])
    s.polygon(stem, cream, s.sideways(1.3) * (1 + 0.15 * s.noise(10, 2)))
    cap = hsv(s.rng.choice([0.0, 0.03, 0.08, 0.85]), s.rng.uniform(0.6, 0.85), s.rng.uniform(0.5, 0.85))
    dome = np.concatenate([arc(0.5, 0.5, 0.5, 0.5, 0.5, 1.0), arc(0.5, 0.5, 0.5, 0.1, 0.0, 0.5)])
    s.polygon(dome, cap, s.sideways(0.7) * (1.25 - 0.7 * s.v))
    spots = ((0.5, 0.16, 0.09), (0.25, 0.33, 0.08), (0.74, 0.33, 0.085), (0.5, 0.42, 0.075))
    for jitter, (x, y, r) in zip(s.rng.uniform(-0.04, 0.04, 4), spots, strict=True):
        s.fill(s.ellipse(x + jitter, y + jitter / 2, r, 0.85 * r), cream, s.sideways(0.7))


def _cup(s: Sprite) -> None:
    glaze = s.vivid() if s.rng.random() < 0.7 else _grey(s.rng.uniform(0.75, 0.95))
    right = s.rng.random() < 0.5
    x0, x1 = (0.0, 0.72) if right else (0.28, 1.0)
    middle, half = (x0 + x1) / 2, (x1 - x0) / 2
    hook = x1 - 0.03 if right else x0 + 0.03
    ring = s.ellipse(hook, 0.52, 0.3, 0.29) * (1 - s.ellipse(hook, 0.52, 0.16, 0.15))
    s.fill(ring, glaze, 0.8)
    foot = half * s.rng.uniform(0.72, 0.92)
    body = np.concatenate([[(x0, 0.13), (x1, 0.13)], arc(middle, 0.9, foot, 0.1, 0.0, 0.5)])
    round_light = 1.05 - 0.55 * np.abs(s.u - middle - 0.22 * s.light * half) / np.float32(half) + 0 * s.v
    coat = s.cover(body)
    s.fill(coat, glaze, round_light)
    if s.rng.random() < 0.7:
        band = ((s.v > 0.42) & (s.v < 0.68)).astype(np.float32)
        if s.rng.random() < 0.5:
            band = band * (np.sin(s.u * np.float32(40)) > 0)
        s.fill(coat * band, s.vivid(), round_light)
    s.fill(s.ellipse(middle, 0.13, half, 0.12), glaze, 1.12)
    s.fill(s.ellipse(middle, 0.14, half * 0.84, 0.085), hsv(0.06, 0.6, s.rng.uniform(0.15, 0.35)))


# how each is drawn, and its height and width in the 192 px scene when it stands at the front
THING_SHAPES: dict[str, tuple[Callable[[Sprite], None], int, int]] = {
    "ball": (_ball, 46, 46),
    "crate": (_crate, 56, 58),
    "tree": (_tree, 104, 74),
    "house": (_house, 88, 94),
    "car": (_car, 48, 98),
    "boat": (_boat, 84, 88),
    "mushroom": (_mushroom, 62, 56),
    "cup": (_cup, 54, 60),
}
