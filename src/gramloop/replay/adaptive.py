"""When to replay an image: numbers of the baseline pass that change under shift, without labels.

Corruptions change the early blocks of a ViT in ways that the lengths of patch tokens show: noise makes them
longer, and almost any corruption makes them more alike in length (docs/evidence.md has measurements). Both
are known before anything is replayed, and so is the noise of the pixels.
"""

from __future__ import annotations

from math import pi, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.replay.config import Adaptive
from gramloop.replay.vit import Grid

_TINY = 1e-12
_UNIT = sqrt(pi / 2) / 6  # of a mean response, for the standard deviation of Gaussian noise
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue in a grey value


def patch_length(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """Mean L2 length of an image's patches, (B, N, C) -> (B,)."""
    return _mean(_lengths(patches), valid)


def length_spread(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """Standard deviation of the patches' lengths relative to their mean, (B, N, C) -> (B,)."""
    lengths = _lengths(patches)
    mean = _mean(lengths, valid)
    variance = _mean((lengths - mean[:, None]).square(), valid)
    return variance.sqrt() / mean.clamp(min=_TINY)


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


def image_signal(rule: Adaptive, patches: Tensor, valid: Tensor | None, level: Tensor | None) -> Tensor:
    """What a rule decides by, of the patches at the window's end (B, N, C) and the noise of the pixels (B,) -> (B,)."""
    if rule.signal != "noise":
        return (patch_length if rule.signal == "length" else length_spread)(patches, valid)
    if level is None or len(level) != len(patches):
        raise GramLoopError(
            "the ViT embeds other images than its blocks see, so noise cannot decide; take length"
        )
    return level.to(patches.device)


def _lengths(patches: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(patches.float(), dim=-1)
    return lengths


def _mean(values: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return values.mean(1)
    return torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp(min=1)
