"""The COCO detector: a DINOv3 backbone that looks through windows, and a Plain-DETR head.

The released head file keeps its weights under the key ``model``; the backbone comes from its own file. Names
and shapes are checked both ways before anything is loaded, including the class and box heads that the file
names twice. A head file may repeat the backbone, which can then be left out; one that is given is preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, load_backbone
from gramloop.models.checkpoint import Checkpoint, Shapes, check, identity_plan, load, open_checkpoint
from gramloop.models.plain_detr import PlainDetr, PlainDetrConfig, infer_config
from gramloop.models.taps import Tap, quarter_ends
from gramloop.models.windows import Layout
from gramloop.util.precision import without_autocast

BACKBONE_PREFIX = "backbone.0._backbone.backbone."

# One view of a batch: images (B, 3, H, W), valid patches (B, h, w) → one or more versions of its feature map.
Look = Callable[[Tensor, Tensor], Sequence[Tensor]]


class WindowedDetector(nn.Module):
    """Images in, logits and boxes out; sides must be multiples of the patch size."""

    def __init__(self, backbone: Backbone, head: PlainDetr, windows: int = 3) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.windows = windows
        self.taps = quarter_ends(backbone.shape.depth)
        self.eval()

    def forward(self, images: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Logits (B, n, classes) and boxes (B, n, 4; cxcywh pixels) of images (B, 3, H, W)."""
        valid = all_valid(images, self.backbone.shape.patch) if valid is None else valid
        (features,) = self.features(images, valid)
        return self.detect(features, valid)

    def features(self, images: Tensor, valid: Tensor, look: Look | None = None) -> Iterator[Tensor]:
        """The map (B, channels, h, w) that the head reads: the overview's channels, then the windows'.

        ``look`` may return several versions of each view (say, without and with a replay); so does this, one after the
        other: at the released size each has 3 GB.
        """
        look = look or self.look
        layout = self.layout(images)
        overview = look(layout.overview(images), layout.overview_mask(valid))
        patch = self.backbone.shape.patch
        views = [
            look(crop, mask)
            for crop, mask in zip(layout.crops(images), layout.crops(valid, patch), strict=True)
        ]
        for whole, *parts in zip(overview, *views, strict=True):
            yield torch.cat((layout.enlarge(whole), layout.join(parts)), dim=1)

    def look(self, images: Tensor, valid: Tensor) -> list[Tensor]:
        """The taps of one view, joined along the channels: (B, 4 C, h, w); padding is looked at too."""
        return [joined(self.backbone.features(images, self.taps))]

    def detect(self, features: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """The head on its features, in the precision of its parameters: (B, n, classes), (B, n, 4)."""
        weight = self.head.query_embed.weight
        with without_autocast(features.device.type):
            logits, boxes = self.head(features.to(weight.dtype), ~valid)
        return logits, boxes

    def detect_each(self, features: Iterable[Tensor], valid: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The head on several versions of its features, each of which is gone before the next is made."""
        return list(map(lambda each: self.detect(each, valid), features))  # noqa: C417 - a loop would hold it

    def layout(self, images: Tensor) -> Layout:
        """The windows of these images."""
        height, width = images.shape[-2:]
        return Layout.of(height, width, self.windows, self.backbone.shape.patch)

    def released_shapes(self) -> Shapes:
        """Every name with its shape as the released detector has it, backbone and aliases included."""
        head = {name: tuple(value.shape) for name, value in self.head.state_dict().items()}
        inner = {BACKBONE_PREFIX + name: shape for name, shape in self.backbone.released_shapes().items()}
        return head | inner


def joined(taps: Sequence[Tap]) -> Tensor:
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
    head: str | Path,
    backbone: Backbone | str | Path | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> WindowedDetector:
    """A detector from a released head file and its backbone (a model, a file, or a transformers folder)."""
    checkpoint = open_checkpoint(head, inside="model", verify=verify)
    config = _config_of(checkpoint)
    inner = checkpoint.under(BACKBONE_PREFIX)
    if backbone is None:
        if not inner.shapes:
            raise GramLoopError(f"{checkpoint.path} holds the head alone; its backbone must be given too")
        backbone = load_backbone(inner, dtype=dtype, device=device)
    elif not isinstance(backbone, Backbone):
        backbone = load_backbone(backbone, dtype=dtype, device=device, verify=verify)
    _check_width(checkpoint, config, backbone)
    if inner.shapes:
        check(inner, backbone.released_shapes())
    return WindowedDetector(backbone, _load_head(checkpoint, config, device))


def _config_of(checkpoint: Checkpoint) -> PlainDetrConfig:
    try:
        return infer_config(checkpoint.shapes)
    except GramLoopError as error:
        raise GramLoopError(f"{checkpoint.path} {error}") from error


def _check_width(checkpoint: Checkpoint, config: PlainDetrConfig, backbone: Backbone) -> None:
    channels = 2 * 4 * backbone.shape.width
    if config.channels != channels:
        raise GramLoopError(
            f"{checkpoint.path} was made for a backbone of width {config.channels // 8}, "
            f"not for this one of width {backbone.shape.width}"
        )


def _load_head(checkpoint: Checkpoint, config: PlainDetrConfig, device: torch.device | str) -> PlainDetr:
    with torch.device("meta"):
        head = PlainDetr(config)
    alone = checkpoint.without(lambda name: name.startswith(BACKBONE_PREFIX))
    load(head, alone, identity_plan(head), device=device)
    if torch.device(device).type != "meta":
        _check_aliases(alone)
    return head


def _check_aliases(checkpoint: Checkpoint) -> None:
    """The two copies of the class and box heads must agree, or one of them would be lost in silence."""
    tensors = checkpoint.open()
    for name, value in tensors.items():
        if name.startswith(("class_embed.", "bbox_embed.")):
            alias = f"transformer.decoder.{name}"
            if not torch.equal(value, tensors[alias]):
                raise GramLoopError(f"{checkpoint.path} contradicts itself: {name} and {alias} differ")
