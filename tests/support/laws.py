"""Predictors whose true gain is known: an image's pixel is right with a probability that the setting decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gramloop.core.config import ReplayConfig
from gramloop.core.cost import Cost
from gramloop.data.labelled import LabelledImage, PixelLabels
from gramloop.tasks.prediction import Pair, Segmentation
from gramloop.tune.search.subject import Subject, subject_of

DEPTH = 6
SIDE = 16
FAMILIES = ("fog", "snow", "contrast", "pixelate", "shot_noise", "glass_blur")
RIGHT = 0.6  # of the pixels, ordinarily


Law = Callable[[ReplayConfig], float]


def nothing(config: ReplayConfig) -> float:
    return 0.0


def peak(config: ReplayConfig) -> float:
    """Best at block 2 with strength 0.5; next to it half as good; elsewhere harmful."""
    at = {(2, 2): 0.06, (3, 3): 0.02}.get(config.window or (0, 0), -0.03)
    return at if config.strength == 0.5 else at / 2


@dataclass(frozen=True)
class Lawful:
    """``law(config)`` is added to the share of right pixels, on shifted images; ``clean`` likewise on clean ones.

    ``noise`` is the spread over images of what a setting adds, drawn anew for every setting and image.
    """

    law: Law
    clean: Law = nothing
    noise: float = 0.0
    seed: int = 0

    task: ClassVar = "semantic"
    classes: ClassVar = dict.fromkeys((0, 1, 2))
    blocks: ClassVar = tuple(nn.Identity() for _ in range(DEPTH))
    host: ClassVar = None
    taps: ClassVar = ()

    def cost(self, replay: ReplayConfig | None = None, paired: bool = False) -> Cost:
        return Cost(DEPTH + (replay is not None), DEPTH)

    def predict(
        self,
        image: NDArray[np.uint8],
        replay: ReplayConfig | None = None,
        paired: bool = False,
        *,
        trace: bool | None = None,
    ) -> Segmentation | Pair[Segmentation]:
        ordinary = Segmentation(self._labels(image, None), blocks=DEPTH)
        if replay is None:
            return ordinary
        replayed = Segmentation(self._labels(image, replay), blocks=DEPTH + 1)
        return Pair(ordinary, replayed) if paired else replayed

    def _labels(self, image: NDArray[np.uint8], replay: ReplayConfig | None) -> NDArray[np.int32]:
        truth = image[..., 0].astype(np.int32)
        draws = stream("pixels", image.tobytes()).random(truth.shape)  # the same for every setting
        share = RIGHT
        if replay is not None:
            shifted = bool(image[0, 0, 1])
            share += self.law(replay) if shifted else self.clean(replay)
            if self.noise:
                share += self.noise * stream("noise", self.seed, replay, image.tobytes()).normal()
        return np.where(draws < share, truth, (truth + 1) % 3)


def stream(*key: object) -> np.random.Generator:
    digest = hashlib.sha256(repr(key).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "little"))


def pictures(condition: str, images: int) -> list[LabelledImage]:
    made = []
    for number in range(images):
        truth = stream("truth", number).integers(0, 3, (SIDE, SIDE)).astype(np.uint8)
        pixels = np.stack([truth, np.full_like(truth, condition != "clean"), truth], axis=-1)
        pixels[0, 0, 2] = 10 + FAMILIES.index(condition) if condition != "clean" else 0
        pixels[0, 1, 2] = number % 256
        made.append(LabelledImage(f"image-{number}", pixels, PixelLabels(truth)))
    return made


def lawful_subject(predictor: Lawful, images: int = 40, families: int = len(FAMILIES)) -> Subject:
    shown = {name: pictures(name, images) for name in ("clean", *FAMILIES[:families])}
    return subject_of(predictor, shown)
