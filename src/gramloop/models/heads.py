"""Heads on a frozen backbone: which kind a file holds, what all that score classes share, and the linear probe."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap, TappedViT
from gramloop.models.checkpoint import Checkpoint, load_weights, open_checkpoint
from gramloop.util.files import atomic_write
from gramloop.util.json_files import checked, parse_json

HeadKind = Literal["mask2former", "plain-detr", "pmt", "depther", "linear"]
HEAD_NAMES: dict[HeadKind, str] = {
    "mask2former": "Meta's Mask2Former head",
    "plain-detr": "Meta's Plain-DETR head",
    "pmt": "a PMT head",
    "depther": "Meta's depth head",
    "linear": "a linear head",
}
PMT_QUERIES, PMT_CLASSES = "decoder.q.weight", "decoder.class_head.weight"
# a name, or the beginning of one, that only files of this kind have
_MARKS: dict[HeadKind, str] = {
    "mask2former": "segmentation_model.",
    "plain-detr": "transformer.decoder.",
    "pmt": PMT_QUERIES,
    "depther": "reassemble_blocks.",
    "linear": "conv.weight",
}


def strip_wrappers(checkpoint: Checkpoint) -> Checkpoint:
    """The entries without the prefixes of torch.compile and of PMT's trainer."""
    plain = checkpoint.renamed(lambda name: re.sub(r"(^|\.)_orig_mod(?=\.)", "", name).lstrip("."))
    return plain.renamed(lambda name: name.removeprefix("network."))


def head_kind(path: str | Path) -> HeadKind:
    """The kind of head that a file holds; no tensor is read."""
    names = list(strip_wrappers(open_checkpoint(path)).shapes)
    for kind, mark in _MARKS.items():
        if any(name.startswith(mark) for name in names):
            return kind
    raise GramLoopError(
        f"{path} holds none of the supported heads ({', '.join(HEAD_NAMES.values())}): its names begin with "
        f"{', '.join(names[:3])}"
    )


def head_classes(path: str | Path) -> int:
    """How many classes a PMT head distinguishes."""
    checkpoint = strip_wrappers(open_checkpoint(path))
    return checkpoint.sizes(HEAD_NAMES["pmt"], classes=(PMT_CLASSES, 0))["classes"] - 1


class SegmentationModel(nn.Module):
    """A frozen ViT with a head on some of its blocks, which scores the classes of every pixel."""

    def __init__(
        self, backbone: TappedViT, head: nn.Module, width: int, taps: Sequence[int], classes: int
    ) -> None:
        super().__init__()
        if width != backbone.shape.width:
            raise GramLoopError(
                f"the head was made for a backbone of width {width}, this one has {backbone.shape.width}"
            )
        backbone.check_taps(taps)
        self.backbone, self.head = backbone, head
        self.taps, self.classes = tuple(taps), classes
        self.granularity = backbone.shape.patch  # both sides of an input must be multiples of it
        self.eval()

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """What the head needs of the image in addition to the taps: nothing, unless it has an adapter."""
        return []

    def scores(
        self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool = False
    ) -> Tensor:
        """Scores (B, classes, *size) from the taps; ``exact`` asks for float32 where less is usual."""
        raise NotImplementedError


class TapHead(nn.Module):
    """A head on the concatenated maps of some taps, whose numbers are stored with its weights."""

    kind = "a head"
    first_weight = ""  # of the convolution that reads the maps
    more_channels = 0  # that it reads in addition

    def __init__(self, width: int, outputs: int, taps: Sequence[int]) -> None:
        super().__init__()
        if not taps or width < 1 or outputs < 1:
            raise GramLoopError(
                f"{self.kind} needs a width, outputs and taps, not {width}, {outputs} and {list(taps)}"
            )
        self.width, self.taps = width, tuple(taps)
        self.bn = nn.BatchNorm2d(width * len(self.taps))

    def save(self, path: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write the weights, in another precision if given, and the taps as safetensors; an old file is replaced whole."""
        from safetensors.torch import save

        weights = {
            name: value.detach().cpu().to(dtype=dtype if value.is_floating_point() else None).contiguous()
            for name, value in self.state_dict().items()
        }
        atomic_write(Path(path), save(weights, metadata={"taps": json.dumps(self.taps)}))

    @classmethod
    def load(
        cls, path: str | Path, *, taps: Sequence[int] | None = None, device: torch.device | str = "cpu"
    ) -> Self:
        """A head from a ``.safetensors`` or ``.pth`` file; give the ``taps`` if the file does not hold them."""
        checkpoint = open_checkpoint(path)
        taps = taps or _stored_taps(checkpoint.path)
        if not taps:
            raise GramLoopError(f"{path} does not hold the taps that the head reads; give them")
        weight = checkpoint.shapes.get(cls.first_weight)
        if weight is None or len(weight) != 4 or (weight[1] - cls.more_channels) % len(taps):
            raise GramLoopError(
                f"{path} is not {cls.kind} on {len(taps)} taps: its {cls.first_weight} is {weight or 'missing'}"
            )
        with torch.device("meta"):
            head = cls((weight[1] - cls.more_channels) // len(taps), weight[0], taps)
        load_weights(head, checkpoint, device=device)
        return head.eval()


def _stored_taps(path: Path) -> tuple[int, ...]:
    if path.suffix != ".safetensors":
        return ()
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        stored = (opened.metadata() or {}).get("taps", "[]")
    what = "the taps of a head"
    return checked(parse_json(stored.encode(), str(path), what), tuple[int, ...], str(path), what)


class LinearHead(TapHead):
    """Logits at the stride of the patches, from the concatenated maps of ``taps``.

    Weights are named ``bn.*`` and ``conv.*``.
    """

    kind, first_weight = "a linear head", "conv.weight"

    def __init__(self, width: int, classes: int, taps: Sequence[int]) -> None:
        super().__init__(width, classes, taps)
        self.classes = classes
        self.conv = nn.Conv2d(self.bn.num_features, classes, 1)

    def forward(self, maps: Sequence[Tensor]) -> Tensor:  # each (B, C, h, w)
        """Logits (B, classes, h, w)."""
        return self.conv(self.bn(torch.cat(list(maps), dim=1)))  # type: ignore[no-any-return]


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
