"""Plain-DETR's encoder layers: post-norm self-attention over one feature map."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class EncoderLayer(nn.Module):
    """Self-attention, then a ReLU feed-forward, each with its residual normed afterwards."""

    def __init__(self, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, memory: Tensor, positions: Tensor, padding: Tensor | None) -> Tensor:
        """(B, N, C) → (B, N, C); ``padding`` (B, N) is True where nothing may look."""
        where = memory + positions
        attended, _ = self.self_attn(where, where, memory, key_padding_mask=padding, need_weights=False)
        memory = self.norm1(memory + attended)
        return self.norm2(memory + self.linear2(F.relu(self.linear1(memory))))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """A stack of encoder layers without a final norm."""

    def __init__(self, depth: int, width: int, heads: int, feedforward: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(width, heads, feedforward) for _ in range(depth))

    def forward(self, memory: Tensor, positions: Tensor, padding: Tensor | None) -> Tensor:
        """(B, N, C) → (B, N, C)."""
        for layer in self.layers:
            memory = layer(memory, positions, padding)
        return memory
