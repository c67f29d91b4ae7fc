"""The perturbations of the -P suites, with the constants of Schiappa et al. (2023).

Fourteen change how an image looks, three where things are in it. Those three need the directions of the
image, `signs`: drawn once per image, the same for all severities and all three. Labels follow with
`geometry.matrix` and the same signs. The published files were also written as JPEG of quality 95; that
belongs to writing and is not done here.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from gramloop.errors import GramLoopError
from gramloop.shifts import blur, digital, noise
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.geometry import GEOMETRIC, matrix, warp_image
from gramloop.shifts.pixels import Image, check_image
from gramloop.shifts.seeds import generator
from gramloop.shifts.severity import Scale, Steps

__all__ = ["GEOMETRIC", "GROUPS", "PERTURBATIONS", "perturb", "signs"]

PERTURBATIONS = (
    "gaussian",
    "shot",
    "impulse",
    "speckle",
    "defocus",
    "motion",
    "zoom",
    "contrast",
    "brightness",
    "darkness",
    "jpeg",
    "pixelate",
    "fog",
    "snow",
    *GEOMETRIC,
)
"""The 17 perturbations of the -P suites."""

GROUPS: dict[str, tuple[str, ...]] = {
    "noise": ("gaussian", "shot", "impulse", "speckle"),
    "blur": ("defocus", "motion", "zoom"),
    "weather": ("brightness", "darkness", "fog", "snow"),
    "digital": ("contrast", "jpeg", "pixelate"),
    "geometry": GEOMETRIC,
}

_AS_CORRUPTION = {
    "gaussian": "gaussian_noise",
    "impulse": "impulse_noise",
    "defocus": "defocus_blur",
    "brightness": "brightness",
    "jpeg": "jpeg_compression",
    "pixelate": "pixelate",
    "fog": "fog",
    "snow": "snow",
}

_SCALES = {
    "shot": Scale((250, 100, 50, 30, 15), "multiply"),
    "speckle": Scale((0.15, 0.2, 0.25, 0.3, 0.35), "add"),
    "motion": Scale((7, 9, 13, 17, 25), "add"),
    "contrast": Scale((1.2, 1.4, 1.6, 1.8, 2.0), "add"),
    "darkness": Scale((0.9, 0.8, 0.7, 0.6, 0.5), "add", least=0),
}

# start, stop, step
_ZOOM = Steps(((1, 1.05, 0.01), (1, 1.07, 0.01), (1, 1.10, 0.02), (1, 1.12, 0.02), (1.03, 1.18, 0.03)))


def signs(image_id: str | int, suite: str = "p") -> tuple[int, int]:
    """The directions (x, y) of one image, each 1 or -1: the same at every severity, for every transform."""
    x, y = generator(suite, "signs", 0, image_id).integers(0, 2, 2) * 2 - 1
    return int(x), int(y)


def perturb(
    image: npt.NDArray[Any],
    name: str,
    severity: int,
    rng: np.random.Generator,
    *,
    signs: tuple[int, int] | None = None,
) -> Image:
    """The image (H, W, 3) or (H, W), uint8, perturbed; a new array of the same shape.

    The geometric ones are wholly given by `signs`, which are therefore required there and unused elsewhere.
    """
    if name not in PERTURBATIONS:
        raise GramLoopError(f"no perturbation {name!r}: one of {', '.join(PERTURBATIONS)} is expected")
    image = check_image(image)
    if name in GEOMETRIC:
        if signs is None:
            raise GramLoopError(
                f"{name} without signs: the directions of the image, signs(image_id), are expected"
            )
        return warp_image(image, matrix(name, severity, image.shape[0], image.shape[1], signs))
    if name in _AS_CORRUPTION:
        return corrupt(image, _AS_CORRUPTION[name], severity, rng)
    if name == "zoom":
        return blur.zoom_blur(image, *_ZOOM.at(name, severity))
    amount = _SCALES[name].at(name, severity)
    if name == "shot":
        return noise.shot_noise(image, amount, rng)
    if name == "speckle":
        return noise.speckle_noise(image, amount, rng)
    if name == "motion":
        return blur.line_blur(image, int(amount), rng.uniform(0, 360), rng.uniform(-1, 1))
    return digital.more_contrast(image, amount) if name == "contrast" else digital.darkness(image, amount)
