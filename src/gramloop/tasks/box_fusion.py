"""Weighted box fusion (Solovyev et al., 2021): one list of boxes from several views of an image.

Boxes of one class that overlap become one, the mean of their corners weighted by score. Its score is the sum of
theirs over the number of views, so a box that only one view holds counts less. A fused box takes at most one box of
each view: what a detector kept apart stays apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FUSION_IOU = 0.55  # as published
_TINY = np.finfo(float).tiny


def fuse_boxes(
    boxes: Floats,
    scores: Floats,
    labels: NDArray[np.int64],
    views: NDArray[np.int64],
    count: int,
    iou: float = FUSION_IOU,
) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Fused boxes, their scores and labels, best first.

    Args:
        boxes: (n, 4), left, top, right, bottom.
        scores: (n,).
        labels: (n,).
        views: (n,), the view that each box comes from, below ``count``.
        count: how many views there are.
        iou: the overlap above which boxes become one.
    """
    fused: list[tuple[Floats, float, int]] = []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        mine = mine[np.argsort(-scores[mine], kind="stable")]
        for group in _groups(boxes[mine], views[mine], scores[mine], iou):
            weights, total = scores[mine[group]], scores[mine[group]].sum()
            share = weights / total if total > 0 else np.full(len(weights), 1 / len(weights))
            fused.append((share @ boxes[mine[group]], float(total / count), int(label)))
    fused.sort(key=lambda each: -each[1])
    return (
        np.array([box for box, _, _ in fused]).reshape(-1, 4),
        np.array([score for _, score, _ in fused], dtype=np.float64),
        np.array([label for _, _, label in fused], dtype=np.int64),
    )


def _groups(boxes: Floats, views: NDArray[np.int64], scores: Floats, iou: float) -> list[list[int]]:
    """Which boxes, best first, become one: each joins the fused box that it overlaps most."""
    groups: list[list[int]] = []
    corners = np.zeros((4, len(boxes)))  # of the fused boxes so far
    areas = np.zeros(len(boxes))
    taken = np.zeros((int(views.max()) + 1, len(boxes)), dtype=np.bool_)  # which views a fused box has
    own_areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    plain = zip(boxes.tolist(), own_areas.tolist(), views.tolist(), strict=True)  # fast with single numbers
    for index, (corner, area, view) in enumerate(plain):
        count, box = len(groups), boxes[index]
        overlaps = _ious(corner, area, corners[:, :count], areas[:count])
        overlaps[taken[view, :count]] = -1.0
        at = int(overlaps.argmax()) if count else 0
        if count and overlaps[at] > iou:
            groups[at].append(index)
            weights = np.maximum(scores[groups[at]], _TINY)
            box = weights / weights.sum() @ boxes[groups[at]]
        else:
            at = count
            groups.append([index])
        corners[:, at], taken[view, at] = box, True
        areas[at] = (box[2] - box[0]) * (box[3] - box[1])
    return groups


def _ious(box: Sequence[float], area: float, corners: Floats, areas: Floats) -> Floats:  # (4, n), (n,) → (n,)
    left, top, right, bottom = corners
    shared: Floats = np.minimum(box[2], right)
    shared -= np.maximum(box[0], left)
    high = np.minimum(box[3], bottom)
    high -= np.maximum(box[1], top)
    np.maximum(shared, 0, out=shared)
    shared *= np.maximum(high, 0, out=high)
    union = areas + area
    union -= shared
    shared /= np.maximum(union, _TINY, out=union)
    return shared
