"""Segmentation models: a backbone, its taps, and a head that turns them into scores per class."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from gramloop.errors import GramLoopError
from gramloop.models.adapter import STRIDE, Adapter
from gramloop.models.backbone import Backbone, default_taps, fitting, load_backbone
from gramloop.models.checkpoint import (
    Checkpoint,
    Shapes,
    Source,
    check,
    identity_plan,
    load,
    open_checkpoint,
    planned_shapes,
)
from gramloop.models.mask2former import HeadShape, Mask2Former, class_scores
from gramloop.models.taps import Tap, TappedViT

PREFIX = "segmentation_model."
BACKBONE_PREFIX = PREFIX + "0.backbone."


class SegmentationModel(Protocol):
    """What a task needs of a segmentation model."""

    @property
    def backbone(self) -> TappedViT:
        """The frozen ViT."""

    taps: tuple[int, ...]  # blocks that the head reads
    classes: int
    granularity: int  # both sides of an input must be multiples of it

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """What the head needs of the image itself; it does not depend on the taps."""

    def scores(self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool) -> Tensor:
        """Scores (B, classes, *size) from the taps; ``exact`` asks for float32 where less is usual."""


class _Head(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.adapter = Adapter(shape.channels)
        self.decoder = Mask2Former(shape)

    def released_plan(self) -> dict[str, Source]:
        """The file numbers the two parts 0 and 1."""
        parts = {
            "adapter.": ("0.", identity_plan(self.adapter)),
            "decoder.": ("1.", self.decoder.released_plan()),
        }
        return {
            own + name: _prefixed(source, released)
            for own, (released, plan) in parts.items()
            for name, source in plan.items()
        }


class Mask2FormerSegmentor(nn.Module):
    """The released segmentor: adapter and Mask2Former head on four taps of a frozen backbone."""

    granularity = STRIDE

    def __init__(self, backbone: Backbone, head: HeadShape) -> None:
        super().__init__()
        if head.channels != backbone.shape.width:
            raise GramLoopError(
                f"the head was made for a backbone of width {head.channels}, "
                f"this one has {backbone.shape.width}"
            )
        self.backbone = backbone
        self.head = _Head(head)
        self.taps = default_taps(backbone.shape.depth)
        self.classes = head.classes
        self.eval()

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:  # (B, 3, H, W)
        """Class logits (B, queries, classes + 1) and mask logits (B, queries, H / 4, W / 4)."""
        return self.predict(self.prior(pixels), self.backbone(pixels, self.taps))

    def prior(self, pixels: Tensor) -> list[Tensor]:
        """The adapter's own maps of the image."""
        return self.head.adapter.prior(pixels)

    def predict(self, prior: list[Tensor], taps: Sequence[Tap]) -> tuple[Tensor, Tensor]:
        """The logits of :meth:`forward` from taps that are there already."""
        logits, masks = self.head.decoder(self.head.adapter.pyramid(prior, taps))
        return logits, masks

    def scores(
        self, prior: list[Tensor], taps: Sequence[Tap], size: tuple[int, int], exact: bool = False
    ) -> Tensor:
        """Scores (B, classes, *size); the product of classes and masks is bfloat16 unless exact."""
        logits, masks = self.predict(prior, taps)
        return class_scores(logits, masks, size, product=torch.float32 if exact else torch.bfloat16)

    def released_shapes(self) -> Shapes:
        """Every name with its shape in the released naming, the backbone's included."""
        head = planned_shapes(self.head.released_plan())
        backbone = self.backbone.released_shapes()
        return {PREFIX + name: shape for name, shape in head.items()} | {
            BACKBONE_PREFIX + name: shape for name, shape in backbone.items()
        }


def load_segmentor(
    head: str | Path,
    backbone: TappedViT | str | Path | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> Mask2FormerSegmentor:
    """The released segmentor from its head file and its backbone.

    The head file may repeat the backbone; then ``backbone`` may be left out. One that is given is preferred. ``dtype`` is
    that of the backbone's weights; the head is float32.
    """
    checkpoint = open_checkpoint(head, verify=verify)
    shape = infer_head_shape(checkpoint)
    inner = checkpoint.under(BACKBONE_PREFIX)
    if backbone is None:
        if not inner.shapes:
            raise GramLoopError(f"{checkpoint.path} holds the head alone; its backbone must be given too")
        backbone = load_backbone(inner, dtype=dtype, device=device)
    elif isinstance(backbone, str | Path):
        backbone = load_backbone(backbone, dtype=dtype, device=device, verify=verify)
    backbone = fitting(backbone, shape.channels, checkpoint.path)
    if inner.shapes:
        check(inner, backbone.released_shapes())
    with torch.device("meta"):
        segmentor = Mask2FormerSegmentor(backbone, shape)
    own = checkpoint.under(PREFIX).without(lambda name: name.startswith("0.backbone."))
    load(segmentor.head, own, segmentor.head.released_plan(), device=device)
    return segmentor


def infer_head_shape(checkpoint: Checkpoint) -> HeadShape:
    """The sizes that a released segmentation head was made with."""
    shapes = checkpoint.shapes
    needed = {
        "level": PREFIX + "0.level_embed",
        "queries": PREFIX + "1.predictor.query_feat.weight",
        "classes": PREFIX + "1.predictor.class_embed.weight",
        "feedforward": PREFIX + "1.predictor.transformer_ffn_layers.0.linear1.weight",
    }
    checkpoint.require(needed.values(), "a segmentation head")
    return HeadShape(
        channels=shapes[needed["level"]][-1],
        hidden=shapes[needed["queries"]][1],
        queries=shapes[needed["queries"]][0],
        classes=shapes[needed["classes"]][0] - 1,
        feedforward=shapes[needed["feedforward"]][0],
    )


def _prefixed(source: Source, prefix: str) -> Source:
    return Source(
        {prefix + name: shape for name, shape in source.reads.items()},
        lambda tensors: source.make({name: tensors[prefix + name] for name in source.reads}),
    )
