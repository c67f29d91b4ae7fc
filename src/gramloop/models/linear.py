"""The common linear probe: batch norm and a 1 x 1 convolution on one or several taps of a frozen backbone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap, TappedViT
from gramloop.models.checkpoint import load_weights, open_checkpoint
from gramloop.models.mask2former import SegmentationModel
from gramloop.util.files import atomic_write
from gramloop.util.json_files import checked, parse_json


class LinearHead(nn.Module):
    """Logits at the stride of the patches, from the concatenated maps of ``taps``.

    Weights are named ``bn.*`` and ``conv.*``.
    """

    def __init__(self, width: int, classes: int, taps: Sequence[int]) -> None:
        super().__init__()
        if not taps or width < 1 or classes < 1:
            raise GramLoopError(
                f"a linear head needs a width, classes and taps, not {width}, {classes} and {list(taps)}"
            )
        self.width, self.classes, self.taps = width, classes, tuple(taps)
        self.bn = nn.BatchNorm2d(width * len(self.taps))
        self.conv = nn.Conv2d(width * len(self.taps), classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:  # each (B, C, h, w)
        """Logits (B, classes, h, w)."""
        return self.conv(self.bn(torch.cat(list(maps), dim=1)))  # type: ignore[no-any-return]

    def save(self, path: str | Path) -> None:
        """Write the weights and the taps as safetensors; an old file is replaced whole."""
        save_head(self, path, self.taps)


def load_linear_head(
    path: str | Path, *, taps: Sequence[int] | None = None, device: torch.device | str = "cpu"
) -> LinearHead:
    """A linear head from a ``.safetensors`` or ``.pth`` file; give the ``taps`` if the file does not hold them."""
    checkpoint = open_checkpoint(path)
    taps = taps or stored_taps(checkpoint.path)
    if not taps:
        raise GramLoopError(f"{path} does not hold the taps that the head reads; give them")
    weight = checkpoint.shapes.get("conv.weight")
    if weight is None or len(weight) != 4 or weight[1] % len(taps):
        raise GramLoopError(
            f"{path} is not a linear head on {len(taps)} taps: its conv.weight is {weight or 'missing'}"
        )
    with torch.device("meta"):
        head = LinearHead(weight[1] // len(taps), weight[0], taps)
    load_weights(head, checkpoint, device=device)
    return head.eval()


class LinearSegmentor(SegmentationModel):
    """A backbone with a linear head: logits at the patches' stride, resized."""

    head: LinearHead

    def __init__(self, backbone: TappedViT, head: LinearHead) -> None:
        super().__init__(backbone, head, head.width, head.taps, head.classes)

    def forward(self, pixels: Tensor) -> Tensor:  # (B, 3, H, W)
        """Logits (B, classes, H / patch, W / patch)."""
        return self.head([tap.map for tap in self.backbone(pixels, self.taps)])  # type: ignore[no-any-return]

    def scores(
        self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool = False
    ) -> Tensor:
        """Logits (B, classes, *size)."""
        logits = self.head([tap.map for tap in taps])
        return F.interpolate(logits, size, mode="bilinear", align_corners=False)


def save_head(
    head: nn.Module, path: str | Path, taps: Sequence[int], dtype: torch.dtype | None = None
) -> None:
    """Write a head's weights, in another precision if given, with its taps as metadata."""
    from safetensors.torch import save

    weights = {
        name: value.detach().cpu().to(dtype=dtype if value.is_floating_point() else None).contiguous()
        for name, value in head.state_dict().items()
    }
    atomic_write(Path(path), save(weights, metadata={"taps": json.dumps(taps)}))


def stored_taps(path: Path) -> tuple[int, ...]:
    """The taps that a head's file holds; none where it does not."""
    if path.suffix != ".safetensors":
        return ()
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        stored = (opened.metadata() or {}).get("taps", "[]")
    what = "the taps of a head"
    return checked(parse_json(stored.encode(), str(path), what), tuple[int, ...], str(path), what)
