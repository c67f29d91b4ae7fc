"""Object detection: an image in, scored boxes out, ordinary or replayed or both.

The image is resized (PIL's bilinear) to a short side of 2048; then each side is rounded to the nearest multiple
of the patch size, 16, halves upwards and never below one patch. An image more than eight times as long as
wide is scaled to a long side of 16,384 instead, so that a strip does not outgrow the memory. Boxes are scaled
back, along each side on its own, to pixels of the original image. The 1,500 best pairs of box and class are
kept; nothing is suppressed and no threshold applied, as average precision wants it.

The detector sees 3 x 3 windows and the whole image. A side of 1, 2 or 4 patches has no room for three windows
and is cut into fewer (:mod:`gramloop.models.windows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gramloop.core.config import ReplayConfig
from gramloop.core.loop import Loop, attached
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone
from gramloop.models.detector import WindowedDetector, load_windowed_detector, pad_batch
from gramloop.models.plain_detr import best_detections
from gramloop.tasks.images import SATELLITE, WEB, ImageLike, Normalisation, read_image, resize, to_tensor
from gramloop.tasks.maps import WindowMaps, trace_kinds, window_maps


@dataclass(frozen=True)
class DetectConfig:
    """How an image is shown to the detector, and how many detections are kept."""

    short_side: int = 2048
    longest_side: int = 16_384
    keep: int = 1500

    def __post_init__(self) -> None:
        if min(self.short_side, self.longest_side, self.keep) < 1:
            raise GramLoopError(f"sides and the number to keep must be positive, not {self}")


@dataclass(frozen=True)
class Detection:
    """One prediction, best first, in pixels of the original image."""

    boxes: NDArray[np.float32]  # (n, 4): left, top, right, bottom
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) COCO category ids
    trace: WindowMaps | None  # only of a replayed prediction
    blocks: int  # transformer blocks executed per view


@dataclass(frozen=True)
class PairedDetection:
    """The ordinary and the replayed prediction of one image, which share the ordinary pass."""

    ordinary: Detection
    replayed: Detection

    @property
    def blocks(self) -> int:
        """Transformer blocks executed per view, for both together."""
        return self.replayed.blocks


class Detector:
    """A detector ready for images.

    ``predict`` takes one image; with a replay it replays, and with ``paired`` it returns both predictions
    at the price of the replayed one.
    """

    def __init__(
        self,
        model: WindowedDetector,
        config: DetectConfig | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        self.model, self.config, self.normalisation = model, config or DetectConfig(), normalisation

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

    def predict(
        self,
        image: ImageLike,
        replay: ReplayConfig | None = None,
        paired: bool = False,
        *,
        trace: bool | None = None,
    ) -> Detection | PairedDetection:
        """Detect in an image given as a path, a PIL image or an array.

        ``trace`` returns drift and gate, and is answered whatever the gate; by default they come whenever
        the replay measures them anyway.
        """
        return self.predict_batch([image], replay, paired, trace=trace)[0]

    @torch.no_grad()
    def predict_batch(
        self,
        images: Sequence[ImageLike],
        replay: ReplayConfig | None = None,
        paired: bool = False,
        *,
        trace: bool | None = None,
    ) -> list[Detection] | list[PairedDetection]:
        """Detect in several images at once, padded to a common size.

        Padding takes no part in a replay's drift, median or mean. It does enter the windows and the head's
        first norm, as in the reference, so detections differ slightly from those of single images.
        """
        if paired and replay is None:
            raise GramLoopError("a paired prediction needs a replay, such as ReplayConfig()")
        if not images:
            return []
        pixels = [read_image(image) for image in images]
        tensors = [self._prepare(each) for each in pixels]
        batch, valid = pad_batch(tensors, self.model.backbone.shape.patch)
        device = self.model.backbone.device
        versions, viewer = self._run(batch.to(device), valid.to(device), replay, paired, trace)
        sizes = [
            ((each.shape[-2], each.shape[-1]), shown.shape[:2])
            for each, shown in zip(tensors, pixels, strict=True)
        ]
        maps = viewer.maps(self.model, batch, [size for size, _ in sizes])
        depth = self.model.backbone.shape.depth
        last = self._finish(versions[-1], sizes, maps, viewer.blocks)
        if not paired:
            return last
        first = self._finish(versions[0], sizes, [None] * len(sizes), depth)
        return [PairedDetection(*both) for both in zip(first, last, strict=True)]

    def _prepare(self, pixels: NDArray[np.uint8]) -> Tensor:  # → (3, H, W)
        height, width = pixels.shape[:2]
        size = input_size(height, width, self.config, self.model.backbone.shape.patch)
        return to_tensor(resize(pixels, size), self.normalisation)[0]

    def _run(
        self, batch: Tensor, valid: Tensor, replay: ReplayConfig | None, paired: bool, trace: bool | None
    ) -> tuple[list[tuple[Tensor, Tensor]], _Viewer]:
        """Logits and boxes per version, ordinary first, and the viewer that saw the windows."""
        model = self.model
        measures = replay is not None and replay.measures_drift and replay.replays > 0
        keep = model.taps if paired else ()
        context = (
            nullcontext()
            if replay is None
            else attached(model.backbone.model, replay, keep=keep, trace=measures if trace is None else trace)
        )
        with context as loop:
            viewer = _Viewer(model, loop, paired)
            features = model.features(batch, valid, viewer)
        return [model.detect(each, valid) for each in features], viewer

    def _finish(
        self,
        found: tuple[Tensor, Tensor],
        sizes: Sequence[tuple[tuple[int, int], tuple[int, ...]]],
        maps: Sequence[WindowMaps | None],
        blocks: int,
    ) -> list[Detection]:
        results = []
        for logits, boxes, (size, (height, width)), trace in zip(*found, sizes, maps, strict=True):
            best = best_detections(logits, boxes, size, (height, width), self.config.keep)
            corners, scores, labels = (each.cpu().numpy() for each in best)
            results.append(Detection(corners, scores, labels, trace, blocks))
        return results


class _Viewer:
    """Looks at one view after the other and remembers what the replay measured in each."""

    def __init__(self, model: WindowedDetector, loop: Loop | None, paired: bool) -> None:
        self._model, self._loop, self._paired = model, loop, paired
        self._views: list[dict[str, Tensor]] = []  # maps (B, K, h, w) by kind, overview first
        self.blocks = model.backbone.shape.depth

    def __call__(self, images: Tensor, valid: Tensor) -> list[Tensor]:
        model, loop = self._model, self._loop
        if loop is None:
            return model.look(images, valid)
        if not bool(valid.all()):
            loop.set_valid(valid)
        versions = model.look(images, valid)
        if self._paired:
            grid = model.backbone.grid(images)
            ordinary = [model.backbone.tap(loop.ordinary[index], grid).map for index in model.taps]
            versions = [torch.cat(ordinary, dim=1), *versions]
        self.blocks = loop.blocks_executed
        if loop.trace is not None and loop.trace.drift:
            self._views.append(trace_kinds(loop.trace))
        return versions

    def maps(
        self, model: WindowedDetector, batch: Tensor, sizes: Sequence[tuple[int, int]]
    ) -> Sequence[WindowMaps | None]:
        """The maps of each image, without its padding."""
        if not self._views:
            return [None] * len(sizes)
        patch = model.backbone.shape.patch
        overview, windows = self._views[0], self._views[1:]
        layout = model.layout(batch)
        joined = {kind: layout.join([view[kind] for view in windows]) for kind in overview}
        found = []
        for index, (height, width) in enumerate(sizes):
            rows, columns = height // patch, width // patch
            whole = {kind: maps[index, :, :rows, :columns].numpy() for kind, maps in joined.items()}
            small = {kind: maps[index].numpy() for kind, maps in overview.items()}
            found.append(window_maps(whole, small))
        return found


def input_size(
    height: int, width: int, config: DetectConfig | None = None, patch: int = 16
) -> tuple[int, int]:
    """The size in which the detector sees an image: the rule at the top of this module."""
    config = config or DetectConfig()
    scale = min(config.short_side / min(height, width), config.longest_side / max(height, width))
    rows, columns = (max(1, int(side * scale / patch + 0.5)) for side in (height, width))
    return rows * patch, columns * patch


def load_detector(
    backbone: str | Path | Backbone | None,
    head: str | Path,
    *,
    config: DetectConfig | None = None,
    device: torch.device | str = "cpu",
    verify: bool = False,
) -> Detector:
    """A detector from files: a backbone and the released head.

    The normalisation follows from the name of the backbone's file: satellite models have ``sat493m`` in it.
    """
    satellite = isinstance(backbone, str | Path) and "sat493m" in str(backbone)
    model = load_windowed_detector(head, backbone, device=device, verify=verify)
    return Detector(model, config, SATELLITE if satellite else WEB)
