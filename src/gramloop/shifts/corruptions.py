"""The corruptions of the -C suites at native resolution, with the constants of Michaelis et al. (2019).

Fifteen make the benchmark, four more are held out for validation. Each takes its randomness from the
generator it is given and from nowhere else. A corruption of one parameter (`Scale`) continues beyond severity
5; one whose settings follow no rule (`Steps`) does not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError
from gramloop.shifts import blur, digital, noise, weather
from gramloop.shifts.common import Image, Scale, Steps, check_image

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The 15 corruptions of the -C suites."""
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more, which belong to no suite and can be requested by name."""
CORRUPTION_GROUPS: dict[str, tuple[str, ...]] = {
    "common": CORRUPTIONS,
    "validation": EXTRA_CORRUPTIONS,
    "all": CORRUPTIONS + EXTRA_CORRUPTIONS,
    "noise": CORRUPTIONS[:3],
    "blur": CORRUPTIONS[3:7],
    "weather": CORRUPTIONS[7:11],
    "digital": CORRUPTIONS[11:],
}


def _defocus_blur(image: Image, radius: float) -> Image:
    return blur.defocus_blur(image, radius, 0.1 if radius == 3 else 0.5)


def _motion_blur(image: Image, radius: int, sigma: float, rng: np.random.Generator) -> Image:
    return blur.motion_blur(image, radius, sigma, rng.uniform(-45, 45))


_Parameters = Scale | Steps[tuple[Any, ...]]

_FIXED: dict[str, tuple[Callable[..., Image], _Parameters]] = {  # function(image, *parameters)
    "defocus_blur": (_defocus_blur, Scale((3, 4, 6, 8, 10), "add")),
    # start, stop, step
    "zoom_blur": (
        blur.zoom_blur,
        Steps(((1, 1.11, 0.01), (1, 1.16, 0.01), (1, 1.21, 0.02), (1, 1.26, 0.02), (1, 1.31, 0.03))),
    ),
    "brightness": (digital.brightness, Scale((0.1, 0.2, 0.3, 0.4, 0.5), "add", most=1)),
    "contrast": (digital.contrast, Scale((0.4, 0.3, 0.2, 0.1, 0.05), "multiply")),
    "pixelate": (digital.pixelate, Scale((0.6, 0.5, 0.4, 0.3, 0.25), "multiply")),
    "jpeg_compression": (digital.jpeg_compression, Scale((25, 18, 15, 10, 7), "add", least=1)),
    "gaussian_blur": (blur.gaussian_blur, Scale((1, 2, 3, 4, 6), "add")),
    # factor, shift
    "saturate": (digital.saturate, Steps(((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)))),
}
_RANDOM: dict[str, tuple[Callable[..., Image], _Parameters]] = {  # function(image, *parameters, rng)
    "gaussian_noise": (noise.gaussian_noise, Scale((0.08, 0.12, 0.18, 0.26, 0.38), "add")),
    "shot_noise": (noise.shot_noise, Scale((60, 25, 12, 5, 3), "multiply")),
    "impulse_noise": (noise.impulse_noise, Scale((0.03, 0.06, 0.09, 0.17, 0.27), "add", most=1)),
    # sigma, reach, rounds
    "glass_blur": (
        blur.glass_blur,
        Steps(((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))),
    ),
    # radius, sigma
    "motion_blur": (_motion_blur, Steps(((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)))),
    # mean, deviation, zoom, threshold, radius, sigma, blend
    "snow": (
        weather.snow,
        Steps(
            (
                (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
                (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
                (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
                (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
                (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
            )
        ),
    ),
    # weight, ice
    "frost": (weather.frost, Steps(((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)))),
    # strength, decay
    "fog": (weather.fog, Steps(((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)))),
    "elastic_transform": (digital.elastic_transform, Scale((12.5, 16.25, 21.25, 25, 30), "add")),
    "speckle_noise": (noise.speckle_noise, Scale((0.15, 0.2, 0.35, 0.45, 0.6), "add")),
    # mean, deviation, sigma, threshold, strength, mud
    "spatter": (
        weather.spatter,
        Steps(
            (
                (0.65, 0.3, 4, 0.69, 0.6, False),
                (0.65, 0.3, 3, 0.68, 0.6, False),
                (0.65, 0.3, 2, 0.68, 0.5, False),
                (0.65, 0.3, 1, 0.65, 1.5, True),
                (0.67, 0.4, 1, 0.65, 1.5, True),
            )
        ),
    ),
}


def corrupt(
    image: npt.NDArray[Any],
    name: str | int | None = None,
    severity: int | str | None = 1,
    rng: np.random.Generator | int | None = None,
    *,
    corruption_name: str | None = None,
    corruption_number: int | None = None,
    seed: int | None = None,
    frost_textures: Path | None = None,
) -> Image:
    """Corrupt an image; a drop-in for ``imagecorruptions.corrupt``, in whose order arguments are taken as well.

    Args:
        image: (H, W, 3), (H, W, 1) or (H, W), uint8, at the size at which it is used; it is not resized.
        name: of CORRUPTIONS or EXTRA_CORRUPTIONS; ``corruption_name`` is another word for it, and
            ``corruption_number`` its position in both, from 0. A name takes precedence over a number.
        severity: 1 to 5, and above where the corruption has one parameter that continues by a rule.
        rng: the source of all randomness, or a ``seed``. With neither, numpy's global generator decides.
        frost_textures: a folder of texture images to use in place of the synthesised ice.

    Returns:
        A new array of the same shape.
    """
    if isinstance(name, int | np.integer):  # corrupt(image, severity, corruption_name, corruption_number)
        strength = int(name)
        name, severity = severity if isinstance(severity, str) else None, strength
        if isinstance(rng, int | np.integer):
            corruption_number, rng = int(rng), None
    if isinstance(severity, str) or severity is None:
        raise GramLoopError(f"severity {severity!r}: a whole number from 1 is expected")
    chosen = _choose(name, corruption_name, corruption_number)
    grey = isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 1
    pixels = check_image(image[..., 0] if grey else image)
    function, parameters = (_FIXED if chosen in _FIXED else _RANDOM)[chosen]
    found = parameters.at(chosen, severity)
    arguments = list(found) if isinstance(found, tuple) else [found]
    if chosen in _RANDOM:
        arguments.append(_generator(rng, seed))
    if chosen == "frost":
        arguments.append(frost_textures)
    shifted = function(pixels, *arguments)
    return shifted[..., None] if grey else shifted


def corruption_names(subset: str = "common") -> list[str]:
    """Names of a group: common (the benchmark's 15), validation (4 more), all, noise, blur, weather or digital."""
    if subset not in CORRUPTION_GROUPS:
        raise GramLoopError(
            f"no group of corruptions {subset!r}: one of {', '.join(CORRUPTION_GROUPS)} is expected"
        )
    return list(CORRUPTION_GROUPS[subset])


get_corruption_names = corruption_names
"""`corruption_names`, as the imagecorruptions package calls it."""


def _generator(rng: object, seed: int | None) -> np.random.Generator:
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise GramLoopError(f"rng is {rng!r}; a numpy Generator is expected, or a number as seed")
    if rng is not None and seed is not None:
        raise GramLoopError("rng and seed are both given; one of them is the source of randomness")
    if rng is not None:
        return rng
    drawn = np.random.randint(0, 1 << 32, 4, np.uint32) if seed is None else seed  # noqa: NPY002
    return np.random.default_rng(drawn)


def _choose(name: object, other: str | None, number: int | None) -> str:
    names = CORRUPTIONS + EXTRA_CORRUPTIONS
    if name is not None and other is not None:
        raise GramLoopError(f"the corruption is given twice: {name!r} and corruption_name {other!r}")
    chosen = other if name is None else name
    if chosen is None:
        if number is None or number == -1:  # what imagecorruptions takes for none
            raise GramLoopError("no corruption is given; it needs a name or a corruption_number")
        if not 0 <= number < len(names):
            raise GramLoopError(f"no corruption has the number {number}: they are 0 to {len(names) - 1}")
        return names[number]
    if chosen not in names:
        raise GramLoopError(f"no corruption {chosen!r}: one of {', '.join(names)} is expected")
    return str(chosen)
