"""What every shift needs: a random generator per image, a checked image, parameters for a severity, a few filters.

The generator of a shifted image is determined by what the image is and never by when it is made: the fields are hashed,
so the same image gets the same pixels in any order, shard, process and batch. The recipe version is one of the fields:
it goes up whenever a shift changes the pixels it makes.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError

Image = npt.NDArray[np.uint8]  # (H, W) grey or (H, W, 3) colour
FloatImage = npt.NDArray[np.float32]

RECIPE_VERSION = 1
LEAST_SIDE = 32
PUBLISHED = 5  # severities with published parameters

# The published generators cut fractions off. A float32 filter may land a hair below a whole level, and
# cutting there would darken flat regions by one level.
_HAIR = 1 / 256


def generator(suite: str, condition: str, severity: int, image_id: str | int) -> np.random.Generator:
    """The generator of one image under one condition; the image ids 7 and "7" are the same image."""
    # JSON quotes its strings, so no choice of names can make two different lists of fields read alike.
    fields = json.dumps([RECIPE_VERSION, suite, condition, int(severity), str(image_id)])
    digest = hashlib.sha256(fields.encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "big")))


def signs(image_id: str | int, suite: str = "p") -> tuple[int, int]:
    """The directions (x, y) of one image, each 1 or -1: the same at every severity, for every transform."""
    x, y = generator(suite, "signs", 0, image_id).integers(0, 2, 2) * 2 - 1
    return int(x), int(y)


def check_image(image: npt.NDArray[Any]) -> Image:
    """The image, contiguous, or an error that says what is wrong with it."""
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8:
        found = getattr(image, "dtype", type(image).__name__)
        raise GramLoopError(f"an image of type {found}: a uint8 array is expected")
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
        raise GramLoopError(
            f"an image of shape {image.shape}: (height, width) or (height, width, 3) is expected"
        )
    if min(image.shape[:2]) < LEAST_SIDE:
        raise GramLoopError(
            f"an image of {image.shape[1]} x {image.shape[0]}: {LEAST_SIDE} pixels a side are the least"
        )
    return np.ascontiguousarray(image)


def check_severity(name: str, severity: int) -> int:
    """The severity as a plain int, or an error if it is not a whole number from 1."""
    whole = hasattr(severity, "__index__") and not isinstance(severity, bool)
    if not whole or severity < 1:
        raise GramLoopError(f"severity {severity!r} of {name}: a whole number from 1 is expected")
    return int(severity)


@dataclass(frozen=True)
class Scale:
    """The parameter of a shift, or a tuple of several, over the severities: five published values and how they continue.

    Beyond severity 5 a parameter continues by its last step (``add``: impulse noise replaces 17% and 27% of the values
    at severities 4 and 5, hence 37% at 6) or by its last ratio (``multiply``: rates and scales, which must stay
    positive). It ends where it would leave ``least`` to ``most``. Without ``beyond`` the values follow no rule.
    """

    values: tuple[Any, Any, Any, Any, Any]
    beyond: Literal["add", "multiply"] | None = None
    least: float = -math.inf
    most: float = math.inf

    def at(self, name: str, severity: int) -> Any:
        """The value at a severity of the shift ``name``."""
        severity = check_severity(name, severity)
        if severity <= PUBLISHED:
            return self.values[severity - 1]
        if self.beyond is None:
            raise GramLoopError(
                f"severity {severity} of {name}: its published settings follow no rule that continues beyond 5"
            )
        before, last = self.values[-2:]
        steps = severity - PUBLISHED
        value = last + steps * (last - before) if self.beyond == "add" else last * (last / before) ** steps
        value = round(value, 9)
        if not self.least <= value <= self.most:
            raise GramLoopError(
                f"severity {severity} of {name}: its parameter would be {value:g}, "
                f"outside [{self.least:g}, {self.most:g}]"
            )
        return value


@dataclass(frozen=True)
class ShiftRecipe:
    """How a shift is made: a function of an image, of its parameters and, where it is random, of a generator.

    textured: it also takes a folder of frost textures, or None for the synthesised ones.
    """

    function: Callable[..., Image]
    scale: Scale
    random: bool = False
    textured: bool = False

    def apply(
        self,
        image: npt.NDArray[Any],
        name: str,
        severity: int,
        rng: np.random.Generator | None,
        frost_textures: Path | None = None,
    ) -> Image:
        """The shifted image; ``name`` is what error messages call the shift."""
        found = self.scale.at(name, severity)
        parameters = found if isinstance(found, tuple) else (found,)
        sources = ([rng] if self.random else []) + ([frost_textures] if self.textured else [])
        return self.function(check_image(image), *parameters, *sources)


def to_bytes(values: FloatImage) -> Image:
    """Levels as bytes, fractions cut off; the array is used up."""
    values += _HAIR
    np.clip(values, 0, 255, out=values)
    return values.astype(np.uint8)


def gaussian(
    values: FloatImage,
    sigma: float | tuple[float, float],
    truncate: float = 4.0,
    border: int = cv2.BORDER_REPLICATE,
) -> FloatImage:
    """A Gaussian of `sigma` pixels (rows, columns), cut at `truncate` sigmas."""
    rows, columns = sigma if isinstance(sigma, tuple) else (sigma, sigma)
    size = tuple(2 * int(truncate * s + 0.5) + 1 for s in (columns, rows))
    blurred: FloatImage = cv2.GaussianBlur(values, size, sigmaX=columns, sigmaY=rows, borderType=border)
    return blurred


def on_channels(layer: FloatImage, image: npt.NDArray[Any]) -> FloatImage:
    """A layer (H, W) with the channels of the image; cv2 repeats them faster than numpy broadcasts."""
    if image.ndim == 2:
        return layer
    repeated: FloatImage = cv2.merge([layer] * 3)
    return repeated


def zoom_grid(side: int, factor: float) -> tuple[int, int, int]:
    """First sample, samples, and their number after a zoom into the middle of a side."""
    samples = math.ceil(side / factor)
    return (side - samples) // 2, samples, round(samples * factor)


def stretch(
    values: FloatImage, origin: tuple[int, int], samples: tuple[int, int], zoomed: tuple[int, int]
) -> FloatImage:
    """The `samples` from `origin` (row, column) spread over `zoomed` rows and columns, corner on corner."""
    steps = [(n - 1) / (m - 1) for n, m in zip(samples, zoomed, strict=True)]
    grid = np.array([[steps[1], 0, origin[1]], [0, steps[0], origin[0]]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    spread: FloatImage = cv2.warpAffine(
        values, grid, zoomed[::-1], flags=flags, borderMode=cv2.BORDER_REPLICATE
    )
    return spread
