"""Predictions of single images side by side, a row for each image, from what an evaluation kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gramloop.data.records import Record, refuse_change
from gramloop.data.suites import Condition
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Unit, condition_of
from gramloop.evaluate.rows import CLEAN_PREFIX, maps_of
from gramloop.evaluate.store import Store, UnusableFile
from gramloop.report.figures.diagnostic import Diagnosed
from gramloop.report.run import Run
from gramloop.tasks.base import AnyTask
from gramloop.tasks.detection import PICTURE_SCORE, Detection
from gramloop.tasks.prediction import Changes, DrawStyle, Prediction, mark_changes
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
    signed_difference,
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
        self.task.draw(panels[2], self.image, self.predictions[0], style)
        for panel, prediction, each in zip(panels[3:], self.predictions[1:], changes, strict=True):
            self.task.draw(panel, self.image, prediction, style)
            mark_changes(panel, each)
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
    drawn = [one if one != after else () for one, after in zip(legends, [*legends[1:], None], strict=True)]
    below = [
        0.06 + LEGEND_LINE * len(legend_lines(each, FULL)) for each in drawn
    ]  # one for rows that share it
    sheet = Sheet(FULL, _HEAD + sum(heights) + sum(below) + _TITLE * len(rows))
    left = [_EDGE + column * (width + _GAP) for column in range(len(columns))]
    for x, name in zip(left, columns, strict=True):
        sheet.text(x + width / 2, 0.03, name, ha="center", fontweight="bold")
    top = _HEAD
    for row, style, tall, legend, space in zip(rows, styles, heights, drawn, below, strict=True):
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


_MOST_ROWS = 6
Key = TypeVar("Key")


@dataclass(frozen=True)
class KeptImage:
    """One image of an evaluation under one condition, with a stored row for every method."""

    run: Run
    condition: Condition
    position: int
    image_id: str
    rows: Mapping[str, Mapping[str, Any]]  # method: row

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"{self.condition.display_name} · image {self.image_id}"

    def is_called(self, condition: str, image: str) -> bool:
        """Whether a reader means it, by the image's id or position."""
        return self.condition.key == condition and image in (self.image_id, str(self.position))

    def gain(self, method: str) -> float:
        """What a method gains over the baseline on it."""
        score, classes = self.run.task.image_score, self.run.plan.classes
        return score(self.rows[method], classes) - score(self.rows[BASELINE], classes)

    def record(self) -> Record:
        """The image with its truth; an error if the set is gone or is another."""
        key = self.condition.key
        record = self.run.data.data(key)[self.position]
        if str(record.image_id) != self.image_id:
            raise GramLoopError(
                f"image {self.position} of {key} is {record.image_id} now, and was {self.image_id}"
            )
        refuse_change(record)
        return record

    def diagnosed(self, method: str, label: str) -> Diagnosed:
        """A row of the diagnostic figure; the image must keep the method's maps."""
        maps = maps_of(self.rows[method])
        assert maps is not None
        return Diagnosed(label, self.record().image(), maps.last_drift, maps.last_gate, maps.post_drift)

    def compared(self, methods: Sequence[str], title: str) -> ComparedImage:
        """A row of the figure of predictions."""
        plan, task, record = self.run.plan, self.run.task, self.record()
        names = (BASELINE, *methods)
        found = [each for name in names if (each := task.decode(self.rows[name])) is not None]
        if plan.label_free:
            truth = task.decode(self.rows[methods[0]], f"{CLEAN_PREFIX}picture")
        else:
            truth = task.as_prediction(task.read_truth(record))
        if truth is None or len(found) < len(names):
            raise GramLoopError(f"image {self.image_id} of {self.condition} keeps no picture")
        return ComparedImage(title, record.image(), task, truth, tuple(found), plan.categories)


def kept_images(run: Run, names: Sequence[str], only: str = "*") -> list[KeptImage]:
    """The images that keep a prediction of the baseline and of these methods, condition after condition.

    Args:
        run: the evaluation.
        names: of methods.
        only: a condition's key, or a pattern such as */5.
    """
    store, found, keep = Store(run.folder, run.plan), [], frozenset(run.plan.keep)
    methods = [each for each in run.plan.methods if each.name in (BASELINE, *names)]
    for key in run.plan.conditions:
        if not fnmatchcase(key, only):
            continue
        try:
            parts = [
                part
                for part in run.plan.parts_of(key)
                if part.images[0] < run.plan.pictures
                or (keep and not keep.isdisjoint(store.image_ids(Unit(key, methods[0], part.images))))
            ]
            rows = {
                each.name: store.rows([Unit(key, each, part.images) for part in parts]) if parts else None
                for each in methods
            }
        except UnusableFile:
            continue  # the report warns of it elsewhere
        kept = {
            name: {row["position"]: row for row in each.first(run.plan.pictures, keep)}
            for name, each in rows.items()
            if each is not None
        }
        if len(kept) < len(methods):
            continue
        for position in sorted(set.intersection(*(set(each) for each in kept.values()))):
            named = {name: each[position] for name, each in kept.items()}
            found.append(KeptImage(run, condition_of(key), position, named[BASELINE]["image_id"], named))
    return found


def prediction_figures(
    run: Run, methods: Sequence[str], kept: Sequence[KeptImage], chosen: Sequence[KeptImage]
) -> Iterator[tuple[str, CaptionedFigure]]:
    """Baseline and methods in the images that the reader chose, or in the best, the worst and a typical one of the first."""
    if run.changes_only:
        return
    pairs = [(image, "chosen by the reader") for image in {each.place: each for each in chosen}.values()]
    if not pairs:
        shifted = [image for image in kept if image.condition.name != "clean"] or list(kept)
        gains = {index: image.gain(methods[0]) for index, image in enumerate(shifted)}
        unit = f"points of {run.task.metrics[0]}" + " with the clean prediction" * run.plan.label_free
        pairs = [(shifted[index], why) for index, why in choose(gains, unit).items()]
    rows = [image.compared(methods, f"{why} · {image.place}") for image, why in pairs[:_MOST_ROWS]]
    if rows:
        truth = "clean prediction" if run.plan.label_free else "annotation"
        title = f"Predictions of {', '.join((BASELINE, *methods[:-1]))} and {methods[-1]}"
        drawn = qualitative(rows, title, (BASELINE, *methods), truth)
        yield f"{run.key}-predictions", drawn.of(run.name)


def choose(gains: Mapping[Key, float], unit: str) -> dict[Key, str]:
    """From gains by image: the largest gain, the largest loss and the median, with the words that say so.

    Of equal gains the first is taken. An image is shown once, under the first name that fits it.
    """
    finite = {key: gain for key, gain in gains.items() if np.isfinite(gain)}
    if not finite:
        return {}
    keys, values = list(finite), np.array(list(finite.values()))
    among = f"of {len(keys)} images kept" if len(keys) > 1 else "the one image kept"
    picks = [
        (int(values.argmax()), "largest gain" if values.max() > 0 else "smallest loss"),
        (int(values.argmin()), "largest loss" if values.min() < 0 else "smallest gain"),
        (int(np.abs(values - float(np.median(values))).argmin()), "typical (median)"),
    ]
    chosen: dict[Key, str] = {}
    for index, name in picks:
        words = f"{name} {among}, {signed_difference(float(values[index]), 1)} {unit}"
        chosen.setdefault(keys[index], words)
    return chosen


def parse_exemplar(text: str) -> tuple[str, str]:
    """An image named by the reader, ``CONDITION:IMAGE`` such as ``fog/3:scene-0007``."""
    condition, colon, image = text.partition(":")
    if not colon or not condition or not image:
        raise GramLoopError(f"an exemplar is CONDITION:IMAGE, such as fog/3:17, not {text!r}")
    return condition, image
