"""One picture per image: the input, both predictions, and where the replay drifted and was trusted.

Colours stay apart for colour-blind eyes: those of Okabe and Ito for classes, blue and orange for boxes, and
maps whose lightness alone tells the value.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from PIL import Image

_CLASS_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#882255")
_OTHER_COLOUR = "#999999"
_SAME, _CHANGED = "#0072B2", "#E69F00"
_MOST_BOXES = 60  # in one pane; beyond that the eye sees none of them
_LONGEST_SIDE = 640  # pixels of one pane; the picture is for looking, the numbers are in the other file


@dataclass(frozen=True)
class PatchMaps:
    """What the replay measured, one number per patch."""

    drift: np.ndarray  # (h, w)
    gate: np.ndarray  # (h, w), 0 to 1


@dataclass(frozen=True)
class Boxes:
    """Detections to draw."""

    corners: np.ndarray  # (n, 4) xyxy in pixels
    scores: np.ndarray  # (n,)
    labels: np.ndarray  # (n,)

    def above(self, threshold: float) -> Boxes:
        """Those that score at least ``threshold``."""
        return self.take(self.scores >= threshold)

    def best(self, count: int) -> Boxes:
        """The ``count`` highest scores."""
        return self.take(np.argsort(-self.scores, kind="stable")[:count])

    def take(self, which: np.ndarray) -> Boxes:
        """Some of them, by index or mask."""
        return Boxes(self.corners[which], self.scores[which], self.labels[which])


def draw_segmentation(
    image: Image.Image,
    ordinary: np.ndarray,
    replayed: np.ndarray | None = None,
    maps: PatchMaps | None = None,
    names: Mapping[int, str] | None = None,
) -> bytes:
    """The picture of a segmentation as PNG; label maps are (H, W) in the image's size."""
    small = _shrink(image)
    versions = [ordinary] if replayed is None else [ordinary, replayed]
    colours = _class_colours(versions)
    figure, panes = _panes(small, len(versions), maps)
    for pane, labels, title in zip(panes[1:], versions, ("ordinary", "replayed"), strict=False):
        _show(pane, _blend(small, _resize_labels(labels, small.size), colours), title)
    if replayed is not None:
        panes[2].set_title(f"replayed  ({(ordinary != replayed).mean():.1%} of pixels changed)", fontsize=10)
    handles = [Patch(color=colour, label=_name(label, names)) for label, colour in colours.items()]
    if len(np.unique(np.stack(versions))) > len(colours):
        handles.append(Patch(color=_OTHER_COLOUR, label="other classes"))
    return _finish(figure, handles)


def draw_detections(
    image: Image.Image,
    ordinary: Boxes,
    replayed: Boxes | None = None,
    maps: PatchMaps | None = None,
    names: Mapping[int, str] | None = None,
    threshold: float = 0.5,
) -> bytes:
    """The picture of detections as PNG: the best boxes that score at least ``threshold``.

    A box is blue when the other prediction has one of the same class with an overlap of at least one half,
    and orange when it has none.
    """
    small = _shrink(image)
    scale = np.array([small.width / image.width, small.height / image.height] * 2)
    kept = [boxes.above(threshold) for boxes in (ordinary, replayed) if boxes is not None]
    figure, panes = _panes(small, len(kept), maps)
    for index, (boxes, title) in enumerate(zip(kept, ("ordinary", "replayed"), strict=False)):
        pane = panes[1 + index]
        drawn = boxes.best(_MOST_BOXES)
        _show(pane, np.asarray(small), f"{title}  ({_count(boxes, drawn)} ≥ {threshold:g})")
        shared = _shared(drawn, kept[1 - index]) if len(kept) == 2 else np.ones(len(drawn.scores), bool)
        _draw_boxes(pane, drawn, scale, shared, names)
    handles = [Patch(color=_SAME, label="in both"), Patch(color=_CHANGED, label="in one only")]
    return _finish(figure, handles if len(kept) == 2 else [])


def _panes(image: Image.Image, versions: int, maps: PatchMaps | None) -> tuple[Figure, list[Any]]:
    """A row of panes: input, ``versions`` empty ones, and the two maps when there are any."""
    count = 1 + versions + (2 if maps is not None else 0)
    width = 3.4
    height = min(max(width * image.height / image.width, 1.0), 6.0)
    figure = Figure(figsize=(width * count, height + 0.7), dpi=110, layout="constrained")
    panes = list(figure.subplots(1, count, squeeze=False)[0])
    _show(panes[0], np.asarray(image), "input")
    if maps is not None:
        high = float(np.nanpercentile(maps.drift, 99)) or 1e-12
        _show_map(
            figure, panes[-2], maps.drift, image, f"drift  (max {np.nanmax(maps.drift):.1e})", "magma", high
        )
        _show_map(
            figure, panes[-1], maps.gate, image, f"gate  (mean {np.nanmean(maps.gate):.2f})", "cividis", 1.0
        )
    return figure, panes


def _show(pane: Any, picture: np.ndarray, title: str) -> None:
    pane.imshow(picture, interpolation="nearest")
    pane.set_title(title, fontsize=10)
    pane.set_axis_off()


def _show_map(
    figure: Figure, pane: Any, values: np.ndarray, image: Image.Image, title: str, colours: str, high: float
) -> None:
    extent = (0, image.width, image.height, 0)
    shown = pane.imshow(values, cmap=colours, vmin=0, vmax=high, extent=extent, interpolation="nearest")
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


def _shrink(image: Image.Image) -> Image.Image:
    small = image.convert("RGB")
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


def _name(label: int, names: Mapping[int, str] | None) -> str:
    return (names or {}).get(label, f"class {label}")


def _count(boxes: Boxes, drawn: Boxes) -> str:
    count = len(boxes.scores)
    if len(drawn.scores) < count:
        return f"best {len(drawn.scores)} of {count} boxes"
    return "1 box" if count == 1 else f"{count} boxes"


def _draw_boxes(
    pane: Any, boxes: Boxes, scale: np.ndarray, shared: np.ndarray, names: Mapping[int, str] | None
) -> None:
    for corners, score, label, same in zip(
        boxes.corners * scale, boxes.scores, boxes.labels, shared, strict=True
    ):
        x1, y1, x2, y2 = corners
        colour = _SAME if same else _CHANGED
        pane.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="white", linewidth=2.6))
        pane.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1.6))
        pane.text(
            x1,
            y1,
            f"{_name(int(label), names)} {score:.2f}",
            fontsize=6.5,
            color="white" if same else "black",
            verticalalignment="bottom",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
            clip_on=True,
        )


def _shared(boxes: Boxes, others: Boxes) -> np.ndarray:
    """Which boxes have a partner of the same class with an intersection over union of at least one half."""
    if not len(others.scores):
        return np.zeros(len(boxes.scores), bool)
    low = np.maximum(boxes.corners[:, None, :2], others.corners[None, :, :2])
    high = np.minimum(boxes.corners[:, None, 2:], others.corners[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(-1)
    areas = [(each.corners[:, 2:] - each.corners[:, :2]).prod(-1) for each in (boxes, others)]
    union = areas[0][:, None] + areas[1][None] - both
    same = boxes.labels[:, None] == others.labels[None]
    result: np.ndarray = ((both >= 0.5 * union) & same).any(1)
    return result
