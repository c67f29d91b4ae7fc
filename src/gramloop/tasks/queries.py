"""From queries, each a class and a mask, to segments that do not overlap, or to scored masks that may.

Masks are made at the size of the image a few at a time: those of all queries of a photograph would need gigabytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gramloop.data.masks import RunLengths, encode_mask
from gramloop.tasks.instance import box_around

_AT_ONCE = 1 << 26  # numbers of masks at the size of an image


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


@dataclass(frozen=True)
class Merged:
    """Segments in the order in which they were accepted: segment k has the number k + 1 in the map."""

    segments: NDArray[np.int32]  # (H, W); 0 where there is none
    classes: tuple[int, ...]
    scores: tuple[float, ...]


def merged_segments(
    logits: Tensor, masks: Masks, things: Sequence[bool], threshold: float, overlap: float
) -> Merged:
    """Every pixel to the query that claims it most, among those surer than ``threshold``.

    A query is dropped if it wins less than the share ``overlap`` of what its mask covers. Stuff of one class is one
    segment.

    Args:
        logits: (queries, classes + 1), the last of no object.
        masks: of the same queries.
        things: for each class, whether it is one of things.
        threshold: what the probability of a query's class has to exceed.
        overlap: a share from 0 to 1.
    """
    scores, classes = logits.float().softmax(-1).max(-1)
    sure = ((classes < len(things)) & (scores > threshold)).nonzero()[:, 0]
    winner = _winners(sure, scores, masks)
    found = torch.zeros(masks.size, dtype=torch.int32, device=logits.device)
    kept: list[int] = []  # the class of each segment
    rated: list[float] = []
    stuff: dict[int, int] = {}
    for group, some in masks.few(sure):
        for query, mask in zip(group.tolist(), some.sigmoid() >= 0.5, strict=True):
            won = winner == query
            covered = int(mask.sum())
            pixels = mask & won
            if not covered or not bool(pixels.any()) or int(won.sum()) / covered < overlap:
                continue
            kind, score = int(classes[query]), float(scores[query])
            number = len(kept) + 1 if things[kind] else stuff.setdefault(kind, len(kept) + 1)
            if number > len(kept):
                kept.append(kind)
                rated.append(score)
            rated[number - 1] = max(rated[number - 1], score)
            found[pixels] = number
    return Merged(found.cpu().numpy(), tuple(kept), tuple(rated))


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


@dataclass(frozen=True)
class Found:
    """Scored masks, best first."""

    masks: tuple[RunLengths, ...]
    scores: NDArray[np.float32]  # (n,)
    classes: NDArray[np.int64]  # (n,)
    boxes: NDArray[np.float32]  # (n, 4)


def best_masks(logits: Tensor, masks: Masks, keep: int) -> Found:
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
    return Found(
        tuple(chosen[index][0] for index in order),
        scores[order].astype(np.float32),
        classes.cpu().numpy()[order],
        np.array([chosen[index][1] for index in order], dtype=np.float32).reshape(-1, 4),
    )


def _resized(logits: Tensor, size: tuple[int, int]) -> Tensor:  # (n, h, w) → (n, H, W)
    return F.interpolate(logits[None], size, mode="bilinear", align_corners=False)[0]
