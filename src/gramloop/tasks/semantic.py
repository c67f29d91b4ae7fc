"""Semantic segmentation: a class for every pixel, scored by mean intersection over union."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.data.records import Record, Shift
from gramloop.data.truth import PixelLabels
from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Score, miou_score
from gramloop.metrics.segmentation import class_iou, count_pixels, mean_iou
from gramloop.shifts.geometry import warp_labels
from gramloop.tasks.base import (
    Categories,
    ClassScores,
    Row,
    Rows,
    Task,
    first_rows_table,
    pixels_text,
)
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB
from gramloop.tasks.prediction import (
    NO_CLASS,
    NO_COLOURS,
    Changes,
    Colours,
    DrawStyle,
    Prediction,
    class_style,
)
from gramloop.util.plotting import GAINED, LOST, paint_classes, photograph, shrunk
from gramloop.util.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNSCORED = 65535  # where a shift moved no clean prediction to


@dataclass(frozen=True)
class Segmentation(Prediction):
    """A class for every pixel."""

    labels: NDArray[np.int32]  # (H, W)
    scores: NDArray[np.float32] | None = None  # (classes, H, W), a softmax; only where the configuration asks


class SemanticTask(Task[Segmentation, PixelLabels]):
    """Counts of pixels per class and image add up to the mIoU of any set of images."""

    name = "semantic"
    title = "segmentation"
    metrics = ("mIoU",)
    class_metric = "IoU"
    figure_caption = (
        "Green outlines: scored pixels in which {after} alone agrees with the {truth}; magenta: those in which {before} "
        "alone does. White pixels have no label."
    )
    columns: ClassVar[Mapping[str, str]] = {
        "intersection": "int64[]",
        "prediction": "int64[]",
        "label": "int64[]",
    }
    prediction = Segmentation
    truth_bytes = 2
    closed_classes = True

    def read_truth(self, record: Record) -> PixelLabels:
        ignored = 255 if record.classes is None else record.classes.ignored
        return PixelLabels(record.labels(), ignored)

    def truth_shape(self, truth: PixelLabels) -> tuple[int, ...]:
        return truth.indices.shape

    def as_truth(self, prediction: Segmentation, threshold: float) -> PixelLabels:
        return PixelLabels(prediction.labels.astype(np.uint16), UNSCORED)

    def move_truth(self, truth: PixelLabels, record: Record, shift: Shift) -> PixelLabels:
        return PixelLabels(warp_labels(truth.indices, shift.affine(record), truth.ignored), truth.ignored)

    def statistics(self, prediction: Segmentation, truth: PixelLabels, categories: Categories) -> Row:
        counts = count_pixels(prediction.labels, truth.indices, len(categories.names), truth.ignored)
        return dict(zip(self.columns, counts, strict=True))

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        return {"mIoU": float(mean_iou(self._counts(rows).sum(axis=0)))}

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return miou_score(self._counts(rows))

    def class_scores(self, rows: Rows, categories: Categories, members: NDArray[np.int64]) -> ClassScores:
        sums = np.tensordot(members, self._counts(rows), axes=1)  # (1 + subsets, 3, classes)
        return ClassScores(class_iou(sums[0]), sums[0, 2] > 0, np.asarray(mean_iou(sums))[1:])

    def image_score(self, row: Row) -> float:
        counts = np.stack([row[name] for name in self.columns])
        present = counts[2] > 0  # of all classes, a few stray pixels of another one would decide
        return float(mean_iou(counts[:, present])) if present.any() else float("nan")

    def _counts(self, rows: Rows) -> NDArray[np.int64]:  # → (images, 3, classes)
        return np.stack([rows.matrix(name) for name in self.columns], axis=1)

    def encode(self, prediction: Segmentation) -> Row:
        return {"picture": labels_png(prediction.labels)}

    def encode_truth(self, truth: PixelLabels) -> Row:
        return {"picture": labels_png(truth.indices.astype(np.int32))}

    def decode(self, row: Row, column: str = "picture") -> Segmentation | None:
        if row.get(column) is None:
            return None
        labels = read_picture(row[column])
        return Segmentation(np.where(labels == UNSCORED, NO_CLASS, labels).astype(np.int32))

    def as_prediction(self, truth: PixelLabels) -> Segmentation:
        labels = np.where(truth.indices == truth.ignored, NO_CLASS, truth.indices.astype(np.int32))
        return Segmentation(labels.astype(np.int32))

    def size(self, prediction: Segmentation, image: Sequence[int] | None = None) -> tuple[int, int]:
        return prediction.labels.shape

    def summary(self, prediction: Segmentation) -> Table:
        labels, counts = np.unique(prediction.labels, return_counts=True)
        order, size = np.argsort(-counts, kind="stable"), prediction.labels.size
        rows = [(int(labels[i]), int(counts[i]), f"{counts[i] / size:.1%}") for i in order]
        title = f"Segmentation of {pixels_text(prediction.labels.shape)}"
        return first_rows_table(title, ("class", "pixels", "share"), rows, "classes, largest first")

    def style(
        self,
        predictions: Sequence[Segmentation],
        classes: Classes,
        threshold: float = 0.5,
        known: Colours = NO_COLOURS,
    ) -> DrawStyle:
        return class_style([each.labels for each in predictions], classes, threshold, known)

    def draw(
        self, axes: Axes, image: RGB, prediction: Segmentation, style: DrawStyle, colours: Sequence[str] = ()
    ) -> None:
        painted = paint_classes(shrunk(image), prediction.labels, style.colours, NO_CLASS)
        photograph(axes, painted, image.shape)

    def changes(
        self, before: Segmentation, after: Segmentation, truth: Segmentation | None, style: DrawStyle
    ) -> Changes:
        if truth is None:
            return Changes(f"{(before.labels != after.labels).mean():.1%} of pixels change their class")
        scored = truth.labels != NO_CLASS
        right = [scored & (each.labels == truth.labels) for each in (before, after)]
        gained, lost = right[1] & ~right[0], right[0] & ~right[1]
        shares = [f"{mask.sum() / max(int(scored.sum()), 1):.1%}" for mask in (gained, lost)]
        return Changes(
            f"{shares[0]} of pixels gained, {shares[1]} lost",
            outlines=((lost, LOST), (gained, GAINED)),
            legend=((GAINED, f"gained {shares[0]}"), (LOST, f"lost {shares[1]}")),
        )

    def files(self, prediction: Segmentation, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        return {".png": labels_png(prediction.labels)}

    def flip(self, prediction: Segmentation, width: int) -> Segmentation:
        scores = None if prediction.scores is None else prediction.scores[:, :, ::-1]
        return replace(prediction, labels=prediction.labels[:, ::-1], scores=scores, trace=None)

    def merge(self, predictions: Sequence[Segmentation]) -> Segmentation:
        if any(each.scores is None for each in predictions):
            raise GramLoopError(
                "this predictor returns labels without scores, and only scores can be averaged"
            )
        stacked = np.stack([each.scores for each in predictions if each.scores is not None])
        mean: NDArray[np.float32] = stacked.mean(0, dtype=np.float32)
        blocks = sum(each.blocks for each in predictions)
        return Segmentation(mean.argmax(0).astype(np.int32), mean, blocks=blocks)

    def rescale(
        self, prediction: Segmentation, shown: tuple[int, int], size: tuple[int, int]
    ) -> Segmentation:
        if prediction.scores is None:
            picture = Image.fromarray(prediction.labels.astype(np.int32))
            resized = picture.resize((size[1], size[0]), Image.Resampling.NEAREST)
            return replace(prediction, labels=np.asarray(resized).astype(np.int32))
        planes = [
            Image.fromarray(plane).resize((size[1], size[0]), Image.Resampling.BILINEAR)
            for plane in prediction.scores.astype(np.float32)
        ]
        scores = np.stack([np.asarray(plane) for plane in planes])
        return replace(prediction, labels=scores.argmax(0).astype(np.int32), scores=scores)

    def renumber(self, prediction: Segmentation, numbers: Mapping[int, int]) -> Segmentation:
        return replace(prediction, labels=renumbered(prediction.labels, numbers).astype(np.int32))


def renumbered(labels: NDArray[Any], numbers: Mapping[int, int]) -> NDArray[np.int64]:
    """Class numbers under another numbering; -1 where there is none."""
    table = np.full(max(numbers) + 2, -1, dtype=np.int64)
    table[list(numbers)] = list(numbers.values())
    found: NDArray[np.int64] = table[np.clip(labels, -1, len(table) - 1)]
    return found


def labels_png(labels: NDArray[Any]) -> bytes:  # of (H, W)
    """A label map as a grey PNG whose values are the classes; 16 bits if there are more than 256."""
    depth = np.uint8 if labels.max(initial=0) < 256 else np.uint16
    buffer = io.BytesIO()
    Image.fromarray(labels.astype(depth)).save(buffer, format="png")
    return buffer.getvalue()


def read_picture(png: bytes) -> NDArray[np.int32]:  # → (H, W)
    """The numbers of a stored grey PNG."""
    return np.asarray(Image.open(io.BytesIO(png))).astype(np.int32)
