"""One picture per image: the input, both predictions, and where the replay drifted and was trusted.

Colours stay apart for colour-blind eyes: those of Okabe and Ito for classes, blue and orange for boxes, and
maps whose lightness alone tells the value.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.segment_maps import VOID, SegmentMap
from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import Depth, Detection, InstanceMasks, Panoptic, Prediction, Segmentation
from gramloop.tasks.segments import object_masks, segment_map

_CLASS_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#882255")
_OTHER_COLOUR = "#999999"
_NO_CLASS = -1  # of pixels without a segment
_SAME, _CHANGED = "#0072B2", "#E69F00"
_MOST_BOXES = 60  # in one pane; beyond that the eye sees none of them
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
    colours = _class_colours(versions)
    figure, panes = _panes(small, len(versions), replayed)
    for pane, labels, title in zip(panes[1:], versions, ("ordinary", name), strict=False):
        _show(pane, _blend(small, _resize_labels(labels, small.size), colours), title)
    if replayed is not None:
        changed = (ordinary.labels != replayed.labels).mean()
        panes[2].set_title(f"{name}  ({changed:.1%} of pixels changed)", fontsize=10)
    handles = [Patch(color=colour, label=_name(label, classes)) for label, colour in colours.items()]
    if len(np.unique(np.stack(versions))) > len(colours):
        handles.append(Patch(color=_OTHER_COLOUR, label="other classes"))
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
    kept = [_take(each, each.scores >= threshold) for each in (ordinary, replayed) if each is not None]
    figure, panes = _panes(small, len(kept), replayed)
    for index, (found, title) in enumerate(zip(kept, ("ordinary", name), strict=False)):
        pane = panes[1 + index]
        drawn = _take(found, np.argsort(-found.scores, kind="stable")[:_MOST_BOXES])
        _show(pane, np.asarray(small), f"{title}  ({_count(found, drawn)} ≥ {threshold:g})")
        shared = _shared(drawn, kept[1 - index]) if len(kept) == 2 else np.ones(len(drawn.scores), bool)
        _draw_boxes(pane, drawn, scale, shared, classes)
    handles = [Patch(color=_SAME, label="in both"), Patch(color=_CHANGED, label="in one only")]
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
    versions = [_segments(each, threshold) for each in (ordinary, replayed) if each is not None]
    kinds = [np.append(_NO_CLASS, each.categories)[each.places()] for each in versions]
    shown = [each[each != _NO_CLASS] for each in kinds]
    colours = _class_colours([np.concatenate(shown)])
    figure, panes = _panes(small, len(versions), replayed)
    for pane, found, title in zip(panes[1:], versions, ("ordinary", name), strict=False):
        ids = _resize_labels(found.places(), small.size)
        labels = np.append(_NO_CLASS, found.categories)[ids]
        picture = _blend(small, labels, colours)
        picture[ids == VOID] = np.asarray(small)[ids == VOID]
        picture[_rims(ids)] = 255
        number = len(found.numbers)
        word, limit = ("segment", "") if isinstance(ordinary, Panoptic) else ("mask", f" ≥ {threshold:g}")
        _show(pane, picture, f"{title}  ({number} {word}{'s' * (number != 1)}{limit})")
    handles = [Patch(color=colour, label=_name(label, classes)) for label, colour in colours.items()]
    if len(np.unique(np.concatenate(shown))) > len(colours):
        handles.append(Patch(color=_OTHER_COLOUR, label="other classes"))
    return _finish(figure, handles)


def _segments(found: Panoptic | InstanceMasks, threshold: float) -> SegmentMap:
    return segment_map(found) if isinstance(found, Panoptic) else object_masks(found, threshold).as_map()


def _rims(ids: np.ndarray) -> NDArray[np.bool_]:
    """Pixels of a map (H, W) whose right or lower neighbour belongs to another segment."""
    rims = np.zeros(ids.shape, dtype=np.bool_)
    rims[:, :-1] |= ids[:, :-1] != ids[:, 1:]
    rims[:-1] |= ids[:-1] != ids[1:]
    return rims


def _take(found: Detection, which: NDArray[np.generic]) -> Detection:
    """Some of the boxes, by index or mask."""
    return Detection(found.boxes[which], found.scores[which], found.labels[which])


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


def _resize_labels(labels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return np.asarray(Image.fromarray(labels.astype(np.int32)).resize(size, Image.Resampling.NEAREST))


def _class_colours(versions: list[np.ndarray]) -> dict[int, str]:
    """The largest classes of either version, each with a colour of its own."""
    labels, counts = np.unique(np.stack(versions), return_counts=True)
    largest = labels[np.argsort(-counts, kind="stable")][: len(_CLASS_COLOURS)]
    return {int(label): colour for label, colour in zip(largest, _CLASS_COLOURS, strict=False)}


def _blend(image: Image.Image, labels: np.ndarray, colours: Mapping[int, str]) -> np.ndarray:
    paint = np.empty((*labels.shape, 3))
    paint[:] = _rgb(_OTHER_COLOUR)
    for label, colour in colours.items():
        paint[labels == label] = _rgb(colour)
    grey = np.asarray(image.convert("L"), dtype=float)[..., None]  # the photo's own hues would mislead
    return (0.35 * grey + 0.65 * paint).astype(np.uint8)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _name(label: int, classes: Classes) -> str:
    return classes.get(label) or f"class {label}"


def _count(found: Detection, drawn: Detection) -> str:
    count = len(found.scores)
    if len(drawn.scores) < count:
        return f"best {len(drawn.scores)} of {count} boxes"
    return "1 box" if count == 1 else f"{count} boxes"


def _draw_boxes(
    pane: Axes, found: Detection, scale: NDArray[np.float64], shared: NDArray[np.bool_], classes: Classes
) -> None:
    for corners, score, label, same in zip(
        found.boxes * scale, found.scores, found.labels, shared, strict=True
    ):
        x1, y1, x2, y2 = corners
        colour = _SAME if same else _CHANGED
        pane.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="white", linewidth=2.6))
        pane.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1.6))
        pane.text(
            x1,
            y1,
            f"{_name(int(label), classes)} {score:.2f}",
            fontsize=6.5,
            color="white" if same else "black",
            verticalalignment="bottom",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
            clip_on=True,
        )


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
