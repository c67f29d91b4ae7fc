"""The surfaces of procedural scenes: sky, mountain, grass, water, sand, brick and pavement."""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Range = tuple[float, float]


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
