"""Any segmentation model as a panoptic one, or one for instances: the connected parts of its label map are the things.

    gramloop evaluate --model examples/components.py:panoptic --suite scenes-c --severity 3 --out results/panoptic
    gramloop evaluate --model examples/components.py:instances --suite scenes-c --severity 3 --out results/instances
    gramloop report results/panoptic results/instances --out report

The embedded model is used as it is, replays included. Two things of a kind that touch become one.
"""

from __future__ import annotations

import cv2
import numpy as np

from gramloop.tasks import InstanceMasks, Pair, Panoptic, Segment, Segmentation, open_model

SMALLEST = 20  # pixels of a thing


class Components:
    """The embedded segmenter, whose label maps are taken apart."""

    def __init__(self, task: str, short_side: int = 192) -> None:
        self.segmenter = open_model("tiny", "semantic", {"scores": True, "short_side": short_side})
        names = [str(name) for name in self.segmenter.classes.values()]
        stuff = 7  # the first classes, which have no parts
        self.order = names[stuff:] + names[:stuff]  # things first, as the scenes' own files number them
        self.numbers = [1 + self.order.index(name) for name in names]  # of every label
        self.things = frozenset(range(1, len(names) - stuff + 1))
        self.task = task
        self.classes = dict(enumerate(self.order if task == "panoptic" else names[stuff:], start=1))
        self.blocks, self.host, self.taps = self.segmenter.blocks, self.segmenter.host, self.segmenter.taps
        self.cost = self.segmenter.cost

    def predict(self, image, replay=None, paired=False, *, trace=None):
        """What the segmenter says of an image, in parts."""
        found = self.segmenter.predict(image, replay, paired=paired, trace=trace)
        if paired:
            return Pair(self._parts(found.baseline), self._parts(found.replayed))
        return self._parts(found)

    def _parts(self, found: Segmentation) -> Panoptic | InstanceMasks:
        about = {"blocks": found.blocks, "trace": found.trace}
        parts = self._masks(found.labels)
        masks = [mask for _, mask in parts]
        kinds = [self.numbers[label] for label, _ in parts]
        scores = [float(found.scores[label][mask].mean()) for label, mask in parts]
        if self.task == "instance":
            chosen = [index for index, kind in enumerate(kinds) if kind in self.things]
            pixels = np.array([masks[index] for index in chosen]).reshape(-1, *found.labels.shape)
            sure, labels = (np.array([each[index] for index in chosen]) for each in (scores, kinds))
            made = InstanceMasks.from_masks(pixels.astype(bool), sure, labels)
            return InstanceMasks(made.masks, made.scores, made.labels, made.boxes, made.size, **about)
        segments = np.zeros(found.labels.shape, np.int32)
        for number, mask in enumerate(masks, start=1):
            segments[mask] = number
        infos = (
            Segment(number, kind, kind in self.things, score)
            for number, (kind, score) in enumerate(zip(kinds, scores, strict=True), start=1)
        )
        return Panoptic(segments, tuple(infos), **about)

    def _masks(self, labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Every part with its label: all of a kind of stuff, and each connected region of a thing."""
        parts = []
        for label in np.unique(labels).tolist():
            mask = labels == label
            if self.numbers[label] not in self.things:
                parts.append((label, mask))
                continue
            count, regions = cv2.connectedComponents(mask.astype(np.uint8))
            each = [regions == number for number in range(1, count)]
            parts += [(label, region) for region in each if region.sum() >= SMALLEST]
        return parts


def panoptic() -> Components:
    """Segments of things and stuff."""
    return Components("panoptic")


def instances() -> Components:
    """Masks of things."""
    return Components("instance")
