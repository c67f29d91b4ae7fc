"""A ViT with the outer shape of Meta's DINOv3 module: its names, its two ways of calling blocks, its outputs.

Written from the description of that interface, so that hosts of this shape are tested without the original.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        if bias:
            self.qkv.register_buffer("bias_mask", torch.ones(3 * width))
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        batch, tokens, width = x.shape
        bias = None if self.qkv.bias is None else self.qkv.bias * self.qkv.bias_mask
        q, k, v = F.linear(x, self.qkv.weight, bias).view(batch, tokens, 3, self.heads, -1).unbind(2)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(rotate(q, *rope), rotate(k, *rope), v)
        return self.proj(y.transpose(1, 2).reshape(batch, tokens, width))


def rotate(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    prefix = x.shape[-2] - sin.shape[-2]
    before, patches = x[..., :prefix, :], x[..., prefix:, :]
    first, second = patches.chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return torch.cat([before, patches * cos + turned * sin], dim=-2)


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x)))


class SwiGlu(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.w3 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.w3(F.silu(self.w1(x)) * self.w2(x))


class Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class Block(nn.Module):
    def __init__(self, width: int, heads: int, bias: bool, mlp: nn.Module) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-5), nn.LayerNorm(width, eps=1e-5)
        self.attn = Attention(width, heads, bias)
        self.ls1, self.ls2 = Scale(width), Scale(width)
        self.mlp = mlp

    def forward(self, x_or_list, rope_or_list):
        if isinstance(x_or_list, Tensor):
            return self._one(x_or_list, rope_or_list)
        return [self._one(x, rope) for x, rope in zip(x_or_list, rope_or_list, strict=True)]

    def _one(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.ls1(self.attn(self.norm1(x), rope))
        return x + self.ls2(self.mlp(self.norm2(x)))


class PatchEmbed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class Rope(nn.Module):
    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.register_buffer("periods", torch.ones(head_dim // 4))

    def forward(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        y = (torch.arange(height) + 0.5) / height * 2 - 1
        x = (torch.arange(width) + 0.5) / width * 2 - 1
        coordinates = torch.stack(torch.meshgrid(y, x, indexing="ij"), -1).flatten(0, 1)
        angles = (2 * math.pi * coordinates[:, :, None] / self.periods).flatten(1).tile(2)
        return angles.sin(), angles.cos()


class DinoVisionTransformer(nn.Module):
    def __init__(self, weights: dict[str, Tensor], heads: int) -> None:
        super().__init__()
        width = weights["cls_token"].shape[-1]
        bias = "blocks.0.attn.qkv.bias" in weights
        gated = "blocks.0.mlp.w1.weight" in weights
        hidden = weights["blocks.0.mlp.w1.weight" if gated else "blocks.0.mlp.fc1.weight"].shape[0]
        depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
        self.n_storage_tokens = weights["storage_tokens"].shape[1]
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.storage_tokens = nn.Parameter(torch.zeros(1, self.n_storage_tokens, width))
        self.patch_embed = PatchEmbed(width)
        self.rope_embed = Rope(width // heads)
        self.blocks = nn.ModuleList(
            Block(width, heads, bias, SwiGlu(width, hidden) if gated else Mlp(width, hidden))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.load_state_dict({k: v for k, v in weights.items() if k in self.state_dict()}, strict=True)

    def prepare_tokens_with_masks(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        patches = self.patch_embed(x)
        grid = patches.shape[-2:]
        patches = patches.flatten(2).transpose(1, 2)
        prefix = torch.cat([self.cls_token, self.storage_tokens], 1).expand(len(x), -1, -1)
        return torch.cat([prefix, patches], 1), (grid[0], grid[1])

    def get_intermediate_layers(self, x: Tensor, n: list[int]) -> list[Tensor]:
        """All tokens of the chosen blocks after the final norm: the tensor path."""
        tokens, grid = self.prepare_tokens_with_masks(x)
        taps = []
        for index, block in enumerate(self.blocks):
            tokens = block(tokens, self.rope_embed(*grid))
            if index in n:
                taps.append(self.norm(tokens))
        return taps

    def forward_features_list(self, images: list[Tensor]) -> list[dict[str, Tensor]]:
        """Several resolutions at once: blocks receive and return lists."""
        prepared = [self.prepare_tokens_with_masks(x) for x in images]
        tokens = [t for t, _ in prepared]
        for block in self.blocks:
            tokens = block(tokens, [self.rope_embed(*grid) for _, grid in prepared])
        first = 1 + self.n_storage_tokens
        normed = [self.norm(t) for t in tokens]
        return [
            {
                "x_norm_clstoken": t[:, 0],
                "x_storage_tokens": t[:, 1:first],
                "x_norm_patchtokens": t[:, first:],
            }
            for t in normed
        ]

    def forward_features(self, x: Tensor) -> dict[str, Tensor]:
        return self.forward_features_list([x])[0]

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_features(x)["x_norm_clstoken"]
