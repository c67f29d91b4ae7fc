"""Noise: every value of the image, or some of them, moved at random."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import pdtr

from gramloop.shifts.common import Image, to_bytes

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
