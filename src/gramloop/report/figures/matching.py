"""Which detections are right: predictions by falling score, each to the best annotation still free.

These rules are for pictures alone: a score of at least 0.40, the same category, an overlap (intersection over
union) of at least 0.50. Average precision is computed elsewhere and knows no threshold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.metrics.boxes import box_iou
from gramloop.tasks.detection import Detection

SCORE, OVERLAP = 0.40, 0.50
Region = tuple[float, float, float, float]  # left, top, right, bottom in pixels
Role = Literal["gained", "lost", "false", "plain"]


@dataclass(frozen=True)
class Annotated:
    """Annotated boxes of one image."""

    boxes: NDArray[Any]  # (n, 4) left, top, right, bottom
    labels: NDArray[Any]  # (n,)

    def __len__(self) -> int:
        return len(self.labels)


def shown_boxes(
    found: Detection,
    score: float = SCORE,
    crop: Region | None = None,
    categories: frozenset[int] | None = None,
) -> Detection:
    """The predictions that a picture shows, by falling score: sure enough, of its categories, centred in its crop."""
    keep = np.asarray(found.scores >= score)
    if categories is not None:
        keep &= np.isin(found.labels, sorted(categories))
    if crop is not None:
        keep &= centred(found.boxes, crop)
    chosen = np.flatnonzero(keep)
    chosen = chosen[np.argsort(-np.asarray(found.scores)[chosen], kind="stable")]
    return Detection(found.boxes[chosen], found.scores[chosen], found.labels[chosen])


def centred(boxes: NDArray[Any], crop: Region) -> NDArray[np.bool_]:
    """Which boxes have their centre inside a crop."""
    across, down = (boxes[:, 0] + boxes[:, 2]) / 2, (boxes[:, 1] + boxes[:, 3]) / 2
    inside: NDArray[np.bool_] = (
        (across >= crop[0]) & (across <= crop[2]) & (down >= crop[1]) & (down <= crop[3])
    )
    return inside


def match(found: Detection, truth: Annotated, overlap: float = OVERLAP) -> NDArray[np.int64]:  # → (n,)
    """For each prediction the annotation that it recovers, or -1.

    Predictions are served by falling score, in their order where scores tie. Each takes the free annotation of
    its category that it overlaps most, if by ``overlap`` or more.
    """
    partner = np.full(len(found.scores), -1, dtype=np.int64)
    if not len(found.scores) or not len(truth):
        return partner
    shared = box_iou(found.boxes, truth.boxes)
    shared[np.asarray(found.labels)[:, None] != np.asarray(truth.labels)[None]] = -1
    for index in np.argsort(-np.asarray(found.scores), kind="stable"):
        best = int(shared[index].argmax())
        if shared[index, best] >= overlap:
            partner[index] = best
            shared[:, best] = -1
    return partner


@dataclass(frozen=True)
class Roles:
    """What each box of the two methods is, and which annotations one of them alone recovers."""

    baseline: list[Role]
    method: list[Role]
    gained: frozenset[int]
    lost: frozenset[int]


def roles(baseline: Detection, method: Detection, truth: Annotated) -> Roles:
    """Compare two methods' shown predictions.

    "gained": an object that the method recovers and the baseline does not. "lost": one that only the baseline
    recovers. "false": a box that recovers nothing and that the other method does not have. "plain": the rest.
    """
    partners = [match(each, truth) for each in (baseline, method)]
    recovered = [set(partner.tolist()) - {-1} for partner in partners]
    gained, lost = frozenset(recovered[1] - recovered[0]), frozenset(recovered[0] - recovered[1])
    alone = [_absent(baseline, method), _absent(method, baseline)]
    return Roles(
        _named(partners[0], lost, "lost", alone[0]),
        _named(partners[1], gained, "gained", alone[1]),
        gained,
        lost,
    )


def f1(found: Detection, truth: Annotated, score: float = SCORE) -> float:
    """Twice the matches over predictions shown plus annotations: 1 for a perfect image, also for an empty one."""
    kept = shown_boxes(found, score)
    both = len(kept.scores) + len(truth)
    return 1.0 if not both else float(2 * (match(kept, truth) >= 0).sum() / both)


def _absent(found: Detection, other: Detection) -> NDArray[np.bool_]:
    """Which boxes have no counterpart of the same category among the other method's."""
    if not len(other.scores):
        return np.ones(len(found.scores), dtype=np.bool_)
    same = np.asarray(found.labels)[:, None] == np.asarray(other.labels)[None]
    absent: NDArray[np.bool_] = ~((box_iou(found.boxes, other.boxes) >= OVERLAP) & same).any(axis=1)
    return absent


def _named(
    partner: NDArray[np.int64], special: frozenset[int], role: Role, alone: NDArray[np.bool_]
) -> list[Role]:
    named: list[Role] = []
    for annotation, absent in zip(partner.tolist(), alone.tolist(), strict=True):
        if annotation in special:
            named.append(role)
        else:
            named.append("false" if annotation < 0 and absent else "plain")
    return named
