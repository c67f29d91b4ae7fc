"""Box geometry and sine encodings of Plain-DETR; every box is in absolute pixels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# a refinement step may scale a side by at most 1 / 0.016
_LARGEST_LOG_SCALE = abs(math.log(16 / 1000))


def centre_to_corners(boxes: Tensor) -> Tensor:
    """(cx, cy, w, h) → (x1, y1, x2, y2), along the last dimension."""
    centre, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat((centre - 0.5 * size, centre + 0.5 * size), dim=-1)


def corners_to_centre(boxes: Tensor) -> Tensor:
    """(x1, y1, x2, y2) → (cx, cy, w, h), along the last dimension."""
    low, high = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((low + high) / 2, high - low), dim=-1)


def refine(boxes: Tensor, deltas: Tensor, valid_size: Tensor) -> Tensor:
    """Move and scale ``boxes`` (B, n, 4; cxcywh) by ``deltas`` relative to their size, inside ``valid_size``.

    ``valid_size`` is (B, 2) as width, height: the part of each image that is not padding.
    """
    size = boxes[..., 2:]
    centre = boxes[..., :2] + deltas[..., :2] * size
    size = size * deltas[..., 2:].clamp(-_LARGEST_LOG_SCALE, _LARGEST_LOG_SCALE).exp()
    corners = centre_to_corners(torch.cat((centre, size), dim=-1))
    limit = valid_size.repeat(1, 2)[:, None]  # (B, 1, 4)
    return corners_to_centre(torch.minimum(corners.clamp(min=0), limit))


def sine_code(values: Tensor, channels: int) -> Tensor:
    """(...,) → (..., channels): sines and cosines in turn, wavelengths from 1 to 10,000."""
    index = torch.arange(channels, dtype=torch.float32, device=values.device)
    wavelength = 10_000 ** (2 * torch.div(index, 2, rounding_mode="floor") / channels)
    angles = values[..., None] / wavelength
    return torch.stack((angles[..., 0::2].sin(), angles[..., 1::2].cos()), dim=-1).flatten(-2)


def map_positions(padding: Tensor, channels: int) -> Tensor:
    """Positions of a feature map, (B, h, w) padding mask → (B, h * w, channels): y half, then x half."""
    valid = ~padding
    # counted in whole numbers: a sum of floats along a side has no deterministic kernel on CUDA
    rows, columns = valid.cumsum(1).float(), valid.cumsum(2).float()
    y = (rows - 0.5) / (rows[:, -1:, :] + 1e-6) * (2 * math.pi)
    x = (columns - 0.5) / (columns[:, :, -1:] + 1e-6) * (2 * math.pi)
    return torch.cat((sine_code(y, channels // 2), sine_code(x, channels // 2)), dim=-1).flatten(1, 2)


def box_positions(boxes: Tensor, channels: int) -> Tensor:
    """Positions of boxes, (B, n, 4; cxcywh pixels) → (B, n, 4 * channels)."""
    return sine_code(boxes * (2 * math.pi), channels).flatten(-2)
