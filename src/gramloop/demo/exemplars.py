"""Three images of the demonstration, predicted once more: the largest gain, the median and the largest loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gramloop.data.scenes.drawing import Scene, scene
from gramloop.demo.experiment import SPLIT, Experiment, PlannedEvaluation
from gramloop.evaluate.methods import BASELINE, GRAMLOOP
from gramloop.evaluate.plan import condition_of
from gramloop.evaluate.rows import counts_of
from gramloop.evaluate.session import deterministic
from gramloop.evaluate.sources import open_condition, open_planned
from gramloop.evaluate.store import Store
from gramloop.tasks.loading import depth_estimator_of, detector_of, segmenter_of
from gramloop.tasks.prediction import Depth, Detection, Pair, Segmentation


@dataclass(frozen=True)
class Exemplar:
    """One shifted scene, predicted by both methods, and why it was chosen."""

    kind: str  # "largest gain"
    condition: str  # "fog 3"
    gain: float  # percentage points of labelled pixels that the replay gets right in addition
    truth: Scene
    image: NDArray[np.uint8]  # (H, W, 3)
    segmentation: Pair[Segmentation]
    detection: Pair[Detection]
    depth: Pair[Depth]


def exemplars(experiment: Experiment) -> list[Exemplar]:
    """The images, in that order; segmentation decides which they are."""
    part = experiment.segmentation
    gains = accuracy_gains(part)
    places = sorted(gains, key=lambda place: gains[place])
    chosen = {"largest gain": places[-1], "median": places[len(places) // 2], "largest loss": places[0]}
    opened = open_planned(part.plan)
    models = [each.plan.model for each in (part, experiment.detection, experiment.depth)]
    seen = [(model.files, model.sizes, model.device) for model in models]
    segmenter, detector, estimator = (
        segmenter_of(*seen[0]),
        detector_of(*seen[1]),
        depth_estimator_of(*seen[2]),
    )
    found = []
    for kind, (key, position) in chosen.items():
        image = open_condition(part.plan, opened, key)[position].image()
        with deterministic(part.plan.model.threads):  # to the bit what was stored
            segmentation = segmenter.predict(image, part.replay, paired=True)
            detection = detector.predict(image, part.replay, paired=True)
            depth = estimator.predict(image, part.replay, paired=True)
        condition, truth = condition_of(key), scene(position, image.shape[0], SPLIT)
        pairs = (segmentation, detection, depth)
        found.append(Exemplar(kind, condition.display_name, gains[key, position], truth, image, *pairs))
    return found


def accuracy_gains(part: PlannedEvaluation) -> dict[tuple[str, int], float]:
    """By condition and position: how many more of an image's labelled pixels the replay gets right, in percent."""
    store = Store(part.folder, part.plan)
    gains = {}
    for key in part.plan.conditions:
        tables = [unit.table for each in part.plan.units_of(key) if (unit := store.read(each)) is not None]
        ordinary, replayed = (counts_of(tables, method).sum(axis=-1) for method in (BASELINE, GRAMLOOP))
        for position, (before, after) in enumerate(zip(ordinary, replayed, strict=True)):  # (3,) each
            gains[key, position] = float(100 * (after[0] - before[0]) / before[2])
    return gains
