"""A corruption as a step of an image pipeline, such as those of torchvision and albumentations."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.shifts.corruptions import CORRUPTIONS, corrupt, corruption_names
from gramloop.shifts.severity import check_severity


@dataclass
class Corrupt:
    """Corrupt every image that passes: of PIL, an array (H, W, 3) or (H, W), or a tensor (3, H, W); all uint8.

    What comes after the image, such as a target, passes as it is: corruptions move nothing. A PIL image is returned in
    colour, unless it is grey.

    names: one corruption, a group (noise, blur, weather, digital, common, all), or a list; one is drawn per image.
    severity: one, or several of which one is drawn per image.
    p: the share of images that are corrupted.
    seed: of all draws. Workers of a loader draw differently, each in the same way again where there is a seed.
    """

    names: str | Sequence[str] = CORRUPTIONS
    severity: int | Sequence[int] = (1, 2, 3, 4, 5)
    p: float = 1.0
    seed: int | None = None
    _rng: np.random.Generator = field(init=False, repr=False)
    _process: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what no image could pass."""
        if isinstance(self.names, str):
            alone = self.names in corruption_names("all")
            self.names = [self.names] if alone else corruption_names(self.names)
        if unknown := [name for name in self.names if name not in corruption_names("all")]:
            raise GramLoopError(
                f"no corruption {unknown[0]!r}: one of {', '.join(corruption_names('all'))} is expected"
            )
        self.severity = [self.severity] if isinstance(self.severity, int) else list(self.severity)
        if not self.names or not self.severity or not 0 <= self.p <= 1:
            raise GramLoopError("Corrupt needs a corruption, a severity and a share p from 0 to 1")
        for severity in self.severity:
            check_severity("Corrupt", severity)
        self._rng, self._process = np.random.default_rng(self.seed), os.getpid()

    def __call__(self, image: Any, *others: Any, **_: Any) -> Any:
        """The image, of the kind that it came in, and what came with it."""
        changed = self._changed(image)
        return (changed, *others) if others else changed

    def _changed(self, image: Any) -> Any:
        rng = self._generator()
        if rng.random() >= self.p:
            return image
        name = str(rng.choice(list(self.names)))
        assert not isinstance(self.severity, int)
        severity = int(rng.choice(list(self.severity)))
        if isinstance(image, np.ndarray):
            return corrupt(image, name, severity, rng)
        if type(image).__module__.startswith("torch"):
            return _tensor(image, name, severity, rng)
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise GramLoopError(
                f"Corrupt takes a PIL image, an array or a tensor, not a {type(image).__name__}"
            )
        pixels = np.asarray(image if image.mode == "L" else image.convert("RGB"))
        return Image.fromarray(corrupt(pixels, name, severity, rng))

    def _generator(self) -> np.random.Generator:
        """The source of all draws; a worker process has a copy of its parent's, and takes one of its own instead."""
        if self._process != os.getpid():
            data = sys.modules.get("torch.utils.data")
            worker = None if data is None else data.get_worker_info()
            number = os.getpid() if worker is None else worker.id
            self._rng = np.random.default_rng(None if self.seed is None else [self.seed, 1 + number])
            self._process = os.getpid()
        return self._rng


def _tensor(image: Any, name: str, severity: int, rng: np.random.Generator) -> Any:
    """A tensor of the same class, on the same device."""
    import torch

    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise GramLoopError(f"a tensor of shape {tuple(image.shape)}: (3, height, width) is expected")
    pixels = np.moveaxis(image.detach().cpu().numpy(), 0, -1)
    grey = pixels.shape[-1] == 1
    changed = corrupt(pixels[..., 0] if grey else pixels, name, severity, rng)
    planes = changed[None] if grey else np.moveaxis(changed, -1, 0)
    return torch.from_numpy(np.ascontiguousarray(planes)).to(image.device).as_subclass(type(image))
