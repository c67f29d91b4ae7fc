"""Weather between the camera and the scene: snow, frost, fog, spatter on the lens."""

from pathlib import Path

import cv2
import numpy as np

from gramloop.shifts.blur import trail
from gramloop.shifts.frost import frost_layer
from gramloop.shifts.pixels import Floats, Image, gaussian, on_channels, stretch, to_bytes, zoom_grid

_WATER = (175.0, 238.0, 238.0)  # pale turquoise, red green blue
_MUD = (63.0, 42.0, 20.0)
_LUMA = (0.2989, 0.5870, 0.1140)


def snow(
    image: Image,
    mean: float,
    deviation: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    blend: float,
    rng: np.random.Generator,
) -> Image:
    """Flakes (enlarged noise above a threshold, dragged downwards) over an image paled by 1 - `blend`."""
    height, width = image.shape[:2]
    _, rows, zoomed_rows = zoom_grid(height, zoom)
    _, columns, zoomed_columns = zoom_grid(width, zoom)
    flakes = rng.standard_normal((rows, columns), dtype=np.float32)
    flakes *= deviation
    flakes += mean
    flakes = stretch(flakes, (0, 0), (rows, columns), (zoomed_rows, zoomed_columns))
    flakes[flakes < threshold] = 0
    flakes = trail(np.minimum(flakes, 1), radius, sigma, rng.uniform(-135, -45))
    # The published layer passes through bytes on its way.
    flakes = np.rint(255 * flakes[:height, :width])
    flakes += flakes[::-1, ::-1].copy()

    values = image.astype(np.float32)
    grey = values if image.ndim == 2 else cv2.cvtColor(values, cv2.COLOR_RGB2GRAY)
    pale = on_channels(grey * np.float32(1.5) + np.float32(127.5), image)
    pale = cv2.addWeighted(values, blend, np.maximum(values, pale), 1 - blend, 0)
    return to_bytes(cv2.add(pale, on_channels(flakes, image)))


def frost(image: Image, weight: float, ice: float, rng: np.random.Generator, textures: Path | None) -> Image:
    """The image times `weight` plus `ice` times a piece of a frost texture."""
    layer = frost_layer(image.shape[:2], rng, textures)  # (H, W, 3)
    if image.ndim == 2:
        layer = cv2.transform(layer, np.array([_LUMA], dtype=np.float32))
    return to_bytes(cv2.addWeighted(image, weight, layer, ice, 0, dtype=cv2.CV_32F))


def fog(image: Image, strength: float, decay: float, rng: np.random.Generator) -> Image:
    """A fractal bank of fog, added, the sum scaled back to the brightness of the image."""
    height, width = image.shape[:2]
    bank = plasma(1 << (max(height, width) - 1).bit_length(), decay, rng)[:height, :width]
    brightest = float(image.max()) / 255
    share = brightest / (brightest + strength)
    layer = on_channels(np.ascontiguousarray(bank), image)
    return to_bytes(cv2.addWeighted(image, share, layer, 255 * strength * share, 0, dtype=cv2.CV_32F))


def plasma(size: int, decay: float, rng: np.random.Generator) -> Floats:
    """A height map (size, size) from 0 to 1 that wraps around: diamonds and squares, `size` a power of two.

    The noise of a level is uniform within the square of its amplitude; the amplitude falls by `decay` per
    level.
    """
    heights = np.zeros((size, size), dtype=np.float32)
    step, amplitude = size, 100.0
    while step >= 2:
        half = step // 2
        noise = rng.random((3, size // step, size // step), dtype=np.float32)
        noise *= 2 * amplitude**2
        noise -= amplitude**2
        corners = heights[::step, ::step]
        centres, above, beside = (
            heights[half::step, half::step],
            heights[::step, half::step],
            heights[half::step, ::step],
        )
        pairs = corners + np.roll(corners, -1, axis=0)
        centres[:] = (pairs + np.roll(pairs, -1, axis=1)) / 4 + noise[0]
        above[:] = (
            centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        ) / 4 + noise[1]
        beside[:] = (
            centres + np.roll(centres, 1, axis=1) + corners + np.roll(corners, -1, axis=0)
        ) / 4 + noise[2]
        step, amplitude = half, amplitude / decay
    heights -= heights.min()
    heights /= heights.max()
    return heights


def spatter(
    image: Image,
    mean: float,
    deviation: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: bool,
    rng: np.random.Generator,
) -> Image:
    """Drops of water that glint, or of mud that covers, where smoothed noise exceeds a threshold."""
    liquid = rng.standard_normal(image.shape[:2], dtype=np.float32)
    liquid *= deviation
    liquid += mean
    liquid = gaussian(liquid, sigma)
    colour = _MUD if mud else _WATER
    values = image.astype(np.float32)
    if mud:
        cover = gaussian((liquid > threshold).astype(np.float32), strength)
        cover[cover < 0.8] = 0
        cv2.multiply(values, on_channels(1 - cover, image), dst=values)
    else:
        liquid[liquid < threshold] = 0
        cover = _glints(liquid) * np.float32(strength)
    if image.ndim == 2:
        return to_bytes(values + cover * np.float32(np.dot(colour, _LUMA)))
    tint = [np.minimum(cover * np.float32(c), 255) for c in colour]
    return to_bytes(cv2.add(values, cv2.merge(tint)))


def _glints(liquid: Floats) -> Floats:
    """How much light the drops add, from 0 to 1: most just inside their lower right edges."""
    drops = (255 * liquid).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    relief = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
    light = cv2.filter2D(cv2.equalizeHist(distance), cv2.CV_8U, relief)
    light = cv2.blur(light, (3, 3)).astype(np.float32) * drops
    brightest = float(light.max())
    glints: Floats = light / np.float32(brightest) if brightest > 0 else light
    return glints
