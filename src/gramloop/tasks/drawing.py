"""How predictions are drawn: a colour for each class, labels over a grey photograph, boxes with their names.

Colours stay apart for colour-blind eyes: those of Okabe and Ito for classes, blue and orange for boxes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.truth import VOID, SegmentMap
from gramloop.tasks.class_names import Classes
from gramloop.tasks.detection import Detection
from gramloop.tasks.instance import InstanceMasks, object_masks
from gramloop.tasks.panoptic import Panoptic, segment_map

CLASS_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#882255")
OTHER_COLOUR = "#999999"
NO_CLASS = -1  # of pixels without a segment
SAME, CHANGED = "#0072B2", "#E69F00"
MOST_BOXES = 60  # in one pane; beyond that the eye sees none of them


def segments_of(found: Panoptic | InstanceMasks, threshold: float) -> SegmentMap:
    """The segments, or the masks that score at least ``threshold``, the best on top."""
    return segment_map(found) if isinstance(found, Panoptic) else object_masks(found, threshold).as_map()


def segment_classes(found: SegmentMap) -> NDArray[np.integer]:
    """The class of every pixel that lies in a segment, (pixels,)."""
    labels = np.append(NO_CLASS, found.categories)[found.places()]
    classes: NDArray[np.integer] = labels[labels != NO_CLASS]
    return classes


def paint_segments(image: Image.Image, found: SegmentMap, colours: Mapping[int, str]) -> np.ndarray:
    """Colours are classes, and white lines part one segment from the next; the photograph shows where there is none."""
    ids = resize_labels(found.places(), image.size)
    picture = blend(image, np.append(NO_CLASS, found.categories)[ids], colours)
    picture[ids == VOID] = np.asarray(image)[ids == VOID]
    picture[_rims(ids)] = 255
    return picture


def segment_words(kind: type, number: int, threshold: float) -> str:
    """How many there are, and of what."""
    word, limit = ("segment", "") if issubclass(kind, Panoptic) else ("mask", f" ≥ {threshold:g}")
    return f"({number} {word}{'s' * (number != 1)}{limit})"


def _rims(ids: np.ndarray) -> NDArray[np.bool_]:
    """Pixels of a map (H, W) whose right or lower neighbour belongs to another segment."""
    rims = np.zeros(ids.shape, dtype=np.bool_)
    rims[:, :-1] |= ids[:, :-1] != ids[:, 1:]
    rims[:-1] |= ids[:-1] != ids[1:]
    return rims


def take_boxes(found: Detection, which: NDArray[np.generic]) -> Detection:
    """Some of the boxes, by index or mask."""
    return Detection(found.boxes[which], found.scores[which], found.labels[which])


def resize_labels(labels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Labels (H, W) in another width and height, each pixel the label that is nearest."""
    return np.asarray(Image.fromarray(labels.astype(np.int32)).resize(size, Image.Resampling.NEAREST))


def class_colours(versions: list[np.ndarray]) -> dict[int, str]:
    """The largest classes of either version, each with a colour of its own."""
    labels, counts = np.unique(np.stack(versions), return_counts=True)
    largest = labels[np.argsort(-counts, kind="stable")][: len(CLASS_COLOURS)]
    return {int(label): colour for label, colour in zip(largest, CLASS_COLOURS, strict=False)}


def blend(image: Image.Image, labels: np.ndarray, colours: Mapping[int, str]) -> np.ndarray:
    """Labels in their colours over the photograph in grey, (H, W, 3); classes without a colour share one."""
    paint = np.empty((*labels.shape, 3))
    paint[:] = _rgb(OTHER_COLOUR)
    for label, colour in colours.items():
        paint[labels == label] = _rgb(colour)
    grey = np.asarray(image.convert("L"), dtype=float)[..., None]  # the photo's own hues would mislead
    return (0.35 * grey + 0.65 * paint).astype(np.uint8)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def class_name(label: int, classes: Classes) -> str:
    """The name of a class, or its number."""
    return classes.get(label) or f"class {label}"


def box_count(found: Detection, drawn: Detection) -> str:
    """How many boxes there are, and how many of them are drawn."""
    count = len(found.scores)
    if len(drawn.scores) < count:
        return f"best {len(drawn.scores)} of {count} boxes"
    return "1 box" if count == 1 else f"{count} boxes"


def draw_boxes(
    pane: Axes, found: Detection, scale: NDArray[np.float64], shared: NDArray[np.bool_], classes: Classes
) -> None:
    """Boxes with class and score; ``shared`` ones in blue, others in orange."""
    for corners, score, label, same in zip(
        found.boxes * scale, found.scores, found.labels, shared, strict=True
    ):
        x1, y1, x2, y2 = corners
        colour = SAME if same else CHANGED
        pane.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor="white", linewidth=2.6))
        pane.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, edgecolor=colour, linewidth=1.6))
        pane.text(
            x1,
            y1,
            f"{class_name(int(label), classes)} {score:.2f}",
            fontsize=6.5,
            color="white" if same else "black",
            verticalalignment="bottom",
            bbox={"facecolor": colour, "edgecolor": "none", "pad": 1},
            clip_on=True,
        )
