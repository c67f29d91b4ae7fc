"""A small paired experiment: both tasks, a few shifts, every image seen by both methods."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import cache, lru_cache
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from gramloop.config import ReplayConfig
from gramloop.data.scenes import CLASSES, THINGS, Scene, scene
from gramloop.metrics.ap_bootstrap import ap_delta
from gramloop.metrics.bootstrap import Delta, Interval, Weights, image_bootstrap, miou_delta
from gramloop.metrics.boxes import Detections, Truth
from gramloop.metrics.coco_ap import average_precision
from gramloop.metrics.miou import count, mean_iou
from gramloop.models.tiny import WEIGHTS, load_tiny
from gramloop.settings import read_replay
from gramloop.shifts.corruptions import corrupt
from gramloop.shifts.seeds import generator
from gramloop.tasks.dense_detect import DenseDetector
from gramloop.tasks.detect import PairedDetection
from gramloop.tasks.segment import PairedSegmentation, SegmentConfig, Segmenter

SPLIT = "demo"  # neither the model nor the choice of the window has seen these scenes
SIZE = 192
REPLICATES = 2000


@dataclass(frozen=True)
class Condition:
    """One way to show the scenes; severity 0 is clean."""

    name: str
    severity: int

    def __str__(self) -> str:
        return "clean" if self.severity == 0 else f"{self.name.replace('_', ' ')} {self.severity}"

    def show(self, image: NDArray[np.uint8], image_id: str) -> NDArray[np.uint8]:
        """The scene as this condition shows it."""
        if self.severity == 0:
            return image
        rng = generator("scenes-c", self.name, self.severity, image_id)
        return corrupt(image, self.name, self.severity, rng)


CLEAN = Condition("clean", 0)


@dataclass(frozen=True)
class Seen:
    """One scene under one condition, predicted by both methods."""

    condition: Condition
    index: int
    truth: Scene
    image: NDArray[np.uint8]
    segmentation: PairedSegmentation
    detection: PairedDetection


@dataclass
class Outcome:
    """Everything that was predicted, and what it amounts to."""

    replay: ReplayConfig
    conditions: Sequence[Condition]
    scenes: Sequence[int]
    split: str = SPLIT
    replicates: int = REPLICATES
    seen: dict[tuple[Condition, int], Seen] = field(default_factory=dict)

    def miou(self, conditions: Sequence[Condition]) -> tuple[float, float, Interval]:
        """Mean IoU of ordinary and replayed over these conditions, and the interval of the difference."""
        counts = [
            np.stack([self._counts(c, version) for c in conditions]) for version in ("ordinary", "replayed")
        ]
        means = [float(np.mean([mean_iou(c.sum(0)) for c in each])) for each in counts]
        return means[0], means[1], self._interval(miou_delta(*counts))

    def ap(self, conditions: Sequence[Condition]) -> tuple[float, float, Interval]:
        """Average precision of ordinary and replayed over these conditions, and the interval."""
        truth = _truth([scene(index, SIZE, self.split) for index in self.scenes])
        found = [[self._boxes(c, version) for c in conditions] for version in ("ordinary", "replayed")]
        means = [float(np.mean([average_precision(truth, each).ap for each in version])) for version in found]
        deltas = [ap_delta(truth, *pair) for pair in zip(*found, strict=True)]
        return means[0], means[1], self._interval(_mean_of(deltas))

    def blocks(self) -> tuple[int, int]:
        """Transformer blocks per image: ordinary, and both predictions together."""
        one = next(iter(self.seen.values())).segmentation
        return one.ordinary.blocks, one.blocks

    def _interval(self, delta: Delta) -> Interval:
        return image_bootstrap(delta, len(self.scenes), replicates=self.replicates)

    def _counts(self, condition: Condition, version: str) -> NDArray[np.int64]:
        return np.stack(
            [
                count(
                    getattr(seen.segmentation, version).labels, true_labels(seen.truth), len(CLASSES)
                ).stacked()
                for seen in (self.seen[condition, index] for index in self.scenes)
            ]
        )

    def _boxes(self, condition: Condition, version: str) -> Detections:
        return Detections.of(
            {
                place: getattr(self.seen[condition, index].detection, version)
                for place, index in enumerate(self.scenes)
            }
        )


def default_replay() -> ReplayConfig:
    """The setting that was found on other scenes, as stored beside the weights."""
    return read_replay(WEIGHTS / "replay.json")


def run(
    conditions: Sequence[Condition],
    scenes: Sequence[int],
    replay: ReplayConfig,
    progress: Callable[[], None] = lambda: None,
    workers: int | None = None,
    split: str = SPLIT,
) -> Outcome:
    """Predict every scene of a split under every condition, over all cores."""
    outcome = Outcome(replay, conditions, scenes, split)
    jobs = [(condition, split, index) for condition in conditions for index in scenes]
    for seen in _predictions(jobs, replay, workers or os.cpu_count() or 1):
        outcome.seen[seen.condition, seen.index] = seen
        progress()
    return outcome


def true_labels(true: Scene) -> NDArray[np.uint8]:
    """Class indices of a scene's pixels, 255 where it has no label."""
    labels: NDArray[np.uint8] = np.where(true.labels == 0, 255, true.labels - 1).astype(np.uint8)
    return labels


def _predictions(
    jobs: list[tuple[Condition, str, int]], replay: ReplayConfig, workers: int
) -> Iterator[Seen]:
    if workers == 1:
        yield from (_predict(*job, replay) for job in jobs)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _one_thread) as pool:
        waiting = [pool.submit(_predict, *job, replay) for job in jobs]
        for done in as_completed(waiting):
            yield done.result()


def _one_thread() -> None:
    import cv2
    import torch

    torch.set_num_threads(1)
    cv2.setNumThreads(1)


def _predict(condition: Condition, split: str, index: int, replay: ReplayConfig) -> Seen:
    segmenter, detector = _models()
    truth, image = _shown(condition, split, index)
    return Seen(
        condition,
        index,
        truth,
        image,
        segmenter.predict(image, replay, paired=True),
        detector.predict(image, replay, paired=True),
    )


@lru_cache(maxsize=1000)  # a search over settings asks again and again
def _shown(condition: Condition, split: str, index: int) -> tuple[Scene, NDArray[np.uint8]]:
    truth = scene(index, SIZE, split)
    return truth, condition.show(truth.image, f"{split}-{index}")


@cache
def _models() -> tuple[Segmenter, DenseDetector]:
    tiny = load_tiny()
    segmenter = Segmenter(tiny.segmentor(), SegmentConfig(mode="whole", short_side=SIZE))
    return segmenter, DenseDetector(tiny.backbone, tiny.detect, tiny.segment.taps[-1])


def _truth(each: Sequence[Scene]) -> Truth:
    return Truth(
        images=range(len(each)),
        categories=range(1, len(THINGS) + 1),
        image_ids=np.repeat(range(len(each)), [len(true.boxes) for true in each]),
        boxes=np.concatenate([true.boxes for true in each]),
        labels=np.concatenate([true.categories for true in each]) + 1,
        areas=np.concatenate([true.masks.sum((1, 2)) for true in each]),
        crowd=np.zeros(sum(len(true.boxes) for true in each), dtype=np.bool_),
    )


def _mean_of(deltas: Sequence[Delta]) -> Delta:
    def delta(weights: Weights) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = np.mean([each(weights) for each in deltas], axis=0)
        return mean

    return delta
