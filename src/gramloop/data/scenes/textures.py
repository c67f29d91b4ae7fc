"""The surfaces of procedural scenes: sky, mountain, grass, water, sand, brick and pavement.

Each surface is a function ``(rng, height, width, unit) -> float32 (height, width, 3)`` in 0..1, where
``unit`` is the number of pixels that one pixel of the 192 px scene has become.
"""

from __future__ import annotations

import colorsys
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Surface = Callable[[np.random.Generator, int, int, float], Array]


def hsv(hue: float, saturation: float, value: float) -> Array:
    """A colour from hue (turns), saturation and value as float32 RGB."""
    return np.array(colorsys.hsv_to_rgb(hue % 1.0, saturation, value), np.float32)


def value_noise(rng: np.random.Generator, height: int, width: int, cell_y: float, cell_x: float) -> Array:
    """Smooth value value_noise around 0, about -0.5..0.5, with cells of the given size in pixels; (H, W)."""
    rows = max(2, round(height / max(cell_y, 1.0)) + 1)
    columns = max(2, round(width / max(cell_x, 1.0)) + 1)
    grid = rng.random((rows, columns), dtype=np.float32) - 0.5
    resized: Array = cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC)
    return resized


def mix(first: Array, second: Array, weight: Array) -> Array:
    """Blend two colours (3,) by a weight map (H, W) into (H, W, 3)."""
    blended: Array = first + weight[..., None] * (second - first)
    return blended


def brick(rng: np.random.Generator, height: int, width: int, unit: float) -> Array:
    """A running bond of bricks between lighter mortar, every brick of its own shade."""
    brick_w, brick_h = unit * rng.uniform(15, 21), unit * rng.uniform(7.5, 10)
    joint = 1.5 * unit
    y = np.arange(height, dtype=np.float32)[:, None] + rng.uniform(0, brick_h)
    x = np.arange(width, dtype=np.float32)[None, :] + rng.uniform(0, brick_w)
    row = np.floor(y / brick_h)
    shifted = x + (row % 2) * brick_w / 2
    column = np.floor(shifted / brick_w).astype(np.intp)
    row = row.astype(np.intp)
    inside_y = np.clip((y % brick_h) / joint, 0, 1)
    inside_x = np.clip((shifted % brick_w) / joint, 0, 1)
    tones = rng.random((row.max() + 1, column.max() + 1), dtype=np.float32)
    face = hsv(rng.uniform(-0.02, 0.06), rng.uniform(0.4, 0.65), rng.uniform(0.45, 0.7))
    mortar = np.full(3, rng.uniform(0.6, 0.8), np.float32)
    shade = 0.78 + 0.36 * tones[row, column] + 0.18 * value_noise(rng, height, width, 2 * unit, 2 * unit)
    covered = np.minimum(inside_y, inside_x)[..., None]
    bricks: Array = mortar + covered * (face * shade[..., None] - mortar)
    return bricks


def sky(rng: np.random.Generator, height: int, width: int, unit: float) -> Array:
    """A vertical gradient of one of four times of day, with soft clouds."""
    palettes = (
        ((0.58, 0.60, 0.88), (0.54, 0.18, 0.97)),  # a clear day
        ((0.60, 0.15, 0.72), (0.58, 0.06, 0.88)),  # overcast
        ((0.68, 0.35, 0.62), (0.06, 0.48, 0.97)),  # evening
        ((0.62, 0.45, 0.75), (0.92, 0.18, 0.93)),  # early morning
    )
    top, bottom = palettes[rng.choice(4, p=[0.5, 0.2, 0.15, 0.15])]
    turn = rng.uniform(-0.02, 0.02)
    fall = np.linspace(0, 1, height, dtype=np.float32)[:, None] ** rng.uniform(0.7, 1.3)
    gradient = mix(hsv(top[0] + turn, *top[1:]), hsv(bottom[0] + turn, *bottom[1:]), fall)
    puffs = value_noise(rng, height, width, 16 * unit, 36 * unit) + 0.4 * value_noise(
        rng, height, width, 6 * unit, 11 * unit
    )
    cover = np.clip((puffs + rng.uniform(-0.25, 0.15)) * 3.0, 0, 0.85)[..., None]
    cloud = np.float32(rng.uniform(0.85, 1.0))
    clouded: Array = gradient + cover * (cloud - gradient)
    return clouded


def mountain(rng: np.random.Generator, height: int, width: int, unit: float) -> Array:
    """Slanted facets of rock that fade into haze towards the foot, sometimes under snow."""
    base = hsv(rng.uniform(0.58, 0.78), rng.uniform(0.12, 0.32), rng.uniform(0.38, 0.55))
    facets = value_noise(rng, height, width + height, 22 * unit, 9 * unit)
    slant = (np.arange(height)[:, None] * (1 if rng.random() < 0.5 else 0.6)).astype(np.intp)
    facets = facets[np.arange(height)[:, None], np.arange(width)[None, :] + slant]
    shade = 1.0 + 0.7 * facets + 0.3 * value_noise(rng, height, width, 4 * unit, 4 * unit)
    rock = base * shade[..., None]
    fall = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    if rng.random() < 0.5:
        line = rng.uniform(0.25, 0.4)
        snow = np.clip((line - fall + 0.35 * facets) * 9, 0, 1)[..., None]
        rock = rock + snow * (np.float32(0.93) - rock)
    haze: Array = rock + (0.35 * fall)[..., None] * (np.float32(0.75) - rock)
    return haze


def grass(rng: np.random.Generator, height: int, width: int, unit: float) -> Array:
    """Upright blades, longer towards the viewer, over patches of two greens."""
    green = hsv(rng.uniform(0.20, 0.33), rng.uniform(0.5, 0.75), rng.uniform(0.42, 0.66))
    other = hsv(rng.uniform(0.16, 0.30), rng.uniform(0.5, 0.7), rng.uniform(0.5, 0.7))
    patches = np.clip(0.5 + 1.2 * value_noise(rng, height, width, 12 * unit, 30 * unit), 0, 1)
    blades = value_noise(rng, height, width, 5 * unit, 1.6 * unit)
    far = value_noise(rng, height, width, 2 * unit, 2.2 * unit)
    near = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    shade = 0.92 + 0.75 * (near * blades + (1 - near) * 0.6 * far)
    field: Array = mix(green, other, patches) * shade[..., None]
    return field


def water(rng: np.random.Generator, height: int, width: int, unit: float) -> Array:
    """Long horizontal ripples that widen towards the viewer, with glints."""
    deep = hsv(rng.uniform(0.50, 0.62), rng.uniform(0.5, 0.75), rng.uniform(0.38, 0.62))
    light = hsv(rng.uniform(0.50, 0.58), rng.uniform(0.15, 0.35), rng.uniform(0.8, 0.95))
    waves = value_noise(rng, height, width, 2.2 * unit, 14 * unit) + 0.6 * value_noise(
        rng, height, width, 5 * unit, 34 * unit
    )
    rows = (np.linspace(0, 1, height) ** 0.6 * (height - 1)).astype(np.intp)
    waves = waves[rows]
    far = np.linspace(0.3, -0.05, height, dtype=np.float32)[:, None]
    return mix(deep, light, np.clip(0.22 + far + 0.65 * waves, 0, 1))


def sand(rng: np.random.Generator, height: int, width: int, unit: float) -> Array:
    """Fine grain over wind ripples."""
    base = hsv(rng.uniform(0.09, 0.14), rng.uniform(0.28, 0.48), rng.uniform(0.75, 0.93))
    grain = value_noise(rng, height, width, 1.3 * unit, 1.3 * unit)
    dunes = value_noise(rng, height, width, 7 * unit, 32 * unit)
    ripples = np.sin(
        np.arange(height, dtype=np.float32)[:, None] * (2 * np.pi / (rng.uniform(6, 9) * unit)) + 9 * dunes
    )
    shade = 0.95 + 0.26 * grain + 0.16 * dunes + 0.05 * ripples
    shore: Array = base * shade[..., None]
    return shore


def pavement(rng: np.random.Generator, height: int, width: int, unit: float) -> Array:
    """Grey slabs in perspective, every slab of its own shade."""
    t = np.linspace(0.10, 1.0, height, dtype=np.float32)[:, None]
    centre = width * rng.uniform(0.3, 0.7)
    slab = rng.uniform(24, 34) * unit
    x = (np.arange(width, dtype=np.float32)[None, :] - centre) / (slab * (0.35 + 0.65 * t))
    z = rng.uniform(5, 7) * np.sqrt(t) + np.zeros_like(x)
    column, row = np.floor(x).astype(np.intp), np.floor(z).astype(np.intp)
    tones = rng.random((16, 32), dtype=np.float32)[row % 16, column % 32]
    edge_x = np.minimum(x - column, 1 - (x - column)) * slab * (0.35 + 0.65 * t)
    edge_z = np.minimum(z - row, 1 - (z - row)) * slab * 0.5
    joint = np.clip(np.minimum(edge_x, edge_z) / (1.4 * unit), 0, 1)
    base = hsv(rng.uniform(0.55, 0.75), rng.uniform(0.02, 0.10), rng.uniform(0.5, 0.7))
    shade = (0.86 + 0.24 * tones + 0.14 * value_noise(rng, height, width, 2 * unit, 2 * unit)) * (
        0.62 + 0.38 * joint
    )
    slabs: Array = base * shade[..., None]
    return slabs


SURFACES: dict[str, Surface] = {
    "sky": sky,
    "mountain": mountain,
    "grass": grass,
    "water": water,
    "sand": sand,
    "brick": brick,
    "pavement": pavement,
}
