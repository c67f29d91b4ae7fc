"""What predictors return, in the size of the original image, and how predictions are drawn, alone and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB, ImageLike, read_image
from gramloop.util.plotting import (
    CLASS_COLOURS,
    LEGEND_LINE,
    OTHER,
    Legend,
    Sheet,
    draw_box,
    draw_outline,
    draw_replay,
    legend_lines,
    photograph,
    pyplot,
    shrunk,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Colours = Mapping[int, str]  # of classes, by number
NO_COLOURS: Colours = MappingProxyType({})
NO_CLASS = -1  # of pixels without a class
_PANEL, _GAP, _HEAD = 2.3, 0.08, 0.2  # inches
_TALLEST = 1.7  # of a panel's width
_UNNAMED: Classes = MappingProxyType({})


@dataclass(frozen=True)
class ReplayMaps:
    """What each replay measured: over the resized image, averaged where crops overlap, or per patch.

    Every window of a detector is gated on its own, so values of different windows share a scale but not a median.
    """

    # (2K or 2K + 1, h, w): drift of K proposals, K gates, drift of what was accepted
    maps: NDArray[np.float32]
    cell: int = 1  # entries along the side of a patch

    @property
    def drift(self) -> NDArray[np.float32]:  # → (K, h, w)
        """Of each proposal."""
        return self.maps[: len(self.maps) // 2]

    @property
    def gate(self) -> NDArray[np.float32]:  # → (K, h, w)
        """Of each replay."""
        return self.maps[len(self.maps) // 2 : len(self.maps) // 2 * 2]

    @property
    def post_drift(self) -> NDArray[np.float32] | None:  # → (h, w)
        """Of what was accepted in the end, where it was measured."""
        return self.maps[-1] if len(self.maps) % 2 else None

    def cropped(self, height: int, width: int) -> ReplayMaps:
        """The maps of the upper left part."""
        return replace(self, maps=self.maps[..., :height, :width])


@dataclass(frozen=True, kw_only=True, repr=False)
class Prediction:
    """What predictions of every task have in common.

    blocks: transformer blocks executed per view of the image; the mean where an adaptive replay passes over some.
    trace: what the replay measured; only of a replayed prediction.
    """

    blocks: int = 1  # of a model without blocks: it ran once
    trace: ReplayMaps | None = None

    def __repr__(self) -> str:
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        shapes = [f"{name} {each.shape}" for name, each in held.items() if isinstance(each, np.ndarray)]
        return f"{type(self).__name__}({', '.join([*shapes, f'blocks {self.blocks}'])})"

    def plot(self, image: ImageLike, *, classes: Classes = _UNNAMED, threshold: float = 0.5) -> Figure:
        """Draw the prediction next to its image, with what a replay measured.

        Args:
            image: what was predicted.
            classes: names by number, as ``predictor.classes`` has them.
            threshold: the least score of a box or mask that is drawn.
        """
        return draw_predictions(read_image(image), {"": self}, classes, threshold)


PredictionT = TypeVar("PredictionT", bound=Prediction)
PredictionT_co = TypeVar("PredictionT_co", bound=Prediction, covariant=True)


@dataclass(frozen=True)
class Pair(Generic[PredictionT_co]):
    """The baseline prediction and the replayed one of an image, which share the baseline pass."""

    baseline: PredictionT_co
    replayed: PredictionT_co

    @property
    def blocks(self) -> int:
        """Transformer blocks executed per view, for both together."""
        return self.replayed.blocks

    def plot(self, image: ImageLike, *, classes: Classes = _UNNAMED, threshold: float = 0.5) -> Figure:
        """Draw both predictions side by side, as `Prediction.plot` does."""
        both = {"baseline": self.baseline, "replayed": self.replayed}
        return draw_predictions(read_image(image), both, classes, threshold)


@dataclass(frozen=True)
class DrawStyle:
    """What the panels of one image share, so that they can be compared."""

    classes: Classes = field(default_factory=dict)  # names
    threshold: float = 0.5  # the least score of a box or mask that is drawn
    colours: Colours = field(default_factory=dict)  # of the largest classes
    others: bool = False  # whether there are classes without a colour
    scale: tuple[float, float] = (0.0, 1.0)  # of depth
    unit: str = ""  # of that scale

    def name(self, label: int) -> str:
        """The name of a class, or its number."""
        return self.classes.get(label) or f"class {label}"

    def legend(self) -> list[tuple[str, str]]:
        """The colours of classes."""
        entries = [(colour, self.name(label)) for label, colour in self.colours.items()]
        return entries + ([(OTHER, "other classes")] if self.others else [])


@dataclass(frozen=True)
class Changes:
    """What one prediction changes of another, to be marked in their panels."""

    text: str  # in a few words
    # regions (H, W) of the second panel, and their colours
    outlines: Sequence[tuple[NDArray[np.bool_], str]] = ()
    boxes: Sequence[tuple[NDArray[np.float32], str]] = ()  # left, top, right, bottom, and their colours
    legend: Legend = ()


def class_style(
    labels: Sequence[NDArray[Any]], classes: Classes, threshold: float, known: Colours
) -> DrawStyle:
    """The largest classes of some label maps, each with a colour; a class keeps one that is known, if it can."""
    flat = np.concatenate([np.zeros(0, np.int64), *(each.ravel() for each in labels)])
    numbers, counts = np.unique(flat[flat != NO_CLASS], return_counts=True)
    largest = numbers[np.argsort(-counts, kind="stable")][: len(CLASS_COLOURS)].tolist()
    own: dict[int, str] = {}
    for label in largest:
        if label in known and known[label] not in own.values():
            own[label] = known[label]
    for label in largest:
        if label not in own:
            free = [colour for colour in CLASS_COLOURS if colour not in own.values()]
            own[label] = next((colour for colour in free if colour not in known.values()), free[0])
    colours = {label: own[label] for label in largest}
    return DrawStyle(classes, threshold, colours, others=len(numbers) > len(largest))


def draw_predictions(
    image: RGB,
    predictions: Mapping[str, Prediction],
    classes: Classes = _UNNAMED,
    threshold: float = 0.5,
    style: DrawStyle | None = None,
) -> Figure:
    """An image, predictions of one task by name, and the last one's drift and gate where they are known.

    Boxes and masks below ``threshold`` are not drawn; ``style`` holds colours that other pictures share.
    """
    from gramloop.tasks.base import task_of

    pyplot()
    found = list(predictions.values())
    task, trace = task_of(found[0]), found[-1].trace
    style = style or task.style(found, classes, threshold)
    changes = [task.changes(before, after, None, style).text for before, after in pairwise(found)]
    legend = task.legend(style)
    count = 1 + len(found) + (0 if trace is None else 2)
    tall = _PANEL * min(max(image.shape[0] / image.shape[1], 0.3), _TALLEST)
    below, scales = _HEAD + tall + 0.17, 0.0 if trace is None else 0.36
    with styled():
        lines = len(legend_lines(legend, count * _PANEL))
        sheet = Sheet(count * (_PANEL + _GAP), below + scales + LEGEND_LINE * lines)
        lefts = [place * (_PANEL + _GAP) + _GAP / 2 for place in range(count)]
        panels = [sheet.panel(left, _HEAD, _PANEL, tall) for left in lefts]
        photograph(panels[0], shrunk(image)).set_title("input")
        for panel, (name, each), text in zip(panels[1:], predictions.items(), ["", *changes], strict=False):
            task.draw(panel, image, each, style)
            panel.set_title(", ".join(filter(None, (name, task.describe(each, style)))))
            panel.set_xlabel(text, labelpad=2)
        if trace is not None:
            draw_replay(sheet, panels[-2:], [trace.drift[-1], trace.gate[-1]], below)
        sheet.legend(legend, below + scales)
        return sheet.figure


def mark_changes(panel: Any, changes: Changes) -> None:
    """Outline in the second panel what changed."""
    for mask, colour in changes.outlines:
        draw_outline(panel, mask, colour)
    for box, colour in changes.boxes:
        draw_box(panel, box, colour, "")
