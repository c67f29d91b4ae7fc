"""Images with their predictions side by side: input, truth and every method, one row per image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.tasks.base import AnyTask
from gramloop.tasks.detection import PICTURE_SCORE, Detection
from gramloop.tasks.prediction import Changes, DrawStyle, Prediction, mark_outlines
from gramloop.tasks.semantic import Segmentation
from gramloop.util.plotting import (
    FULL,
    LEGEND_LINE,
    CaptionedFigure,
    Legend,
    Sheet,
    legend_lines,
    photograph,
    shrunk,
    styled,
)

_GAP, _HEAD, _TITLE, _EDGE = 0.06, 0.17, 0.17, 0.02  # inches
_TALLEST = 1.35  # of a panel's width


@dataclass(frozen=True)
class ComparedImage:
    """One image with its truth and the predictions of several methods, the baseline first."""

    title: str
    image: NDArray[np.uint8]  # (H, W, 3)
    task: AnyTask
    truth: Prediction
    predictions: tuple[Prediction, ...]
    classes: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = self.image.shape[:2]
        for each in (self.truth, *self.predictions):
            if (own := tuple(self.task.size(each, size))) != size:
                raise GramLoopError(f"a prediction of {self.title!r} is {own}, unlike its image {size}")

    def part(self, crop: tuple[int, int, int, int] | None, categories: Sequence[str] = ()) -> ComparedImage:
        """A part of it: boxes count where their centres lie inside the crop and their categories are listed.

        Args:
            crop: left, top, right and bottom in pixels; None for the whole image.
            categories: names of classes; all by default.
        """
        height, width = self.image.shape[:2]
        left, top, right, bottom = crop or (0, 0, width, height)
        if not (0 <= left < right <= width and 0 <= top < bottom <= height):
            raise GramLoopError(
                f"the crop {crop} does not lie in {self.title!r}, which is {width} x {height}"
            )
        if strangers := [name for name in categories if name not in self.classes.values()]:
            raise GramLoopError(
                f"there is no category {strangers[0]!r}; {self.title!r} has {', '.join(self.classes.values())}"
            )
        numbers = [number for number, name in self.classes.items() if not categories or name in categories]
        place = (left, top, right, bottom)
        return replace(
            self,
            image=self.image[top:bottom, left:right],
            truth=_part(self.truth, place, numbers),
            predictions=tuple(_part(each, place, numbers) for each in self.predictions),
        )

    def style(self, known: Mapping[int, str] | None = None) -> DrawStyle:
        """What all panels share."""
        return self.task.style([self.truth, *self.predictions], self.classes, PICTURE_SCORE, known or {})

    def changes(self, style: DrawStyle) -> list[Changes]:
        """What each further method changes of the baseline."""
        first, *others = self.predictions
        return [self.task.changes(first, each, self.truth, style) for each in others]

    def legend(self, style: DrawStyle) -> Legend:
        """What colours stand for."""
        changes = self.changes(style)
        return (*self.task.legend(style), *(changes[0].legend if len(changes) == 1 else ()))

    def draw(self, panels: Sequence[Any], style: DrawStyle) -> Legend:
        """Draw input, truth and predictions into panels; returns what colours stand for."""
        changes = self.changes(style)
        photograph(panels[0], shrunk(self.image), self.image.shape)
        self.task.draw(panels[1], self.image, self.truth, style)
        before = changes[0].colours[0] if changes else ()
        self.task.draw(panels[2], self.image, self.predictions[0], style, before)
        for panel, prediction, each in zip(panels[3:], self.predictions[1:], changes, strict=True):
            self.task.draw(panel, self.image, prediction, style, each.colours[1])
            mark_outlines(panel, each)
        return self.legend(style)


def _part(found: Prediction, crop: tuple[int, int, int, int], numbers: Sequence[int]) -> Prediction:
    left, top, right, bottom = crop
    if isinstance(found, Segmentation):
        return replace(found, labels=found.labels[top:bottom, left:right], scores=None)
    if not isinstance(found, Detection):
        raise GramLoopError("only segmentations and detections can be cropped")
    x, y = found.boxes[:, ::2].mean(axis=1), found.boxes[:, 1::2].mean(axis=1)
    inside = (x >= left) & (x < right) & (y >= top) & (y < bottom) & np.isin(found.labels, numbers)
    boxes = found.boxes[inside] - np.array([left, top, left, top], dtype=found.boxes.dtype)
    return replace(found, boxes=boxes, scores=found.scores[inside], labels=found.labels[inside])


def qualitative(
    rows: Sequence[ComparedImage],
    title: str = "Predictions",
    methods: Sequence[str] = ("baseline", "gramloop"),
    truth: str = "annotation",
) -> CaptionedFigure:
    """The figure: a row of panels for each image; ``truth`` is what predictions are compared with."""
    if not rows:
        raise GramLoopError("a figure of predictions needs at least one image")
    with styled():
        return CaptionedFigure(_draw(rows, methods, truth), title, *_words(rows, methods, truth))


def _draw(rows: Sequence[ComparedImage], methods: Sequence[str], truth: str) -> Any:
    columns = ("input", truth, *methods)
    width = (FULL - (len(columns) - 1) * _GAP - 2 * _EDGE) / len(columns)
    heights = [width * min(row.image.shape[0] / row.image.shape[1], _TALLEST) for row in rows]
    styles: list[DrawStyle] = []
    known: dict[int, str] = {}
    for row in rows:  # a class keeps its colour from row to row, if it can
        styles.append(row.style(known))
        known = {**styles[-1].colours, **known}
    legends = [row.legend(style) for row, style in zip(rows, styles, strict=True)]
    shown = [one if one != after else () for one, after in zip(legends, [*legends[1:], None], strict=True)]
    below = [
        0.06 + LEGEND_LINE * len(legend_lines(each, FULL)) for each in shown
    ]  # one for rows that share it
    sheet = Sheet(FULL, _HEAD + sum(heights) + sum(below) + _TITLE * len(rows))
    left = [_EDGE + column * (width + _GAP) for column in range(len(columns))]
    for x, name in zip(left, columns, strict=True):
        sheet.text(x + width / 2, 0.03, name, ha="center", fontweight="bold")
    top = _HEAD
    for row, style, tall, legend, space in zip(rows, styles, heights, shown, below, strict=True):
        sheet.text(_EDGE, top + 0.045, row.title, fontsize=6.5)
        top += _TITLE
        row.draw([sheet.panel(x, top, width, tall) for x in left], style)
        sheet.legend(legend, top + tall + 0.03)
        top += tall + space
    return sheet.figure


def _words(rows: Sequence[ComparedImage], methods: Sequence[str], truth: str) -> tuple[str, str]:
    captions = dict.fromkeys(row.task.figure_caption for row in rows)
    names = {"truth": truth, "before": methods[0], "after": methods[-1]}
    columns = f"Columns: input, {truth}, {', '.join(methods)}; every row says why it was chosen."
    caption = " ".join([columns, *(each.format(**names) for each in captions)])
    gists = [
        f"{row.title}: {change.text}{f' by {method}' if len(methods) > 2 else ''}."
        for row in rows
        for method, change in zip(methods[1:], row.changes(row.style()), strict=True)
    ]
    return caption, " ".join([caption, *gists])
