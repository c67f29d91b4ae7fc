"""What tells a shifted image from a clean one, without labels: numbers of the ordinary pass and of a proposal.

Corruptions change the early blocks of a ViT in ways that the lengths of patch tokens show: noise makes them
longer, and almost any corruption makes them more alike in length (docs/evidence.md has the measurement). Both
are known before anything is replayed. How far a proposal moves, and its drift, need blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gramloop.config import Adaptive
from gramloop.gate import masked_median

_TINY = 1e-12


def length(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """Mean L2 length of an image's patches, (B, N, C) -> (B,)."""
    return _mean(_lengths(patches), valid)


def spread(patches: Tensor, valid: Tensor | None = None) -> Tensor:
    """Standard deviation of the patches' lengths relative to their mean, (B, N, C) -> (B,)."""
    lengths = _lengths(patches)
    mean = _mean(lengths, valid)
    variance = _mean((lengths - mean[:, None]).square(), valid)
    return variance.sqrt() / mean.clamp(min=_TINY)


def step(patches: Tensor, proposal: Tensor, valid: Tensor | None = None) -> Tensor:
    """Median over patches of the proposed step relative to the patch's length: (B, N, C) twice -> (B,)."""
    relative = _lengths(proposal.float() - patches.float()) / _lengths(patches).clamp(min=_TINY)
    return median(relative, valid)


def median(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """Median over an image's valid patches with finite values, (B, N) -> (B,)."""
    counted = values.isfinite() if valid is None else values.isfinite() & valid
    return masked_median(values, counted)[:, 0]


def share(rule: Adaptive, signal: Tensor) -> Tensor:
    """How much of the gate an image with this signal gets, (B,) -> (B,) in [0, 1]; nothing if not finite."""
    if rule.off == rule.full:
        scale = (signal > rule.off).float()
    else:
        scale = ((signal.float() - rule.off) / (rule.full - rule.off)).clamp(0.0, 1.0)
    return torch.where(signal.isfinite(), scale, 0.0)


def _lengths(patches: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(patches.float(), dim=-1)
    return lengths


def _mean(values: Tensor, valid: Tensor | None) -> Tensor:
    if valid is None:
        return values.mean(1)
    return torch.where(valid, values, 0.0).sum(1) / valid.sum(1).clamp(min=1)
