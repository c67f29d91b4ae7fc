"""A corruption as a step of an image pipeline, such as those of torchvision and albumentations."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.shifts.common import check_severity
from gramloop.shifts.corruptions import CORRUPTIONS, corrupt, corruption_names


@dataclass
class Corrupt:
    """Corrupt every image that passes: PIL images, arrays (H, W, 3) or (H, W), tensors (3, H, W); all of 8 bits.

    Targets pass unchanged, since corruptions move nothing: further arguments, and the entries of a dict sample that are
    no images. A PIL image is returned in colour, unless it is grey.

    Args:
        names: one corruption, a group (noise, blur, weather, digital, common, all), or a list; one is drawn per image.
        severity: one, or several of which one is drawn per image.
        p: the share of images that are corrupted.
        seed: of all draws. Workers of a loader draw differently, and repeat their draws where there is a seed.
    """

    names: str | Sequence[str] = CORRUPTIONS
    severity: int | Sequence[int] = (1, 2, 3, 4, 5)
    p: float = 1.0
    seed: int | None = None
    _rng: np.random.Generator = field(init=False, repr=False)
    _process: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        known = corruption_names("all")
        if isinstance(self.names, str):
            self.names = [self.names] if self.names in known else corruption_names(self.names)
        if unknown := [name for name in self.names if name not in known]:
            raise GramLoopError(f"no corruption {unknown[0]!r}: one of {', '.join(known)} is expected")
        self.severity = [self.severity] if isinstance(self.severity, int) else list(self.severity)
        if not self.names or not self.severity or not 0 <= self.p <= 1:
            raise GramLoopError("Corrupt needs a corruption, a severity and a share p from 0 to 1")
        for severity in self.severity:
            check_severity("Corrupt", severity)
        self._rng, self._process = np.random.default_rng(self.seed), os.getpid()

    def __call__(self, image: Any, *others: Any, **_: Any) -> Any:
        """The corrupted image, of the same type, with its targets; a dict sample gives a dict."""
        if isinstance(image, Mapping):
            image = {**image, **{name: self._corrupted(image[name]) for name in _image_entries(image)}}
        else:
            image = self._corrupted(image)
        return (image, *others) if others else image

    def _corrupted(self, image: Any) -> Any:
        rng = self._generator()
        if rng.random() >= self.p:
            return image
        name = str(rng.choice(list(self.names)))
        assert not isinstance(self.severity, int)
        severity = int(rng.choice(list(self.severity)))
        if isinstance(image, np.ndarray):
            return corrupt(image, name, severity, rng)
        if type(image).__module__.startswith("torch"):
            return _corrupt_tensor(image, name, severity, rng)
        if not isinstance(image, Image.Image):
            raise GramLoopError(
                f"Corrupt takes a PIL image, an array, a tensor or a dict of them, not a {type(image).__name__}"
            )
        if image.mode == "F" or image.mode.startswith("I"):
            raise GramLoopError(f"a PIL image of mode {image.mode}: 8 bits per channel are expected")
        pixels = np.asarray(image if image.mode == "L" else image.convert("RGB"))
        return Image.fromarray(corrupt(pixels, name, severity, rng))

    def _generator(self) -> np.random.Generator:
        """The source of all draws; a worker process replaces the copy of its parent's."""
        if self._process != os.getpid():
            data = sys.modules.get("torch.utils.data")
            worker = None if data is None else data.get_worker_info()
            number = os.getpid() if worker is None else worker.id
            self._rng = np.random.default_rng(None if self.seed is None else [self.seed, 1 + number])
            self._process = os.getpid()
        return self._rng


def _image_entries(sample: Mapping[Any, Any]) -> list[Any]:
    """The keys of the images of a sample: what is one by its type, else the entry "image"."""
    found = [name for name, value in sample.items() if _is_image(value)]
    if not found and "image" not in sample:
        raise GramLoopError(
            f'a sample of {", ".join(map(str, sample))} has no PIL image, no tv_tensors.Image and no "image"'
        )
    return found or ["image"]


def _is_image(value: Any) -> bool:
    if isinstance(value, Image.Image):
        return True
    module = sys.modules.get("torchvision.tv_tensors")  # there if such a tensor is
    return module is not None and isinstance(value, module.Image)


def _corrupt_tensor(image: Any, name: str, severity: int, rng: np.random.Generator) -> Any:
    """A tensor of the same class, on the same device."""
    import torch

    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise GramLoopError(f"a tensor of shape {tuple(image.shape)}: (3, height, width) is expected")
    pixels = np.moveaxis(image.detach().cpu().numpy(), 0, -1)
    planes = np.moveaxis(corrupt(pixels, name, severity, rng), -1, 0)
    return torch.from_numpy(np.ascontiguousarray(planes)).to(image.device).as_subclass(type(image))
