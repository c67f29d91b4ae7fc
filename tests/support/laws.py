"""Predictors whose true gain is known: an image's pixel is right with a probability that the setting decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from gramloop.data.records import LabelledImage
from gramloop.data.truth import PixelLabels
from gramloop.mitigations.base import Mitigation, ViewFunction
from gramloop.replay.config import Cost, ReplayConfig, extra_blocks
from gramloop.tasks.prediction import Pair, Prediction
from gramloop.tasks.semantic import Segmentation
from gramloop.tune.planning import Target
from memory_targets import memory_target

DEPTH = 6
SIDE = 16
FAMILIES = ("fog", "snow", "contrast", "pixelate", "shot_noise", "glass_blur")
RIGHT = 0.6  # of the pixels, ordinarily

MARK = 7  # in a pixel of the last row: a made-up mitigation of pixels acts
ACTIVE: list[str] = []  # made-up mitigations that act now

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

    ``noise`` is the spread over images of what a setting adds, drawn anew for every setting and image. Made-up
    mitigations (`MadeUp`) are in ``ACTIVE`` while they act, and add their ``gains`` on shifted images.
    """

    law: Law
    clean: Law = nothing
    noise: float = 0.0
    seed: int = 0
    gains: Mapping[str, float] = field(default_factory=dict)

    task: ClassVar = "semantic"
    classes: ClassVar = dict.fromkeys((0, 1, 2))
    blocks: ClassVar = tuple(nn.Identity() for _ in range(DEPTH))
    host: ClassVar = None
    taps: ClassVar = ()

    def cost(self, replay: ReplayConfig | None = None, paired: bool = False) -> Cost:
        return Cost(DEPTH + (0 if replay is None else extra_blocks(replay, DEPTH)), DEPTH)

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
        marked = np.flatnonzero(image[-1, :, 1] == MARK)
        image = image.copy()
        image[-1, :, 1] = image[0, 0, 1]
        active = (*(f"on-pixels:{number}" for number in marked), *ACTIVE)
        truth = image[..., 0].astype(np.int32)
        draws = stream("pixels", image.tobytes()).random(truth.shape)  # the same for every setting
        share, shifted = RIGHT, bool(image[0, 0, 1])
        if replay is not None:
            share += self.law(replay) if shifted else self.clean(replay)
        if shifted:
            share += sum(self.gains.get(text, 0.0) for text in active)
        if self.noise and (replay is not None or active):
            settings = replay and (replay.window, replay.replays, replay.gate, replay.strength)
            share += self.noise * stream("noise", self.seed, active, settings, image.tobytes()).normal()
        return np.where(draws < share, truth, (truth + 1) % 3)


@dataclass(frozen=True)
class MadeUp(Mitigation):
    """Shows the law that it acts, and does nothing else; one class per stage, since a stack has each kind once."""

    number: int = 0

    @property
    def arguments(self) -> str:
        return str(self.number)

    @contextmanager
    def acting(self) -> Iterator[None]:
        ACTIVE.append(self.text)
        try:
            yield
        finally:
            ACTIVE.remove(self.text)


class OnPixels(MadeUp):
    name, stage = "on-pixels", "pixels"

    def filtered(self, pixels: NDArray[np.uint8], stats: object) -> NDArray[np.uint8]:
        marked = pixels.copy()
        marked[-1, self.number, 1] = MARK
        return marked


class OnFeatures(MadeUp):
    name, stage = "on-features", "features"

    def hooked(self, model: object, stats: object) -> AbstractContextManager[None]:
        return self.acting()


class OnOutputs(MadeUp):
    name, stage = "on-outputs", "outputs"

    @property
    def scales(self) -> tuple[float, ...]:
        """A view of 1.1 times the size: what acts on outputs costs something."""
        return (1.1,)

    def merged(
        self, view: ViewFunction, task: object, images: list[NDArray[np.uint8]], scale: float
    ) -> list[list[Prediction]]:
        with self.acting():
            return view(images, scale)


def made_up(*kinds: tuple[type[MadeUp], int]) -> list[tuple[MadeUp, ...]]:
    """So many of each kind, each alone."""
    return [(kind(number),) for kind, many in kinds for number in range(many)]


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


def lawful_target(predictor: Lawful, images: int = 40, families: int = len(FAMILIES)) -> Target:
    shown = {name: pictures(name, images) for name in ("clean", *FAMILIES[:families])}
    return memory_target(predictor, shown)
