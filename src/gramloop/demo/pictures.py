"""The demonstration's picture: three scenes with their annotations and the predictions of every task, in four ways."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

import numpy as np

from gramloop.data.scenes.drawing import CLASSES, THINGS
from gramloop.data.truth import DepthMap
from gramloop.demo.exemplars import Exemplar
from gramloop.demo.methods import CHANGED, ORDINARY
from gramloop.report.figures.qualitative import ComparedImage, qualitative
from gramloop.tasks.base import get_task
from gramloop.tasks.detection import Detection
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation
from gramloop.util.plotting import CaptionedFigure, signed_difference

_WAYS = (ORDINARY, *CHANGED)


def draw(rows: Sequence[Exemplar]) -> CaptionedFigure:
    """The picture, with what each method alone gets right and wrong outlined."""
    return qualitative([each for row in rows for each in _compared(row)], "Three scenes", _WAYS)


def _compared(seen: Exemplar) -> list[ComparedImage]:
    corners = np.asarray(seen.truth.boxes, dtype=np.float32).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    objects = np.array(seen.truth.categories, dtype=np.int64) + 1
    truths: dict[str, Prediction] = {
        "semantic": Segmentation(seen.truth.labels.astype(np.int32) - 1),
        "detection": Detection(corners, np.full(len(corners), np.nan, np.float32), objects),
        "depth": get_task("depth").as_prediction(DepthMap(seen.truth.depth)),
    }
    found = {"semantic": seen.segmentation, "detection": seen.detection, "depth": seen.depth}
    classes = {"semantic": dict(enumerate(CLASSES)), "detection": dict(enumerate(THINGS, start=1))}
    title = f"{seen.condition}, {seen.kind}: {signed_difference(seen.gain, 1)} pp"
    return [
        ComparedImage(
            f"{title} · {get_task(name).title}",
            seen.image,
            get_task(name),
            truth,
            tuple(found[name][way] for way in _WAYS),
            classes.get(name, MappingProxyType({})),
        )
        for name, truth in truths.items()
    ]
