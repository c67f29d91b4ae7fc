"""Depth estimation: the distance of every pixel, scored by the share of pixels within 1.25 and six errors.

The image is resized to a short side that the model knows, its long side rounded to what the model takes, and seen at
once; depth comes back in the size of the original. With ``flip`` its mirror image is seen too, and both are averaged.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from gramloop.data.records import Record
from gramloop.data.truth import DepthMap
from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Score, mean_score
from gramloop.metrics.scores import Alignment, aligned_depth, depth_scores
from gramloop.models.backbone import Backbone, Tap
from gramloop.models.depther import DEPTH_STRIDE, DptDepthHead, pad_around
from gramloop.models.tiny import DenseDepthHead
from gramloop.tasks.base import Categories, Row, Rows, Task
from gramloop.tasks.class_names import Classes
from gramloop.tasks.images import RGB, WEB, Normalisation, resize_short_side, short_side_size, to_tensor
from gramloop.tasks.prediction import NO_COLOURS, Changes, Colours, DrawStyle, Prediction
from gramloop.tasks.predictor import ViTPredictor
from gramloop.tasks.semantic import grey_png, read_picture
from gramloop.util.plotting import Legend, colour_of, draw_values, nearest, shrunk

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NEAR_IS_BRIGHT, _FAR_IS_DARK = "viridis_r", "viridis"  # of depth, and of its inverse
DEPTH_STEPS = 256  # to the metre in a stored depth picture


@dataclass(frozen=True, repr=False)
class Depth(Prediction):
    """The distance of every pixel in metres, or its inverse."""

    values: NDArray[np.float32]  # (H, W)
    disparity: bool = False  # the values are inverse distances, in the model's own unit

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not np.issubdtype(self.values.dtype, np.floating):
            raise GramLoopError(
                f"depth is one floating-point number per pixel, (H, W), not {self.values.dtype} {self.values.shape}"
            )


class DepthTask(Task[Depth, DepthMap]):
    """Every image has its own errors, and a set has their means."""

    name = "depth"
    metrics = ("delta1", "delta2", "delta3", "AbsRel", "RMSE", "log10", "SILog")
    figure_caption = "Depth in metres, aligned as it was scored, all panels of an image on one scale; white pixels have no known depth."
    columns: ClassVar[Mapping[str, str]] = dict.fromkeys(metrics, "float64")
    prediction = Depth
    truth_noun = "depth"
    truth_bytes = 4
    aligns = True
    has_classes = False

    def read_truth(self, record: Record) -> DepthMap:
        return record.depth()

    def truth_shape(self, truth: DepthMap) -> tuple[int, ...]:
        return truth.metres.shape

    def check_truth(self, truth: DepthMap, name: str) -> None:
        if not truth.known.any():
            raise GramLoopError(
                f"the depth of {name} is known at no pixel between {truth.near:g} and {truth.far:g} m"
            )

    def as_truth(self, prediction: Depth, threshold: float) -> DepthMap:
        values = prediction.values.astype(np.float32)
        if prediction.disparity:
            values = np.divide(1, values, out=np.zeros_like(values), where=values > 0)
        return DepthMap(np.where(np.isfinite(values) & (values > 0), values, np.float32(0)))

    def align(self, prediction: Depth, truth: DepthMap, alignment: str) -> Depth:
        how, inverse = cast(Alignment, alignment), prediction.disparity
        metres = aligned_depth(prediction.values, truth, how, disparity=inverse)
        return replace(prediction, values=metres.astype(np.float32), disparity=False)

    def statistics(self, prediction: Depth, truth: DepthMap, categories: Categories) -> Row:
        found = depth_scores(prediction.values, truth)
        return {name: np.float64(value) for name, value in zip(self.metrics, found, strict=True)}

    def score(self, rows: Rows, categories: Categories) -> dict[str, float]:
        means = np.stack([rows.values[name] for name in self.metrics], axis=1).mean(axis=0).tolist()
        return dict(zip(self.metrics, means, strict=True))

    def scorer(self, rows: Rows, categories: Categories) -> Score:
        return mean_score(rows.values["delta1"])

    def encode(self, prediction: Depth) -> Row:
        """As KITTI writes it: 256 steps to the metre; 0 is unknown."""
        steps = np.clip(np.round(np.nan_to_num(prediction.values) * DEPTH_STEPS), 0, 65535)
        return {"picture": grey_png(steps.astype(np.uint16))}

    def decode(self, row: Row, column: str = "picture") -> Depth | None:
        if row.get(column) is None:
            return None
        return Depth(read_picture(row[column]).astype(np.float32) / np.float32(DEPTH_STEPS))

    def as_prediction(self, truth: DepthMap) -> Depth:
        return Depth(np.where(truth.known, truth.metres, np.float32(np.nan)))

    def describe(self, prediction: Depth, style: DrawStyle) -> str:
        return "disparity" if prediction.disparity else "depth in m"

    def style(
        self,
        predictions: Sequence[Depth],
        classes: Classes,
        threshold: float = 0.5,
        known: Colours = NO_COLOURS,
    ) -> DrawStyle:
        """The scale ends where few pixels of the first prediction exceed it, so that the horizon hides nothing."""
        finite = predictions[0].values[np.isfinite(predictions[0].values)]
        low, high = np.percentile(finite, [1, 98]).tolist() if finite.size else (0.0, 1.0)
        low, unit = (low, "") if predictions[0].disparity else (0.0, " m")
        return DrawStyle(classes, threshold, scale=(low, max(high, low + 1e-6)), unit=unit)

    def draw(self, axes: Axes, image: RGB, prediction: Depth, style: DrawStyle) -> None:
        values = nearest(prediction.values, shrunk(image).shape)
        colour_map = _FAR_IS_DARK if prediction.disparity else _NEAR_IS_BRIGHT
        draw_values(axes, values, colour_map, style.scale[1], style.scale[0])

    def legend(self, style: DrawStyle) -> Legend:
        low, high = style.scale
        colours = _NEAR_IS_BRIGHT if style.unit else _FAR_IS_DARK
        shares = (0.0, 0.25, 0.5, 0.75, 1.0)
        values = [(share, low + share * (high - low)) for share in shares]
        return [(colour_of(colours, share), f"{value:.3g}{style.unit}") for share, value in values]

    def changes(self, before: Depth, after: Depth, truth: Depth | None, style: DrawStyle) -> Changes:
        if truth is None:
            known = np.isfinite(before.values) & np.isfinite(after.values) & (before.values > 0)
            ratio = np.abs(after.values[known] / before.values[known] - 1)
            return Changes(f"depth changes by {ratio.mean() if ratio.size else 0.0:.1%} on average")
        known = np.isfinite(truth.values)
        shares = []
        for each in (before, after):
            ratio = each.values[known] / truth.values[known]
            shares.append(float(np.mean((ratio < 1.25) & (ratio > 1 / 1.25))))
        return Changes(f"{shares[0]:.1%} of pixels within a factor of 1.25 become {shares[1]:.1%}")

    def files(self, prediction: Depth, image: Path, name: str, classes: Classes) -> dict[str, bytes]:
        buffer = io.BytesIO()
        np.save(buffer, prediction.values.astype(np.float32))
        return {".npy": buffer.getvalue()}

    def flip(self, prediction: Depth, width: int) -> Depth:
        return replace(prediction, values=prediction.values[:, ::-1], trace=None)

    def merge(self, predictions: Sequence[Depth]) -> Depth:
        first = predictions[0]
        values = [each.values for each in predictions]
        if first.disparity:  # each view has a scale and a shift of its own
            values = [values[0], *(_in_frame(each, values[0]) for each in values[1:])]
        blocks = sum(each.blocks for each in predictions)
        return Depth(np.stack(values).mean(0, dtype=np.float32), first.disparity, blocks=blocks)

    def rescale(self, prediction: Depth, input_size: tuple[int, int], size: tuple[int, int]) -> Depth:
        picture = Image.fromarray(prediction.values.astype(np.float32))
        resized = picture.resize((size[1], size[0]), Image.Resampling.BILINEAR)
        return replace(prediction, values=np.asarray(resized))


def _in_frame(values: NDArray[np.float32], frame: NDArray[np.float32]) -> NDArray[np.float32]:
    """Values scaled and shifted so that they lie nearest to others, by least squares; finite ones decide."""
    finite = np.isfinite(values) & np.isfinite(frame)
    x, y = values[finite].astype(np.float64), frame[finite].astype(np.float64)
    spread = x.var() if len(x) else 0.0
    scale = float(((x - x.mean()) * (y - y.mean())).mean() / spread) if spread > 0 else 1.0
    shift = float(y.mean() - scale * x.mean()) if len(x) else 0.0
    moved: NDArray[np.float32] = (scale * values.astype(np.float64) + shift).astype(np.float32)
    return moved


@dataclass(frozen=True)
class DepthConfig:
    """How an image is given to the model."""

    short_side: int = 192
    flip: bool = False  # the mean with the mirror image, mirrored back

    def __post_init__(self) -> None:
        if self.short_side < 1:
            raise GramLoopError(f"the short side must be positive, not {self.short_side}")


class DepthEstimator(ViTPredictor[Depth]):
    """A backbone and a depth head ready for images."""

    task = "depth"
    config_class: type[DepthConfig] = DepthConfig

    def __init__(
        self,
        backbone: Backbone,
        head: DenseDepthHead | DptDepthHead,
        config: DepthConfig | None = None,
        normalisation: Normalisation = WEB,
    ) -> None:
        backbone.check_taps(head.taps)
        if head.channels != backbone.shape.width:
            raise GramLoopError(
                f"the depth head was made for a backbone of width {head.channels}, this one has {backbone.shape.width}"
            )
        super().__init__(backbone, head.taps, {}, normalisation)
        self.head, self.config = head, config or self.config_class()
        if self.config.short_side % self.multiple:
            raise GramLoopError(
                f"this model needs sides that are multiples of {self.multiple}, not {self.config.short_side}"
            )

    def _largest_view(self, height: int, width: int) -> tuple[int, int]:
        return short_side_size(height, width, self.config.short_side, multiple=self.multiple)

    def resized(self, pixels: RGB) -> Tensor:  # (H, W, 3) → (1, 3, h, w)
        """The image in the model's size, normalised."""
        resized = resize_short_side(pixels, self.config.short_side, multiple=self.multiple)
        return to_tensor(resized, self.normalisation)

    def prepare(self, pixels: RGB) -> Tensor:
        # the image has this size already, or lacks at most 8 pixels on a side: no patch is padding alone, so a replay
        # needs no mask
        one = pad_around(self.resized(pixels), self.backbone.shape.patch)
        return torch.cat([one, one.flip(-1)]) if self.config.flip else one

    def read(self, taps: Sequence[Tap], input_size: tuple[int, int], size: tuple[int, int]) -> list[Depth]:
        found = self.head.depth([tap.map for tap in taps], size)
        if self.config.flip:
            found = (found[0::2] + found[1::2].flip(-1)) / 2
        return [Depth(each.cpu().numpy()) for each in found]


@dataclass(frozen=True)
class DptDepthConfig(DepthConfig):
    """How an image is given to Meta's depth model."""

    short_side: int = 768
    padded: bool = False  # truncate the long side and pad, as Meta's evaluation does


class DptDepthEstimator(DepthEstimator):
    """Meta's depth model ready for images."""

    config: DptDepthConfig
    config_class = DptDepthConfig

    @property
    def multiple(self) -> int:
        """Sides that are multiples of it come back as they are; padding makes up for others."""
        return 1 if self.config.padded else DEPTH_STRIDE

    def resized(self, pixels: RGB) -> Tensor:
        truncated = int if self.config.padded else None
        height, width = pixels.shape[:2]
        short = self.config.short_side
        size = short_side_size(height, width, short, multiple=self.multiple, rounded=truncated)
        unit = to_tensor(pixels, Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
        found = F.interpolate(unit, size, mode="bilinear", antialias=True, align_corners=False)
        own = self.normalisation
        mean, std = (torch.tensor(each)[:, None, None] for each in (own.mean, own.std))
        return (found - mean) / std
