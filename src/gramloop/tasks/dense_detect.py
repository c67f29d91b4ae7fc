"""Object detection with a one-stage head on a small backbone: one look at the whole image, no windows.

The same interface as :class:`gramloop.tasks.detect.Detector`, for the embedded model and others like it. The
image is shown in its own size, each side rounded to the nearest multiple of the patch size; boxes come back in
pixels of the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gramloop.core.config import ReplayConfig
from gramloop.core.loop import Loop, attached
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone
from gramloop.models.dense_detect import DenseBoxes, DenseDetectHead
from gramloop.tasks.detect import Detection, PairedDetection
from gramloop.tasks.images import WEB, ImageLike, Normalisation, read_image, resize, to_tensor
from gramloop.tasks.maps import WindowMaps, trace_kinds, window_maps


class DenseDetector:
    """A backbone and a one-stage head, ready for images; class c of the head is category ``categories[c]``."""

    def __init__(
        self,
        backbone: Backbone,
        head: DenseDetectHead,
        tap: int,
        categories: Sequence[int] | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        self.backbone, self.head, self.tap, self.normalisation = backbone, head, tap, normalisation
        backbone.check_taps([tap])
        self._categories = np.asarray(categories or range(1, head.config.classes + 1), dtype=np.int64)
        if len(self._categories) != head.config.classes:
            raise GramLoopError(
                f"{len(self._categories)} categories were given for a head of {head.config.classes} classes"
            )

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        paired: Literal[False] = ...,
        *,
        trace: bool | None = ...,
    ) -> Detection: ...

    @overload
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = ...,
        *,
        paired: Literal[True],
        trace: bool | None = ...,
    ) -> PairedDetection: ...

    @torch.no_grad()
    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = None,
        paired: bool = False,
        *,
        trace: bool | None = None,
    ) -> Detection | PairedDetection:
        """Detect in an image given as a path, a PIL image or an array."""
        if paired and replay is None:
            raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")
        pixels = read_image(image)
        shown = self._prepare(pixels).to(self.backbone.device)
        measures = replay is not None and replay.measures_drift and replay.replays > 0
        context = (
            nullcontext()
            if replay is None
            else attached(
                self.backbone.model,
                replay,
                keep=[self.tap] if paired else [],
                trace=measures if trace is None else trace,
            )
        )
        with context as loop:
            tap = self.backbone(shown, [self.tap])[0]
        depth = self.backbone.shape.depth
        blocks = depth if loop is None else loop.blocks_executed
        last = self._detection(tap.map, shown, pixels, _maps(loop), blocks)
        if not paired or loop is None:
            return last
        ordinary = self.backbone.tap(loop.ordinary[self.tap], tap.grid)
        return PairedDetection(self._detection(ordinary.map, shown, pixels, None, depth), last)

    def _prepare(self, pixels: NDArray[np.uint8]) -> Tensor:  # → (1, 3, H, W)
        patch = self.backbone.shape.patch
        height, width = (max(1, int(side / patch + 0.5)) * patch for side in pixels.shape[:2])
        return to_tensor(resize(pixels, (height, width)), self.normalisation)

    def _detection(
        self, features: Tensor, shown: Tensor, pixels: NDArray[np.uint8], maps: WindowMaps | None, blocks: int
    ) -> Detection:
        found: DenseBoxes = self.head.detect(features)[0]
        height, width = pixels.shape[:2]
        scale = torch.tensor([width / shown.shape[-1], height / shown.shape[-2]]).repeat(2)
        boxes = (found.boxes.cpu() * scale).numpy()
        boxes[:, 0::2] = boxes[:, 0::2].clip(0, width)
        boxes[:, 1::2] = boxes[:, 1::2].clip(0, height)
        labels = self._categories[found.classes.cpu().numpy()]
        return Detection(boxes, found.scores.cpu().numpy(), labels, maps, blocks)


def _maps(loop: Loop | None) -> WindowMaps | None:
    """The one view is the overview and the only window at once."""
    if loop is None or loop.trace is None or not loop.trace.drift:
        return None
    view = {kind: maps[0].numpy() for kind, maps in trace_kinds(loop.trace).items()}
    return window_maps(view, view)
