"""The Plain-DETR head: a feature map of stride 16 in, scored boxes out, with the released names.

An encoder with post-norm layers, proposals at strides 8, 16, 32 and 64, and a decoder whose global cross-attention is
biased by where each box lies (decomposed box RPE). Every box is in absolute pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.models.checkpoint import Checkpoint

STRIDES = (8, 16, 32, 64)  # of the proposals
_STRIDE = 16  # of the feature map
_SMALLEST = 50.0  # side of a proposal at the finest stride, in pixels
_PADDING_BIAS = -100.0
# One query's bias holds heads x h x w numbers: 1,500 queries of a 2048 x 2730 image would need 1 GB at once.
_QUERIES_AT_ONCE = 256
_LARGEST_LOG_SCALE = abs(math.log(16 / 1000))  # a refinement scales a side by at most 1 / 0.016


@dataclass(frozen=True)
class PlainDetrConfig:
    """Sizes of a head; the defaults are those of the released COCO head of the 7B backbone."""

    channels: int = 32768  # of the feature map: windows and global view, four taps each
    width: int = 768
    heads: int = 8
    encoder_layers: int = 6
    encoder_feedforward: int = 2048
    decoder_layers: int = 6
    decoder_feedforward: int = 2048
    rpe_hidden: int = 512
    queries: int = 1500  # used at inference; a file stores as many again for training
    classes: int = 91


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


class EncoderLayer(nn.TransformerEncoderLayer):
    """torch's post-norm layer with ReLU, with positions added to queries and keys."""

    def forward(self, memory: Tensor, positions: Tensor, padding: Tensor | None) -> Tensor:  # type: ignore[override]
        """``memory`` and ``positions`` (B, N, C), ``padding`` (B, N) → new memory (B, N, C)."""
        where = memory + positions
        attended, _ = self.self_attn(where, where, memory, key_padding_mask=padding, need_weights=False)
        memory = self.norm1(memory + attended)
        return self.norm2(memory + self.linear2(F.relu(self.linear1(memory))))  # type: ignore[no-any-return]


class MapNorm(nn.Module):
    """Layer norm over the channels of a (B, C, h, w) map."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)

    def forward(self, maps: Tensor) -> Tensor:
        return self.ln(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)  # type: ignore[no-any-return]


def stride_projections(width: int) -> nn.ModuleList:
    """From the encoder's stride 16 to each of STRIDES."""

    def halve() -> nn.Conv2d:
        return nn.Conv2d(width, width, kernel_size=2, stride=2)

    return nn.ModuleList(
        [
            nn.Sequential(nn.ConvTranspose2d(width, width, kernel_size=2, stride=2)),
            nn.Identity(),
            nn.Sequential(halve()),
            nn.Sequential(halve(), MapNorm(width), nn.GELU(), halve()),
        ]
    )


def propose(memory: Tensor, padding: Tensor, projections: nn.ModuleList) -> tuple[Tensor, Tensor, Tensor]:
    """Spread ``memory`` (B, C, h, w) over all strides; squares of 50 pixels and its doublings.

    A candidate counts when it lies on valid ground and its centre and size are within 1 to 99 % of the image.

    Returns:
        The memory (B, n, C) behind each candidate, zero where it is unusable; its box (B, n, 4), cxcywh in pixels; and
        width and height (B, 2) of the unpadded image.
    """
    reach = _STRIDE * min(memory.shape[-2:])  # a side shorter than a stride has no cell of it
    levels = [level for level, stride in enumerate(STRIDES) if stride <= reach]
    maps = [projections[level](memory) for level in levels]
    ground = [F.interpolate(padding[:, None].float(), size=each.shape[-2:])[:, 0].bool() for each in maps]
    squares = [
        _squares(each, STRIDES[level], _SMALLEST * 2**level) for level, each in zip(levels, maps, strict=True)
    ]
    boxes = torch.cat(squares)  # (n, 4)
    finest = ground[0]
    valid_size = torch.stack(((~finest[:, 0]).sum(1), (~finest[:, :, 0]).sum(1)), dim=1) * STRIDES[0]
    limit = valid_size.repeat(1, 2)[:, None]  # (B, 1, 4)
    usable = ((boxes > 0.01 * limit) & (boxes < 0.99 * limit)).all(-1, keepdim=True)
    usable &= ~torch.cat([each.flatten(1) for each in ground], dim=1)[..., None]  # (B, n, 1)
    flat = torch.cat([each.flatten(2) for each in maps], dim=2).transpose(1, 2)
    far = float(max(finest.shape[-2:]) * STRIDES[0])
    boxes = torch.where(usable, boxes, torch.full_like(boxes, far))
    return flat.masked_fill(~usable, 0.0), boxes, valid_size.to(memory.dtype)


def _squares(maps: Tensor, stride: int, side: float) -> Tensor:
    """One square of ``side`` pixels at the centre of every cell, (h * w, 4) cxcywh."""
    height, width = maps.shape[-2:]
    y = (torch.arange(height, device=maps.device, dtype=torch.float32) + 0.5) * stride
    x = (torch.arange(width, device=maps.device, dtype=torch.float32) + 0.5) * stride
    grid_y, grid_x = torch.meshgrid(y, x, indexing="ij")
    sides = torch.full_like(grid_x, side)
    return torch.stack((grid_x, grid_y, sides, sides), dim=-1).flatten(0, 1)


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


class DecoderLayer(nn.TransformerEncoderLayer):
    """Self-attention, box cross-attention and feed-forward, each normed beforehand."""

    def __init__(self, config: PlainDetrConfig) -> None:
        super().__init__(config.width, config.heads, config.decoder_feedforward, batch_first=True)
        self.cross_attn = BoxCrossAttention(config.width, config.heads, config.rpe_hidden)
        self.norm3 = nn.LayerNorm(config.width)

    def forward(  # type: ignore[override]
        self, content: Tensor, positions: Tensor, boxes: Tensor, keys: Tensor, values: Tensor, padding: Tensor
    ) -> Tensor:
        """``content`` and ``positions`` (B, n, C) → new content (B, n, C)."""
        normed = self.norm2(content)
        where = normed + positions
        content = content + self.self_attn(where, where, normed, need_weights=False)[0]
        content = content + self.cross_attn(self.norm1(content) + positions, boxes, keys, values, padding)
        return content + self.linear2(F.relu(self.linear1(self.norm3(content))))  # type: ignore[no-any-return]


class BoxMlp(nn.Module):
    """Three layers from a query to its four box deltas."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 4)])

    def forward(self, content: Tensor) -> Tensor:  # (B, n, C) → (B, n, 4)
        first, second, last = self.layers
        return last(F.relu(second(F.relu(first(content)))))  # type: ignore[no-any-return]


class PlainDetr(nn.Module):
    """Plain-DETR without its backbone; its state dict has the names of a released head, aliases included."""

    def __init__(self, config: PlainDetrConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or PlainDetrConfig()
        heads = config.decoder_layers + 1  # the last one scores the proposals
        self.class_embed = nn.ModuleList(nn.Linear(config.width, config.classes) for _ in range(heads))
        self.bbox_embed = nn.ModuleList(BoxMlp(config.width) for _ in range(heads))
        self.transformer = self._transformer()
        self.query_embed = nn.Embedding(2 * config.queries, config.width)
        project = nn.Sequential(nn.Conv2d(config.channels, config.width, 1), nn.GroupNorm(32, config.width))
        self.input_proj = nn.ModuleList([project])

    def _transformer(self) -> Any:
        """Everything the released files keep under ``transformer``, the class and box heads a second time."""
        config, width = self.config, self.config.width
        made: Any = nn.Module()
        made.level_embed = nn.Parameter(torch.zeros(1, width))
        sizes = width, config.heads, config.encoder_feedforward
        encoder = [EncoderLayer(*sizes, batch_first=True) for _ in range(config.encoder_layers)]
        made.encoder = nn.ModuleDict({"layers": nn.ModuleList(encoder)})  # without a final norm
        made.decoder = nn.Module()
        made.decoder.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.decoder_layers))
        made.decoder.final_layer_norm = nn.LayerNorm(width)
        made.decoder.class_embed, made.decoder.bbox_embed = self.class_embed, self.bbox_embed
        made.enc_output = nn.Linear(width, width)
        made.enc_output_norm = nn.LayerNorm(width)
        made.enc_output_proj = stride_projections(width)
        made.pos_trans = nn.Linear(2 * width, 2 * width)
        made.pos_trans_norm = nn.LayerNorm(2 * width)
        return made

    def forward(self, features: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, n, classes) and boxes (B, n, 4; cxcywh in pixels of the padded input).

        ``features`` is (B, channels, h, w) of stride 16, ``padding`` (B, h, w) is True on padding. n is the number of
        queries, or of proposals when a small image (under about 290 patches) has fewer.
        """
        maps = self.input_proj[0](features)
        positions = map_positions(padding, self.config.width) + self.transformer.level_embed
        # a traced graph cannot branch on values; a mask that hides nothing changes nothing
        hidden = padding.flatten(1) if torch.compiler.is_compiling() or bool(padding.any()) else None
        memory = maps.flatten(2).transpose(1, 2)
        for layer in self.transformer.encoder["layers"]:
            memory = layer(memory, positions, hidden)
        boxes, valid_size = self._best_proposals(memory.transpose(1, 2).reshape_as(maps), padding)
        content = self.query_embed.weight[: boxes.shape[1]].expand(len(boxes), -1, -1)
        code = self.transformer.pos_trans(box_positions(boxes, self.config.width // 2))
        where = self.transformer.pos_trans_norm(code)[..., : self.config.width]
        decoder, keys, normed = self.transformer.decoder, memory + positions, content
        for layer, locate in zip(decoder.layers, self.bbox_embed, strict=False):
            content = layer(content, where, boxes, keys, memory, padding)
            normed = decoder.final_layer_norm(content)
            boxes = refine(boxes, locate(normed), valid_size)
        logits: Tensor = self.class_embed[len(decoder.layers) - 1](normed)
        return logits, boxes

    def _best_proposals(self, memory: Tensor, padding: Tensor) -> tuple[Tensor, Tensor]:
        """The boxes (B, n, 4) that class 0 of the last head ranks highest, and the valid size (B, 2)."""
        parts = self.transformer
        spread, squares, valid_size = propose(memory, padding, parts.enc_output_proj)
        content = parts.enc_output_norm(parts.enc_output(spread))
        boxes = refine(squares, self.bbox_embed[-1](content), valid_size)
        ranks = self.class_embed[-1](content)[..., 0]
        best = ranks.topk(min(self.config.queries, ranks.shape[1]), dim=1).indices
        return boxes.gather(1, best[..., None].expand(-1, -1, 4)), valid_size


def infer_plain_detr(checkpoint: Checkpoint) -> PlainDetrConfig:
    """The sizes that a head's names and shapes imply."""
    encoder, decoder = "transformer.encoder.layers.0.", "transformer.decoder.layers.0."
    sizes = checkpoint.sizes(
        "a Plain-DETR head",
        channels=("input_proj.0.0.weight", 1),
        width=("query_embed.weight", 1),
        queries=("query_embed.weight", 0),
        heads=(decoder + "cross_attn.cpb_mlp1.2.weight", 0),
        rpe_hidden=(decoder + "cross_attn.cpb_mlp1.0.weight", 0),
        encoder_feedforward=(encoder + "linear1.weight", 0),
        decoder_feedforward=(decoder + "linear1.weight", 0),
        classes=("class_embed.0.weight", 0),
    )
    sizes["queries"] //= 2
    sizes["encoder_layers"] = checkpoint.count(r"transformer\.encoder\.layers\.(\d+)\.")
    sizes["decoder_layers"] = checkpoint.count(r"transformer\.decoder\.layers\.(\d+)\.")
    return PlainDetrConfig(**sizes)


def best_detections(
    logits: Tensor, boxes: Tensor, size: tuple[float, float], original: tuple[float, float], keep: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The highest scores of pairs (query, class) of one image, without threshold or suppression.

    Args:
        logits: (q, classes).
        boxes: (q, 4) cxcywh in pixels of the input.
        size: height and width of the input without padding.
        original: height and width of the image that boxes are returned for.
        keep: how many.

    Returns:
        Boxes (n, 4) xyxy, scores (n,), labels (n,).
    """
    scores = logits.sigmoid().flatten()
    scores, index = scores.topk(min(keep, scores.numel()))
    classes = logits.shape[-1]
    height, width = size
    limit = boxes.new_tensor([width, height, width, height])
    scale = boxes.new_tensor([original[1] / width, original[0] / height] * 2)
    corners = torch.minimum(centre_to_corners(boxes[index // classes]).clamp(min=0), limit) * scale
    return corners, scores, index % classes
