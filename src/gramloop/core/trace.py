"""What one forward's replays measured and did, kept when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gramloop.core.gate import mean_gate
from gramloop.errors import GramLoopError
from gramloop.util.table import Cell, Shown, ShownTable

Grid = tuple[int, int]
_SHOWN = 8  # images in a table


@dataclass
class Trace(Shown):
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
    valid: Tensor | None = None
    """Which patches are image and not padding, where a mask was given; the others have drift and gate 0."""

    def record(self, drift: Tensor, gate: Tensor, step: Tensor, valid: Tensor | None) -> None:
        """Keep one replay: drift and gate (B, N), the accepted step of the patches (B, N, C)."""
        self.drift.append(self.as_map(drift))
        self.gate.append(self.as_map(gate))
        self.mean_gate.append(mean_gate(gate, valid)[:, 0])
        self.displacement.append(self.as_map(torch.linalg.vector_norm(step.float(), dim=-1)))
        self.not_finite.append((~drift.isfinite()).sum(1))
        self.valid = None if valid is None else self.as_map(valid)

    def skip(self, patches: Tensor, replays: int) -> None:
        """Keep that adaptive replay proposed nothing in so many replays of these patches, (B, N, C): zeros."""
        nothing = torch.zeros(patches.shape[:2], device=patches.device)
        for _ in range(replays):
            self.record(nothing, nothing, torch.zeros_like(patches), None)
        self.post_drift = self.as_map(nothing)

    def as_map(self, values: Tensor) -> Tensor:
        """(B, N) -> (B, h, w) where the grid is known."""
        return values if self.grid is None else values.reshape(-1, *self.grid)

    def plot(self, image: int = 0) -> Any:
        """Draw drift and gate of one image's replays; returns matplotlib's axes, (2, columns)."""
        from gramloop.util.plotting import plot_replays

        if self.grid is None:
            raise GramLoopError("the host does not reveal its grid of patches, so there is no map to plot")
        if self.drift and not 0 <= image < len(self.drift[0]):
            raise GramLoopError(
                f"there is no image {image}; this forward had {len(self.drift[0])}, from 0 on"
            )
        post = None if self.post_drift is None else self._drawn(self.post_drift, image)
        drift, gate = ([self._drawn(each, image) for each in maps] for maps in (self.drift, self.gate))
        return plot_replays(drift, gate, post)

    def _drawn(self, maps: Tensor, image: int) -> Any:
        """One image's map as an array, with nothing where it is padding."""
        values = maps[image].detach().float().cpu()
        return (values if self.valid is None else values.where(self.valid[image].cpu(), torch.nan)).numpy()

    def _shown(self) -> ShownTable:
        images = len(self.drift[0]) if self.drift else 0
        size = "" if self.grid is None else f", {self.grid[0]} x {self.grid[1]} patches"
        rows: list[tuple[Cell, ...]] = []
        for image in range(min(images, _SHOWN)):
            for replay in range(len(self.drift)):
                rows.append((image, replay + 1, *self._numbers(image, replay)))
            if self.post_drift is not None:
                rows.append((image, "accepted", self._median(self.post_drift, image), *[None] * 3))
        columns = ("image", "replay", "median drift", "mean gate", "mean step", "not finite")
        notes = [] if images <= _SHOWN else [f"The first {_SHOWN} of {images} images."]
        if self.signal is not None:
            notes.append(
                "Decided by the signal "
                + ", ".join(f"{each:.4g}" for each in self.signal.tolist()[:_SHOWN])
                + "."
            )
        title = (
            f"Trace of {images} image{'s' * (images != 1)}{size}" if images else "Trace: nothing was measured"
        )
        return ShownTable(title, columns, tuple(rows), tuple(notes))

    def _numbers(self, image: int, replay: int) -> tuple[Cell, ...]:
        steps = self._only_valid(self.displacement[replay], image)
        return (
            self._median(self.drift[replay], image),
            float(self.mean_gate[replay][image]),
            float(steps.mean()) if steps.numel() else None,
            int(self.not_finite[replay][image]),
        )

    def _median(self, maps: Tensor, image: int) -> Cell:
        values = self._only_valid(maps, image)
        values = values[values.isfinite()]
        return float(values.cpu().double().quantile(0.5)) if values.numel() else None

    def _only_valid(self, maps: Tensor, image: int) -> Tensor:
        values = maps[image].detach().flatten()
        return values if self.valid is None else values[self.valid[image].flatten().to(values.device)]
