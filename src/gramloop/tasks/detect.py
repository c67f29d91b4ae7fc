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

import numpy as np
import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone
from gramloop.models.detector import WindowedDetector, WindowLayout, join_taps, pad_batch
from gramloop.models.plain_detr import best_detections
from gramloop.models.tiny import DenseBoxes, DenseDetectHead
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
        """The detections of all images, per version."""
        tensors = [self._prepare(each) for each in pixels]
        batch, valid = (
            each.to(self.backbone.device) for each in pad_batch(tensors, self.backbone.shape.patch)
        )
        viewer = _Viewer(self, loop, paired)
        found = self.model.detect_each(self.model.features(batch, valid, viewer), valid)
        sizes = [
            ((each.shape[-2], each.shape[-1]), shown.shape[:2])
            for each, shown in zip(tensors, pixels, strict=True)
        ]
        maps = viewer.maps(batch, [size for size, _ in sizes])
        unmeasured, depth = [None] * len(sizes), self.backbone.shape.depth
        baseline = [self._finish(each, sizes, unmeasured, depth) for each in found[:-1]]
        return [*baseline, self._finish(found[-1], sizes, maps, viewer.blocks)]

    def _prepare(self, pixels: RGB) -> Tensor:  # → (3, H, W)
        height, width = pixels.shape[:2]
        size = input_size(height, width, self.config, self.backbone.shape.patch)
        return to_tensor(resize(pixels, size), self.normalisation)[0]

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        patch = self.backbone.shape.patch
        layout = WindowLayout.of(*input_size(height, width, self.config, patch), self.model.windows, patch)
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


class _Viewer:
    """Runs one view after the other and remembers what the replay measured in each."""

    def __init__(self, detector: Detector, loop: Loop | None, paired: bool) -> None:
        self._detector, self._loop, self._paired = detector, loop, paired
        self._views: list[dict[str, Tensor]] = []  # maps (B, K, h, w) by kind, overview first
        self.blocks = detector.backbone.shape.depth

    def __call__(self, images: Tensor, valid: Tensor) -> list[Tensor]:
        loop, detector = self._loop, self._detector
        if loop is not None and not bool(valid.all()):
            loop.set_valid(valid)
        taps = detector.backbone.features(images, detector.taps)
        if loop is None:
            return [join_taps(taps)]
        self.blocks = loop.blocks_executed
        if loop.trace is not None and loop.trace.drift:
            self._views.append(trace_kinds(loop.trace))
        return [*([join_taps(detector._baseline(loop, taps))] if self._paired else []), join_taps(taps)]

    def maps(self, batch: Tensor, sizes: Sequence[tuple[int, int]]) -> Sequence[ReplayMaps | None]:
        """The maps of each image, without its padding."""
        if not self._views:
            return [None] * len(sizes)
        patch = self._detector.backbone.shape.patch
        layout, windows = self._detector.model.layout(batch), self._views[1:]  # the first is the overview
        joined = {kind: layout.join([view[kind] for view in windows]) for kind in windows[0]}
        found = []
        for index, (height, width) in enumerate(sizes):
            rows, columns = height // patch, width // patch
            found.append(
                maps_by_kind({kind: maps[index, :, :rows, :columns].numpy() for kind, maps in joined.items()})
            )
        return found


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

    def _forward(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Detection]]:
        size = (pixels[0].shape[0], pixels[0].shape[1])
        shown = torch.cat([self._prepare(each) for each in pixels]).to(self.backbone.device)
        versions = []
        for (tap,), blocks, measured in self._runs(shown, loop, paired):
            pairs = zip(self.head.detect(tap.map), replay_maps(measured, len(pixels)), strict=True)
            versions.append(
                [self._detection(found, shown.shape[-2:], size, blocks, trace) for found, trace in pairs]
            )
        return versions

    def _prepare(self, pixels: RGB) -> Tensor:  # → (1, 3, H, W)
        size = self._largest_view(pixels.shape[0], pixels.shape[1])
        return to_tensor(resize(pixels, size), self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        patch = self.backbone.shape.patch
        rows, columns = (max(1, int(side / patch + 0.5)) for side in (height, width))
        return rows * patch, columns * patch

    def _detection(
        self,
        found: DenseBoxes,
        shown: Sequence[int],
        size: tuple[int, int],
        blocks: int,
        maps: ReplayMaps | None,
    ) -> Detection:
        height, width = size
        scale = torch.tensor([width / shown[1], height / shown[0]]).repeat(2)
        boxes = (found.boxes.cpu() * scale).numpy()
        boxes[:, 0::2] = boxes[:, 0::2].clip(0, width)
        boxes[:, 1::2] = boxes[:, 1::2].clip(0, height)
        labels = np.array(list(self.classes), dtype=np.int64)[found.classes.cpu().numpy()]
        return Detection(boxes, found.scores.cpu().numpy(), labels, blocks=blocks, trace=maps)
