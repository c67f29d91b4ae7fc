"""Released heads ready for images that see them in a size of their own: detectors, and PMT's masks.

Plain-DETR: the image is resized (PIL's bilinear) to a short side of 2048; then each side is rounded to the nearest
multiple of the patch size, 16, halves upwards and never below one patch. An image more than eight times as long as
wide is scaled to a long side of 16,384 instead, so that a strip does not outgrow the memory. Boxes are scaled
back, along each side on its own, to pixels of the original image. The 1,500 best pairs of box and class are
kept; nothing is suppressed and no threshold applied, as average precision wants it. The detector sees 3 x 3 windows and
the whole image; a side of 1, 2 or 4 patches is cut into fewer (:mod:`gramloop.models.detector`).

PMT: the long side of the image becomes the side of the square in which the head was trained; what is left at the right
and at the bottom is black. The model sees this padding as it sees the image; a replay does not: it counts in no drift,
median or mean. Of the queries, each a class and a mask, become segments that do not overlap, or scored masks that may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.data.records import TaskName as Task
from gramloop.data.truth import RunLengths, encode_mask
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Backbone, Tap
from gramloop.models.detector import WindowedDetector, WindowLayout, all_valid, join_taps
from gramloop.models.plain_detr import best_detections
from gramloop.models.pmt import PMT
from gramloop.models.tiny import DenseDetectHead
from gramloop.replay.attach import Loop
from gramloop.tasks.class_names import COCO, COCO_NUMBERS, COCO_PANOPTIC, Classes, coco_classes
from gramloop.tasks.detection import Detection
from gramloop.tasks.images import RGB, WEB, Normalisation, resize, to_tensor
from gramloop.tasks.prediction import ReplayMaps
from gramloop.tasks.predictor import ViTPredictor, replay_maps, stacked_maps
from gramloop.tasks.segments import InstanceMasks, Panoptic, Segment, box_around

_AT_ONCE = 1 << 26  # numbers of masks at the size of an image: those of all queries would need gigabytes


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
    """A detector ready for images."""

    task = "detection"

    def __init__(
        self, model: WindowedDetector, config: DetectConfig | None = None, normalisation: Normalisation = WEB
    ) -> None:
        numbers = model.head.config.classes
        names = COCO if numbers == COCO_NUMBERS else {}
        classes = {number: names.get(number) for number in range(numbers)}
        super().__init__(model.backbone, model.taps, classes, normalisation)
        self.model, self.config = model, config or DetectConfig()

    def _forward(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Detection]]:
        depth, size = self.backbone.shape.depth, (pixels[0].shape[0], pixels[0].shape[1])
        batch = torch.cat([self.prepare(each) for each in pixels]).to(self.backbone.device)
        valid = all_valid(batch, self.backbone.shape.patch)
        views: list[Tensor] = []  # maps (B, K, h, w), overview first
        see = partial(self._see, loop, paired, views)
        *baseline, last = self.model.detect_each(self.model.features(batch, valid, see), valid)
        maps: list[ReplayMaps | None] = [None] * len(pixels)
        if views:
            maps = [ReplayMaps(each) for each in self.model.layout(batch).join(views[1:]).numpy()]
        input_size, blocks = (
            (batch.shape[-2], batch.shape[-1]),
            depth if loop is None else loop.blocks_executed,
        )
        replayed = zip(self._finish(last, input_size, size), maps, strict=True)
        return [
            *(
                [replace(one, blocks=depth) for one in self._finish(each, input_size, size)]
                for each in baseline
            ),
            [replace(one, blocks=blocks, trace=trace) for one, trace in replayed],
        ]

    def _see(
        self, loop: Loop | None, paired: bool, views: list[Tensor], images: Tensor, valid: Tensor
    ) -> list[Tensor]:
        """What the head reads of one window, per version; its maps are added to ``views``."""
        taps = self.backbone(images, self.taps)
        if loop is None:
            return [join_taps(taps)]
        if loop.trace is not None and loop.trace.drift:
            views.append(stacked_maps(loop.trace))
        return [*([join_taps(self._baseline(loop, taps))] if paired else []), join_taps(taps)]

    def prepare(self, pixels: RGB) -> Tensor:
        size = input_size(pixels.shape[0], pixels.shape[1], self.config, self.backbone.shape.patch)
        return to_tensor(resize(pixels, size), self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        patch = self.backbone.shape.patch
        layout = WindowLayout.of(*input_size(height, width, self.config, patch), patch)
        return layout.rows[0][1], layout.columns[0][1]  # the overview has the size of the first window

    def _finish(
        self, found: tuple[Tensor, Tensor], input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[Detection]:
        results = []
        for logits, boxes in zip(*found, strict=True):
            best = best_detections(logits, boxes, input_size, size, self.config.keep)
            results.append(Detection(*(each.cpu().numpy() for each in best)))
        return results


def input_size(
    height: int, width: int, config: DetectConfig | None = None, patch: int = 16
) -> tuple[int, int]:
    """The size in which the detector sees an image: the rule at the top of this module."""
    config = config or DetectConfig()
    scale = min(config.short_side / min(height, width), config.longest_side / max(height, width))
    return _patches(height * scale, patch), _patches(width * scale, patch)


def _patches(side: float, patch: int) -> int:
    return max(1, int(side / patch + 0.5)) * patch


class DenseDetector(ViTPredictor[Detection]):
    """A backbone and a one-stage head; class c of the head is the c-th of ``classes``, from 1 where none are given."""

    task = "detection"
    size_setting = ""  # it takes any size

    def __init__(
        self, backbone: Backbone, head: DenseDetectHead, tap: int, classes: Classes | None = None
    ) -> None:
        backbone.check_taps([tap])
        count = head.config.classes
        classes = classes or dict.fromkeys(range(1, count + 1))
        if len(classes) != count:
            raise GramLoopError(f"{len(classes)} categories were given for a head of {count} classes")
        super().__init__(backbone, [tap], classes)
        self.head = head

    def prepare(self, pixels: RGB) -> Tensor:
        size = self._largest_view(pixels.shape[0], pixels.shape[1])
        return to_tensor(resize(pixels, size), self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        patch = self.backbone.shape.patch
        return _patches(height, patch), _patches(width, patch)

    def read(
        self, taps: Sequence[Tap], input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[Detection]:
        numbers = np.array(list(self.classes), dtype=np.int64)
        scale = torch.tensor([size[1] / input_size[1], size[0] / input_size[0]]).repeat(2)
        detections = []
        for rows, scores, kinds in zip(*map(Tensor.cpu, self.head.detect(taps[0].map)), strict=True):
            there = kinds >= 0
            boxes = (rows[there] * scale).numpy()
            boxes[:, 0::2] = boxes[:, 0::2].clip(0, size[1])
            boxes[:, 1::2] = boxes[:, 1::2].clip(0, size[0])
            detections.append(Detection(boxes, scores[there].numpy(), numbers[kinds[there].numpy()]))
        return detections

    def maps(
        self, loop: Loop | None, views: int, input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[ReplayMaps | None]:
        return replay_maps(loop, views)  # with an entry per patch


@dataclass(frozen=True)
class QueryConfig:
    """How an image is given to the model, and what becomes of its queries.

    side: of the square that holds the image.
    threshold, overlap: queries surer than ``threshold`` that win the share ``overlap`` of their mask are segments.
    keep: how many masks of instances are kept.
    """

    side: int = 640
    threshold: float = 0.8
    overlap: float = 0.8
    keep: int = 100

    def __post_init__(self) -> None:
        if self.side < 1:
            raise GramLoopError(f"the side must be positive, not {self.side}")


class QuerySegmenter(ViTPredictor[Panoptic | InstanceMasks]):
    """A panoptic or instance head ready for images."""

    config: QueryConfig
    size_setting = "side"

    def __init__(
        self,
        model: PMT,
        task: Task,
        config: QueryConfig | None = None,
        classes: Classes | None = None,
        things: Collection[int] | None = None,
    ) -> None:
        """
        Args:
            model: backbone and head.
            task: "panoptic" or "instance".
            config: how images are given to the model.
            classes: numbers and names in the order of the head; COCO's, or from 1 on where it has other counts.
            things: the numbers of ``classes`` that are things, for panoptic segments; known for COCO's classes.
        """
        classes = classes or coco_classes(model.classes) or dict.fromkeys(range(1, model.classes + 1))
        super().__init__(model.backbone, model.taps, classes)
        self.model, self.task, self.config = model, task, config or QueryConfig()
        if len(classes) != model.classes:
            raise GramLoopError(f"{len(classes)} classes were given for a head of {model.classes}")
        if self.config.side % model.granularity:
            raise GramLoopError(
                f"this model needs a side that is a multiple of {model.granularity}, not {self.config.side}"
            )
        if task == "instance" and classes == COCO_PANOPTIC:
            raise GramLoopError(
                "this head has things and stuff (133 classes); it is one for the task panoptic"
            )
        if task == "panoptic" and things is None and classes not in (COCO, COCO_PANOPTIC):
            raise GramLoopError(
                f"which of the {len(classes)} classes of this head are things is not known, as it is for COCO's "
                "133; give things=[...]"
            )
        self.things = frozenset(COCO if things is None else things)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        return self.config.side, self.config.side

    def prepare(self, pixels: RGB) -> Tensor:
        """The image in the upper left corner of the square; the rest is black."""
        square = np.zeros((self.config.side, self.config.side, 3), dtype=np.uint8)
        high, wide = self.input_size(pixels.shape[0], pixels.shape[1])
        square[:high, :wide] = resize(pixels, (high, wide))
        return to_tensor(square, self.normalisation)

    def input_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image in the square."""
        factor = min(self.config.side / height, self.config.side / width)
        return max(1, round(height * factor)), max(1, round(width * factor))

    def _forward(
        self, pixels: Sequence[RGB], loop: Loop | None, paired: bool
    ) -> Sequence[Sequence[Panoptic | InstanceMasks]]:
        high, wide = self.input_size(pixels[0].shape[0], pixels[0].shape[1])
        if loop is not None and min(high, wide) < self.config.side:
            patch = self.backbone.shape.patch
            rows = self.config.side // patch
            valid = torch.zeros(len(pixels), rows, rows, dtype=torch.bool)
            valid[:, : -(-high // patch), : -(-wide // patch)] = True  # patches that show some of the image
            loop.set_valid(valid.to(self.backbone.device))
        return super()._forward(pixels, loop, paired)

    def read(
        self, taps: Sequence[Tap], input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[Panoptic | InstanceMasks]:
        inside, numbers = self.input_size(*size), list(self.classes)
        found: list[Panoptic | InstanceMasks] = []
        for logits, queries in zip(*self.model.predict(taps), strict=True):
            masks = Masks.padded(queries, self.config.side, inside, size)
            if self.task == "panoptic":
                found.append(merged_segments(logits, masks, numbers, self.things, self.config))
            else:
                best = best_masks(logits, masks, self.config.keep)
                found.append(replace(best, labels=np.array(numbers, dtype=np.int64)[best.labels]))
        return found

    def maps(
        self, loop: Loop | None, views: int, input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[ReplayMaps | None]:
        found = super().maps(loop, views, input_size, size)
        return [None if each is None else each.cropped(*self.input_size(*size)) for each in found]


@dataclass(frozen=True)
class Masks:
    """Mask logits of all queries, and how some of them are made at the size of the image."""

    size: tuple[int, int]  # height and width of the image
    of: Callable[[Tensor], Tensor]  # numbers of queries (n,) → their logits (n, H, W)
    cost: int  # numbers that one of them needs

    @classmethod
    def padded(cls, logits: Tensor, side: int, inside: tuple[int, int], size: tuple[int, int]) -> Masks:
        """From logits (queries, h, w) of a square of ``side`` whose upper left part shows the image."""

        def of(chosen: Tensor) -> Tensor:
            square = _resized(logits[chosen].float(), (side, side))
            return _resized(square[:, : inside[0], : inside[1]], size)

        return cls(size, of, max(side * side, size[0] * size[1]))

    def few(self, queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:  # (n,)
        """The queries in groups that fit into memory, each with its logits."""
        step = max(1, _AT_ONCE // self.cost)
        for first in range(0, len(queries), step):
            group = queries[first : first + step]
            yield group, self.of(group)


def merged_segments(
    logits: Tensor, masks: Masks, numbers: Sequence[int], things: Collection[int], config: QueryConfig
) -> Panoptic:
    """Every pixel to the query that claims it most, among those surer than the threshold.

    A query is dropped if it wins less than the share ``config.overlap`` of what its mask covers. ``logits`` are
    (queries, classes + 1), the last of no object; ``numbers`` those of the classes, of which ``things`` are countable.
    """
    scores, classes = logits.float().softmax(-1).max(-1)
    sure = ((classes < len(numbers)) & (scores > config.threshold)).nonzero()[:, 0]
    winner = _winners(sure, scores, masks)

    def kept() -> Iterator[tuple[NDArray[np.bool_], int, float]]:
        for group, some in masks.few(sure):
            for query, mask in zip(group.tolist(), some.sigmoid() >= 0.5, strict=True):
                won, covered = winner == query, int(mask.sum())
                if covered and int(won.sum()) / covered >= config.overlap:
                    category = numbers[int(classes[query])]
                    yield (mask & won).cpu().numpy(), category, float(scores[query])

    return join_segments(kept(), masks.size, things)


def join_segments(
    found: Iterable[tuple[NDArray[np.bool_], int, float]], size: tuple[int, int], things: Collection[int]
) -> Panoptic:
    """Segments from masks (H, W) with class and score; stuff of one class is one segment, empty masks are none."""
    segments, infos = np.zeros(size, np.int32), list[Segment]()  # segment k has the number k + 1 in the map
    stuff: dict[int, int] = {}
    for mask, category, score in found:
        if not mask.any():
            continue
        number = len(infos) + 1 if category in things else stuff.setdefault(category, len(infos) + 1)
        if number > len(infos):
            infos.append(Segment(number, category, category in things, score))
        elif score > infos[number - 1].score:
            infos[number - 1] = replace(infos[number - 1], score=score)
        segments[mask] = number
    return Panoptic(segments, tuple(infos))


def _winners(sure: Tensor, scores: Tensor, masks: Masks) -> Tensor:  # → (H, W)
    """The query of the highest score x mask at every pixel; -1 where none is sure."""
    best = torch.full(masks.size, float("-inf"), device=scores.device)
    winner = torch.full(masks.size, -1, dtype=torch.int64, device=scores.device)
    for group, some in masks.few(sure):
        high, index = (some.sigmoid() * scores[group, None, None]).max(0)
        better = high > best
        best = torch.where(better, high, best)
        winner = torch.where(better, group[index], winner)
    return winner


def best_masks(logits: Tensor, masks: Masks, keep: int) -> InstanceMasks:
    """The ``keep`` best pairs of query and class, (queries, classes + 1); nothing is suppressed.

    A pair scores the probability of the class times the mean probability of the mask's own pixels.
    """
    probabilities = logits.float().softmax(-1)[:, :-1]
    likely, flat = probabilities.flatten().topk(min(keep, probabilities.numel()))
    queries, classes = flat // probabilities.shape[1], flat % probabilities.shape[1]
    shapes: dict[int, tuple[RunLengths, tuple[int, ...], float]] = {}
    for group, some in masks.few(torch.unique(queries)):
        inside = some > 0
        means = (some.sigmoid() * inside).sum((1, 2)) / (inside.sum((1, 2)) + 1e-6)
        for query, mask, mean in zip(group.tolist(), inside.cpu().numpy(), means.tolist(), strict=True):
            shapes[query] = encode_mask(mask), box_around(mask), mean
    chosen = [shapes[query] for query in queries.tolist()]
    scores = likely.cpu().numpy() * np.array([mean for _, _, mean in chosen], dtype=np.float32)
    order = np.argsort(-scores, kind="stable")
    runs, boxes = tuple(chosen[index][0] for index in order), [chosen[index][1] for index in order]
    corners, labels = np.array(boxes, dtype=np.float32).reshape(-1, 4), classes.cpu().numpy()[order]
    return InstanceMasks(runs, scores[order].astype(np.float32), labels, corners, masks.size)


def _resized(logits: Tensor, size: tuple[int, int]) -> Tensor:  # (n, h, w) → (n, H, W)
    return F.interpolate(logits[None], size, mode="bilinear", align_corners=False)[0]
