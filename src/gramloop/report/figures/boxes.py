"""A row of detections: annotations dashed, and boxes coloured by what they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.patches import Patch
from numpy.typing import NDArray

from gramloop.report.figures.matching import Annotated, Region, Role, Roles, centred, roles, shown_boxes
from gramloop.report.figures.panels import draw_box, photograph, shrunk
from gramloop.report.figures.style import BLUE, GREEN, ORANGE, PLUM, RED
from gramloop.tasks.detection import Detection

_COLOURS: Mapping[Role, str] = {"gained": GREEN, "lost": PLUM, "false": RED}
_BASELINE, _METHOD = BLUE, ORANGE
_MOST = 40  # boxes in one panel; beyond that the eye sees none of them


@dataclass(frozen=True)
class DetectionRow:
    """One image with annotated and predicted boxes; a crop and categories narrow what all four panels show."""

    title: str
    image: NDArray[np.uint8]  # (H, W, 3)
    truth: Annotated
    baseline: Detection
    method: Detection
    names: Mapping[int, str] = field(default_factory=dict)
    crop: Region | None = None
    categories: frozenset[int] | None = None

    @property
    def view(self) -> Region:
        """What the panels show, in pixels."""
        return self.crop or (0.0, 0.0, float(self.image.shape[1]), float(self.image.shape[0]))

    def annotations(self) -> Annotated:
        """The annotations that the panels show."""
        keep = centred(self.truth.boxes, self.view)
        if self.categories is not None:
            keep &= np.isin(self.truth.labels, sorted(self.categories))
        return Annotated(self.truth.boxes[keep], self.truth.labels[keep])

    def predictions(self) -> tuple[Detection, Detection]:
        """The predictions that the panels show, by falling score."""
        first, second = (
            shown_boxes(each, crop=self.crop, categories=self.categories)
            for each in (self.baseline, self.method)
        )
        return first, second

    def roles(self) -> Roles:
        """What each of them is."""
        return roles(*self.predictions(), self.annotations())


def draw_detection(panels: Sequence[Any], row: DetectionRow) -> None:
    """Input, annotation, baseline and method in four panels of one view."""
    left, top, right, bottom = row.view
    for panel in panels:
        photograph(panel, shrunk(row.image, 1024), high=(row.image.shape[0], row.image.shape[1]))
        panel.set_xlim(left, right)
        panel.set_ylim(bottom, top)
    annotations, given = row.annotations(), row.roles()
    for box, label in zip(annotations.boxes, annotations.labels.tolist(), strict=True):
        draw_box(panels[1], box, GREEN, _name(row, label), dashed=True)
    for panel, found, kinds, own in zip(
        panels[2:], row.predictions(), (given.baseline, given.method), (_BASELINE, _METHOD), strict=True
    ):
        drawn = list(zip(found.boxes, found.scores, found.labels.tolist(), kinds, strict=True))[:_MOST]
        for box, score, label, kind in reversed(drawn):  # the surest on top
            draw_box(panel, box, _COLOURS.get(kind, own), f"{_name(row, label)} {score:.2f}")


def _name(row: DetectionRow, label: int) -> str:
    return row.names.get(label, f"class {label}")


def legend_of_boxes(methods: Sequence[str], truth: str = "annotation") -> list[Any]:
    """What the colours of boxes mean."""
    baseline, method = methods
    dashed = Patch(fill=False, edgecolor=GREEN, linestyle=(0, (2, 1)), label=truth)
    kinds = {
        f"only {method} recovers it": GREEN,
        f"{method} loses it": PLUM,
        "false, in one only": RED,
        f"other {baseline}": _BASELINE,
        f"other {method}": _METHOD,
    }
    return [
        dashed,
        *(Patch(fill=False, edgecolor=colour, linewidth=1.2, label=label) for label, colour in kinds.items()),
    ]


def gist_of_boxes(row: DetectionRow) -> str:
    """What the row shows, in a sentence."""
    given = row.roles()
    false = [sum(kind == "false" for kind in kinds) for kinds in (given.baseline, given.method)]
    return (
        f"{row.title}: of {len(row.annotations())} annotated objects {len(given.gained)} gained and "
        f"{len(given.lost)} lost; {false[0]} false boxes of the baseline gone, {false[1]} new."
    )
