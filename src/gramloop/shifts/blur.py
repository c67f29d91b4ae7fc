"""Blurs: lens out of focus, frosted glass, a moved camera, a zoom during the exposure."""

import math

import cv2
import numpy as np
import numpy.typing as npt

from gramloop.shifts.common import FloatImage, Image, gaussian, stretch, to_bytes, zoom_grid

Indices = npt.NDArray[np.int32]


def gaussian_blur(image: Image, sigma: float) -> Image:
    """A Gaussian of `sigma` pixels."""
    return to_bytes(gaussian(image.astype(np.float32), sigma))


def defocus_blur(image: Image, radius: float, alias: float) -> Image:
    """A disc of `radius` pixels, its edge softened by a Gaussian of `alias` pixels.

    As published, discs that fill their grid (radius 8 and above) weigh 1% too much: their edge is reflected.
    """
    reach = max(8, math.ceil(radius))
    softening = (3, 3) if radius <= 8 else (5, 5)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disc = (x * x + y * y <= radius * radius).astype(np.float32)
    disc = cv2.GaussianBlur(disc / disc.sum(), softening, sigmaX=alias)
    return to_bytes(cv2.filter2D(image.astype(np.float32), -1, disc))


def motion_blur(image: Image, radius: int, sigma: float, angle: float) -> Image:
    """A trail of 2 `radius` + 1 pixels that fades as a Gaussian of `sigma`, `angle` in degrees."""
    return to_bytes(trail(image.astype(np.float32), radius, sigma, angle))


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
        # A source further on in the image has been walked over already: the chain goes on there. Every chain
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
