"""The corruptions of the -C suites and the perturbations of the -P suites, at native resolution.

`corrupt` and `perturb` are functions of one image.

The corruptions have the constants of Michaelis et al. (2019): fifteen make the benchmark, four more are held out for
validation. The perturbations have those of Schiappa et al. (2023): fourteen change appearance, three the geometry.
Those three need the directions of the image, `signs`: drawn once per image, the same for all severities and all three.
Labels follow with `geometry.affine_matrix` and the same signs. The published files were also written as JPEG of quality
95; that is left to the writer of a suite.

Each takes its randomness from the generator it is given and from nowhere else. A shift of one parameter continues
beyond severity 5; one whose settings follow no rule does not.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError
from gramloop.shifts import appearance, weather
from gramloop.shifts.common import Image, Scale, ShiftRecipe, check_image
from gramloop.shifts.geometry import GEOMETRIC, affine_matrix, warp_image


def _line_blur(image: Image, size: int, rng: np.random.Generator) -> Image:
    return appearance.line_blur(image, size, rng.uniform(0, 360), rng.uniform(-1, 1))


_ZOOM = Scale(((1, 1.11, 0.01), (1, 1.16, 0.01), (1, 1.21, 0.02), (1, 1.26, 0.02), (1, 1.31, 0.03)))
_GLASS = Scale(((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)))
_SNOW = Scale(
    (  # mean, deviation, zoom, threshold, radius, sigma, blend
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    )
)
_SPATTER = Scale(
    (  # mean, deviation, sigma, threshold, strength, mud
        (0.65, 0.3, 4, 0.69, 0.6, False),
        (0.65, 0.3, 3, 0.68, 0.6, False),
        (0.65, 0.3, 2, 0.68, 0.5, False),
        (0.65, 0.3, 1, 0.65, 1.5, True),
        (0.67, 0.4, 1, 0.65, 1.5, True),
    )
)
RECIPES = {
    "gaussian_noise": ShiftRecipe(
        appearance.gaussian_noise, Scale((0.08, 0.12, 0.18, 0.26, 0.38), "add"), True
    ),
    "shot_noise": ShiftRecipe(appearance.shot_noise, Scale((60, 25, 12, 5, 3), "multiply"), True),
    "impulse_noise": ShiftRecipe(
        appearance.impulse_noise, Scale((0.03, 0.06, 0.09, 0.17, 0.27), "add", most=1), True
    ),
    "defocus_blur": ShiftRecipe(appearance.defocus_blur, Scale((3, 4, 6, 8, 10), "add")),
    "glass_blur": ShiftRecipe(appearance.glass_blur, _GLASS, True),
    "motion_blur": ShiftRecipe(
        appearance.motion_blur, Scale(((10, 3), (15, 5), (15, 8), (15, 12), (20, 15))), True
    ),
    "zoom_blur": ShiftRecipe(appearance.zoom_blur, _ZOOM),
    "snow": ShiftRecipe(weather.snow, _SNOW, True),
    "frost": ShiftRecipe(
        weather.frost,
        Scale(((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))),
        True,
        textured=True,
    ),
    "fog": ShiftRecipe(weather.fog, Scale(((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4))), True),
    "brightness": ShiftRecipe(appearance.brightness, Scale((0.1, 0.2, 0.3, 0.4, 0.5), "add", most=1)),
    "contrast": ShiftRecipe(appearance.contrast, Scale((0.4, 0.3, 0.2, 0.1, 0.05), "multiply")),
    "elastic_transform": ShiftRecipe(
        appearance.elastic_transform, Scale((12.5, 16.25, 21.25, 25, 30), "add"), True
    ),
    "pixelate": ShiftRecipe(appearance.pixelate, Scale((0.6, 0.5, 0.4, 0.3, 0.25), "multiply")),
    "jpeg_compression": ShiftRecipe(appearance.jpeg_compression, Scale((25, 18, 15, 10, 7), "add", least=1)),
    "speckle_noise": ShiftRecipe(appearance.speckle_noise, Scale((0.15, 0.2, 0.35, 0.45, 0.6), "add"), True),
    "gaussian_blur": ShiftRecipe(appearance.gaussian_blur, Scale((1, 2, 3, 4, 6), "add")),
    "spatter": ShiftRecipe(weather.spatter, _SPATTER, True),
    "saturate": ShiftRecipe(appearance.saturate, Scale(((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)))),
}
CORRUPTIONS = tuple(RECIPES)[:15]
"""The 15 corruptions of the -C suites."""
EXTRA_CORRUPTIONS = tuple(RECIPES)[15:]
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


# start, stop, step
_LIGHT_ZOOM = Scale(((1, 1.05, 0.01), (1, 1.07, 0.01), (1, 1.10, 0.02), (1, 1.12, 0.02), (1.03, 1.18, 0.03)))
PERTURBATION_RECIPES = {
    "gaussian": RECIPES["gaussian_noise"],
    "shot": ShiftRecipe(appearance.shot_noise, Scale((250, 100, 50, 30, 15), "multiply"), True),
    "impulse": RECIPES["impulse_noise"],
    "speckle": ShiftRecipe(appearance.speckle_noise, Scale((0.15, 0.2, 0.25, 0.3, 0.35), "add"), True),
    "defocus": RECIPES["defocus_blur"],
    "motion": ShiftRecipe(_line_blur, Scale((7, 9, 13, 17, 25), "add"), True),
    "zoom": ShiftRecipe(appearance.zoom_blur, _LIGHT_ZOOM),
    "contrast": ShiftRecipe(appearance.more_contrast, Scale((1.2, 1.4, 1.6, 1.8, 2.0), "add")),
    "brightness": RECIPES["brightness"],
    "darkness": ShiftRecipe(appearance.darkness, Scale((0.9, 0.8, 0.7, 0.6, 0.5), "add", least=0)),
    "jpeg": RECIPES["jpeg_compression"],
    "pixelate": RECIPES["pixelate"],
    "fog": RECIPES["fog"],
    "snow": RECIPES["snow"],
}
PERTURBATIONS = (*PERTURBATION_RECIPES, *GEOMETRIC)
"""The 17 perturbations of the -P suites."""

PERTURBATION_GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian", "shot", "impulse", "speckle"),
    "blur": ("defocus", "motion", "zoom"),
    "weather": ("brightness", "darkness", "fog", "snow"),
    "digital": ("contrast", "jpeg", "pixelate"),
    "geometry": GEOMETRIC,
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
        name, severity = (severity if isinstance(severity, str) else None), strength
        if isinstance(rng, int | np.integer):
            corruption_number, rng = int(rng), None
    chosen = _choose(name, corruption_name, corruption_number)
    grey = isinstance(image, np.ndarray) and image.ndim == 3 and image.shape[2] == 1
    pixels = check_image(image[..., 0] if grey else image)
    recipe = RECIPES[chosen]
    source = _generator(rng, seed) if recipe.random else None
    return recipe.apply(pixels, chosen, severity, source, frost_textures).reshape(image.shape)  # type: ignore[arg-type]


def corruption_names(subset: str = "common") -> list[str]:
    """Names of a group: common (the benchmark's 15), validation (4 more), all, noise, blur, weather or appearance."""
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
    """The name of a corruption that is given by one or the other name, or by its number."""
    if name is not None and other is not None:
        raise GramLoopError(f"the corruption is given twice: {name!r} and corruption_name {other!r}")
    chosen = other if name is None else name
    if chosen is None and number in (None, -1):  # what imagecorruptions takes for none
        raise GramLoopError("no corruption is given; it needs a name or a corruption_number")
    if chosen is None and number is not None:
        if not 0 <= number < len(RECIPES):
            raise GramLoopError(f"no corruption has the number {number}: they are 0 to {len(RECIPES) - 1}")
        return [*RECIPES][number]
    if chosen not in RECIPES:
        raise GramLoopError(f"no corruption {chosen!r}: one of {', '.join(RECIPES)} is expected")
    return str(chosen)


def perturb(
    image: npt.NDArray[Any],
    name: str,
    severity: int,
    rng: np.random.Generator,
    *,
    signs: tuple[int, int] | None = None,
) -> Image:
    """Perturb an image.

    Args:
        image: (H, W, 3) or (H, W), uint8, at the size at which it is used.
        name: of PERTURBATIONS.
        severity: 1 to 5, and above where the perturbation has one parameter that continues by a rule.
        rng: the source of all randomness.
        signs: the directions of the image, `signs`; the geometric ones need them, others do not use them.

    Returns:
        A new array of the same shape.
    """
    if name not in PERTURBATIONS:
        raise GramLoopError(f"no perturbation {name!r}: one of {', '.join(PERTURBATIONS)} is expected")
    if name in GEOMETRIC:
        image = check_image(image)
        if signs is None:
            raise GramLoopError(f"{name} needs signs, the directions of the image: signs(image_id)")
        return warp_image(image, affine_matrix(name, severity, image.shape[0], image.shape[1], signs))
    return PERTURBATION_RECIPES[name].apply(image, name, severity, rng)
