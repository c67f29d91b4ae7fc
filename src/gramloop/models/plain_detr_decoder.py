"""Plain-DETR's decoder: global cross-attention biased by where each box lies (decomposed box RPE)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.models.plain_detr_boxes import centre_to_corners, refine

_STRIDE = 16
_PADDING_BIAS = -100.0
# One query's bias holds heads x h x w numbers: 1,500 queries of a 2048 x 2730 image would need 1 GB at once.
_QUERIES_AT_ONCE = 256


def _offset_mlp(hidden: int, heads: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, heads, bias=False))


class BoxCrossAttention(nn.Module):
    """Attention from boxes to all patches; offsets of a box's sides to a patch's centre bias the weights."""

    def __init__(self, width: int, heads: int, rpe_hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.cpb_mlp1 = _offset_mlp(rpe_hidden, heads)  # along x
        self.cpb_mlp2 = _offset_mlp(rpe_hidden, heads)  # along y
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.proj = nn.Linear(width, width)

    def forward(
        self, queries: Tensor, boxes: Tensor, keys: Tensor, values: Tensor, padding: Tensor
    ) -> Tensor:
        """Queries (B, n, C), boxes (B, n, 4; cxcywh), keys and values (B, h * w, C), padding (B, h, w)."""
        k, v = self._split(self.k(keys)), self._split(self.v(values))
        attended = []
        for start in range(0, queries.shape[1], _QUERIES_AT_ONCE):
            some = slice(start, start + _QUERIES_AT_ONCE)
            q = self._split(self.q(queries[:, some]))
            bias = self._bias(boxes[:, some], padding)
            attended.append(F.scaled_dot_product_attention(q, k, v, attn_mask=bias))
        return self.proj(torch.cat(attended, dim=2).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, tokens: Tensor) -> Tensor:
        batch, count, width = tokens.shape
        return tokens.reshape(batch, count, self.heads, width // self.heads).transpose(1, 2)

    def _bias(self, boxes: Tensor, padding: Tensor) -> Tensor:
        """(B, heads, n, h * w): one number per column plus one per row."""
        height, width = padding.shape[-2:]
        corners = centre_to_corners(boxes)[:, :, None]  # (B, n, 1, 4)
        x = (torch.arange(width, device=boxes.device, dtype=boxes.dtype) + 0.5) * _STRIDE
        y = (torch.arange(height, device=boxes.device, dtype=boxes.dtype) + 0.5) * _STRIDE
        columns = self.cpb_mlp1(corners[..., 0::2] - x[:, None]).permute(0, 3, 1, 2)  # (B, heads, n, w)
        rows = self.cpb_mlp2(corners[..., 1::2] - y[:, None]).permute(0, 3, 1, 2)  # (B, heads, n, h)
        bias: Tensor = rows[..., :, None] + columns[..., None, :]  # (B, heads, n, h, w)
        return (bias + padding[:, None, None] * _PADDING_BIAS).flatten(3)


class DecoderLayer(nn.Module):
    """Self-attention, box cross-attention and feed-forward, each normed beforehand."""

    def __init__(self, width: int, heads: int, feedforward: int, rpe_hidden: int) -> None:
        super().__init__()
        self.cross_attn = BoxCrossAttention(width, heads, rpe_hidden)
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, feedforward)
        self.linear2 = nn.Linear(feedforward, width)

    def forward(
        self, content: Tensor, positions: Tensor, boxes: Tensor, keys: Tensor, values: Tensor, padding: Tensor
    ) -> Tensor:
        """``content`` and ``positions`` (B, n, C) → new content (B, n, C)."""
        normed = self.norm2(content)
        where = normed + positions
        content = content + self.self_attn(where, where, normed, need_weights=False)[0]
        content = content + self.cross_attn(self.norm1(content) + positions, boxes, keys, values, padding)
        return content + self.linear2(F.relu(self.linear1(self.norm3(content))))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Layers that refine their boxes one after the other.

    The class and box heads belong to the detector; released files name them a second time, here.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        heads: int,
        feedforward: int,
        rpe_hidden: int,
        classify: nn.ModuleList,
        locate: nn.ModuleList,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(width, heads, feedforward, rpe_hidden) for _ in range(depth))
        self.final_layer_norm = nn.LayerNorm(width)
        self.class_embed = classify
        self.bbox_embed = locate

    def forward(
        self,
        content: Tensor,
        positions: Tensor,
        boxes: Tensor,
        memory: Tensor,
        memory_positions: Tensor,
        padding: Tensor,
        valid_size: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Logits (B, n, classes) and boxes (B, n, 4; cxcywh) after the last layer."""
        keys = memory + memory_positions
        normed = content
        for layer, locate in zip(self.layers, self.bbox_embed, strict=False):
            content = layer(content, positions, boxes, keys, memory, padding)
            normed = self.final_layer_norm(content)
            boxes = refine(boxes, locate(normed), valid_size)
        return self.class_embed[len(self.layers) - 1](normed), boxes
