"""The perturbations of the -P suites, with the constants of Schiappa et al. (2023).

Fourteen change appearance, three the geometry. Those three need the directions of the image, `signs`: drawn
once per image, the same for all severities and all three. Labels follow with `geometry.affine_matrix` and the same
signs. The published files were also written as JPEG of quality 95; that is left to the writer of a suite.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError
from gramloop.shifts import blur, digital, noise
from gramloop.shifts.common import Image, Scale, check_image
from gramloop.shifts.corruptions import RECIPES, ShiftRecipe
from gramloop.shifts.geometry import GEOMETRIC, affine_matrix, warp_image


def _line_blur(image: Image, size: int, rng: np.random.Generator) -> Image:
    return blur.line_blur(image, size, rng.uniform(0, 360), rng.uniform(-1, 1))


# start, stop, step
_ZOOM = Scale(((1, 1.05, 0.01), (1, 1.07, 0.01), (1, 1.10, 0.02), (1, 1.12, 0.02), (1.03, 1.18, 0.03)))
_RECIPES = {
    "gaussian": RECIPES["gaussian_noise"],
    "shot": ShiftRecipe(noise.shot_noise, Scale((250, 100, 50, 30, 15), "multiply"), True),
    "impulse": RECIPES["impulse_noise"],
    "speckle": ShiftRecipe(noise.speckle_noise, Scale((0.15, 0.2, 0.25, 0.3, 0.35), "add"), True),
    "defocus": RECIPES["defocus_blur"],
    "motion": ShiftRecipe(_line_blur, Scale((7, 9, 13, 17, 25), "add"), True),
    "zoom": ShiftRecipe(blur.zoom_blur, _ZOOM),
    "contrast": ShiftRecipe(digital.more_contrast, Scale((1.2, 1.4, 1.6, 1.8, 2.0), "add")),
    "brightness": RECIPES["brightness"],
    "darkness": ShiftRecipe(digital.darkness, Scale((0.9, 0.8, 0.7, 0.6, 0.5), "add", least=0)),
    "jpeg": RECIPES["jpeg_compression"],
    "pixelate": RECIPES["pixelate"],
    "fog": RECIPES["fog"],
    "snow": RECIPES["snow"],
}
PERTURBATIONS = (*_RECIPES, *GEOMETRIC)
"""The 17 perturbations of the -P suites."""

PERTURBATION_GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian", "shot", "impulse", "speckle"),
    "blur": ("defocus", "motion", "zoom"),
    "weather": ("brightness", "darkness", "fog", "snow"),
    "digital": ("contrast", "jpeg", "pixelate"),
    "geometry": GEOMETRIC,
}


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
    image = check_image(image)
    if name in GEOMETRIC:
        if signs is None:
            raise GramLoopError(f"{name} needs signs, the directions of the image: signs(image_id)")
        return warp_image(image, affine_matrix(name, severity, image.shape[0], image.shape[1], signs))
    recipe = _RECIPES[name]
    return recipe.apply(image, name, severity, *([rng] if recipe.random else []))
