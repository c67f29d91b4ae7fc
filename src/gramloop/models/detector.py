"""The COCO detector: a DINOv3 backbone that reads an image through windows, and a Plain-DETR head.

The backbone runs ten times per image: on 3 x 3 windows, and on the whole image resized to the size of the first window. A
window is a third of a side, rounded up to whole patches, and the last one takes what is left. Where that would leave
nothing (sides of 1, 2 or 4 patches) there are fewer.

The released head file keeps its weights under the key ``model``; the backbone comes from its own file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, Tap, quarter_ends, without_autocast
from gramloop.models.checkpoint import LoadOptions, load_weights, open_checkpoint
from gramloop.models.dino import backbone_of_head
from gramloop.models.plain_detr import PlainDetr, infer_plain_detr

DETECTOR_BACKBONE = "backbone.0._backbone.backbone."  # the backbone's names in a head's file

# One view of a batch: images (B, 3, H, W), valid patches (B, h, w) → one or more versions of its feature map.
ViewFeatures = Callable[[Tensor, Tensor], Sequence[Tensor]]


def window_spans(side: int, patch: int = 16) -> tuple[tuple[int, int], ...]:
    """Where the windows along one side begin and end, in pixels."""
    if side < patch or side % patch:
        raise GramLoopError(f"a side of {side} pixels has no whole patches: it must be a multiple of {patch}")
    for parts in (3, 2):
        length = -(-(side // parts) // patch) * patch
        starts = [part * length for part in range(parts)]
        if starts[-1] < side:
            return tuple((start, min(start + length, side)) for start in starts)
    return ((0, side),)


@dataclass(frozen=True)
class WindowLayout:
    """The windows of one image size, row by row, and how their feature maps are put together."""

    rows: tuple[tuple[int, int], ...]  # pixels
    columns: tuple[tuple[int, int], ...]
    patch: int = 16

    @classmethod
    def of(cls, height: int, width: int, patch: int = 16) -> WindowLayout:
        """The layout of an image."""
        return cls(window_spans(height, patch), window_spans(width, patch), patch)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches in the whole image."""
        return self.rows[-1][1] // self.patch, self.columns[-1][1] // self.patch

    def crops(self, maps: Tensor, stride: int = 1) -> list[Tensor]:
        """The windows of (..., H, W) pixels, or of a map whose cells are ``stride`` pixels wide."""
        return [
            maps[..., top // stride : bottom // stride, left // stride : right // stride]
            for top, bottom in self.rows
            for left, right in self.columns
        ]

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Maps of the windows, in the order of :meth:`crops`, as one map (..., h, w)."""
        across = len(self.columns)
        lines = [torch.cat(list(pieces[at : at + across]), dim=-1) for at in range(0, len(pieces), across)]
        return torch.cat(lines, dim=-2)

    def overview_mask(self, valid: Tensor) -> Tensor:
        """The valid patches (B, h, w) as the overview's patches see them: the nearest one decides."""
        size = self.rows[0][1] // self.patch, self.columns[0][1] // self.patch
        return F.interpolate(valid[:, None].float(), size=size)[:, 0].bool()


class WindowedDetector(nn.Module):
    """Images in, logits and boxes out; sides must be multiples of the patch size."""

    def __init__(self, backbone: Backbone, head: PlainDetr) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.taps = quarter_ends(backbone.shape.depth)
        self.eval()

    def forward(self, images: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (B, n, classes) and boxes (B, n, 4; cxcywh pixels) of images (B, 3, H, W)."""
        valid = all_valid(images, self.backbone.shape.patch) if valid is None else valid
        (features,) = self.features(images, valid)
        return self.detect(features, valid)

    def features(
        self, images: Tensor, valid: Tensor, view_features: ViewFeatures | None = None
    ) -> Iterator[Tensor]:
        """The map (B, channels, h, w) that the head reads: the overview's channels, then the windows'.

        ``view_features`` may return several versions of each view (say, without and with a replay); so does this, one
        after the other: at the released size each has 3 GB.
        """
        see = view_features or (lambda view, _: [join_taps(self.backbone(view, self.taps))])
        layout, patch = self.layout(images), self.backbone.shape.patch
        first = layout.rows[0][1], layout.columns[0][1]  # the size of the overview, too
        windows = [_resize(images, first), *layout.crops(images)]
        masks = [layout.overview_mask(valid), *layout.crops(valid, patch)]
        views = [see(*view) for view in zip(windows, masks, strict=True)]
        for whole, *parts in zip(*views, strict=True):
            yield torch.cat((_resize(whole, layout.grid), layout.join(parts)), dim=1)

    def detect(self, features: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """The head on its features, in the precision of its parameters: (B, n, classes), (B, n, 4)."""
        weight = self.head.query_embed.weight
        with without_autocast(features.device.type):
            logits, boxes = self.head(features.to(weight.dtype), ~valid)
        return logits, boxes

    def detect_each(self, features: Iterable[Tensor], valid: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The head on several versions of its features, each of which is freed before the next is made."""
        return list(map(lambda each: self.detect(each, valid), features))  # noqa: C417 - a loop would hold it

    def layout(self, images: Tensor) -> WindowLayout:
        """The windows of these images."""
        height, width = images.shape[-2:]
        return WindowLayout.of(height, width, self.backbone.shape.patch)


def join_taps(taps: Sequence[Tap]) -> Tensor:
    """The maps of some taps along the channels, (B, taps x C, h, w)."""
    return torch.cat([tap.map for tap in taps], dim=1)


def all_valid(images: Tensor, patch: int = 16) -> Tensor:
    """The mask (B, h, w) of a batch without padding."""
    batch, _, height, width = images.shape
    return torch.ones(batch, height // patch, width // patch, dtype=torch.bool, device=images.device)


def pad_batch(images: Sequence[Tensor], patch: int = 16) -> tuple[Tensor, Tensor]:
    """Normalised images (3, H, W) as one batch with zeros at right and bottom, and its valid patches."""
    height, width = (max(image.shape[axis] for image in images) for axis in (-2, -1))
    batch = images[0].new_zeros(len(images), 3, height, width)
    valid = torch.zeros(len(images), height // patch, width // patch, dtype=torch.bool, device=batch.device)
    for index, image in enumerate(images):
        batch[index, :, : image.shape[-2], : image.shape[-1]] = image
        valid[index, : image.shape[-2] // patch, : image.shape[-1] // patch] = True
    return batch, valid


def load_windowed_detector(
    head: str | Path, backbone: Backbone | str | Path | None = None, **options: Unpack[LoadOptions]
) -> WindowedDetector:
    """A detector from a released head file and its backbone.

    Args:
        head: the head's file.
        backbone: a model, a file or a transformers folder; None takes the copy that the head's file may hold.
        **options: see `LoadOptions`.
    """
    checkpoint = open_checkpoint(head)
    config = infer_plain_detr(checkpoint)
    width = config.channels // 8  # four taps of the overview, and four of the windows
    vit = backbone_of_head(checkpoint, backbone, width, prefix=DETECTOR_BACKBONE, **options)
    with torch.device("meta"):
        made = PlainDetr(config)
    load_weights(made, checkpoint.without(DETECTOR_BACKBONE), device=options.get("device", "cpu"))
    return WindowedDetector(vit, made)


def _resize(maps: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(maps, size=size, mode="bilinear", align_corners=False, antialias=True)
