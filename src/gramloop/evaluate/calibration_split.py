"""The clean images that calibration statistics are learnt from where methods need some and none are given.

They are never judged: images of the set beyond those asked for; where there are too few of these, images held out of
the set; for drawn scenes, scenes of a split of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from gramloop.data.checks import with_contents
from gramloop.data.opening import OpenSuite
from gramloop.data.records import DataSet, Image8, LabelledImage, Record
from gramloop.data.scenes.drawing import RECIPE, scene
from gramloop.data.scenes.files import SUITE
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import CalibrationSplit, Plan
from gramloop.mitigations.calibration import (
    MIN_IMAGES,
    SPLIT_IMAGES,
    CalibrationStats,
    calibrate,
    split_for_calibration,
)
from gramloop.tasks.base import read_labelled
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor

CALIBRATION = "calibration.safetensors"  # in the results folder
SCENE_SPLIT = "calibration"  # of drawn scenes


def choose_split(opened: OpenSuite, images: int | None) -> CalibrationSplit:
    """The calibration split of a suite of which the first ``images`` are to be judged."""
    data = _clean_set(opened)
    if opened.suite.base == SUITE:
        side = data[0].height
        recipe = f"{SPLIT_IMAGES} scenes {RECIPE} {side} {SCENE_SPLIT}"
        return CalibrationSplit((), hashlib.sha256(recipe.encode()).hexdigest(), side)
    judged = len(data) if images is None else min(images, len(data))
    rest = len(data) - judged
    first, share = (judged, 1.0) if rest >= MIN_IMAGES else (0, 0.5)
    chosen, _ = split_for_calibration([str(one.image_id) for one in data[first:]], share=share)
    positions = tuple(first + place for place in chosen)
    return CalibrationSplit(positions, _contents(data, positions))


def hold_out(opened: OpenSuite, split: CalibrationSplit | None, images: int | None) -> OpenSuite:
    """The suite without the images of its calibration split, where the first ``images`` of the rest are judged."""
    if split is None or not split.positions or (images is not None and min(split.positions) >= images):
        return opened
    data, held = _clean_set(opened), set(split.positions)
    left = replace(data, records=tuple(one for place, one in enumerate(data) if place not in held))
    if opened.clean is not None:
        return replace(opened, clean=left)
    return replace(opened, ready=dict.fromkeys(opened.ready, left))


def learn_stats(
    plan: Plan, folder: Path | None, predictor: Predictor[Prediction], opened: OpenSuite
) -> CalibrationStats:
    """The statistics of a plan's calibration split; the first process learns them, and the folder keeps them.

    Args:
        plan: has a calibration split.
        folder: of the results; without one nothing is kept.
        predictor: the plan's model.
        opened: the suite from which nothing is held out yet.
    """
    if folder is None:
        return calibrate(predictor, _pixels(plan, opened))
    path = folder / CALIBRATION
    if not path.is_file():
        with FileLock(path.with_suffix(".lock")):
            if not path.is_file():
                calibrate(predictor, _pixels(plan, opened)).save(path)
    return CalibrationStats.read(path)


def _pixels(plan: Plan, opened: OpenSuite) -> list[Image8]:
    found = []
    for record in _records(plan.calibration_split, opened):
        read = read_labelled(record, plan.task, labels=False)
        if isinstance(read, str):
            raise GramLoopError(f"an image to calibrate on cannot be used: {read}")
        found.append(read.pixels)
    return found


def _records(split: CalibrationSplit | None, opened: OpenSuite) -> Sequence[Record | LabelledImage]:
    if split is None or not split.positions:
        side = 0 if split is None else split.side
        scenes = [scene(index, side, SCENE_SPLIT) for index in range(SPLIT_IMAGES)]
        return [LabelledImage(f"scene {index}", one.image, None) for index, one in enumerate(scenes)]
    data = _clean_set(opened)
    if max(split.positions) >= len(data) or _contents(data, split.positions) != split.contents:
        raise GramLoopError(
            f"the images in {data.root} that calibration statistics are learnt from changed since the evaluation was "
            "planned; put them back, or choose another folder for the results"
        )
    return [data[position] for position in split.positions]


def _clean_set(opened: OpenSuite) -> DataSet:
    """The clean images of a suite, which alone are in distribution."""
    if opened.clean is not None:
        return opened.clean
    if opened.suite.kind == "clean":
        return next(iter(opened.ready.values()))
    raise GramLoopError(
        f"{opened.root} holds no clean images to learn calibration statistics from; learn them from others "
        f"(gramloop calibrate, at least {MIN_IMAGES} in-distribution images) and give --calibration FILE"
    )


def _contents(data: DataSet, positions: Sequence[int]) -> str:
    held = replace(data, records=tuple(data[position] for position in positions))
    return with_contents(held, len(held))[1]
