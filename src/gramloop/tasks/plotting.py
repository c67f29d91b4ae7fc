"""A prediction drawn into matplotlib's axes, over its image where that is given."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import Classes
from gramloop.tasks.depth import Depth
from gramloop.tasks.detection import Detection
from gramloop.tasks.drawing import (
    MOST_BOXES,
    OTHER_COLOUR,
    blend,
    box_count,
    class_colours,
    class_name,
    draw_boxes,
    paint_segments,
    segment_classes,
    segment_words,
    segments_of,
    take_boxes,
)
from gramloop.tasks.images import RGB, ImageLike, read_image
from gramloop.tasks.instance import InstanceMasks
from gramloop.tasks.panoptic import Panoptic
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.semantic import Segmentation
from gramloop.util.plotting import draw_map, make_axes, pyplot


def plot_prediction(
    found: Prediction, image: ImageLike | None, classes: Classes, threshold: float, ax: Axes | None
) -> Axes:
    """Draw a prediction; see `Prediction.plot`."""
    pixels = None if image is None else read_image(image)
    size = _size(found, pixels)
    if pixels is not None and size != pixels.shape[:2]:
        raise GramLoopError(
            f"the image has {pixels.shape[1]} x {pixels.shape[0]} pixels and the prediction {size[1]} x {size[0]}; give "
            "the image that was predicted"
        )
    shown = np.full((*size, 3), 255, dtype=np.uint8) if pixels is None else pixels
    ax = make_axes(ax, size)
    if isinstance(found, Depth):
        _draw_depth(ax, found)
    elif isinstance(found, Detection):
        _draw_detection(ax, shown, found, classes, threshold)
    elif isinstance(found, Segmentation):
        colours = class_colours([found.labels])
        _show(ax, blend(Image.fromarray(shown), found.labels, colours), "")
        _legend(ax, found.labels, colours, classes)
    elif isinstance(found, Panoptic | InstanceMasks):
        segments = segments_of(found, threshold)
        kinds = segment_classes(segments)
        colours = class_colours([kinds])
        picture = paint_segments(Image.fromarray(shown), segments, colours)
        _show(ax, picture, segment_words(type(found), len(segments.numbers), threshold))
        _legend(ax, kinds, colours, classes)
    return ax


def plot_pair(
    ordinary: Prediction, replayed: Prediction, image: ImageLike | None, classes: Classes, threshold: float
) -> NDArray[np.object_]:
    """Both predictions side by side; returns their axes, (2,)."""
    pixels = None if image is None else read_image(image)
    high, wide = _size(ordinary, pixels)
    height = min(max(4.5 * high / wide, 1.0), 8.0)
    _, axes = pyplot().subplots(1, 2, figsize=(9.6, height + 0.6), layout="constrained")
    for ax, found, name in zip(axes, (ordinary, replayed), ("ordinary", "replayed"), strict=True):
        plot_prediction(found, pixels, classes, threshold, ax)
        ax.set_title(f"{name}  {ax.get_title()}".strip(), fontsize=10)
    both: NDArray[np.object_] = axes
    return both


def _size(found: Prediction, pixels: RGB | None) -> tuple[int, int]:
    if isinstance(found, Segmentation):
        return found.labels.shape
    if isinstance(found, Depth):
        return found.values.shape
    if isinstance(found, Panoptic):
        return found.segments.shape
    if isinstance(found, InstanceMasks):
        return found.size
    if not isinstance(found, Detection):
        raise GramLoopError(f"there is no picture of a {type(found).__name__}")
    if pixels is not None:
        return pixels.shape[0], pixels.shape[1]
    corner = found.boxes[:, 2:].max(axis=0, initial=1.0)  # boxes do not tell how large their image is
    return int(np.ceil(corner[1])), int(np.ceil(corner[0]))


def _draw_detection(ax: Axes, shown: RGB, found: Detection, classes: Classes, threshold: float) -> None:
    kept = take_boxes(found, found.scores >= threshold)
    best = take_boxes(kept, np.argsort(-kept.scores, kind="stable")[:MOST_BOXES])
    _show(ax, shown, f"({box_count(kept, best)} ≥ {threshold:g})")
    draw_boxes(ax, best, np.ones(4), np.ones(len(best.scores), bool), classes)


def _draw_depth(ax: Axes, found: Depth) -> None:
    finite = found.values[np.isfinite(found.values)]
    low, high = np.percentile(finite, [1, 99]).tolist() if finite.size else (0.0, 1.0)
    unit, colours = ("disparity", "viridis") if found.disparity else ("depth in m", "viridis_r")
    draw_map(ax, found.values, unit, colours, low, max(high, low + 1e-6))  # what is near is bright


def _show(ax: Axes, picture: RGB, title: str) -> None:
    ax.imshow(picture, interpolation="nearest")
    ax.set_title(title, fontsize=10)
    ax.set_axis_off()


def _legend(ax: Axes, labels: Any, colours: dict[int, str], classes: Classes) -> None:
    handles = [Patch(color=colour, label=class_name(label, classes)) for label, colour in colours.items()]
    if len(np.unique(labels)) > len(colours):
        handles.append(Patch(color=OTHER_COLOUR, label="other classes"))
    if handles:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7, frameon=False)
