"""Weather between the camera and the scene: snow, frost, fog, spatter on the lens."""

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError
from gramloop.shifts.appearance import trail
from gramloop.shifts.common import FloatImage, Image, gaussian, on_channels, stretch, to_bytes, zoom_grid

_WATER = (175.0, 238.0, 238.0)  # pale turquoise, red green blue
_MUD = (63.0, 42.0, 20.0)
_LUMA = (0.2989, 0.5870, 0.1140)

# Frost: six synthesised textures, painted crystal over crystal. A crystal is a feather: a spine with barbs on both
# sides that shorten towards the tip, one side lit and the other in shade, over a body that hides what lies below.
_SHAPE = (768, 1024)
_MARGIN = 1.1  # a texture is enlarged until it exceeds the image by this much: room for a random crop
_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
_SUBPIXEL_BITS = 4


@dataclass(frozen=True)
class _Ice:
    """One texture: crystals by number, length in pixels, width to length; colours; share left clear; relief."""

    crystals: int
    length: tuple[float, float]
    width: float
    shade: tuple[int, int, int]
    light: tuple[int, int, int]
    clear: float
    relief: float


_ICES = (
    _Ice(900, (60, 190), 0.24, (138, 146, 158), (255, 255, 255), 0.0, 1.6),
    _Ice(1100, (40, 130), 0.40, (14, 20, 32), (244, 248, 255), 0.35, 1.15),
    _Ice(1500, (30, 90), 0.30, (84, 96, 112), (240, 244, 250), 0.1, 1.5),
    _Ice(420, (120, 300), 0.20, (10, 52, 72), (190, 226, 234), 0.3, 1.4),
    _Ice(900, (70, 220), 0.16, (150, 160, 172), (255, 255, 255), 0.15, 1.8),
    _Ice(1800, (24, 80), 0.5, (40, 92, 116), (220, 236, 242), 0.3, 1.3),
)


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


def plasma(size: int, decay: float, rng: np.random.Generator) -> FloatImage:
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
        centres, above, side = (
            heights[half::step, half::step],
            heights[::step, half::step],
            heights[half::step, ::step],
        )
        pairs = corners + np.roll(corners, -1, axis=0)
        centres[:] = (pairs + np.roll(pairs, -1, axis=1)) / 4 + noise[0]
        above[:] = (
            centres + np.roll(centres, 1, axis=0) + corners + np.roll(corners, -1, axis=1)
        ) / 4 + noise[1]
        side[:] = (
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


def _glints(liquid: FloatImage) -> FloatImage:
    """How much light the drops add, from 0 to 1: most just inside their lower right edges."""
    drops = (255 * liquid).astype(np.uint8)
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    distance = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    relief = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=np.float32)
    light = cv2.filter2D(cv2.equalizeHist(distance), cv2.CV_8U, relief)
    light = cv2.blur(light, (3, 3)).astype(np.float32) * drops
    brightest = float(light.max())
    glints: FloatImage = light / np.float32(brightest) if brightest > 0 else light
    return glints


def frost_layer(shape: tuple[int, ...], rng: np.random.Generator, folder: Path | None = None) -> Image:
    """A random piece (H, W, 3) of a random texture, enlarged as far as the image needs it."""
    files = texture_files(folder) if folder is not None else ()
    index = int(rng.integers(len(files) or len(_ICES)))
    texture = _read(files[index]) if files else frost_texture(index)
    height, width = texture.shape[:2]
    scale = _MARGIN * max(1, shape[0] / height, shape[1] / width)
    rows, columns = math.ceil(height * scale), math.ceil(width * scale)
    top, left = int(rng.integers(rows - shape[0])), int(rng.integers(columns - shape[1]))
    # Only the piece is enlarged, on the grid on which cv2.resize would enlarge the whole.
    y, x = height / rows, width / columns
    grid = np.array([[x, 0, (left + 0.5) * x - 0.5], [0, y, (top + 0.5) * y - 0.5]])
    flags = cv2.INTER_CUBIC | cv2.WARP_INVERSE_MAP
    piece: Image = cv2.warpAffine(
        texture, grid, (shape[1], shape[0]), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )
    return piece


def texture_files(folder: Path) -> tuple[Path, ...]:
    """The images of a folder of frost textures, by name."""
    folder = Path(folder)
    if not folder.is_dir():
        raise GramLoopError(f"{folder}: no such folder of frost textures")
    files = tuple(sorted(file for file in folder.iterdir() if file.suffix.lower() in _SUFFIXES))
    if not files:
        raise GramLoopError(
            f"{folder}: holds no frost texture, which would be a file of type {', '.join(_SUFFIXES)}"
        )
    return files


@lru_cache(maxsize=16)
def _read(file: Path) -> Image:
    texture = cv2.imread(str(file), cv2.IMREAD_COLOR)
    if texture is None:
        raise GramLoopError(f"{file}: is no image that OpenCV can read as a frost texture")
    colours: Image = cv2.cvtColor(texture, cv2.COLOR_BGR2RGB)
    return colours


@lru_cache(maxsize=len(_ICES))
def frost_texture(index: int) -> Image:
    """One of the six textures (768, 1024, 3), red green blue; the same on every call."""
    ice = _ICES[index]
    rng = np.random.Generator(np.random.PCG64([1, index]))
    veil = _clouds(rng, 6)
    canvas = (60 + 70 * veil).astype(np.uint8)
    clear = _clouds(rng, 2)
    for _ in range(ice.crystals):
        y, x = rng.random(2) * _SHAPE
        if clear[int(y), int(x)] >= ice.clear:
            _paint(canvas, x, y, ice, rng)
    light = 0.5 + ice.relief * (canvas / 255 - canvas.mean() / 255) + 0.4 * (_clouds(rng, 3) - 0.5)
    light += 0.1 * (_clouds(rng, 64) - 0.5) + 0.08 * rng.standard_normal(_SHAPE)
    light = np.clip(cv2.GaussianBlur(light, (0, 0), 0.5), 0, 1)[..., None]
    shade, bright = np.array(ice.shade), np.array(ice.light)
    return np.asarray(shade + (bright - shade) * light).astype(np.uint8)


def _clouds(rng: np.random.Generator, cells: int) -> npt.NDArray[np.float64]:
    """Smooth noise from 0 to 1 with about `cells` bumps along the short side and finer ones on them."""
    total = np.zeros(_SHAPE)
    for octave in range(4):
        n = cells << octave
        total += (
            cv2.resize(rng.random((n, n * 4 // 3)), _SHAPE[::-1], interpolation=cv2.INTER_CUBIC) / 2**octave
        )
    total -= total.min()
    clouds: npt.NDArray[np.float64] = total / total.max()
    return clouds


def _paint(canvas: Image, x: float, y: float, ice: _Ice, rng: np.random.Generator) -> None:
    """One feather that grows from (x, y)."""
    length = rng.uniform(*ice.length)
    heading, bend = rng.uniform(0, 2 * math.pi), rng.uniform(-0.35, 0.35)
    along = np.linspace(0, 1, max(8, int(length / 5)))
    angles = heading + bend * along
    spine = np.stack([x + length * along * np.cos(angles), y + length * along * np.sin(angles)], axis=1)
    spread = length * ice.width * rng.uniform(0.6, 1.2) * np.sqrt(along + 0.05) * (1 - along) * 1.6
    body, vein = rng.uniform(15, 130), rng.uniform(140, 255)
    sides = []
    for side in (-1, 1):
        turned = angles + side * rng.uniform(0.55, 0.95)
        ragged = (spread * rng.uniform(0.55, 1.15, len(along)))[:, None]
        tips = spine + ragged * np.stack([np.cos(turned), np.sin(turned)], axis=1)
        sides.append((tips, 1.0 if side * math.sin(heading - 0.8) > 0 else 0.55))
    outline = np.concatenate([sides[0][0], sides[1][0][::-1]])
    cv2.fillPoly(canvas, [_fixed(outline)], body, cv2.LINE_AA, _SUBPIXEL_BITS)
    for tips, lit in sides:
        barbs = np.stack([_fixed(spine), _fixed(tips)], axis=1)  # (barbs, root and tip, x and y)
        for third, fade in enumerate(rng.uniform(0.5, 1, 3)):
            cv2.polylines(
                canvas, list(barbs[third::3]), False, vein * lit * fade, 1, cv2.LINE_AA, _SUBPIXEL_BITS
            )
    cv2.polylines(canvas, [_fixed(spine)], False, vein, 1, cv2.LINE_AA, _SUBPIXEL_BITS)


def _fixed(points: npt.NDArray[np.float64]) -> npt.NDArray[np.int32]:
    return np.rint(points * (1 << _SUBPIXEL_BITS)).astype(np.int32)
