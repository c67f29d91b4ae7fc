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
from gramloop.evaluate.plan import condition_of
from gramloop.evaluate.predicting import deterministic, predict_all
from gramloop.evaluate.rows import counts_of
from gramloop.evaluate.session import Session
from gramloop.evaluate.sources import open_condition, open_planned
from gramloop.evaluate.store import Store
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
    opened = open_planned(part.plan)
    sessions = [Session(each.plan) for each in (part, experiment.detection, experiment.depth)]
    found = []
    for kind, (key, position) in chosen.items():
        image = open_condition(part.plan, opened, key)[position].image()
        maps, boxes, metres = (_predicted(session, image) for session in sessions)
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


def _predicted(session: Session, image: Image8) -> dict[str, Prediction]:
    """All predictions, to the bit what was stored, with what the replay measured."""
    plan = session.plan
    with deterministic(plan.model.threads):
        found = predict_all(session.predictor, image, plan.methods, None, mitigated=session.mitigated)
    return {way: found[method] for way, method in ways(plan.task).items()}


def accuracy_gains(part: PlannedEvaluation) -> dict[tuple[str, int], float]:
    """By condition and position: how many more of an image's labelled pixels are right, in percent."""
    store, names = Store(part.folder, part.plan), ways(part.plan.task)
    gains = {}
    for key in part.plan.conditions:
        tables = [unit.table for each in part.plan.units_of(key) if (unit := store.read(each)) is not None]
        ordinary, changed = (counts_of(tables, names[way]).sum(axis=-1) for way in (ORDINARY, FREE))
        for position, (before, after) in enumerate(zip(ordinary, changed, strict=True)):  # (3,) each
            gains[key, position] = float(100 * (after[0] - before[0]) / before[2])
    return gains
