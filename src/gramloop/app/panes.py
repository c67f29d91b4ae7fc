"""Pictures of an image and its predictions, one by one, so that a page can lay them out in any width.

The drawing is that of the report; here every panel is a figure by itself. Figures share matplotlib's settings, so one is
drawn at a time.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.app.trial import Outcome
from gramloop.report.figures.diagnostic import Diagnosed, diagnostic
from gramloop.report.figures.qualitative import ComparedImage
from gramloop.tasks.base import Categories, get_task
from gramloop.tasks.maps import per_patch
from gramloop.tasks.prediction import Prediction, ReplayMaps
from gramloop.util.plotting import CaptionedFigure, Legend, Sheet, shrunk, styled

DRAWING = Lock()
_WIDTH = 2.4  # inches of a pane
_TALLEST = 1.6  # of a pane's width


@dataclass(frozen=True)
class Pane:
    """One picture with its caption."""

    title: str
    png: bytes
    note: str = ""


@dataclass(frozen=True)
class Panes:
    """Pictures of one image, and what their colours mean."""

    panes: tuple[Pane, ...]
    legend: Legend = ()


def photo_pane(title: str, image: NDArray[np.uint8], note: str = "") -> Pane:
    """An image as it is."""
    buffer = io.BytesIO()
    Image.fromarray(shrunk(image)).save(buffer, format="png")
    return Pane(title, buffer.getvalue(), note)


def compared_panes(row: ComparedImage, truth: str, methods: tuple[str, ...]) -> Panes:
    """The input, what it is compared with, and all predictions."""
    height, width = row.image.shape[:2]
    tall = _WIDTH * min(max(height / width, 0.2), _TALLEST)
    style = row.style()
    with DRAWING, styled():
        sheets = [Sheet(_WIDTH, tall) for _ in range(2 + len(row.predictions))]
        legend = row.draw([sheet.panel(0, 0, _WIDTH, tall) for sheet in sheets], style)
        pngs = [CaptionedFigure(sheet.figure, "", "", "").png() for sheet in sheets]
    notes = ["", "", "", *(each.text for each in row.changes(style))]
    panes = zip(("input", truth, *methods), pngs, notes, strict=True)
    return Panes(tuple(Pane(*each) for each in panes), legend)


def maps_pane(maps: ReplayMaps, image: NDArray[np.uint8]) -> Pane:
    """Drift and gate of the last replay, as the report's diagnostic shows them."""
    drift, gate = per_patch(maps.drift, maps.cell), per_patch(maps.gate, maps.cell)
    post = None if maps.post_drift is None else per_patch(maps.post_drift[None], maps.cell)[0]
    with DRAWING:
        drawn = diagnostic([Diagnosed("this image", image, drift[-1], gate[-1], post)])
        return Pane("drift and gate", drawn.png(), drawn.caption)


# the outcome of a trial


@dataclass(frozen=True)
class Agreement:
    """How far predictions agree with that of the clean image, in percent; nan where there is nothing to compare."""

    metric: str
    baseline: float
    mitigated: float | None


def compared_image(outcome: Outcome) -> ComparedImage:
    """The image, the clean prediction in place of truth, the baseline and the mitigated prediction."""
    task = get_task(outcome.task)
    found = [outcome.ordinary.prediction] + ([] if outcome.treated is None else [outcome.treated.prediction])
    aligned = tuple(replace(_aligned(outcome, each), trace=None) for each in found)
    truth = task.as_prediction(outcome.truth)
    return ComparedImage("", outcome.shown.pixels, task, truth, aligned, _names(outcome))


def agreement_of(outcome: Outcome) -> Agreement:
    """The scores that the report gives single images, with the clean prediction in place of labels."""
    task = get_task(outcome.task)
    found = [outcome.ordinary.prediction] + ([] if outcome.treated is None else [outcome.treated.prediction])
    categories = Categories(_names(outcome, found))
    scores = [
        task.image_score(task.statistics(_aligned(outcome, each), outcome.truth, categories))
        for each in found
    ]
    return Agreement(task.image_metric, scores[0], scores[1] if len(scores) > 1 else None)


def _aligned(outcome: Outcome, prediction: Prediction) -> Prediction:
    task = get_task(outcome.task)
    aligned: Prediction = task.align(prediction, outcome.truth, "auto") if task.aligns else prediction
    return aligned


def _names(outcome: Outcome, found: list[Prediction] | None = None) -> dict[int, str]:
    """Classes by number, with those that were found, by their number where they have no name."""
    task, known = get_task(outcome.task), dict(outcome.opened.predictor.classes)
    numbers = {*known, *task.classes_in(task.as_prediction(outcome.truth))}
    for each in found or ():
        numbers |= task.classes_in(each)
    every = range(max(numbers, default=-1) + 1) if outcome.task == "semantic" else sorted(numbers)
    return {number: known.get(number) or f"class {number}" for number in every}
