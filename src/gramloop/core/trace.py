"""What one forward's replays measured and did, kept when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gramloop.core.gate import mean_gate

Grid = tuple[int, int]


@dataclass
class Trace:
    """Maps over the patch grid, one entry per replay in each list; (B, h, w) unless said otherwise.

    Where the host does not reveal its grid, maps are (B, N).
    """

    grid: Grid | None = None
    drift: list[Tensor] = field(default_factory=list)
    """Gram drift of each proposal."""
    gate: list[Tensor] = field(default_factory=list)
    """The patch gate that was applied."""
    mean_gate: list[Tensor] = field(default_factory=list)
    """The gate of class and register tokens, (B,)."""
    displacement: list[Tensor] = field(default_factory=list)
    """L2 length of the accepted step of each patch."""
    not_finite: list[Tensor] = field(default_factory=list)
    """How many patches' drift was not finite, (B,)."""
    post_drift: Tensor | None = None
    """Gram drift of the state that was accepted in the end; None where the host shows it to no probe (``until``)."""
    signal: Tensor | None = None
    """What adaptive replay decided by, (B,)."""

    def record(self, drift: Tensor, gate: Tensor, step: Tensor, valid: Tensor | None) -> None:
        """Keep one replay: drift and gate (B, N), the accepted step of the patches (B, N, C)."""
        self.drift.append(self.as_map(drift))
        self.gate.append(self.as_map(gate))
        self.mean_gate.append(mean_gate(gate, valid)[:, 0])
        self.displacement.append(self.as_map(torch.linalg.vector_norm(step.float(), dim=-1)))
        self.not_finite.append((~drift.isfinite()).sum(1))

    def skip(self, patches: Tensor, replays: int) -> None:
        """Keep that adaptive replay proposed nothing in so many replays of these patches, (B, N, C): zeros."""
        nothing = torch.zeros(patches.shape[:2], device=patches.device)
        for _ in range(replays):
            self.record(nothing, nothing, torch.zeros_like(patches), None)
        self.post_drift = self.as_map(nothing)

    def as_map(self, values: Tensor) -> Tensor:
        """(B, N) -> (B, h, w) where the grid is known."""
        return values if self.grid is None else values.reshape(-1, *self.grid)
