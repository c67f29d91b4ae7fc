"""Panoptic and instance segmentation by PMT's heads: the image in the corner of a square, queries out.

The long side of the image becomes the side of the square in which the head was trained; what is left at the right and
at the bottom is black. The model sees this padding as it sees the image; a replay does not: it counts in no drift,
median or mean.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap, TappedViT
from gramloop.models.pmt import PMT, load_pmt, trained_side
from gramloop.replay.attach import Loop
from gramloop.tasks.class_names import COCO, COCO_PANOPTIC, Classes
from gramloop.tasks.images import RGB, WEB, Normalisation, resize, to_tensor
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic, Segment
from gramloop.tasks.prediction import P, ReplayMaps
from gramloop.tasks.predictor import ViTPredictor
from gramloop.tasks.queries import Masks, best_masks, merged_segments
from gramloop.tasks.sliding import whole_maps


@dataclass(frozen=True)
class PaddedConfig:
    """How an image is shown: in a square of this side."""

    side: int = 640

    def __post_init__(self) -> None:
        if self.side < 1:
            raise GramLoopError(f"the side must be positive, not {self.side}")


@dataclass(frozen=True)
class PanopticConfig(PaddedConfig):
    """Which queries become segments: those surer than ``threshold`` that win the share ``overlap`` of their mask."""

    threshold: float = 0.8
    overlap: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 <= self.threshold < 1 and 0 <= self.overlap <= 1):
            raise GramLoopError(
                f"threshold and overlap are shares from 0 to 1, not {self.threshold} and {self.overlap}"
            )


@dataclass(frozen=True)
class InstanceConfig(PaddedConfig):
    """How many masks are kept."""

    keep: int = 100

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep < 1:
            raise GramLoopError(f"the number of masks to keep must be positive, not {self.keep}")


class PaddedSegmenter(ViTPredictor[P]):
    """What both tasks share: the square, the replay and the size of the original."""

    config: PaddedConfig

    def __init__(
        self, model: PMT, config: PaddedConfig, classes: Classes | None, normalisation: Normalisation
    ) -> None:
        """``classes``: numbers and names in the order of the head; COCO's, or from 1 on where it has other counts."""
        known = {len(COCO_PANOPTIC): COCO_PANOPTIC, len(COCO): COCO}
        classes = classes or known.get(model.classes) or dict.fromkeys(range(1, model.classes + 1))
        if len(classes) != model.classes:
            raise GramLoopError(f"{len(classes)} classes were given for a head of {model.classes}")
        super().__init__(model.backbone, model.taps, classes, normalisation)
        self.model = model
        if config.side % model.granularity:
            raise GramLoopError(
                f"this model needs a side that is a multiple of {model.granularity}, not {config.side}"
            )

    @property
    def side(self) -> int:
        """Of the square that the model sees."""
        return self.config.side

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        return self.side, self.side

    def _look(self, pixels: RGB, loop: Loop | None, paired: bool) -> list[P]:
        inside = self.shown_size(pixels.shape[0], pixels.shape[1])
        shown = to_tensor(self.in_square(pixels), self.normalisation).to(self.backbone.device)
        if loop is not None and min(inside) < self.side:
            loop.set_valid(self._valid(inside))
        return [
            self._predict(taps, pixels, blocks, self._maps(measured, inside))
            for taps, blocks, measured in self._runs(shown, loop, paired)
        ]

    def shown_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image in the square."""
        factor = min(self.side / height, self.side / width)
        return max(1, round(height * factor)), max(1, round(width * factor))

    def in_square(self, pixels: RGB) -> RGB:  # (H, W, 3) → (side, side, 3)
        """The image in the upper left corner; the rest is black."""
        square = np.zeros((self.side, self.side, 3), dtype=np.uint8)
        high, wide = self.shown_size(pixels.shape[0], pixels.shape[1])
        square[:high, :wide] = resize(pixels, (high, wide))
        return square

    def _valid(self, inside: tuple[int, int]) -> Tensor:  # → (1, h, w)
        """The patches that show some of the image."""
        patch = self.backbone.shape.patch
        valid = torch.zeros(1, self.side // patch, self.side // patch, dtype=torch.bool)
        valid[:, : -(-inside[0] // patch), : -(-inside[1] // patch)] = True
        return valid.to(self.backbone.device)

    def _maps(self, loop: Loop | None, inside: tuple[int, int]) -> ReplayMaps | None:
        [found] = whole_maps(loop, (self.side, self.side), self.backbone.shape.patch)
        if found is None:
            return None
        part = np.s_[..., : inside[0], : inside[1]]
        post = None if found.post_drift is None else found.post_drift[part]
        return replace(found, drift=found.drift[part], gate=found.gate[part], post_drift=post)

    def _predict(self, taps: Sequence[Tap], pixels: RGB, blocks: int, maps: ReplayMaps | None) -> P:
        logits, masks = self.model.predict(taps)
        size = (pixels.shape[0], pixels.shape[1])
        made = Masks.padded(masks[0], self.side, self.shown_size(*size), size)
        return replace(self._read(logits[0], made), blocks=blocks, trace=maps)

    def _read(self, logits: Tensor, masks: Masks) -> P:
        """The prediction of one image's queries."""
        raise NotImplementedError


class PanopticSegmenter(PaddedSegmenter[Panoptic]):
    """A panoptic head ready for images."""

    task = "panoptic"

    def __init__(
        self,
        model: PMT,
        config: PanopticConfig | None = None,
        classes: Classes | None = None,
        things: Collection[int] | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        """``things``: the numbers of ``classes`` that are things; known for COCO's classes."""
        self.config: PanopticConfig = config or PanopticConfig()
        super().__init__(model, self.config, classes, normalisation)
        self.things = self._things(things)

    def _things(self, given: Collection[int] | None) -> frozenset[int]:
        if given is None and self.classes not in (COCO, COCO_PANOPTIC):
            raise GramLoopError(
                f"which of the {len(self.classes)} classes of this head are things is not known, as it is for COCO's "
                "133; give things=[...]"
            )
        things = frozenset(COCO if given is None else given)
        if strange := sorted(things - set(self.classes)):
            raise GramLoopError(f"{strange[0]} is no class of this head, so it is no thing either")
        return things

    def _read(self, logits: Tensor, masks: Masks) -> Panoptic:
        numbers = list(self.classes)
        are_things = [number in self.things for number in numbers]
        found = merged_segments(logits, masks, are_things, self.config.threshold, self.config.overlap)
        infos = tuple(
            Segment(place, numbers[kind], are_things[kind], score)
            for place, (kind, score) in enumerate(zip(found.classes, found.scores, strict=True), start=1)
        )
        return Panoptic(found.segments, infos)


class InstanceSegmenter(PaddedSegmenter[InstanceMasks]):
    """An instance head ready for images."""

    task = "instance"

    def __init__(
        self,
        model: PMT,
        config: InstanceConfig | None = None,
        classes: Classes | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        self.config: InstanceConfig = config or InstanceConfig()
        super().__init__(model, self.config, classes, normalisation)
        if self.classes == COCO_PANOPTIC:
            raise GramLoopError(
                "this head tells things and stuff apart (133 classes of COCO); it is one for the task panoptic"
            )

    def _read(self, logits: Tensor, masks: Masks) -> InstanceMasks:
        found = best_masks(logits, masks, self.config.keep)
        labels = np.array(list(self.classes), dtype=np.int64)[found.classes]
        return InstanceMasks(found.masks, found.scores, labels, found.boxes, masks.size)


def load_panoptic(
    backbone: str | Path | TappedViT,
    head: str | Path,
    *,
    config: PanopticConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> PanopticSegmenter:
    """A panoptic segmenter from files: a DINOv3, whose weights have ``dtype``, and a PMT head."""
    model = load_pmt(head, backbone, dtype=dtype, device=device, verify=verify)
    return PanopticSegmenter(model, config or PanopticConfig(side=trained_side(head) or PaddedConfig.side))


def load_instances(
    backbone: str | Path | TappedViT,
    head: str | Path,
    *,
    config: InstanceConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> InstanceSegmenter:
    """An instance segmenter from files: a DINOv3, whose weights have ``dtype``, and a PMT head."""
    model = load_pmt(head, backbone, dtype=dtype, device=device, verify=verify)
    return InstanceSegmenter(model, config or InstanceConfig(side=trained_side(head) or PaddedConfig.side))
