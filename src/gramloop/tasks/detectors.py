"""Object detection: an image in, scored boxes out.

The image is resized (PIL's bilinear) to a short side of 2048; then each side is rounded to the nearest multiple
of the patch size, 16, halves upwards and never below one patch. An image more than eight times as long as
wide is scaled to a long side of 16,384 instead, so that a strip does not outgrow the memory. Boxes are scaled
back, along each side on its own, to pixels of the original image. The 1,500 best pairs of box and class are
kept; nothing is suppressed and no threshold applied, as average precision wants it.

The detector sees 3 x 3 windows and the whole image. A side of 1, 2 or 4 patches has no room for three windows
and is cut into fewer (:mod:`gramloop.models.detector`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, Tap
from gramloop.models.detector import WindowedDetector, WindowLayout, join_taps, pad_batch
from gramloop.models.plain_detr import best_detections
from gramloop.models.tiny import DenseDetectHead
from gramloop.replay.attach import Loop
from gramloop.tasks.class_names import COCO, COCO_NUMBERS, Classes
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import RGB, WEB, Normalisation, resize, to_tensor
from gramloop.tasks.prediction import ReplayMaps
from gramloop.tasks.predictor import ViTPredictor, maps_by_kind, replay_maps, trace_kinds


@dataclass(frozen=True)
class DetectConfig:
    """How an image is given to the detector, and how many detections are kept."""

    short_side: int = 2048
    longest_side: int = 16_384
    keep: int = 1500

    def __post_init__(self) -> None:
        if min(self.short_side, self.longest_side, self.keep) < 1:
            raise GramLoopError(f"sides and the number to keep must be positive, not {self}")


class Detector(ViTPredictor[Detection]):
    """A detector ready for images.

    Images of a batch are padded to a common size. Padding takes no part in a replay's drift, median or mean. It does
    enter the windows and the head's first norm, as in the reference, so detections differ slightly from those of single
    images.
    """

    task = "detection"
    pads = True

    def __init__(
        self,
        model: WindowedDetector,
        config: DetectConfig | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        numbers = model.head.config.classes
        names = COCO if numbers == COCO_NUMBERS else {}
        classes = {number: names.get(number) for number in range(numbers)}
        super().__init__(model.backbone, model.taps, classes, normalisation)
        self.model, self.config = model, config or DetectConfig()

    def _forward(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Detection]]:
        patch, depth = self.backbone.shape.patch, self.backbone.shape.depth
        tensors = [self.prepare(each)[0] for each in pixels]
        batch, valid = (each.to(self.backbone.device) for each in pad_batch(tensors, patch))
        views: list[dict[str, Tensor]] = []  # maps (B, K, h, w) by kind, overview first
        see = partial(self._see, loop, paired, views)
        *baseline, last = self.model.detect_each(self.model.features(batch, valid, see), valid)
        sizes = [
            ((each.shape[-2], each.shape[-1]), image.shape[:2])
            for each, image in zip(tensors, pixels, strict=True)
        ]
        maps: list[ReplayMaps | None] = [None] * len(sizes)
        if views:
            layout = self.model.layout(batch)
            joined = {kind: layout.join([one[kind] for one in views[1:]]).numpy() for kind in views[0]}
            maps = [
                maps_by_kind({kind: each[index] for kind, each in joined.items()}).cropped(
                    height // patch, width // patch
                )
                for index, ((height, width), _) in enumerate(sizes)
            ]
        blocks, none = depth if loop is None else loop.blocks_executed, [None] * len(sizes)
        return [
            *(self._finish(each, sizes, none, depth) for each in baseline),
            self._finish(last, sizes, maps, blocks),
        ]

    def _see(
        self, loop: Loop | None, paired: bool, views: list[dict[str, Tensor]], images: Tensor, valid: Tensor
    ) -> list[Tensor]:
        """What the head reads of one window, per version; its maps are added to ``views``."""
        if loop is not None and not bool(valid.all()):
            loop.set_valid(valid)
        taps = self.backbone.features(images, self.taps)
        if loop is None:
            return [join_taps(taps)]
        if loop.trace is not None and loop.trace.drift:
            views.append(trace_kinds(loop.trace))
        return [*([join_taps(self._baseline(loop, taps))] if paired else []), join_taps(taps)]

    def prepare(self, pixels: RGB) -> Tensor:
        size = input_size(pixels.shape[0], pixels.shape[1], self.config, self.backbone.shape.patch)
        return to_tensor(resize(pixels, size), self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        patch = self.backbone.shape.patch
        layout = WindowLayout.of(*input_size(height, width, self.config, patch), patch)
        return layout.rows[0][1], layout.columns[0][1]  # the overview has the size of the first window

    def _finish(
        self,
        found: tuple[Tensor, Tensor],
        sizes: Sequence[tuple[tuple[int, int], tuple[int, ...]]],
        maps: Sequence[ReplayMaps | None],
        blocks: int,
    ) -> list[Detection]:
        results = []
        for logits, boxes, (size, (height, width)), trace in zip(*found, sizes, maps, strict=True):
            best = best_detections(logits, boxes, size, (height, width), self.config.keep)
            corners, scores, labels = (each.cpu().numpy() for each in best)
            results.append(Detection(corners, scores, labels, blocks=blocks, trace=trace))
        return results


def input_size(
    height: int, width: int, config: DetectConfig | None = None, patch: int = 16
) -> tuple[int, int]:
    """The size in which the detector sees an image: the rule at the top of this module."""
    config = config or DetectConfig()
    scale = min(config.short_side / min(height, width), config.longest_side / max(height, width))
    rows, columns = (max(1, int(side * scale / patch + 0.5)) for side in (height, width))
    return rows * patch, columns * patch


class DenseDetector(ViTPredictor[Detection]):
    """A backbone and a one-stage head; class c of the head is the c-th of ``classes``, from 1 where none are given."""

    task = "detection"
    size_setting = ""  # it takes any size

    def __init__(
        self,
        backbone: Backbone,
        head: DenseDetectHead,
        tap: int,
        classes: Classes | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        backbone.check_taps([tap])
        classes = classes or dict.fromkeys(range(1, head.config.classes + 1))
        if len(classes) != head.config.classes:
            raise GramLoopError(
                f"{len(classes)} categories were given for a head of {head.config.classes} classes"
            )
        super().__init__(backbone, [tap], classes, normalisation)
        self.head = head

    def prepare(self, pixels: RGB) -> Tensor:
        size = self._largest_view(pixels.shape[0], pixels.shape[1])
        return to_tensor(resize(pixels, size), self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        patch = self.backbone.shape.patch
        rows, columns = (max(1, int(side / patch + 0.5)) for side in (height, width))
        return rows * patch, columns * patch

    def read(
        self, taps: Sequence[Tap], input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[Detection]:
        numbers = np.array(list(self.classes), dtype=np.int64)
        scale = torch.tensor([size[1] / input_size[1], size[0] / input_size[0]]).repeat(2)
        detections = []
        for found in self.head.detect(taps[0].map):
            boxes = (found.boxes.cpu() * scale).numpy()
            boxes[:, 0::2] = boxes[:, 0::2].clip(0, size[1])
            boxes[:, 1::2] = boxes[:, 1::2].clip(0, size[0])
            labels = numbers[found.classes.cpu().numpy()]
            detections.append(Detection(boxes, found.scores.cpu().numpy(), labels))
        return detections

    def maps(
        self, loop: Loop | None, views: int, input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[ReplayMaps | None]:
        """What the replay measured in each image, with an entry per patch."""
        return replay_maps(loop, views)
