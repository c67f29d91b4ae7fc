"""One picture per image: the input, both predictions, and where the replay drifted and was trusted.

Maps have colours whose lightness alone tells the value.
"""

from __future__ import annotations

import io
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.drawing import (
    CHANGED,
    MOST_BOXES,
    OTHER_COLOUR,
    SAME,
    blend,
    box_count,
    class_colours,
    class_name,
    draw_boxes,
    paint_segments,
    resize_labels,
    segment_classes,
    segment_words,
    segments_of,
    take_boxes,
)
from gramloop.tasks.images import RGB
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation

_LONGEST_SIDE = 640  # pixels of one pane; the picture is for looking, the numbers are in the other file


def draw_prediction(
    image: RGB,
    ordinary: Prediction,
    replayed: Prediction | None,
    classes: Classes,
    threshold: float = 0.5,
    name: str = "replayed",
) -> bytes:
    """The picture of a prediction as PNG; boxes are drawn that score at least ``threshold``.

    ``name`` is what the second prediction is called.
    """
    if isinstance(ordinary, Segmentation) and isinstance(replayed, Segmentation | None):
        return draw_segmentation(image, ordinary, replayed, classes, name)
    if isinstance(ordinary, Detection) and isinstance(replayed, Detection | None):
        return draw_detections(image, ordinary, replayed, classes, threshold, name)
    if isinstance(ordinary, Depth) and isinstance(replayed, Depth | None):
        return draw_depth(image, ordinary, replayed, name)
    for kind in (Panoptic, InstanceMasks):
        if isinstance(ordinary, kind) and isinstance(replayed, kind | None):
            return draw_segments(image, ordinary, replayed, classes, threshold, name)
    raise GramLoopError(f"there is no picture of a {type(ordinary).__name__}")


def draw_segmentation(
    image: RGB,
    ordinary: Segmentation,
    replayed: Segmentation | None = None,
    classes: Classes = MappingProxyType({}),
    name: str = "replayed",
) -> bytes:
    """The picture of a segmentation as PNG."""
    small = _shrink(image)
    versions = [each.labels for each in (ordinary, replayed) if each is not None]
    colours = class_colours(versions)
    figure, panes = _panes(small, len(versions), replayed)
    for pane, labels, title in zip(panes[1:], versions, ("ordinary", name), strict=False):
        _show(pane, blend(small, resize_labels(labels, small.size), colours), title)
    if replayed is not None:
        changed = (ordinary.labels != replayed.labels).mean()
        panes[2].set_title(f"{name}  ({changed:.1%} of pixels changed)", fontsize=10)
    handles = [Patch(color=colour, label=class_name(label, classes)) for label, colour in colours.items()]
    if len(np.unique(np.stack(versions))) > len(colours):
        handles.append(Patch(color=OTHER_COLOUR, label="other classes"))
    return _finish(figure, handles)


def draw_detections(
    image: RGB,
    ordinary: Detection,
    replayed: Detection | None = None,
    classes: Classes = MappingProxyType({}),
    threshold: float = 0.5,
    name: str = "replayed",
) -> bytes:
    """The picture of detections as PNG: the best boxes that score at least ``threshold``.

    A box is blue when the other prediction has one of the same class with an overlap of at least one half,
    and orange when it has none.
    """
    small = _shrink(image)
    scale = np.array([small.width / image.shape[1], small.height / image.shape[0]] * 2)
    kept = [take_boxes(each, each.scores >= threshold) for each in (ordinary, replayed) if each is not None]
    figure, panes = _panes(small, len(kept), replayed)
    for index, (found, title) in enumerate(zip(kept, ("ordinary", name), strict=False)):
        pane = panes[1 + index]
        drawn = take_boxes(found, np.argsort(-found.scores, kind="stable")[:MOST_BOXES])
        _show(pane, np.asarray(small), f"{title}  ({box_count(found, drawn)} ≥ {threshold:g})")
        shared = _shared(drawn, kept[1 - index]) if len(kept) == 2 else np.ones(len(drawn.scores), bool)
        draw_boxes(pane, drawn, scale, shared, classes)
    handles = [Patch(color=SAME, label="in both"), Patch(color=CHANGED, label="in one only")]
    return _finish(figure, handles if len(kept) == 2 else [])


def draw_depth(image: RGB, ordinary: Depth, replayed: Depth | None = None, name: str = "replayed") -> bytes:
    """The picture of depth as PNG, both versions on one scale."""
    small = _shrink(image)
    versions = [each.values for each in (ordinary, replayed) if each is not None]
    figure, panes = _panes(small, len(versions), replayed)
    low, high = np.percentile(np.stack(versions), [1, 99])  # a few stray pixels must not set the scale
    colours = "viridis" if ordinary.disparity else "viridis_r"  # what is near is bright
    unit = "disparity" if ordinary.disparity else "depth in m"
    for pane, values, title in zip(panes[1:], versions, ("ordinary", name), strict=False):
        _show_map(
            figure,
            pane,
            values,
            small,
            f"{title}  ({unit})",
            colours,
            max(float(high), float(low) + 1e-6),
            float(low),
        )
    return _finish(figure, [])


def draw_segments(
    image: RGB,
    ordinary: Panoptic | InstanceMasks,
    replayed: Panoptic | InstanceMasks | None = None,
    classes: Classes = MappingProxyType({}),
    threshold: float = 0.5,
    name: str = "replayed",
) -> bytes:
    """The picture of segments as PNG, or of masks that score at least ``threshold``, the best on top.

    Colours are classes, and white lines part one segment from the next; the photograph shows where there is none.
    """
    small = _shrink(image)
    versions = [segments_of(each, threshold) for each in (ordinary, replayed) if each is not None]
    shown = [segment_classes(each) for each in versions]
    colours = class_colours([np.concatenate(shown)])
    figure, panes = _panes(small, len(versions), replayed)
    for pane, found, title in zip(panes[1:], versions, ("ordinary", name), strict=False):
        words = segment_words(type(ordinary), len(found.numbers), threshold)
        _show(pane, paint_segments(small, found, colours), f"{title}  {words}")
    handles = [Patch(color=colour, label=class_name(label, classes)) for label, colour in colours.items()]
    if len(np.unique(np.concatenate(shown))) > len(colours):
        handles.append(Patch(color=OTHER_COLOUR, label="other classes"))
    return _finish(figure, handles)


def _panes(image: Image.Image, versions: int, replayed: Prediction | None) -> tuple[Figure, list[Axes]]:
    """A row of panes: input, ``versions`` empty ones, and drift and gate of the last replay when there are any."""
    trace = None if replayed is None else replayed.trace
    count = 1 + versions + (2 if trace is not None else 0)
    width = 3.4
    height = min(max(width * image.height / image.width, 1.0), 6.0)
    figure = Figure(figsize=(width * count, height + 0.7), dpi=110, layout="constrained")
    panes = list(figure.subplots(1, count, squeeze=False)[0])
    _show(panes[0], np.asarray(image), "input")
    if trace is not None:
        drift, gate = trace.drift[-1], trace.gate[-1]
        high = float(np.nanpercentile(drift, 99)) or 1e-12
        _show_map(figure, panes[-2], drift, image, f"drift  (max {np.nanmax(drift):.1e})", "magma", high)
        _show_map(figure, panes[-1], gate, image, f"gate  (mean {np.nanmean(gate):.2f})", "cividis", 1.0)
    return figure, panes


def _show(pane: Any, picture: np.ndarray, title: str) -> None:
    pane.imshow(picture, interpolation="nearest")
    pane.set_title(title, fontsize=10)
    pane.set_axis_off()


def _show_map(
    figure: Figure,
    pane: Any,
    values: np.ndarray,
    image: Image.Image,
    title: str,
    colours: str,
    high: float,
    low: float = 0.0,
) -> None:
    extent = (0, image.width, image.height, 0)
    shown = pane.imshow(values, cmap=colours, vmin=low, vmax=high, extent=extent, interpolation="nearest")
    pane.set_title(title, fontsize=10)
    pane.set_axis_off()
    beside = pane.inset_axes((1.02, 0.0, 0.045, 1.0))  # as tall as the image
    bar: Any = figure.colorbar(shown, cax=beside, extend="max" if high < 1 else "neither")
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    if high < 1e-2:
        bar.formatter.set_powerlimits((0, 0))
        bar.ax.yaxis.get_offset_text().set_fontsize(7)


def _finish(figure: Figure, handles: list[Patch]) -> bytes:
    if handles:
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(len(handles), 9), fontsize=8, frameon=False
        )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    return buffer.getvalue()


def _shrink(image: RGB) -> Image.Image:
    small = Image.fromarray(image)
    small.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    return small


def _shared(found: Detection, others: Detection) -> NDArray[np.bool_]:
    """Which boxes have a partner of the same class with an intersection over union of at least one half."""
    if not len(others.scores):
        return np.zeros(len(found.scores), bool)
    low = np.maximum(found.boxes[:, None, :2], others.boxes[None, :, :2])
    high = np.minimum(found.boxes[:, None, 2:], others.boxes[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(-1)
    areas = [(each.boxes[:, 2:] - each.boxes[:, :2]).prod(-1) for each in (found, others)]
    union = areas[0][:, None] + areas[1][None] - both
    same = found.labels[:, None] == others.labels[None]
    result: NDArray[np.bool_] = ((both >= 0.5 * union) & same).any(1)
    return result
