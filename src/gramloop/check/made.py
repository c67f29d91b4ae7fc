"""An image and weights that are the same on every machine: both follow from formulas and names."""

from __future__ import annotations

import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gramloop.models.tiny import normalise


def pattern(height: int, width: int) -> Tensor:
    """A normalised picture of waves, (1, 3, height, width)."""
    rows, columns = np.mgrid[0:height, 0:width].astype(np.float64)
    waves = [
        np.sin(rows / 7 + k) + np.cos(columns / (5 + k)) + np.sin((rows + columns) / 23) for k in range(3)
    ]
    pixels = (128 + 40 * np.stack(waves, -1)).round().clip(0, 255).astype(np.uint8)
    return normalise(torch.from_numpy(pixels)[None])


def fill(module: nn.Module) -> nn.Module:
    """Weights that follow from their names, of a size at which every layer matters; frozen."""
    filled = {}
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            continue
        generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
        drawn = np.asarray(generator.standard_normal(tuple(value.shape)))
        filled[name] = torch.from_numpy(_scaled(name.rpartition(".")[2], drawn)).to(value.dtype)
    module.load_state_dict(filled, strict=False)
    return module.eval().requires_grad_(False)


def _scaled(leaf: str, drawn: NDArray[np.float64]) -> NDArray[np.float64]:
    if leaf == "running_var":
        return np.asarray(1 + 0.2 * np.abs(drawn))
    if drawn.ndim <= 1:
        return np.asarray((1 if leaf == "weight" else 0) + 0.1 * drawn)
    return np.asarray(drawn / np.sqrt(np.prod(drawn.shape[1:])))
