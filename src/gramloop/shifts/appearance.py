"""Noise, blurs, and what cameras and files do to images: tone, colour, resolution, compression, a rubber sheet."""

import io
import math
from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageEnhance
from scipy.special import pdtr

from gramloop.shifts.common import (
    FloatImage,
    Image,
    gaussian,
    on_channels,
    stretch,
    to_bytes,
    zoom_grid,
)

Indices = npt.NDArray[np.int32]

_GUIDE_BITS = 12
_CHUNK = 1 << 16  # values handled at a time, so that the index arrays stay in the cache


def gaussian_noise(image: Image, sigma: float, rng: np.random.Generator) -> Image:
    """Normal noise of standard deviation `sigma` (1 is the range of the image)."""
    values = rng.standard_normal(image.shape, dtype=np.float32)
    values *= 255 * sigma
    values += image
    return to_bytes(values)


def speckle_noise(image: Image, sigma: float, rng: np.random.Generator) -> Image:
    """Normal noise of standard deviation `sigma` times the value itself."""
    values = rng.standard_normal(image.shape, dtype=np.float32)
    values *= sigma
    values += 1
    values *= image
    return to_bytes(values)


def impulse_noise(image: Image, amount: float, rng: np.random.Generator) -> Image:
    """The share `amount` of all values replaced, by black or white with equal chance."""
    draw = rng.random(image.shape, dtype=np.float32)
    noisy = image.copy()
    noisy[draw < amount] = 255
    noisy[draw < amount / 2] = 0
    return noisy


def shot_noise(image: Image, rate: float, rng: np.random.Generator) -> Image:
    """Photon counts: Poisson with mean `rate` at white, divided by `rate` again.

    The distribution is inverted by table, since there are but 256 means: the leading bits of a 32-bit draw
    name the count for nearly all values; the few whose cell of the table holds a step of the distribution are
    compared with the steps.
    """
    steps, guide, split = _poisson_tables(rate)
    levels = (np.minimum(np.arange(steps.shape[1] + 1) / rate, 1) * 255).astype(np.uint8)
    draws = rng.integers(0, 1 << 32, image.size, dtype=np.uint32)
    pixels, noisy = image.reshape(-1), np.empty(image.size, dtype=np.uint8)
    for start in range(0, image.size, _CHUNK):
        part = slice(start, start + _CHUNK)
        cells = pixels[part].astype(np.intp) << _GUIDE_BITS
        cells += draws[part] >> (32 - _GUIDE_BITS)
        counts = guide.take(cells)
        unsure = np.flatnonzero(split.take(cells))
        while unsure.size:
            beyond = draws[part][unsure] >= steps[pixels[part][unsure], counts[unsure]]
            unsure = unsure[beyond]
            counts[unsure] += 1
        noisy[part] = levels.take(counts)
    return noisy.reshape(image.shape)


@lru_cache(maxsize=16)
def _poisson_tables(
    rate: float,
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint16], npt.NDArray[np.bool_]]:
    """SeverityTable of the 256 distributions over 32-bit draws; per cell, the first count and if a step splits it.

    Counts of at least `rate` all mean white, so the last step closes the distribution there.
    """
    white = int(np.ceil(rate))
    means = np.arange(256)[:, None] * rate / 255
    cumulative = pdtr(np.arange(white + 1)[None], means)
    cumulative[:, -1] = 1
    steps = np.round(cumulative * 2.0**32).astype(np.uint64)  # (256, counts)
    starts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(32 - _GUIDE_BITS)
    ends = starts + np.uint64((1 << (32 - _GUIDE_BITS)) - 1)
    first = np.stack([np.searchsorted(row, starts, side="right") for row in steps])
    last = np.stack([np.searchsorted(row, ends, side="right") for row in steps])
    return steps, first.astype(np.uint16).reshape(-1), (first != last).reshape(-1)


def gaussian_blur(image: Image, sigma: float) -> Image:
    """A Gaussian of `sigma` pixels."""
    return to_bytes(gaussian(image.astype(np.float32), sigma))


def defocus_blur(image: Image, radius: float) -> Image:
    """A disc of `radius` pixels, its edge softened by a Gaussian of 0.1 (radius 3) or 0.5 pixels.

    As published, discs that fill their grid (radius 8 and above) weigh 1% too much: their edge is reflected.
    """
    reach = max(8, math.ceil(radius))
    softening = (3, 3) if radius <= 8 else (5, 5)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = (x * x + y * y <= radius * radius).astype(np.float32)
    disc = cv2.GaussianBlur(disc / disc.sum(), softening, sigmaX=0.1 if radius == 3 else 0.5)
    return to_bytes(cv2.filter2D(image.astype(np.float32), -1, disc))


def motion_blur(image: Image, radius: int, sigma: float, rng: np.random.Generator) -> Image:
    """A trail of 2 `radius` + 1 pixels that fades as a Gaussian of `sigma`, up to 45 degrees from the horizontal."""
    return to_bytes(trail(image.astype(np.float32), radius, sigma, rng.uniform(-45, 45)))


def trail(values: FloatImage, radius: int, sigma: float, angle: float) -> FloatImage:
    """The values dragged along one direction with one-sided Gaussian weights; the border is replicated.

    As published, the trail ends where it would leave the image, and what is then missing of it is black: an
    image with fewer pixels than the trail loses a little light.
    """
    length = 2 * radius + 1
    weights = np.exp(-(np.arange(length) ** 2) / (2 * sigma * sigma))
    weights /= weights.sum()
    slope = math.sin(math.radians(angle)), math.cos(math.radians(angle))
    kernel = np.zeros((2 * length + 1, 2 * length + 1), dtype=np.float32)
    for i, weight in enumerate(weights):
        down, right = (math.ceil(i * s - 0.5) for s in slope)
        if abs(down) >= values.shape[0] or abs(right) >= values.shape[1]:
            break
        kernel[length + down, length + right] += weight
    kernel, anchor = _trimmed(kernel, length)
    dragged: FloatImage = cv2.filter2D(values, -1, kernel, anchor=anchor, borderType=cv2.BORDER_REPLICATE)
    return dragged


def line_blur(image: Image, size: int, angle: float, direction: float) -> Image:
    """A line of `size` pixels at `angle` degrees, its weights rising or falling by `direction` (-1 to 1)."""
    share = (direction + 1) / 2
    kernel = np.zeros((size, size), dtype=np.uint8)
    kernel[:, size // 2] = 255 * np.linspace(share, 1 - share, size)
    turn = cv2.getRotationMatrix2D(((size - 1) / 2, (size - 1) / 2), -angle, 1)
    turned = cv2.warpAffine(kernel, turn, (size, size)).astype(np.float32)
    blurred: Image = cv2.filter2D(image, -1, turned / turned.sum())
    return blurred


def zoom_blur(image: Image, start: float, stop: float, step: float) -> Image:
    """The mean of the image and its zooms into the middle, by factors `numpy.arange(start, stop, step)`."""
    values = image.astype(np.float32)
    height, width = image.shape[:2]
    factors = np.arange(start, stop, step)
    total = values.copy()
    for factor in factors:
        top, rows, zoomed_rows = zoom_grid(height, factor)
        left, columns, zoomed_columns = zoom_grid(width, factor)
        layer = stretch(values, (top, left), (rows, columns), (zoomed_rows, zoomed_columns))
        cv2.add(total, layer[:height, :width], dst=total)
    total /= len(factors) + 1
    return to_bytes(total)


def glass_blur(image: Image, sigma: float, reach: int, rounds: int, rng: np.random.Generator) -> Image:
    """Pixels copied from at most `reach` away, `rounds` times over, between two Gaussians of `sigma`."""
    soft = to_bytes(gaussian(image.astype(np.float32), sigma))
    height, width = image.shape[:2]
    area = (height - 2 * reach, width - 2 * reach)
    offsets = rng.integers(-reach, reach, size=(rounds, 2, *area), dtype=np.int8)
    came_from = scatter(height, width, reach, offsets)
    scattered = soft.reshape(height * width, -1).take(came_from, axis=0).reshape(image.shape)
    return to_bytes(gaussian(scattered.astype(np.float32), sigma))


def scatter(height: int, width: int, reach: int, offsets: npt.NDArray[np.int8]) -> Indices:
    """Where each pixel came from (flat indices) after rounds of `offsets` (rounds, [dy, dx], rows, columns).

    One round walks over the image from its last pixel to its first, and each pixel becomes a copy of the one
    at its offset — which may already have been replaced in this walk. Those copies form chains; instead of
    walking, every chain is followed to its end by doubling, in as many steps as the longest chain's length
    has bits.
    """
    inner = np.s_[reach + 1 : height - reach + 1, reach + 1 : width - reach + 1]
    places = np.arange(height * width, dtype=np.int32)
    came_from = places.copy()
    for dy, dx in offsets:
        source = places.copy()
        source.reshape(height, width)[inner] += dy.astype(np.int32) * width + dx
        # A source further on in the image has been walked over already: the chain continues there. Every chain
        # ends, for its indices only rise; at its end the source still holds the value from before this round.
        follow = np.where(source > places, source, places)
        while True:
            further = follow[follow]
            if np.array_equal(further, follow):
                break
            follow = further
        came_from = came_from[source[follow]]
    return came_from


def _trimmed(kernel: FloatImage, middle: int) -> tuple[FloatImage, tuple[int, int]]:
    """The kernel without its empty margins, and where (x, y) its middle now lies."""
    rows, columns = np.flatnonzero(kernel.any(axis=1)), np.flatnonzero(kernel.any(axis=0))
    top, left = min(rows[0], middle), min(columns[0], middle)
    bottom, right = max(rows[-1], middle), max(columns[-1], middle)
    return np.ascontiguousarray(kernel[top : bottom + 1, left : right + 1]), (
        int(middle - left),
        int(middle - top),
    )


def brightness(image: Image, amount: float) -> Image:
    """The value of hue, saturation and value raised by `amount` (1 is its range).

    Hue and saturation stay if all channels grow by one factor, so no conversion is needed; black turns grey.
    """
    raised = np.minimum(np.arange(256) + 255 * amount, 255)
    if image.ndim == 2:
        return _through(image, raised)
    planes = cv2.split(image)
    value = cv2.max(cv2.max(planes[0], planes[1]), planes[2])
    growth = cv2.LUT(value, (raised / np.maximum(np.arange(256), 1)).astype(np.float32))
    grown = cv2.multiply(image, on_channels(growth, image), dtype=cv2.CV_32F)
    black = value == 0
    if black.any():
        grown[black] = raised[0]
    return to_bytes(grown)


def saturate(image: Image, factor: float, shift: float) -> Image:
    """The saturation of hue, saturation and value times `factor` plus `shift`; a grey image stays.

    Hue and value stay if each channel's distance from the largest grows by one factor.
    """
    if image.ndim == 2:
        return image.copy()
    planes = cv2.split(image)
    value = cv2.max(cv2.max(planes[0], planes[1]), planes[2])
    least = cv2.min(cv2.min(planes[0], planes[1]), planes[2])
    top, span = value.astype(np.float32), cv2.subtract(value, least).astype(np.float32)
    new_span = np.clip(span * np.float32(factor) + top * np.float32(shift), 0, top)
    growth = np.divide(new_span, span, out=np.zeros_like(span), where=span > 0)
    top, growth = on_channels(top, image), on_channels(growth, image)
    saturated = top - (top - image) * growth
    if shift > 0:
        # A grey pixel's hue is 0 by convention, which is red.
        grey = np.flatnonzero(span == 0)
        saturated.reshape(-1, 3)[grey, 1:] -= new_span.reshape(-1, 1)[grey]
    return to_bytes(saturated)


def contrast(image: Image, factor: float) -> Image:
    """Each channel drawn towards its mean."""
    levels = np.arange(256)[:, None]
    means = np.array(cv2.mean(image)[: 1 if image.ndim == 2 else 3])
    return _through(image, (levels - means) * factor + means)


def elastic_transform(image: Image, alpha: float, rng: np.random.Generator) -> Image:
    """The image on a rubber sheet: uniform noise, smoothed over 1% of each side, times `alpha` moves it."""
    height, width = image.shape[:2]
    reach = 0.005 * height
    noise = rng.random((2, height, width), dtype=np.float32)
    noise *= 2 * reach
    noise -= reach
    sigma = 0.01 * height, 0.01 * width
    columns, rows = (
        gaussian(n, sigma, truncate=3, border=cv2.BORDER_REFLECT) * np.float32(alpha) for n in noise
    )
    rows += np.arange(height, dtype=np.float32)[:, None]
    columns += np.arange(width, dtype=np.float32)
    values = image.astype(np.float32)
    moved: FloatImage = cv2.remap(values, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    return to_bytes(moved)


def pixelate(image: Image, scale: float) -> Image:
    """Boxes of pixels averaged to `scale` of the size, then repeated."""
    height, width = image.shape[:2]
    small = PIL.Image.fromarray(image).resize(
        (max(1, int(width * scale)), max(1, int(height * scale))), PIL.Image.Resampling.BOX
    )
    return np.array(small.resize((width, height), PIL.Image.Resampling.NEAREST))


def jpeg_compression(image: Image, quality: float) -> Image:
    """Through JPEG at a quality (1 to 95) and back."""
    file = io.BytesIO()
    PIL.Image.fromarray(image).save(file, "JPEG", quality=int(quality))
    with PIL.Image.open(file) as decoded:
        return np.array(decoded)


def more_contrast(image: Image, factor: float) -> Image:
    """Away from the mean grey of the whole image, as Pillow enhances contrast."""
    return np.array(PIL.ImageEnhance.Contrast(PIL.Image.fromarray(image)).enhance(factor))


def darkness(image: Image, factor: float) -> Image:
    """Every value times `factor`, as Pillow enhances brightness."""
    return np.array(PIL.ImageEnhance.Brightness(PIL.Image.fromarray(image)).enhance(factor))


def _through(image: Image, levels: FloatImage) -> Image:
    """Each value of the image replaced by its level: (256,), or (256, channels)."""
    table = to_bytes(np.asarray(levels, dtype=np.float32).copy())
    shape = (256, 1) if table.ndim == 1 or table.shape[1] == 1 else (256, 1, 3)
    mapped: Image = cv2.LUT(image, table.reshape(shape))
    return mapped
