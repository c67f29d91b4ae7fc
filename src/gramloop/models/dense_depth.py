"""A small depth head: dilated convolutions on the taps of a frozen backbone, which see the whole grid of patches."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.checkpoint import identity_plan, load, open_checkpoint
from gramloop.models.linear import stored_taps
from gramloop.util.files import atomic_write

DILATIONS = (1, 2, 4, 8, 1)  # together they reach 16 patches to every side: a thing's foot, and the horizon
STEP = 4  # numbers along the side of a patch
_LEAST, _MOST = -7.0, 7.0  # of the logarithm: about 1 mm to 1 km


class DenseDepthHead(nn.Module):
    """The logarithm of depth in metres, several numbers per patch, from the maps of ``taps`` set side by side.

    Beside the maps it reads how high a patch lies in the image, which a ViT with rotary positions does not tell.
    Weights are named ``bn.*``, ``reduce.*``, ``convs.*`` and ``out.*``.
    """

    def __init__(self, channels: int, taps: Sequence[int], width: int = 48) -> None:
        super().__init__()
        if not taps or channels < 1 or width < 1:
            raise GramLoopError(
                f"a depth head needs channels, a width and taps, not {channels}, {width} and {list(taps)}"
            )
        self.channels, self.width, self.taps = channels, width, tuple(taps)
        self.bn = nn.BatchNorm2d(channels * len(self.taps))
        self.reduce = nn.Conv2d(channels * len(self.taps) + 1, width, 1)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=d, dilation=d) for d in DILATIONS)
        self.out = nn.Conv2d(width, STEP * STEP, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:  # each (B, C, h, w)
        """The logarithm of depth, (B, 1, STEP h, STEP w)."""
        joined = self.bn(torch.cat(list(maps), dim=1))
        batch, _, high, wide = joined.shape
        rows = (torch.arange(high, device=joined.device, dtype=joined.dtype) + 0.5) * (2 / high) - 1
        hidden = self.reduce(
            torch.cat([joined, rows.view(1, 1, high, 1).expand(batch, 1, high, wide)], dim=1)
        )
        for conv in self.convs:
            hidden = hidden + conv(F.gelu(hidden))
        return F.pixel_shuffle(self.out(F.gelu(hidden)), STEP)

    def depth(self, maps: Sequence[Tensor], size: tuple[int, int]) -> Tensor:  # → (B, H, W)
        """Depth in metres in the size (H, W)."""
        logs = F.interpolate(self(maps), size, mode="bilinear", align_corners=False)
        return logs[:, 0].clamp(_LEAST, _MOST).exp()

    def save(self, path: str | Path) -> None:
        """Write the weights in float16 as safetensors; the file remembers the taps."""
        from safetensors.torch import save

        weights = {
            name: (value.half() if value.is_floating_point() else value).detach().cpu().contiguous()
            for name, value in self.state_dict().items()
        }
        atomic_write(Path(path), save(weights, metadata={"taps": json.dumps(self.taps)}))


def load_depth_head(path: str | Path, *, device: torch.device | str = "cpu") -> DenseDepthHead:
    """A head that `DenseDepthHead.save` wrote, in float32 and in evaluation mode."""
    checkpoint = open_checkpoint(path)
    taps, weight = stored_taps(checkpoint.path), checkpoint.shapes.get("reduce.weight")
    if not taps or weight is None or len(weight) != 4 or (weight[1] - 1) % len(taps):
        raise GramLoopError(
            f"{path} is not a depth head on {len(taps)} taps: its reduce.weight is {weight or 'missing'}"
        )
    with torch.device("meta"):
        head = DenseDepthHead((weight[1] - 1) // len(taps), taps, weight[0])
    load(head, checkpoint, identity_plan(head), device=device)
    return head.eval()
