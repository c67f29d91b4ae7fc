"""The adapter between a frozen ViT and a dense head: four taps at stride 16 become maps at strides 4 to 32.

A small convolutional branch reads the image itself. Its maps at strides 8, 16 and 32 then read the ViT's taps, one after
the other, by deformable attention. The ViT is never modified. Names are those of the released files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap

ADAPTER_STRIDE = 32  # of the coarsest map: both sides of an image must be multiples of it

Grids = list[tuple[int, int]]


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
        scale = offsets.new_tensor([columns, rows])
        where = places[:, None, None] + offsets / scale  # (B, Q, heads, points, 2)
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


class SpatialPrior(nn.Module):
    """Maps of the image itself at strides 4, 8, 16 and 32, each with ``width`` channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *_conv(3, 64, 2), *_conv(64, 64, 1), *_conv(64, 64, 1), nn.MaxPool2d(3, stride=2, padding=1)
        )
        self.conv2 = nn.Sequential(*_conv(64, 128, 2))
        self.conv3 = nn.Sequential(*_conv(128, 256, 2))
        self.conv4 = nn.Sequential(*_conv(256, 256, 2))
        self.fc1, self.fc2 = nn.Conv2d(64, width, 1), nn.Conv2d(128, width, 1)
        self.fc3, self.fc4 = nn.Conv2d(256, width, 1), nn.Conv2d(256, width, 1)

    def forward(self, pixels: Tensor) -> list[Tensor]:  # (B, 3, H, W)
        """The four maps, finest first."""
        stride4 = self.stem(pixels)
        stride8 = self.conv2(stride4)
        stride16 = self.conv3(stride8)
        return [self.fc1(stride4), self.fc2(stride8), self.fc3(stride16), self.fc4(self.conv4(stride16))]


class _DepthwiseConv(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, tokens: Tensor, grids: Grids) -> Tensor:  # (B, Q, C), levels one after the other
        maps = [self.dwconv(each) for each in _maps(tokens, grids)]
        return torch.cat([each.flatten(2).transpose(1, 2) for each in maps], dim=1)


class _ConvFeedForward(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, width // 4)
        self.dwconv = _DepthwiseConv(width // 4)
        self.fc2 = nn.Linear(width // 4, width)

    def forward(self, tokens: Tensor, grids: Grids) -> Tensor:
        return self.fc2(F.gelu(self.dwconv(self.fc1(tokens), grids)))  # type: ignore[no-any-return]


class Extractor(nn.Module):
    """Tokens of several strides read one tap of the ViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query_norm, self.feat_norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = DeformableAttention(width)
        self.ffn = _ConvFeedForward(width)
        self.ffn_norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens: Tensor, places: Tensor, tap: Tap, grids: Grids) -> Tensor:
        """``tokens`` (B, Q, C) of all ``grids``, whose centres are ``places``, after reading ``tap``."""
        read = self.attn(self.query_norm(tokens), places, self.feat_norm(tap.patches), tap.grid)
        tokens = tokens + read
        return tokens + self.ffn(self.ffn_norm(tokens), grids)  # type: ignore[no-any-return]


class _Interaction(nn.Module):
    def __init__(self, width: int, extra: int) -> None:
        super().__init__()
        self.extractor = Extractor(width)
        if extra:
            self.extra_extractors = nn.ModuleList(Extractor(width) for _ in range(extra))

    def forward(self, tokens: Tensor, places: Tensor, tap: Tap, grids: Grids) -> Tensor:
        for extractor in (self.extractor, *getattr(self, "extra_extractors", ())):
            tokens = extractor(tokens, places, tap, grids)
        return tokens


class Adapter(nn.Module):
    """Four taps and the image become a pyramid of four maps, strides 4, 8, 16, 32, of the ViT's width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.level_embed = nn.Parameter(torch.zeros(3, width))
        self.spm = SpatialPrior(width)
        self.interactions = nn.ModuleList(_Interaction(width, extra) for extra in (0, 0, 0, 2))
        self.up = nn.ConvTranspose2d(width, width, 2, stride=2)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.norm3, self.norm4 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, pixels: Tensor, taps: Sequence[Tap]) -> list[Tensor]:  # (B, 3, H, W)
        """The pyramid, finest first."""
        return self.pyramid(self.prior(pixels), taps)

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """Maps of the image itself, which do not depend on the taps."""
        height, width = pixels.shape[-2:]
        if height % ADAPTER_STRIDE or width % ADAPTER_STRIDE:
            raise GramLoopError(
                f"the adapter needs sides that are multiples of {ADAPTER_STRIDE}, not {height} x {width}"
            )
        maps: list[Tensor] = self.spm(pixels)
        return maps

    def pyramid(self, prior: Sequence[Tensor], taps: Sequence[Tap]) -> list[Tensor]:
        """Let the maps of :meth:`prior` read the taps."""
        finest, *coarse = prior
        grids = [(each.shape[2], each.shape[3]) for each in coarse]
        tokens = torch.cat(
            [each.flatten(2).transpose(1, 2) + self.level_embed[i] for i, each in enumerate(coarse)], dim=1
        )
        places = cell_centres(grids, tokens)
        for interaction, tap in zip(self.interactions, taps, strict=True):
            tokens = interaction(tokens, places, tap, grids)
        maps = _maps(tokens, grids)
        maps = [self.up(maps[0]) + finest, *maps]
        norms = (self.norm1, self.norm2, self.norm3, self.norm4)
        return [
            norm(each + F.interpolate(tap.map, each.shape[2:], mode="bilinear", align_corners=False))
            for norm, each, tap in zip(norms, maps, taps, strict=True)
        ]


def _conv(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]


def _maps(tokens: Tensor, grids: Grids) -> list[Tensor]:
    """Tokens (B, Q, C) of several grids, one after the other, as maps (B, C, h, w)."""
    levels = torch.split(tokens, [rows * columns for rows, columns in grids], dim=1)
    return [
        level.transpose(1, 2).reshape(level.shape[0], -1, *grid)
        for level, grid in zip(levels, grids, strict=True)
    ]
