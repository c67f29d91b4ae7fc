"""How noisy an image is, from its pixels as the patch embedding is given them.

Immerkær's estimate (1996): the mean of |image * K| in units of Gaussian noise's standard deviation, where K, the
second difference across times that down, ignores edges of constant slope. It is in units of what the model is given:
of a tensor that is normalised as usual, 1 is about 58 grey levels. Like the scale of other signals it belongs to
one model and one size of image, so a threshold comes from ordinary images of both.
"""

from __future__ import annotations

from math import pi, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.core.trace import Grid

UNIT = sqrt(pi / 2) / 6  # of a mean response, for the standard deviation of Gaussian noise
LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in a grey value


def noise_response(images: Tensor) -> Tensor:
    """|grey image * K| without its border, (B, C, H, W) -> (B, H - 2, W - 2) float32; no mean of it is taken yet."""
    pixels = images.detach().float()
    if pixels.shape[1] == len(LUMA):
        grey = LUMA[0] * pixels[:, 0] + LUMA[1] * pixels[:, 1] + LUMA[2] * pixels[:, 2]
    else:
        grey = pixels.mean(1)
    across = grey[:, :, 2:] - 2 * grey[:, :, 1:-1] + grey[:, :, :-2]
    return (across[:, 2:] - 2 * across[:, 1:-1] + across[:, :-2]).abs()


def noise(response: Tensor, valid: Tensor | None = None, grid: Grid | None = None) -> Tensor:
    """The level of each image, (B, H - 2, W - 2) -> (B,), over the pixels of its valid patches (B, N) on a grid."""
    if response.numel() == 0:
        return response.new_zeros(response.shape[0])
    if valid is None or grid is None:
        return response.mean((1, 2)) * UNIT
    _, height, width = response.shape
    patches = valid.view(-1, 1, *grid).float()
    counted = F.interpolate(patches, (height + 2, width + 2), mode="nearest")[:, 0, 1:-1, 1:-1] > 0
    total = torch.where(counted, response, 0.0).sum((1, 2))
    return total / counted.sum((1, 2)).clamp(min=1) * UNIT
