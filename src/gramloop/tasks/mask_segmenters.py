"""Panoptic and instance segmentation by PMT's heads: the image in the corner of a square, queries out.

The long side of the image becomes the side of the square in which the head was trained; what is left at the right and
at the bottom is black. The model sees this padding as it sees the image; a replay does not: it counts in no drift,
median or mean. Of the queries, each a class and a mask, become segments that do not overlap, or scored masks that may.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.data.truth import RunLengths, encode_mask
from gramloop.errors import GramLoopError
from gramloop.models.backbone import Tap
from gramloop.models.pmt import PMT
from gramloop.replay.attach import Loop
from gramloop.tasks.class_names import COCO, COCO_PANOPTIC, Classes
from gramloop.tasks.images import RGB, WEB, Normalisation, resize, to_tensor
from gramloop.tasks.instance import InstanceMasks, box_around
from gramloop.tasks.panoptic import Panoptic, Segment
from gramloop.tasks.prediction import PredictionT, ReplayMaps
from gramloop.tasks.predictor import ViTPredictor

_AT_ONCE = 1 << 26  # numbers of masks at the size of an image: those of all queries would need gigabytes


@dataclass(frozen=True)
class PaddedConfig:
    """How an image is given to the model: in a square of this side."""

    side: int = 640

    def __post_init__(self) -> None:
        if self.side < 1:
            raise GramLoopError(f"the side must be positive, not {self.side}")


@dataclass(frozen=True)
class PanopticConfig(PaddedConfig):
    """Which queries become segments: those surer than ``threshold`` that win the share ``overlap`` of their mask."""

    threshold: float = 0.8
    overlap: float = 0.8


@dataclass(frozen=True)
class InstanceConfig(PaddedConfig):
    """How many masks are kept."""

    keep: int = 100


class PaddedSegmenter(ViTPredictor[PredictionT]):
    """What both tasks share: the square, the replay and the size of the original."""

    config: PaddedConfig
    size_setting = "side"

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

    def prepare(self, pixels: RGB) -> Tensor:
        """The image in the upper left corner of the square; the rest is black."""
        square = np.zeros((self.side, self.side, 3), dtype=np.uint8)
        high, wide = self.shown_size(pixels.shape[0], pixels.shape[1])
        square[:high, :wide] = resize(pixels, (high, wide))
        return to_tensor(square, self.normalisation)

    def _forward(
        self, pixels: Sequence[RGB], loop: Loop | None, paired: bool
    ) -> Sequence[Sequence[PredictionT]]:
        inside = self.shown_size(pixels[0].shape[0], pixels[0].shape[1])
        if loop is not None and min(inside) < self.side:
            loop.set_valid(self._valid(inside).expand(len(pixels), -1, -1))
        return super()._forward(pixels, loop, paired)

    def read(
        self, taps: Sequence[Tap], input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[PredictionT]:
        inside = self.shown_size(*size)
        queries = zip(*self.model.predict(taps), strict=True)
        return [self._read(logits, Masks.padded(masks, self.side, inside, size)) for logits, masks in queries]

    def shown_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of an image in the square."""
        factor = min(self.side / height, self.side / width)
        return max(1, round(height * factor)), max(1, round(width * factor))

    def _valid(self, inside: tuple[int, int]) -> Tensor:  # → (1, h, w)
        """The patches that show some of the image."""
        patch = self.backbone.shape.patch
        valid = torch.zeros(1, self.side // patch, self.side // patch, dtype=torch.bool)
        valid[:, : -(-inside[0] // patch), : -(-inside[1] // patch)] = True
        return valid.to(self.backbone.device)

    def maps(
        self, loop: Loop | None, views: int, input_size: tuple[int, int], size: tuple[int, int]
    ) -> list[ReplayMaps | None]:
        """What the replay measured in each image, without its padding."""
        high, wide = self.shown_size(*size)
        found = super().maps(loop, views, input_size, size)
        return [None if each is None else each.cropped(high, wide) for each in found]

    def _read(self, logits: Tensor, masks: Masks) -> PredictionT:
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
        if things is None and self.classes not in (COCO, COCO_PANOPTIC):
            raise GramLoopError(
                f"which of the {len(self.classes)} classes of this head are things is not known, as it is for COCO's "
                "133; give things=[...]"
            )
        self.things = frozenset(COCO if things is None else things)

    def _read(self, logits: Tensor, masks: Masks) -> Panoptic:
        return merged_segments(logits, masks, list(self.classes), self.things, self.config)


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
                "this head has things and stuff (133 classes of COCO); it is one for the task panoptic"
            )

    def _read(self, logits: Tensor, masks: Masks) -> InstanceMasks:
        found = best_masks(logits, masks, self.config.keep)
        return replace(found, labels=np.array(list(self.classes), dtype=np.int64)[found.labels])


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
    logits: Tensor, masks: Masks, numbers: Sequence[int], things: Collection[int], config: PanopticConfig
) -> Panoptic:
    """Every pixel to the query that claims it most, among those surer than the threshold.

    A query is dropped if it wins less than the share ``config.overlap`` of what its mask covers.

    Args:
        logits: (queries, classes + 1), the last of no object.
        masks: of the same queries.
        numbers: of the classes.
        things: those of them that are countable objects.
        config: has the threshold and the share.
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
    return InstanceMasks(
        tuple(chosen[index][0] for index in order),
        scores[order].astype(np.float32),
        classes.cpu().numpy()[order],
        np.array([chosen[index][1] for index in order], dtype=np.float32).reshape(-1, 4),
        masks.size,
    )


def _resized(logits: Tensor, size: tuple[int, int]) -> Tensor:  # (n, h, w) → (n, H, W)
    return F.interpolate(logits[None], size, mode="bilinear", align_corners=False)[0]
