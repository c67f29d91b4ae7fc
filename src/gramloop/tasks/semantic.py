"""Semantic segmentation: a class for every pixel, scored by mean intersection over union.

`Segmenter` resizes an image to a short side of 896 and sees it through windows of 896 pixels, 596 apart, whose scores are
averaged, as released. PMT's heads see squares of the short side, 512, at even distances along the long one. Nothing is
flipped or rescaled.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gramloop.data.records import Record, Shift
from gramloop.data.truth import PixelLabels
from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Score, miou_score
from gramloop.metrics.segmentation import class_iou, count_pixels, mean_iou
from gramloop.models.backbone import SegmentationModel
from gramloop.replay.attach import Loop
from gramloop.shifts.geometry import warp_labels
from gramloop.tasks.base import Categories, ClassScores, Row, Rows, Task
from gramloop.tasks.class_names import ADE20K, Classes
from gramloop.tasks.images import RGB, WEB, Normalisation, resize_short_side, short_side_size, to_tensor
from gramloop.tasks.prediction import NO_CLASS, Changes, DrawStyle, Prediction, ReplayMaps
from gramloop.tasks.predictor import ViTPredictor, stacked_maps
from gramloop.util.plotting import GAINED, LOST, paint_classes, photograph, shrunk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNSCORED = 65535  # where a shift moved no clean prediction to
_SCORES_AT_ONCE = 1 << 26  # numbers; all classes of a photograph in full size would need gigabytes


@dataclass(frozen=True, repr=False)
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
    columns: ClassVar[Mapping[str, str]] = dict.fromkeys(("intersection", "prediction", "label"), "int64[]")
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

    def class_scores(self, rows: Rows, categories: Categories) -> ClassScores:
        counts = self._counts(rows).sum(axis=0)  # (3, classes)
        return ClassScores(class_iou(counts), counts[2] > 0)

    def _counts(self, rows: Rows) -> NDArray[np.int64]:  # → (images, 3, classes)
        return np.stack([rows.matrix(name) for name in self.columns], axis=1)

    def encode(self, prediction: Segmentation) -> Row:
        labels = prediction.labels
        return {"picture": labels_png(np.where(labels == NO_CLASS, UNSCORED, labels))}

    def decode(self, row: Row, column: str = "picture") -> Segmentation | None:
        if row.get(column) is None:
            return None
        return self.as_prediction(PixelLabels(read_picture(row[column]).astype(np.uint16), UNSCORED))

    def as_prediction(self, truth: PixelLabels) -> Segmentation:
        labels = np.where(truth.indices == truth.ignored, NO_CLASS, truth.indices.astype(np.int32))
        return Segmentation(labels.astype(np.int32))

    def class_map(self, prediction: Segmentation, threshold: float) -> NDArray[np.int32]:
        return prediction.labels

    def draw(self, axes: Axes, image: RGB, prediction: Segmentation, style: DrawStyle) -> None:
        painted = paint_classes(shrunk(image), prediction.labels, style.colours, NO_CLASS)
        photograph(axes, painted, image.shape)

    def changes(
        self, before: Segmentation, after: Segmentation, truth: Segmentation | None, style: DrawStyle
    ) -> Changes:
        if truth is None:
            return super().changes(before, after, None, style)
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
        self, prediction: Segmentation, input_size: tuple[int, int], size: tuple[int, int]
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
    return grey_png(labels.astype(np.uint8 if labels.max(initial=0) < 256 else np.uint16))


def grey_png(values: NDArray[Any]) -> bytes:  # of (H, W)
    """Numbers of 8 or 16 bits as a PNG."""
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, format="png")
    return buffer.getvalue()


def read_picture(png: bytes) -> NDArray[np.int32]:  # → (H, W)
    """The numbers of a stored grey PNG."""
    return np.asarray(Image.open(io.BytesIO(png))).astype(np.int32)


@dataclass(frozen=True)
class SegmentConfig:
    """How an image is given to the model.

    mode: ``slide`` through overlapping crops, ``even`` through squares of the short side, as few as cover the long one,
        ``whole`` at once, the long side rounded to what the model can take.
    scores: return the softmax over classes in addition to the labels.
    """

    mode: Literal["slide", "even", "whole"] = "slide"
    short_side: int = 896
    crop: int = 896
    stride: int = 596
    scores: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("slide", "even", "whole"):
            raise GramLoopError(f"mode is 'slide', 'even' or 'whole', not {self.mode!r}")
        if min(self.short_side, self.crop, self.stride) < 1:
            raise GramLoopError(f"sides and stride must be positive, not {self}")
        if self.mode == "slide" and not self.stride <= self.crop <= self.short_side:
            raise GramLoopError(
                f"sliding needs stride <= crop <= short_side, not {self.stride}, {self.crop}, {self.short_side}"
            )


@dataclass(frozen=True)
class Crop:
    """A rectangle of pixels."""

    top: int
    left: int
    height: int
    width: int

    def of(self, pixels: Tensor) -> Tensor:  # (..., H, W)
        """The part of an image inside the rectangle."""
        rows, columns = slice(self.top, self.top + self.height), slice(self.left, self.left + self.width)
        return pixels[..., rows, columns]


def crop_grid(height: int, width: int, crop: int, stride: int) -> list[Crop]:
    """Crops that cover an image, row by row; the last of each row and column is shifted back inside."""
    tall, wide = min(crop, height), min(crop, width)
    return [
        Crop(top, left, tall, wide)
        for top in _starts(height, tall, stride)
        for left in _starts(width, wide, stride)
    ]


def even_windows(height: int, width: int) -> list[Crop]:
    """Squares of the short side, as few as cover the long one, at even distances."""
    side, long = min(height, width), max(height, width)
    count = -(-long // side)
    shared = (count * side - long) / (count - 1) if count > 1 else 0.0  # pixels that two neighbours share
    # the last one ends with the image, where rounding could leave a row of pixels out
    starts = [int(index * (side - shared)) for index in range(count - 1)] + [long - side]
    return [Crop(0, start, side, side) if width > height else Crop(start, 0, side, side) for start in starts]


def _starts(side: int, crop: int, stride: int) -> list[int]:
    count = max(side - crop + stride - 1, 0) // stride + 1
    return [min(index * stride, side - crop) for index in range(count)]


class Canvas:
    """The mean, pixel by pixel, of maps (C, h, w) that cover parts of an image; kept on the CPU."""

    def __init__(self, height: int, width: int) -> None:
        self._sum: Tensor | None = None
        self._count = torch.zeros(height, width)

    def add(self, crop: Crop, values: Tensor) -> None:
        """Lay one map on the canvas, which keeps the first where that covers it: all classes take gigabytes."""
        if self._sum is None and values.shape[1:] == self._count.shape:
            self._sum = values.to("cpu", torch.float32)
        else:
            if self._sum is None:
                self._sum = torch.zeros(values.shape[0], *self._count.shape)
            crop.of(self._sum).add_(values.cpu())
        crop.of(self._count).add_(1)

    def mean(self) -> Tensor:
        """The mean (C, H, W). The canvas, on which something lies, is used up."""
        assert self._sum is not None
        return self._sum.div_(self._count)


class Segmenter(ViTPredictor[Segmentation]):
    """A segmentation model ready for images."""

    task = "semantic"
    config: SegmentConfig

    def __init__(
        self,
        model: SegmentationModel,
        config: SegmentConfig | None = None,
        normalisation: Normalisation = WEB,
        names: Classes | None = None,
    ) -> None:
        """``names`` of the classes are those of ADE20K where there are as many."""
        known = names or (ADE20K if model.classes == len(ADE20K) else {})
        classes = {number: known.get(number) for number in range(model.classes)}
        super().__init__(model.backbone, model.taps, classes, normalisation)
        self.model, self.config = model, config or SegmentConfig()
        side = self.config.crop if self.config.mode == "slide" else self.config.short_side
        if side % model.granularity:
            raise GramLoopError(
                f"this model needs sides that are multiples of {model.granularity}, not {side}"
            )

    def with_scores(self) -> Self:
        """The same model with scores of all classes in its predictions."""
        return self._configured(scores=True)

    def _resized(self, side: int) -> dict[str, Any]:
        crop = min(self.config.crop, side)
        return {"short_side": side, "crop": crop, "stride": min(self.config.stride, crop)}

    def _forward(self, pixels: Sequence[RGB], loop: Loop | None, paired: bool) -> list[list[Segmentation]]:
        size, depth = (pixels[0].shape[0], pixels[0].shape[1]), self.backbone.shape.depth
        inputs = torch.cat([self.prepare(each) for each in pixels])
        (*baseline, last), maps, blocks = self._through_crops(inputs, loop, paired)
        return [
            *([self._finish(each, size, depth) for each in canvases] for canvases in baseline),
            [self._finish(each, size, blocks, one) for each, one in zip(last, maps, strict=True)],
        ]

    def _through_crops(
        self, inputs: Tensor, loop: Loop | None, paired: bool
    ) -> tuple[list[list[Canvas]], list[Canvas | None], int]:
        """Mean scores of every image per version, the replay's maps of every image, and the blocks of a crop."""
        height, width = inputs.shape[-2:]
        versions = [[Canvas(height, width) for _ in inputs] for _ in range(1 + paired)]
        maps: list[Canvas | None] = [None for _ in inputs]
        executed = []
        for crop in self._crops(height, width):
            batch = crop.of(inputs).to(self.backbone.device)
            for canvases, scores in zip(versions, self._scores(batch, loop, paired), strict=True):
                for canvas, each in zip(canvases, scores, strict=True):
                    canvas.add(crop, each)
            if loop is None:
                continue
            executed.append(loop.blocks_executed)
            if loop.trace is not None and loop.trace.drift:
                measured = F.interpolate(stacked_maps(loop.trace), (crop.height, crop.width))
                for image, each in enumerate(measured):
                    canvas = maps[image] = maps[image] or Canvas(height, width)
                    canvas.add(crop, each)
        blocks = round(sum(executed) / len(executed)) if executed else self.backbone.shape.depth
        return versions, maps, blocks

    def prepare(self, pixels: RGB) -> Tensor:
        multiple = self.model.granularity if self.config.mode == "whole" else 1
        rounded = round if self.config.mode == "even" else None  # halves to even, as PMT does
        resized = resize_short_side(pixels, self.config.short_side, multiple=multiple, rounded=rounded)
        return to_tensor(resized, self.normalisation)

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        config = self.config
        if config.mode == "whole":
            return short_side_size(height, width, config.short_side, multiple=self.model.granularity)
        side = config.crop if config.mode == "slide" else config.short_side
        return side, side

    def _crops(self, height: int, width: int) -> list[Crop]:
        """The parts of an image that are seen one after the other."""
        if self.config.mode == "whole":
            return [Crop(0, 0, height, width)]
        if self.config.mode == "even":
            return even_windows(height, width)
        return crop_grid(height, width, self.config.crop, self.config.stride)

    def _scores(self, batch: Tensor, loop: Loop | None, paired: bool) -> Iterator[Tensor]:
        """Scores (B, classes, h, w) of the baseline version, if paired, and of the last one."""
        model, exact = self.model, self.config.mode == "whole"
        size, prior = (batch.shape[-2], batch.shape[-1]), model.prior(batch)
        taps = model.backbone(batch, model.taps)
        if paired and loop is not None:
            yield model.scores(prior, self._baseline(loop, taps), size, exact)
        yield model.scores(prior, taps, size, exact)

    def _finish(
        self, canvas: Canvas, size: tuple[int, int], blocks: int, maps: Canvas | None = None
    ) -> Segmentation:
        mean = canvas.mean()
        scores = _resize(mean, size).softmax(0).numpy() if self.config.scores else None
        trace = None if maps is None else ReplayMaps(maps.mean().numpy(), self.backbone.shape.patch)
        return Segmentation(_labels(mean, size), scores, blocks=blocks, trace=trace)


def _resize(mean: Tensor, size: tuple[int, int]) -> Tensor:  # (classes, H, W)
    if mean.shape[1:] == size:
        return mean
    return F.interpolate(mean[None], size, mode="bilinear", align_corners=False)[0]


def _labels(mean: Tensor, size: tuple[int, int]) -> NDArray[np.int32]:
    """The best class of each pixel of the resized scores, a few classes at a time."""
    best = torch.full(size, float("-inf"))
    labels = torch.zeros(size, dtype=torch.int32)
    step = max(1, _SCORES_AT_ONCE // (size[0] * size[1]))
    for first in range(0, mean.shape[0], step):
        high, index = _resize(mean[first : first + step], size).max(0)
        better = high > best
        best = torch.where(better, high, best)
        labels = torch.where(better, (index + first).int(), labels)
    return labels.numpy()
