"""What one forward's replays measured and did, kept when asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.replay.gram import GramAnchor, mean_gate
from gramloop.replay.vit import Grid
from gramloop.util.table import Cell, Table, TableRepr

_LISTED = 8  # images in a table


@dataclass
class Trace(TableRepr):
    """Maps over the patch grid, one entry per replay in each list; (B, h, w), or (B, N) where the grid is unknown.

    drift: Gram drift of each proposal. gate: the patch gate that was applied.
    mean_gate: the gate of class and register tokens, (B,).
    displacement: L2 length of the accepted step of each patch.
    not_finite: how many patches' drift was not finite, (B,).
    post_drift: Gram drift of the state that was accepted in the end; None where no probe sees it (``until``).
    signal: what adaptive replay decided by, (B,).
    valid: which patches are image and not padding, where a mask was given; the others have drift and gate 0.
    anchor: of the baseline pass, until ``post_drift`` is measured.
    """

    grid: Grid | None = None
    drift: list[Tensor] = field(default_factory=list)
    gate: list[Tensor] = field(default_factory=list)
    mean_gate: list[Tensor] = field(default_factory=list)
    displacement: list[Tensor] = field(default_factory=list)
    not_finite: list[Tensor] = field(default_factory=list)
    post_drift: Tensor | None = None
    signal: Tensor | None = None
    valid: Tensor | None = None
    anchor: GramAnchor | None = field(default=None, repr=False)

    def record(self, drift: Tensor, gate: Tensor, step: Tensor, valid: Tensor | None) -> None:
        """Keep one replay: drift and gate (B, N), the accepted step of the patches (B, N, C)."""
        self.drift.append(self.as_map(drift))
        self.gate.append(self.as_map(gate))
        self.mean_gate.append(mean_gate(gate, valid)[:, 0])
        self.displacement.append(self.as_map(torch.linalg.vector_norm(step.float(), dim=-1)))
        self.not_finite.append((~drift.isfinite()).sum(1))
        self.valid = None if valid is None else self.as_map(valid)

    def record_nothing(self, patches: Tensor, replays: int) -> None:
        """Keep that adaptive replay left out so many replays of these patches, (B, N, C): zeros."""
        nothing = torch.zeros(patches.shape[:2], device=patches.device)
        for _ in range(replays):
            self.record(nothing, nothing, torch.zeros_like(patches), None)
        self.post_drift = self.as_map(nothing)

    def record_accepted(self, patches: Tensor) -> None:
        """Keep the drift of the final-normed patches that were accepted in the end."""
        if self.anchor is not None:
            self.post_drift = self.as_map(self.anchor.drift(patches))
            self.anchor = None

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
        post = None if self.post_drift is None else self._image(self.post_drift, image)
        drift, gate = ([self._image(each, image) for each in maps] for maps in (self.drift, self.gate))
        return plot_replays(drift, gate, post)

    def _image(self, maps: Tensor, image: int) -> Any:
        """One image's map as an array, with nothing where it is padding."""
        values = maps[image].detach().float().cpu()
        return (values if self.valid is None else values.where(self.valid[image].cpu(), torch.nan)).numpy()

    def _table(self) -> Table:
        images = len(self.drift[0]) if self.drift else 0
        rows: list[tuple[Cell, ...]] = []
        for image in range(min(images, _LISTED)):
            for replay, drift in enumerate(self.drift):
                steps = self._values(self.displacement[replay], image)
                mean = float(steps.mean()) if steps.numel() else None
                gate, wrong = float(self.mean_gate[replay][image]), int(self.not_finite[replay][image])
                rows.append((image, replay + 1, self._median(drift, image), gate, mean, wrong))
            if self.post_drift is not None:
                rows.append((image, "accepted", self._median(self.post_drift, image), None, None, None))
        columns = ("image", "replay", "median drift", "mean gate", "mean step", "not finite")
        notes = [] if images <= _LISTED else [f"The first {_LISTED} of {images} images."]
        if self.signal is not None:
            values = ", ".join(f"{each:.4g}" for each in self.signal.tolist()[:_LISTED])
            notes.append(f"Decided by the signal {values}.")
        size = "" if self.grid is None else f", {self.grid[0]} x {self.grid[1]} patches"
        title = (
            f"Trace of {images} image{'s' * (images != 1)}{size}" if images else "Trace: nothing was measured"
        )
        return Table(title, columns, tuple(rows), tuple(notes))

    def _median(self, maps: Tensor, image: int) -> Cell:
        values = self._values(maps, image)
        values = values[values.isfinite()]
        return float(values.cpu().double().quantile(0.5)) if values.numel() else None

    def _values(self, maps: Tensor, image: int) -> Tensor:
        """One image's values, of valid patches alone."""
        values = maps[image].detach().flatten()
        return values if self.valid is None else values[self.valid[image].flatten().to(values.device)]
