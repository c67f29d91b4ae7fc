"""A corruption as a step of an image pipeline, such as those of torchvision and albumentations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.shifts.corruptions import CORRUPTIONS, corrupt, corruption_names


@dataclass
class Corrupt:
    """Corrupt every image that passes: of PIL, an array (H, W, 3) or (H, W), or a tensor (3, H, W); all uint8.

    names: one corruption, a group (noise, blur, weather, digital, common, all), or a list; one is drawn per image.
    severity: one, or several of which one is drawn per image.
    p: the share of images that are corrupted.
    seed: of all draws. A loader's workers each need a seed of their own, or they draw the same.
    """

    names: str | Sequence[str] = CORRUPTIONS
    severity: int | Sequence[int] = (1, 2, 3, 4, 5)
    p: float = 1.0
    seed: int | None = None
    _rng: np.random.Generator = field(init=False, repr=False)

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
        self._rng = np.random.default_rng(self.seed)

    def __call__(self, image: Any, **_: Any) -> Any:
        """The image, of the kind that it came in."""
        if self._rng.random() >= self.p:
            return image
        name = str(self._rng.choice(list(self.names)))
        assert not isinstance(self.severity, int)
        severity = int(self._rng.choice(list(self.severity)))
        if isinstance(image, np.ndarray):
            return corrupt(image, name, severity, self._rng)
        if type(image).__module__.startswith("torch"):
            pixels = np.ascontiguousarray(np.moveaxis(image.numpy(), 0, -1))
            changed = np.moveaxis(corrupt(pixels, name, severity, self._rng), -1, 0)
            import torch

            return torch.from_numpy(np.ascontiguousarray(changed))
        from PIL import Image

        if not isinstance(image, Image.Image):
            raise GramLoopError(
                f"Corrupt takes a PIL image, an array or a tensor, not a {type(image).__name__}"
            )
        return Image.fromarray(corrupt(np.asarray(image.convert("RGB")), name, severity, self._rng))
