"""Random sets of objects and detections, and a set matched image by image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from gramloop.data.truth import Instances
from gramloop.metrics.ap import box_average_precision
from gramloop.metrics.matching import Matches, match_boxes

CATEGORIES = (2, 5, 90)


@dataclass(frozen=True)
class TrueBoxes:
    """The annotated objects of a set; row k of every column belongs to object k."""

    images: Sequence[int]
    categories: Sequence[int]
    image_ids: np.ndarray
    boxes: np.ndarray  # left, top, width, height
    labels: np.ndarray
    areas: np.ndarray
    crowd: np.ndarray


@dataclass(frozen=True)
class FoundBoxes:
    """The predicted boxes of a set likewise."""

    image_ids: np.ndarray
    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray


def match_set(truth: TrueBoxes, predictions: FoundBoxes) -> Matches:
    """The matches of all images, in the order of ids, which decides between equal scores."""
    parts = []
    for image in sorted(truth.images):
        true, own = truth.image_ids == image, predictions.image_ids == image
        columns = (each[true] for each in (truth.boxes, truth.labels, truth.areas, truth.crowd))
        objects = Instances(np.flatnonzero(true), *columns)
        found = (each[own] for each in (predictions.boxes, predictions.scores, predictions.labels))
        one, place = match_boxes(objects, *found, truth.categories), list(truth.images).index(image)
        parts.append(replace(one, images=one.images + place, true_images=one.true_images + place))
    return joined(parts)


def joined(parts: Sequence[Matches]) -> Matches:
    """The matches of several images together; indices of images stay as they are."""
    names = [field.name for field in fields(Matches)]
    return Matches(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def average_precision(truth: TrueBoxes, predictions: FoundBoxes) -> dict[str, float]:
    """COCO's six numbers of a set."""
    return box_average_precision(match_set(truth, predictions), truth.categories)


def random_set(
    seed: int,
    *,
    images: int = 12,
    scores: int | None = None,
    crowd: float = 0.0,
    per_image: int = 14,
    whole_pixels: bool = False,
) -> tuple[TrueBoxes, FoundBoxes]:
    """Objects of all sizes, and detections that hit, nearly hit, repeat, mistake and invent them."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(1000)[:images]
    owners = np.repeat(np.arange(images), rng.integers(0, 7, images))
    size = np.exp(rng.uniform(np.log(6), np.log(300), (len(owners), 2)))
    boxes = np.column_stack([rng.uniform(0, 400, (len(owners), 2)), size])
    labels = rng.choice(CATEGORIES, len(owners))
    truth = TrueBoxes(
        ids.tolist(),
        CATEGORIES,
        ids[owners],
        boxes,
        labels,
        boxes[:, 2] * boxes[:, 3] * rng.uniform(0.4, 1, len(owners)),
        rng.random(len(owners)) < crowd,
    )
    hits = rng.integers(0, max(len(owners), 1), images * per_image) if len(owners) else np.zeros(0, int)
    found = boxes[hits] * rng.normal(1, rng.choice([0, 0.02, 0.1, 0.5], (len(hits), 1)), (len(hits), 4))
    found = np.abs(np.round(found) if whole_pixels else found)
    confidence = rng.random(len(hits))
    if scores is not None:
        confidence = np.floor(confidence * scores) / scores
    names = np.where(rng.random(len(hits)) < 0.85, labels[hits], rng.choice(CATEGORIES, len(hits)))
    places = np.where(rng.random(len(hits)) < 0.9, owners[hits], rng.integers(0, images, len(hits)))
    return truth, FoundBoxes(ids[places], found, confidence, names)
