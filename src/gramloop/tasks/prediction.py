"""What predictors return, in the size of the original image, and how predictions are drawn, alone and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import ImageLike, read_image
from gramloop.util.plotting import (
    CLASS_COLOURS,
    DRIFT_MAP,
    GATE_MAP,
    LEGEND_LINE,
    OTHER,
    CaptionedFigure,
    Legend,
    Sheet,
    draw_outline,
    draw_values,
    legend_lines,
    make_axes,
    photograph,
    pyplot,
    shrunk,
    styled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Colours = Mapping[int, str]  # of classes, by number
NO_COLOURS: Colours = MappingProxyType({})
NO_CLASS = -1  # of pixels without a class
_PANEL, _GAP, _HEAD = 2.3, 0.08, 0.2  # inches
_SCALE = 0.36  # inches of a colour bar with its words
_TALLEST = 1.7  # of a panel's width
_UNNAMED: Classes = MappingProxyType({})


@dataclass(frozen=True)
class ReplayMaps:
    """What each replay measured: over the resized image, averaged where crops overlap, or per patch.

    Every window of a detector is gated on its own, so values of different windows share a scale but not a median.
    """

    drift: NDArray[np.float32]  # (K, h, w), of each proposal
    gate: NDArray[np.float32]  # (K, h, w)
    post_drift: NDArray[np.float32] | None = None  # (h, w), of what was accepted in the end, where measured
    cell: int = 1  # entries along the side of a patch

    def cropped(self, height: int, width: int) -> ReplayMaps:
        """The maps of the upper left part."""
        part = np.s_[..., :height, :width]
        post = None if self.post_drift is None else self.post_drift[part]
        return replace(self, drift=self.drift[part], gate=self.gate[part], post_drift=post)


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
        shown = [f"{name} {each.shape}" for name, each in held.items() if isinstance(each, np.ndarray)]
        return f"{type(self).__name__}({', '.join([*shown, f'blocks {self.blocks}'])})"

    def plot(
        self,
        image: ImageLike | None = None,
        *,
        classes: Classes = _UNNAMED,
        threshold: float = 0.5,
        ax: Axes | None = None,
    ) -> Axes:
        """Draw the prediction; returns matplotlib's axes.

        Args:
            image: what was predicted, to draw over.
            classes: names by number, as ``predictor.classes`` has them.
            threshold: the least score of a box or mask that is drawn.
            ax: where to draw; a new figure where nothing is given.
        """
        from gramloop.tasks.base import task_of

        task, pixels = task_of(self), None if image is None else read_image(image)
        size = task.size(self, None if pixels is None else pixels.shape)
        if pixels is not None and size != pixels.shape[:2]:
            raise GramLoopError(
                f"the image has {pixels.shape[1]} x {pixels.shape[0]} pixels and the prediction {size[1]} x {size[0]}; give "
                "the image that was predicted"
            )
        canvas = np.full((*size, 3), 255, dtype=np.uint8) if pixels is None else pixels
        style = task.style([self], classes, threshold)
        ax = make_axes(ax, size)
        task.draw(ax, canvas, self, style)
        ax.set_aspect("equal")
        ax.set_title(task.describe(self, style), fontsize=10)
        if entries := task.legend(style):
            from matplotlib.patches import Patch

            handles = [Patch(color=colour, label=label) for colour, label in entries]
            ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, frameon=False)
        return ax


PredictionT = TypeVar("PredictionT", bound=Prediction)
PredictionT_co = TypeVar("PredictionT_co", bound=Prediction, covariant=True)


@dataclass(frozen=True)
class Pair(Generic[PredictionT_co]):
    """The baseline prediction (``ordinary``) and the replayed one of an image, which share the baseline pass."""

    ordinary: PredictionT_co
    replayed: PredictionT_co

    @property
    def blocks(self) -> int:
        """Transformer blocks executed per view, for both together."""
        return self.replayed.blocks

    def plot(
        self, image: ImageLike | None = None, *, classes: Classes = _UNNAMED, threshold: float = 0.5
    ) -> Any:
        """Draw both predictions side by side, as `Prediction.plot` does; returns matplotlib's axes, (2,)."""
        pixels = None if image is None else read_image(image)
        _, axes = pyplot().subplots(1, 2, figsize=(9.6, 4.5), layout="constrained")
        for ax, found, name in zip(
            axes, (self.ordinary, self.replayed), ("baseline", "replayed"), strict=True
        ):
            found.plot(pixels, classes=classes, threshold=threshold, ax=ax)
            ax.set_title(", ".join(filter(None, (name, ax.get_title()))), fontsize=10)
        return axes


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
    outlines: Sequence[
        tuple[NDArray[np.bool_], str]
    ] = ()  # regions (H, W) of the second panel, and their colours
    colours: tuple[Sequence[str], Sequence[str]] = ((), ())  # of the boxes in each panel
    legend: Legend = ()


def class_style(
    labels: Sequence[NDArray[Any]], classes: Classes, threshold: float, known: Colours
) -> DrawStyle:
    """The largest classes of some label maps, each with a colour; a class keeps one that is known, if it can."""
    flat = np.concatenate([each.ravel() for each in labels])
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
    return DrawStyle(
        classes, threshold, {label: own[label] for label in largest}, others=len(numbers) > len(largest)
    )


def draw_prediction(
    image: NDArray[np.uint8],
    baseline: Prediction,
    changed: Prediction | None,
    classes: Classes,
    threshold: float = 0.5,
    name: str = "replayed",
) -> bytes:
    """A picture as PNG: the input, both predictions, and the last replay's drift and gate where they are known.

    Args:
        image: What was predicted.
        baseline: The prediction of the plain model.
        changed: A second prediction of it.
        classes: Names by number.
        threshold: The least score of a box or mask that is drawn.
        name: What the second prediction is called.
    """
    from gramloop.tasks.base import task_of

    task, found = task_of(baseline), [each for each in (baseline, changed) if each is not None]
    style = task.style(found, classes, threshold)
    changes = Changes("") if changed is None else task.changes(baseline, changed, None, style)
    trace = None if changed is None else changed.trace
    legend = (*task.legend(style), *changes.legend)
    with styled():
        sheet, panels, below = _panels(image, 1 + len(found), trace is not None, legend)
        photograph(panels[0], shrunk(image)).set_title("input")
        drawn = zip(panels[1:], found, ("baseline", name), changes.colours, strict=False)
        for panel, each, title, colours in drawn:
            task.draw(panel, image, each, style, colours)
            panel.set_title(", ".join(filter(None, (title, task.describe(each, style)))))
        if changed is not None:
            panels[2].set_xlabel(changes.text, labelpad=2)
        if trace is not None:
            _draw_maps(sheet, panels[-2:], trace, below)
        sheet.legend(legend, below + _SCALE * (trace is not None))
        return CaptionedFigure(sheet.figure, "", "", "").png()


def _panels(
    image: NDArray[np.uint8], count: int, traced: bool, legend: Legend
) -> tuple[Sheet, list[Any], float]:
    """A sheet, its panels (two more for maps), and where they end in inches from the top."""
    count += 2 * traced
    tall = _PANEL * min(max(image.shape[0] / image.shape[1], 0.3), _TALLEST)
    below = LEGEND_LINE * len(legend_lines(legend, count * _PANEL)) + _SCALE * traced
    sheet = Sheet(count * (_PANEL + _GAP), _HEAD + tall + below + 0.06)
    lefts = [place * (_PANEL + _GAP) + _GAP / 2 for place in range(count)]
    return sheet, [sheet.panel(left, _HEAD, _PANEL, tall) for left in lefts], _HEAD + tall + 0.05


def _draw_maps(sheet: Sheet, panels: Sequence[Any], trace: ReplayMaps, top: float) -> None:
    drift, gate = trace.drift[-1], trace.gate[-1]
    high = float(np.nanpercentile(drift, 99)) or 1e-12
    shown = draw_values(panels[0], drift, DRIFT_MAP, high), draw_values(panels[1], gate, GATE_MAP, 1.0)
    panels[0].set_title(f"drift, mean {np.nanmean(drift):.1e}")
    panels[1].set_title(f"gate, mean {np.nanmean(gate):.2f}")
    for panel, each, label in zip(panels, shown, ("Gram drift", "gate"), strict=True):
        place = panel.get_position()
        left, width = place.x0 * sheet.width + 0.2, place.width * sheet.width - 0.4
        sheet.colour_bar(each, (left, top, width), label, beyond=label != "gate")


def mark_outlines(panel: Any, changes: Changes) -> None:
    """Outline in the second panel what changed."""
    for mask, colour in changes.outlines:
        draw_outline(panel, mask, colour)
