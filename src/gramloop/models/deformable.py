"""Deformable attention over one map: each query reads a few points near its own place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DeformableAttention(nn.Module):
    """Each head of each query samples ``points`` places of a map and averages them with learned weights.

    Values are projected to ``ratio`` of the width, which makes the sampling as much cheaper.
    """

    def __init__(self, width: int, *, heads: int = 16, points: int = 4, ratio: float = 0.5) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        inner = int(width * ratio)
        self.sampling_offsets = nn.Linear(width, heads * points * 2)
        self.attention_weights = nn.Linear(width, heads * points)
        self.value_proj = nn.Linear(width, inner)
        self.output_proj = nn.Linear(inner, width)

    def forward(self, queries: Tensor, places: Tensor, values: Tensor, grid: tuple[int, int]) -> Tensor:
        """Read ``values`` (B, h * w, C) near ``places`` (Q, 2; x and y in 0..1) for ``queries`` (B, Q, C)."""
        batch, count, _ = queries.shape
        rows, columns = grid
        maps = self.value_proj(values).transpose(1, 2).reshape(batch * self.heads, -1, rows, columns)
        offsets = self.sampling_offsets(queries).view(batch, count, self.heads, self.points, 2)
        weights = self.attention_weights(queries).view(batch, count, self.heads, self.points).softmax(-1)
        where = places[:, None, None] + offsets / offsets.new_tensor(
            [columns, rows]
        )  # (B, Q, heads, points, 2)
        where = (2 * where - 1).transpose(1, 2).flatten(0, 1)
        weights = weights.transpose(1, 2).flatten(0, 1)
        gathered = self._gather(maps, where, weights)  # (B * heads, inner / heads, Q)
        return self.output_proj(gathered.reshape(batch, -1, count).transpose(1, 2))  # type: ignore[no-any-return]

    def _gather(self, maps: Tensor, where: Tensor, weights: Tensor) -> Tensor:
        # point by point: all points at once would need as many times the memory
        total = maps.new_zeros(maps.shape[0], maps.shape[1], where.shape[1])
        for point in range(self.points):
            sampled = F.grid_sample(maps, where[:, :, point, None], align_corners=False)
            total += sampled[..., 0] * weights[:, None, :, point]
        return total


def cell_centres(grids: list[tuple[int, int]], like: Tensor) -> Tensor:
    """Centres (Q, 2; x and y in 0..1) of the cells of several grids, row by row, grid after grid."""
    centres = []
    for rows, columns in grids:
        y = (torch.arange(rows, device=like.device, dtype=like.dtype) + 0.5) / rows
        x = (torch.arange(columns, device=like.device, dtype=like.dtype) + 0.5) / columns
        centres.append(torch.stack((x.expand(rows, -1), y[:, None].expand(-1, columns)), -1).flatten(0, 1))
    return torch.cat(centres)
