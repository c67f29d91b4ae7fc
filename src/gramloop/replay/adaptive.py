"""When to replay an image: the noise of its pixels, which is known without labels and before anything is replayed."""

from __future__ import annotations

from math import pi, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.replay.config import Adaptive
from gramloop.replay.vit import Grid

_UNIT = sqrt(pi / 2) / 6  # of a mean response, for the standard deviation of Gaussian noise
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in a grey value


def noise_response(images: Tensor) -> Tensor:
    """|grey image * K| without its border, (B, C, H, W) -> (B, H - 2, W - 2) float32, of which `image_noise` takes the mean.

    Immerkær's estimate (1996): K, the second difference across times that down, ignores edges of constant slope.
    """
    pixels = images.detach().float()
    if pixels.shape[1] == len(_LUMA):
        grey = _LUMA[0] * pixels[:, 0] + _LUMA[1] * pixels[:, 1] + _LUMA[2] * pixels[:, 2]
    else:
        grey = pixels.mean(1)
    across = grey[:, :, 2:] - 2 * grey[:, :, 1:-1] + grey[:, :, :-2]
    return (across[:, 2:] - 2 * across[:, 1:-1] + across[:, :-2]).abs()


def image_noise(response: Tensor, valid: Tensor | None = None, grid: Grid | None = None) -> Tensor:
    """The noise of each image, (B, H - 2, W - 2) -> (B,), over the pixels of its valid patches (B, N) on a grid.

    It is the standard deviation of Gaussian noise in units of what the model is given: of a tensor that is
    normalised as usual, 1 is about 58 grey levels.
    """
    if response.numel() == 0:
        return response.new_zeros(response.shape[0])
    if valid is None or grid is None:
        return response.mean((1, 2)) * _UNIT
    _, height, width = response.shape
    patches = valid.view(-1, 1, *grid).float()
    counted = F.interpolate(patches, (height + 2, width + 2), mode="nearest")[:, 0, 1:-1, 1:-1] > 0
    total = torch.where(counted, response, 0.0).sum((1, 2))
    return total / counted.sum((1, 2)).clamp(min=1) * _UNIT


def share(rule: Adaptive, signal: Tensor) -> Tensor:
    """How much of the gate an image with this signal gets, (B,) -> (B,) in [0, 1]; nothing if not finite."""
    if rule.off == rule.full:
        scale = (signal > rule.off).float()
    else:
        wide = torch.float32 if signal.device.type == "mps" else torch.float64  # MPS has no float64
        scale = ((signal.to(wide) - rule.off) / (rule.full - rule.off)).clamp(0.0, 1.0).float()
    return torch.where(signal.isfinite(), scale, 0.0)
