"""From drift to gate: how much of a proposal each token accepts."""

from __future__ import annotations

import torch
from torch import Tensor

from gramloop.core.config import ReplayConfig


def patch_gate(patches: Tensor, drift: Tensor | None, config: ReplayConfig, valid: Tensor | None) -> Tensor:
    """The gate that a configuration gives each patch: (B, N, C) and its drift (B, N) -> (B, N) in [0, 1]."""
    if drift is not None and config.gates_by_drift:
        gate = gram_gate(drift, config.eps, valid)
        if config.strength == "matched":
            gate = (mean_gate(gate, valid) * config.matched_to).expand_as(gate)
        elif config.strength != 1.0:
            gate = gate * config.strength
    else:
        level = 1.0 if config.gate == "none" else float(config.strength)
        gate = torch.full(patches.shape[:2], level, dtype=torch.float32, device=patches.device)
    if drift is not None and config.trust is not None:
        gate = gate * _trusted(drift, config.trust, valid)
    if drift is not None and config.measures_drift:  # not where a trace alone wants it
        gate = torch.where(drift.isfinite(), gate, 0.0)
    return gate if valid is None else torch.where(valid, gate, 0.0)


def _trusted(drift: Tensor, trust: float, valid: Tensor | None) -> Tensor:
    """The share of a proposal that its median drift leaves, (B, N) -> (B, 1); 1 up to ``trust``.

    A patch without a finite drift gets gate 0 anyway, so the others decide.
    """
    counted = drift.isfinite() if valid is None else drift.isfinite() & valid
    return (trust / masked_median(drift, counted).clamp(min=trust)).to(drift.dtype)


def gram_gate(drift: Tensor, eps: float, valid: Tensor | None = None) -> Tensor:
    """exp(-drift / max(median, eps)) per image: (B, N) -> (B, N) in [0, 1].

    The median runs over an image's valid patches with finite drift. A patch whose drift is not finite
    and an invalid patch get gate 0: they keep the trajectory they are on.
    """
    counted = drift.isfinite() if valid is None else drift.isfinite() & valid
    scale = masked_median(drift, counted).clamp(min=eps)
    return torch.where(counted, torch.exp(-drift / scale), 0.0)


def masked_median(values: Tensor, counted: Tensor) -> Tensor:
    """Median of the counted entries of each row, (B, N) -> (B, 1); the mean of the middle two when even.

    A row that counts nothing gives 0.
    """
    ordered = torch.where(counted, values, torch.inf).sort(dim=1).values
    count = counted.sum(1, keepdim=True)
    lower = ordered.gather(1, ((count - 1) // 2).clamp(min=0))
    upper = ordered.gather(1, (count // 2).clamp(max=values.shape[1] - 1))
    return torch.where(count > 0, (lower + upper) / 2, 0.0)


def mean_gate(gate: Tensor, valid: Tensor | None = None) -> Tensor:
    """The image-level gate, the mean over an image's valid patches: (B, N) -> (B, 1)."""
    if valid is None:
        return gate.mean(1, keepdim=True)
    return gate.sum(1, keepdim=True) / valid.sum(1, keepdim=True).clamp(min=1)


def token_gate(gate: Tensor, prefix: int, valid: Tensor | None = None, suffix: int = 0) -> Tensor:
    """Patch gates between mean gates for the class, register and detection tokens around them: (B, P + N + S)."""
    if prefix == suffix == 0:
        return gate
    mean = mean_gate(gate, valid)
    around = [mean.expand(-1, prefix), gate, mean.expand(-1, suffix)]
    return torch.cat(around if suffix else around[:2], dim=1)


def interpolate(state: Tensor, proposal: Tensor, gate: Tensor) -> Tensor:
    """Move each token its gate's share of the way to the proposal: (B, T, C), (B, T, C), (B, T).

    In float32, or the state's dtype where that is wider, cast back. A gate of 0 keeps the state to the bit, also
    where the proposal is not finite.
    """
    wide = torch.promote_types(state.dtype, torch.float32)
    weight = gate.to(state.device)[..., None]
    start = state.to(wide)
    step = torch.where(weight > 0, proposal.to(state.device, wide) - start, 0.0)
    return (start + weight * step).to(state.dtype)
