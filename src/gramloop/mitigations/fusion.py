"""One list of boxes from several looks at an image: weighted box fusion (Solovyev et al., 2021).

Boxes of one class that overlap become one, the mean of their corners weighted by score. Its score is the sum of
theirs over the number of looks, so a box that one look alone has found counts less. A look gives a fused box at
most one of its own: what a detector told apart stays apart.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.boxes import box_iou
from gramloop.tasks.detection import Detection

OVERLAP = 0.55  # as the authors have it


def fused(looks: Sequence[Detection], overlap: float = OVERLAP) -> Detection:
    """The fused boxes, best first; no more of them than the longest list had."""
    boxes = np.concatenate([look.boxes for look in looks]).astype(np.float64)
    scores = np.concatenate([look.scores for look in looks]).astype(np.float64)
    labels = np.concatenate([look.labels for look in looks])
    owners = np.repeat(np.arange(len(looks)), [len(look.scores) for look in looks])
    found: list[tuple[NDArray[np.float64], float, int]] = []
    for label in np.unique(labels):
        mine = np.flatnonzero(labels == label)
        mine = mine[np.argsort(-scores[mine], kind="stable")]
        for members in _groups(boxes[mine], owners[mine], scores[mine], overlap):
            weights = scores[mine][members]
            share = weights / weights.sum() if weights.sum() > 0 else np.full(len(weights), 1 / len(weights))
            found.append((share @ boxes[mine][members], float(weights.sum() / len(looks)), int(label)))
    found.sort(key=lambda each: -each[1])
    found = found[: max(len(look.scores) for look in looks)]
    return Detection(
        np.array([box for box, _, _ in found], dtype=np.float32).reshape(-1, 4),
        np.array([score for _, score, _ in found], dtype=np.float32),
        np.array([label for _, _, label in found], dtype=np.int64),
        blocks=sum(look.blocks for look in looks),
    )


def _groups(
    boxes: NDArray[np.float64], owners: NDArray[np.int64], scores: NDArray[np.float64], overlap: float
) -> list[list[int]]:
    """Which boxes, best first, become one: each joins the fused box that it overlaps most."""
    groups: list[list[int]] = []
    fusions = np.zeros((len(boxes), 4))
    for index, box in enumerate(boxes):
        free = [at for at, group in enumerate(groups) if owners[index] not in owners[group]]
        ious = box_iou(box[None], fusions[free])[0]
        if len(free) and ious.max() > overlap:
            at = free[int(ious.argmax())]
            groups[at].append(index)
        else:
            at = len(groups)
            groups.append([index])
        weights = np.maximum(scores[groups[at]], np.finfo(float).tiny)
        fusions[at] = weights / weights.sum() @ boxes[groups[at]]
    return groups
