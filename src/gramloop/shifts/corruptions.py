"""The corruptions of the -C suites at native resolution, with the constants of Michaelis et al. (2019).

Fifteen make the benchmark, four more are held out for validation. Each takes its randomness from the
generator it is given and from nowhere else. A corruption of one parameter (`_SCALES`) goes on beyond severity
5; one whose settings follow no rule (`_STEPS`) does not.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError
from gramloop.shifts import blur, digital, noise, weather
from gramloop.shifts.pixels import Image, check_image
from gramloop.shifts.severity import Scale, Steps

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
"""Four more, which belong to no suite and can be asked for by name."""
GROUPS: dict[str, tuple[str, ...]] = {
    "common": CORRUPTIONS,
    "validation": EXTRA_CORRUPTIONS,
    "all": CORRUPTIONS + EXTRA_CORRUPTIONS,
    "noise": CORRUPTIONS[:3],
    "blur": CORRUPTIONS[3:7],
    "weather": CORRUPTIONS[7:11],
    "digital": CORRUPTIONS[11:],
}

_SCALES = {
    "gaussian_noise": Scale((0.08, 0.12, 0.18, 0.26, 0.38), "add"),
    "shot_noise": Scale((60, 25, 12, 5, 3), "multiply"),
    "impulse_noise": Scale((0.03, 0.06, 0.09, 0.17, 0.27), "add", most=1),
    "defocus_blur": Scale((3, 4, 6, 8, 10), "add"),
    "brightness": Scale((0.1, 0.2, 0.3, 0.4, 0.5), "add", most=1),
    "contrast": Scale((0.4, 0.3, 0.2, 0.1, 0.05), "multiply"),
    "elastic_transform": Scale((12.5, 16.25, 21.25, 25, 30), "add"),
    "pixelate": Scale((0.6, 0.5, 0.4, 0.3, 0.25), "multiply"),
    "jpeg_compression": Scale((25, 18, 15, 10, 7), "add", least=1),
    "speckle_noise": Scale((0.15, 0.2, 0.35, 0.45, 0.6), "add"),
    "gaussian_blur": Scale((1, 2, 3, 4, 6), "add"),
}

_STEPS: dict[str, Steps[tuple[Any, ...]]] = {
    # sigma, reach, rounds
    "glass_blur": Steps(((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2))),
    # radius, sigma
    "motion_blur": Steps(((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))),
    # start, stop, step
    "zoom_blur": Steps(((1, 1.11, 0.01), (1, 1.16, 0.01), (1, 1.21, 0.02), (1, 1.26, 0.02), (1, 1.31, 0.03))),
    # mean, deviation, zoom, threshold, radius, sigma, blend
    "snow": Steps(
        (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        )
    ),
    # weight, ice
    "frost": Steps(((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
    # strength, decay
    "fog": Steps(((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))),
    # mean, deviation, sigma, threshold, strength, mud
    "spatter": Steps(
        (
            (0.65, 0.3, 4, 0.69, 0.6, False),
            (0.65, 0.3, 3, 0.68, 0.6, False),
            (0.65, 0.3, 2, 0.68, 0.5, False),
            (0.65, 0.3, 1, 0.65, 1.5, True),
            (0.67, 0.4, 1, 0.65, 1.5, True),
        )
    ),
    # factor, shift
    "saturate": Steps(((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2))),
}

_DEFOCUS_ALIAS = (0.1, 0.5)  # of severity 1, of all others


def corrupt(
    image: npt.NDArray[Any],
    name: str | int | None = None,
    severity: int | str = 1,
    rng: np.random.Generator | None = None,
    *,
    corruption_name: str | None = None,
    corruption_number: int | None = None,
    seed: int | None = None,
    frost_textures: Path | None = None,
) -> Image:
    """The image (H, W, 3) or (H, W), uint8, corrupted; a new array of the same shape.

    Args:
        image: in the size in which it is to be shown; it is not resized.
        name: of CORRUPTIONS or EXTRA_CORRUPTIONS; ``corruption_name`` is another word for it, and
            ``corruption_number`` its number in the order of both, from 0, as in the imagecorruptions package. A severity
            here and a name in its place are that package's order, and taken as such.
        severity: 1 to 5, and above where the corruption is one parameter that goes on by a rule (`severity.Scale`).
        rng: where all randomness comes from; or ``seed``. With neither, every call draws anew.
        seed: the same number gives the same pixels.
        frost_textures: a folder of texture images to use instead of the synthesised ice.
    """
    rng = _source(rng, seed)
    if isinstance(name, int | np.integer):  # corrupt(image, 3, "fog"): their order
        number = int(name)
        name, severity = severity if isinstance(severity, str) else None, number
    if isinstance(severity, str):
        raise GramLoopError(f"severity {severity!r}: a whole number from 1 is expected")
    name = _chosen(name, corruption_name, None if corruption_number == -1 else corruption_number)
    image = check_image(image)
    if name in _SCALES:
        return _by_scale(image, name, severity, rng)
    setting = _STEPS[name].at(name, severity)
    if name == "frost":
        weight, ice = setting
        return weather.frost(image, weight, ice, rng, frost_textures)
    if name == "motion_blur":
        radius, sigma = setting
        return blur.motion_blur(image, radius, sigma, rng.uniform(-45, 45))
    if name in _FIXED:
        return _FIXED[name](image, *setting)
    return _RANDOM[name](image, *setting, rng)


def corruption_names(subset: str = "common") -> list[str]:
    """Names of a group: common (the benchmark's 15), validation (4 more), all, noise, blur, weather or digital."""
    if subset not in GROUPS:
        raise GramLoopError(f"no group of corruptions {subset!r}: one of {', '.join(GROUPS)} is expected")
    return list(GROUPS[subset])


get_corruption_names = corruption_names
"""`corruption_names`, as the imagecorruptions package calls it."""


def _source(rng: object, seed: int | None) -> np.random.Generator:
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise GramLoopError(f"rng is {rng!r}; a numpy Generator is expected, or a number as seed")
    if rng is not None and seed is not None:
        raise GramLoopError("rng and seed are both given; one of them is the source of randomness")
    return np.random.default_rng(seed) if rng is None else rng


def _chosen(name: object, named: str | None, number: int | None) -> str:
    given = [each for each in (name, named, number) if each is not None]
    if len(given) != 1:
        raise GramLoopError(f"a corruption is given by its name or its number, once; {len(given)} are given")
    names = CORRUPTIONS + EXTRA_CORRUPTIONS
    if number is not None:
        if not 0 <= number < len(names):
            raise GramLoopError(f"no corruption has the number {number}: they are 0 to {len(names) - 1}")
        return names[number]
    if given[0] not in names:
        raise GramLoopError(f"no corruption {given[0]!r}: one of {', '.join(names)} is expected")
    return str(given[0])


def _by_scale(image: Image, name: str, severity: int, rng: np.random.Generator) -> Image:
    amount = _SCALES[name].at(name, severity)
    if name == "defocus_blur":
        return blur.defocus_blur(image, amount, _DEFOCUS_ALIAS[min(severity, 2) - 1])
    if name in _FIXED:
        return _FIXED[name](image, amount)
    return _RANDOM[name](image, amount, rng)


_FIXED: dict[str, Callable[..., Image]] = {
    "zoom_blur": blur.zoom_blur,
    "brightness": digital.brightness,
    "contrast": digital.contrast,
    "pixelate": digital.pixelate,
    "jpeg_compression": digital.jpeg_compression,
    "gaussian_blur": blur.gaussian_blur,
    "saturate": digital.saturate,
}
_RANDOM: dict[str, Callable[..., Image]] = {
    "gaussian_noise": noise.gaussian_noise,
    "shot_noise": noise.shot_noise,
    "impulse_noise": noise.impulse_noise,
    "glass_blur": blur.glass_blur,
    "snow": weather.snow,
    "fog": weather.fog,
    "elastic_transform": digital.elastic_transform,
    "speckle_noise": noise.speckle_noise,
    "spatter": weather.spatter,
}
