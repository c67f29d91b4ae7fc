"""Random sets of objects and detections."""

from __future__ import annotations

import numpy as np

from gramloop.metrics.matching import BoxPredictions, GroundTruthBoxes

CATEGORIES = (2, 5, 90)


def random_set(
    seed: int,
    *,
    images: int = 12,
    scores: int | None = None,
    crowd: float = 0.0,
    per_image: int = 14,
    whole_pixels: bool = False,
) -> tuple[GroundTruthBoxes, BoxPredictions]:
    """Objects of all sizes, and detections that hit, nearly hit, repeat, mistake and invent them."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(1000)[:images]
    owners = np.repeat(np.arange(images), rng.integers(0, 7, images))
    size = np.exp(rng.uniform(np.log(6), np.log(300), (len(owners), 2)))
    boxes = np.column_stack([rng.uniform(0, 400, (len(owners), 2)), size])
    labels = rng.choice(CATEGORIES, len(owners))
    truth = GroundTruthBoxes(
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
    return truth, BoxPredictions(ids[places], found, confidence, names)
