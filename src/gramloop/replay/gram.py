"""Drift and gate: how much a proposal changes each patch's relations, and how much of it each token accepts.

With Q0 and Q1 the L2-normalised patches of the baseline pass and of a proposal, D = Q1 - Q0 and
M = (Q0 + Q1) / 2, the change of the cosine-Gram matrix is exactly

    Q1 Q1ᵀ - Q0 Q0ᵀ = D Mᵀ + M Dᵀ

and the drift of patch p is the mean square of row p. Nothing is subtracted that is almost equal, so
float32 keeps seven digits where the difference of two Gram matrices keeps four.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.replay.config import ReplayConfig
from gramloop.util.table import Cell, Table, TableRepr

if TYPE_CHECKING:
    from gramloop.replay.vit import Grid

# Beyond this many patches per channel, C x C products are cheaper and smaller than N x N ones.
_PAIRWISE_LIMIT = 4
# Up to this many patches one N x N product beats the bookkeeping of tiles.
_UNTILED_PATCHES = 512
_TILES = 8
_TINY = 1e-12
# A patch that grows or shrinks by more is not measured by its step.
_FAR = 16.0
_LISTED = 8  # images in a table
_switching = threading.Lock()
_inside: list[str] = []  # the precision to restore, once for each thread for which it is switched


class GramAnchor:
    """The final-normed patches of the baseline pass, against which proposals are measured."""

    def __init__(self, patches: Tensor, valid: Tensor | None = None) -> None:
        """Keep ``patches`` (B, N, C); ``valid`` (B, N) bool leaves padding out."""
        self._valid = valid
        self._count = patches.shape[1] if valid is None else valid.sum(1).clamp(min=1)[:, None]
        with full_float32(patches.device):
            self._P0 = self._only_valid(patches.float())
            self._inverse0 = _inverse_length(self._P0)
            self._scale0 = self._inverse0.float()

    def drift(self, patches: Tensor) -> Tensor:
        """Mean squared change of each patch's Gram row, (B, N) float32; 0 on invalid patches."""
        with full_float32(patches.device):
            D, M2 = self._change_and_sum(self._only_valid(patches.float()))
            compiling, traced = torch.compiler.is_compiling(), torch._C._get_tracing_state
            if torch.compiler.is_exporting() or (not compiling and traced() is not None):
                return _squared_row_change(D, M2) / (4 * self._count)  # a graph for any number of images
            # One image at a time: the same bits alone or in a batch, and the memory of one image.
            rows = [_squared_row_change(D[i], M2[i]) for i in range(len(D))]
            if not rows:
                return patches.new_zeros(patches.shape[:2], dtype=torch.float32)
            return (rows[0][None] if len(rows) == 1 else torch.stack(rows)).div_(4 * self._count)

    def _change_and_sum(self, P1: Tensor) -> tuple[Tensor, Tensor]:
        """D = Q1 - Q0 and 2 M = Q0 + Q1 of the L2-normalised patches, each (B, N, C).

        Subtracting rounded unit vectors would cost three digits of D. Written with the step P1 - P0
        and the change of the inverse lengths, every term is as small as D itself, as long as the step
        does not change a patch's length by orders of magnitude. After a norm it cannot; where it does, D is
        no small difference, and the unit vectors are subtracted.
        """
        inverse1 = _inverse_length(P1)
        change = inverse1 / self._inverse0
        near = ((change < _FAR) & (change > 1 / _FAR)).to(inverse1.dtype)  # (B, N, 1) of 0 and 1
        D = torch.addcmul(P1, self._P0, near.float(), value=-1.0).mul_(inverse1.float())
        D.addcmul_(self._P0, inverse1.mul_(near).sub_(self._inverse0).float())
        return D, torch.addcmul(D, self._P0, self._scale0, value=2.0)

    def _only_valid(self, patches: Tensor) -> Tensor:
        return patches if self._valid is None else patches.masked_fill(~self._valid[..., None], 0.0)


def _inverse_length(patches: Tensor) -> Tensor:
    """1 / |p| of every patch, (B, N, C) -> (B, N, 1), in float64 so that differences of two keep their digits.

    MPS has no float64; there drift has the textbook's accuracy.
    """
    wide = torch.float32 if patches.device.type == "mps" else torch.float64
    length: Tensor = torch.linalg.vector_norm(patches, dim=-1, keepdim=True, dtype=wide)
    return length.clamp_(min=_TINY).reciprocal_()


def _squared_row_change(D: Tensor, M2: Tensor) -> Tensor:
    """4 N times the drift: row sums of squares of D (2M)ᵀ + 2M Dᵀ, (…, N, C), (…, N, C) -> (…, N)."""
    patches, channels = D.shape[-2:]
    if patches > _PAIRWISE_LIMIT * channels:
        return _from_channel_products(D, M2)
    if patches > _UNTILED_PATCHES:
        return _from_symmetric_tiles(D, M2)
    A = D @ M2.transpose(-1, -2)
    length: Tensor = torch.linalg.vector_norm(A + A.transpose(-1, -2), dim=-1)
    return length.square_()


def _from_symmetric_tiles(D: Tensor, M: Tensor) -> Tensor:
    """D Mᵀ + M Dᵀ is symmetric: its tiles on and right of the diagonal give all row sums."""
    patches = D.shape[-2]
    rows = -(-patches // _TILES)
    total = D.new_zeros(D.shape[:-1])
    for top in range(0, patches, rows):
        bottom = min(top + rows, patches)
        change = D[..., top:bottom, :] @ M[..., top:, :].transpose(-1, -2)
        change = _add_product(
            change, M[..., top:bottom, :], D[..., top:, :].transpose(-1, -2)
        ).square_()  # (rows, N - top)
        total[..., top:bottom] += change.sum(-1)
        total[..., bottom:] += change[..., bottom - top :].sum(-2)
    return total


def _from_channel_products(D: Tensor, M: Tensor) -> Tensor:
    """The same row sums as quadratic forms of C x C matrices: O(N C²), for many patches."""
    change = _add_product(D @ (M.transpose(-1, -2) @ M), M, D.transpose(-1, -2) @ M, alpha=2.0)
    total = change.mul_(D).sum(-1)
    total += torch.matmul(M, D.transpose(-1, -2) @ D, out=change).mul_(M).sum(-1)
    return total


def _add_product(total: Tensor, one: Tensor, other: Tensor, alpha: float = 1.0) -> Tensor:
    """total + alpha * one @ other; the total is used up."""
    if total.ndim == 2:
        return total.addmm_(one, other, alpha=alpha)
    return total.add_(one @ other, alpha=alpha)


def patch_gate(patches: Tensor, drift: Tensor | None, config: ReplayConfig, valid: Tensor | None) -> Tensor:
    """The gate that a configuration gives each patch: (B, N, C) and its drift (B, N) -> (B, N) in [0, 1]."""
    if drift is None or not config.measures_drift:
        level = 1.0 if config.gate == "none" else float(config.strength)
        gate = torch.full(patches.shape[:2], level, dtype=torch.float32, device=patches.device)
        return gate if valid is None else torch.where(valid, gate, 0.0)
    gate = gram_gate(drift, config.eps, valid)
    if config.strength == "matched":
        gate = mean_gate(gate, valid).expand_as(gate)
        return torch.where(drift.isfinite() if valid is None else drift.isfinite() & valid, gate, 0.0)
    return gate if config.strength == 1.0 else gate * float(config.strength)


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


def full_float32(device: torch.device) -> AbstractContextManager[None]:
    """Turn autocast and reduced-precision float32 products (TF32, bfloat16) off, then restore them.

    A bfloat16 Gram errs by about as much as a typical drift. Inside a compiled or exported graph the
    process-wide product precision cannot be switched: there, leave it at PyTorch's default, "highest".
    """
    if torch.compiler.is_compiling():
        precision = "highest"
    else:
        with _switching:
            precision = _inside[0] if _inside else torch.get_float32_matmul_precision()
    on_meta = device.type == "meta"  # nothing is computed there, and autocast does not know it
    if on_meta or (precision == "highest" and not torch.is_autocast_enabled(device.type)):
        return nullcontext()
    return _switched(device, precision)


@contextmanager
def _switched(device: torch.device, precision: str) -> Iterator[None]:
    with torch.autocast(device.type, enabled=False):
        if precision == "highest":
            yield
            return
        with _switching:
            _inside.append(precision)
            torch.set_float32_matmul_precision("highest")
        try:
            yield
        finally:
            with _switching:
                _inside.pop()
                if not _inside:  # the last thread out restores
                    torch.set_float32_matmul_precision(precision)


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
        """Draw drift and gate of one image's replays; returns a figure of matplotlib."""
        from gramloop.util.plotting import plot_replays

        if self.grid is None:
            raise GramLoopError("the host does not reveal its grid of patches, so there is no map to plot")
        if self.drift and not 0 <= image < len(self.drift[0]):
            raise GramLoopError(f"there is no image {image}; this forward had {len(self.drift[0])}")
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
