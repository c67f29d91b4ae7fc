"""Three images of the demonstration, predicted once more in every way: the largest gain, the median, the largest loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import Image8
from gramloop.data.scenes.drawing import Scene, scene
from gramloop.demo.experiment import SPLIT, Experiment, PlannedEvaluation
from gramloop.demo.methods import FREE, ORDINARY, ways
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.provenance import PlannedImages, plan_subject
from gramloop.evaluate.runner import Runner
from gramloop.evaluate.store import Store, read_condition
from gramloop.tasks.base import Rows
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation


@dataclass(frozen=True)
class Exemplar:
    """One shifted scene, predicted by all methods, and why it was chosen."""

    kind: str  # "largest gain"
    condition: str  # "fog 3"
    gain: float  # percentage points of labelled pixels that the free mitigation gets right in addition
    truth: Scene
    image: NDArray[np.uint8]  # (H, W, 3)
    segmentation: Mapping[str, Segmentation]  # by the way to predict
    detection: Mapping[str, Detection]
    depth: Mapping[str, Depth]


def exemplars(experiment: Experiment) -> list[Exemplar]:
    """The images, in that order; segmentation decides which they are."""
    part = experiment.segmentation
    gains = accuracy_gains(part)
    places = sorted(gains, key=lambda place: gains[place])
    chosen = {"largest gain": places[-1], "median": places[len(places) // 2], "largest loss": places[0]}
    images = PlannedImages(part.plan)
    plans = [each.plan for each in (part, experiment.detection, experiment.depth)]
    runners = [Runner(plan_subject(plan)) for plan in plans]
    found = []
    for kind, (key, position) in chosen.items():
        image = images.data(key)[position].image()
        maps, boxes, metres = (
            _predicted(plan, runner, image) for plan, runner in zip(plans, runners, strict=True)
        )
        found.append(
            Exemplar(
                kind,
                condition_of(key).display_name,
                gains[key, position],
                scene(position, image.shape[0], SPLIT),
                image,
                cast("Mapping[str, Segmentation]", maps),
                cast("Mapping[str, Detection]", boxes),
                cast("Mapping[str, Depth]", metres),
            )
        )
    return found


def _predicted(plan: Plan, runner: Runner, image: Image8) -> dict[str, Prediction]:
    """All predictions, to the bit what was stored, with what the replay measured."""
    found = runner.predict(image, plan.methods)
    return {way: found[method] for way, method in ways(plan.task).items()}


def accuracy_gains(part: PlannedEvaluation) -> dict[tuple[str, int], float]:
    """By condition and position: how many more of an image's labelled pixels are right, in percent."""
    store, names = Store(part.folder, part.plan), ways(part.plan.task)
    gains = {}
    for key in part.plan.conditions:
        stored = read_condition(store, key)
        assert stored is not None
        ordinary, changed = (_right_and_labelled(stored.methods[names[way]].rows) for way in (ORDINARY, FREE))
        for position, (before, after) in enumerate(zip(ordinary, changed, strict=True)):  # (2,) each
            gains[key, position] = float(100 * (after[0] - before[0]) / before[1])
    return gains


def _right_and_labelled(rows: Rows) -> NDArray[np.int64]:  # → (images, 2)
    """Pixels that are right, and pixels that are labelled, of every image."""
    return np.stack([rows.matrix(name).sum(axis=1) for name in ("intersection", "label")], axis=1)
