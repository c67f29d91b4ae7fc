"""Object detection with a one-stage head on a small backbone: one look at the whole image, no windows.

The same interface as :class:`gramloop.tasks.detect.Detector`, for the embedded model and others like it. The
image is shown in its own size, each side rounded to the nearest multiple of the patch size; boxes come back in
pixels of the original.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gramloop.errors import GramLoopError
from gramloop.models.dinov3 import Backbone
from gramloop.models.tiny_heads import DenseBoxes, DenseDetectHead
from gramloop.replay.attach import Loop
from gramloop.tasks.class_names import Classes
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import RGB, WEB, Normalisation, resize, to_tensor
from gramloop.tasks.maps import trace_kinds, window_maps
from gramloop.tasks.prediction import WindowMaps
from gramloop.tasks.predictor import ViTPredictor


class DenseDetector(ViTPredictor[Detection]):
    """A backbone and a one-stage head; class c of the head is the c-th of ``classes``, from 1 where none are given."""

    task = "detection"
    batches = True

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

    def _look_at(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Detection]]:
        shown = torch.cat([self._prepare(each) for each in pixels]).to(self.backbone.device)
        taps = self.backbone(shown, self.taps)
        depth = self.backbone.shape.depth
        blocks = depth if loop is None else loop.blocks_executed
        sizes = (shown.shape[-2], shown.shape[-1]), (pixels[0].shape[0], pixels[0].shape[1])
        maps = [_maps(loop, number) for number in range(len(pixels))]
        last = self._detections(taps[0].map, *sizes, blocks, maps)
        if not paired or loop is None:
            return [last]
        unmeasured = [None] * len(pixels)
        return [
            self._detections(self._ordinary(loop, taps)[0].map, *sizes, depth, unmeasured),
            last,
        ]

    def _prepare(self, pixels: RGB) -> Tensor:  # → (1, 3, H, W)
        size = self._largest_view(pixels.shape[0], pixels.shape[1])
        return to_tensor(resize(pixels, size), self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        patch = self.backbone.shape.patch
        rows, columns = (max(1, int(side / patch + 0.5)) for side in (height, width))
        return rows * patch, columns * patch

    def _shown(self, height: int, width: int) -> tuple[str, str]:
        return " in its own size", "shrink it, or cut it into pieces"

    def _detections(
        self,
        features: Tensor,
        shown: tuple[int, int],
        size: tuple[int, int],
        blocks: int,
        maps: Sequence[WindowMaps | None],
    ) -> list[Detection]:
        return [
            self._detection(found, shown, size, blocks, trace)
            for found, trace in zip(self.head.detect(features), maps, strict=True)
        ]

    def _detection(
        self,
        found: DenseBoxes,
        shown: tuple[int, int],
        size: tuple[int, int],
        blocks: int,
        maps: WindowMaps | None,
    ) -> Detection:
        height, width = size
        scale = torch.tensor([width / shown[1], height / shown[0]]).repeat(2)
        boxes = (found.boxes.cpu() * scale).numpy()
        boxes[:, 0::2] = boxes[:, 0::2].clip(0, width)
        boxes[:, 1::2] = boxes[:, 1::2].clip(0, height)
        labels = np.array(list(self.classes), dtype=np.int64)[found.classes.cpu().numpy()]
        return Detection(boxes, found.scores.cpu().numpy(), labels, blocks=blocks, trace=maps)


def _maps(loop: Loop | None, number: int) -> WindowMaps | None:
    """Of one image of the batch; the one view is the overview and the only window at once."""
    if loop is None or loop.trace is None or not loop.trace.drift:
        return None
    view = {kind: maps[number].numpy() for kind, maps in trace_kinds(loop.trace).items()}
    return window_maps(view, view)
