"""Meta's depth model: four batch-normed taps of a frozen DINOv3, a DPT neck, and a mean over bins of depth.

transformers' DPTNeck does reassembling and fusion with Meta's weights under other names. Depth is the mean of equally
spaced bins, weighted by relu(logit) + 0.1, computed a few rows at a time: the bins of a whole image need gigabytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.models.backbone import Backbone, default_taps, without_autocast
from gramloop.models.checkpoint import LoadOptions, load_weights, open_checkpoint
from gramloop.models.dino import backbone_of_head

NEAR, FAR = 0.001, 100.0  # metres, between which the released head spaces its bins
DEPTH_STRIDE = 32  # inputs whose sides are multiples of it keep their size
_FLOOR = 0.1  # the least weight of a bin
_AT_ONCE = 1 << 23  # logits in memory


_RENAMES: Mapping[str, str] = {
    r"^batchnorm_layers\.": "reassemble_blocks.batchnorm_layers.",
    r"^neck\.reassemble_stage\.layers\.(\d)\.projection\.": r"reassemble_blocks.projects.\1.conv.",
    r"^neck\.reassemble_stage\.layers\.(\d)\.resize\.": r"reassemble_blocks.resize_layers.\1.",
    r"^neck\.convs\.(\d)\.": r"convs.\1.conv.",
    r"^neck\.fusion_stage\.layers\.(\d)\.projection\.": r"fusion_blocks.\1.project.conv.",
    r"^neck\.fusion_stage\.layers\.(\d)\.residual_layer(\d)\.convolution(\d)\.": (
        r"fusion_blocks.\1.res_conv_unit\2.conv\3.conv."
    ),
    r"^project\.": "project.conv.",
    r"^conv_depth\.": "conv_depth.head.",
}


class DptDepthHead(nn.Module):
    """Four maps (B, C, h, w) in, depth in metres out, at 32 ceil(h / 2) x 32 ceil(w / 2)."""

    released_names = _RENAMES

    def __init__(
        self,
        taps: Sequence[int],
        channels: int = 4096,
        *,
        reassembled: int = 2048,
        fused: int = 512,
        hidden: int = 32,
        bins: int = 256,
    ) -> None:
        """The sizes are by default those of the released head; ``channels`` is the width of the backbone."""
        super().__init__()
        self.taps, self.channels, self.bins = tuple(taps), channels, bins
        self.batchnorm_layers = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(4))
        self.neck = _neck(channels, reassembled, fused)
        self.project = nn.Conv2d(fused, fused, 3, padding=1)
        self.conv_depth = nn.Sequential(
            nn.Conv2d(fused, fused // 2, 3, padding=1),
            nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
            nn.Conv2d(fused // 2, hidden, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(hidden, bins, 1),
        )
        self.eval()

    @property
    def tap_norms(self) -> tuple[nn.Module, ...]:
        """The batch norm of each tap, which holds the mean over the training images."""
        return tuple(self.batchnorm_layers)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:  # each (B, C, h, w) → (B, 1, H, W)
        """Depth in metres, float32, at the head's output size."""
        weight = self.project.weight
        with without_autocast(weight.device.type):
            return self.expectation(self.features([each.to(weight.dtype) for each in maps]))

    def depth(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:  # → (B, H, W)
        """Depth in metres in the size (H, W)."""
        found: Tensor = self(maps)
        if found.shape[-2:] != size:
            found = F.interpolate(found, size, mode="bilinear", align_corners=False)
        return found[:, 0]

    def features(self, maps: Sequence[Tensor]) -> Tensor:  # each (B, C, h, w) → (B, hidden, H, W)
        """The input of the last convolution, which makes the logits."""
        high, wide = maps[0].shape[-2:]
        normed = [norm(each) for norm, each in zip(self.batchnorm_layers, maps, strict=True)]
        fused = self.neck([_tokens(each) for each in normed], high, wide)[-1]
        found: Tensor = F.relu(self.project(fused))
        for step in list(self.conv_depth)[:-1]:
            found = step(found)
        return found

    def expectation(self, features: Tensor) -> Tensor:  # (B, hidden, H, W) → (B, 1, H, W)
        """The mean bin of every pixel, in float32 from the logits on."""
        batch, _, high, wide = features.shape
        bins = torch.linspace(NEAR, FAR, self.bins, device=features.device)
        rows = max(1, _AT_ONCE // (batch * self.bins * wide))
        found = torch.empty(batch, 1, high, wide, device=features.device)
        for first in range(0, high, rows):
            some = slice(first, first + rows)
            weights = self.conv_depth[-1](features[:, :, some]).float().relu_().add_(_FLOOR)
            found[:, 0, some] = torch.einsum("bkhw,k->bhw", weights, bins) / weights.sum(1)
        return found


def pad_around(pixels: Tensor, multiple: int) -> Tensor:  # (B, 3, H, W)
    """Zeros on all sides up to the next multiples; the odd one at the right and at the bottom."""
    high, wide = (-side % multiple for side in pixels.shape[-2:])
    return F.pad(pixels, (wide // 2, wide - wide // 2, high // 2, high - high // 2))


def load_depther(
    backbone: str | Path | Backbone, head: str | Path, **options: Unpack[LoadOptions]
) -> tuple[Backbone, DptDepthHead]:
    """Meta's depth model from its two files.

    Args:
        backbone: a model, a file or a transformers folder.
        head: the head's file.
        **options: see `LoadOptions`.
    """
    checkpoint = open_checkpoint(head)
    projection = "reassemble_blocks.projects.0.conv.weight"
    sizes = checkpoint.sizes(
        "a depth head",
        channels=(projection, 1),
        reassembled=(projection, 0),
        fused=("convs.0.conv.weight", 0),
        hidden=("conv_depth.head.2.weight", 0),
        bins=("conv_depth.head.4.weight", 0),
    )
    vit = backbone_of_head(checkpoint, backbone, sizes["channels"], **options)
    with torch.device("meta"):
        made = DptDepthHead(default_taps(vit.shape.depth), **sizes)
    load_weights(made, checkpoint, device=options.get("device", "cpu"))
    return vit, made


def _neck(channels: int, reassembled: int, fused: int) -> Any:
    from transformers import DPTConfig
    from transformers.models.dpt.modeling_dpt import DPTNeck

    neck: Any = DPTNeck(
        DPTConfig(
            hidden_size=channels,
            neck_hidden_sizes=[reassembled] * 4,
            fusion_hidden_size=fused,
            reassemble_factors=[4, 2, 1, 0.5],
            readout_type="ignore",
            neck_ignore_stages=[],
            is_hybrid=False,
            use_bias_in_fusion_residual=False,
            use_batch_norm_in_fusion_residual=False,
        )
    )
    neck.fusion_stage.layers[0].residual_layer1 = nn.Identity()  # nothing comes before the coarsest map
    return neck


def _tokens(each: Tensor) -> Tensor:  # (B, C, h, w) → (B, 1 + N, C)
    """The neck expects a class token before the patches, and ignores it."""
    patches = each.flatten(2).transpose(1, 2)
    return torch.cat([patches.new_zeros(len(patches), 1, patches.shape[2]), patches], dim=1)
