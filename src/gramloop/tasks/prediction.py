"""What predictors return: the predictions of each task, in the size of the original image, and pairs of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from gramloop.data.run_lengths import RunLengths, run_length_mask, run_lengths_of
from gramloop.errors import GramLoopError
from gramloop.tasks.class_names import Classes
from gramloop.util.table import Table, TableRepr

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gramloop.tasks.images import ImageLike

_UNNAMED: Classes = MappingProxyType({})


@dataclass(frozen=True)
class ReplayMaps:
    """What each replay measured, over the resized image, averaged where crops overlap."""

    drift: NDArray[np.float32]  # (K, h, w), of each proposal
    gate: NDArray[np.float32]  # (K, h, w)
    post_drift: NDArray[np.float32] | None = None  # (h, w), of what was accepted in the end, where measured
    cell: int = 1  # entries along the side of a patch

    def plot(self) -> Any:
        """Draw drift and gate, a column for each replay; returns matplotlib's axes, (2, columns)."""
        from gramloop.io.plotting import plot_replays

        return plot_replays(list(self.drift), list(self.gate), self.post_drift)


@dataclass(frozen=True, kw_only=True)
class WindowMaps(ReplayMaps):
    """The same per patch, window beside window; and in the overview.

    Every window is gated on its own, so values of different windows share a scale but not a median.
    """

    overview_drift: NDArray[np.float32]  # (K, h', w')
    overview_gate: NDArray[np.float32]  # (K, h', w')
    overview_post_drift: NDArray[np.float32] | None = None  # (h', w')


@dataclass(frozen=True, kw_only=True)
class Prediction(TableRepr):
    """What is known of every prediction, whatever its task.

    blocks: transformer blocks executed per view of the image; the mean where an adaptive replay passes over some.
    trace: what the replay measured; only of a replayed prediction.
    """

    blocks: int = 1  # of a model without blocks: it ran once
    trace: ReplayMaps | None = None

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
        from gramloop.io.plotting import pyplot

        pyplot()  # its sentence where it is missing
        from gramloop.tasks.plotting import plot_prediction

        return plot_prediction(self, image, classes, threshold, ax)

    def _table(self) -> Table:
        from gramloop.tasks.prediction_tables import table_of

        return table_of(self)


P = TypeVar("P", bound=Prediction)
P_co = TypeVar("P_co", bound=Prediction, covariant=True)


@dataclass(frozen=True)
class Pair(Generic[P_co]):
    """The ordinary and the replayed prediction of one image, which share the ordinary pass."""

    ordinary: P_co
    replayed: P_co

    @property
    def blocks(self) -> int:
        """Transformer blocks executed per view, for both together."""
        return self.replayed.blocks

    def plot(
        self, image: ImageLike | None = None, *, classes: Classes = _UNNAMED, threshold: float = 0.5
    ) -> Any:
        """Draw both predictions side by side, as `Prediction.plot` does; returns matplotlib's axes, (2,)."""
        from gramloop.io.plotting import pyplot

        pyplot()
        from gramloop.tasks.plotting import plot_pair

        return plot_pair(self.ordinary, self.replayed, image, classes, threshold)


@dataclass(frozen=True)
class Segmentation(Prediction):
    """A class for every pixel."""

    labels: NDArray[np.int32]  # (H, W)
    scores: NDArray[np.float32] | None = None  # (classes, H, W), a softmax; only where the configuration asks


@dataclass(frozen=True)
class Detection(Prediction):
    """Scored boxes, best first."""

    boxes: NDArray[np.float32]  # (n, 4): left, top, right, bottom
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids
    trace: WindowMaps | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Depth(Prediction):
    """The distance of every pixel in metres, or its inverse."""

    values: NDArray[np.float32]  # (H, W)
    disparity: bool = False  # the values are inverse distances, in a unit of the model's own

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not np.issubdtype(self.values.dtype, np.floating):
            raise GramLoopError(
                f"depth is one floating-point number per pixel, (H, W), not {self.values.dtype} {self.values.shape}"
            )


@dataclass(frozen=True)
class Segment:
    """What is known of one segment of a panoptic map."""

    id: int  # its number in the map, above 0
    category: int  # a number of the predictor's classes
    is_thing: bool  # one object, or else all that is there of one kind of stuff
    score: float  # from 0 to 1


@dataclass(frozen=True)
class Panoptic(Prediction):
    """Every pixel in one segment, or in none."""

    segments: NDArray[np.int32]  # (H, W) ids; 0 where there is no segment
    infos: tuple[Segment, ...]  # of the ids in the map, rising, each once

    def __post_init__(self) -> None:
        if self.segments.ndim != 2 or self.segments.dtype != np.int32:
            raise GramLoopError(
                f"a panoptic map is one int32 per pixel, (H, W), not {self.segments.dtype} {self.segments.shape}"
            )
        shown = np.unique(self.segments)
        told = [info.id for info in self.infos]
        if told != shown[shown != 0].tolist() or any(number < 0 for number in told):
            raise GramLoopError(
                f"a panoptic map with the segments {shown[shown != 0].tolist()} cannot have the infos of {told}; there is "
                "one for each id, rising from 1 on, and 0 means no segment"
            )


@dataclass(frozen=True)
class InstanceMasks(Prediction):
    """Scored masks of single objects, best first; they may overlap.

    Masks are kept as run lengths: a hundred of a photograph would fill a gigabyte as pixels.
    """

    masks: tuple[RunLengths, ...]  # n, as COCO's results have them
    scores: NDArray[np.float32]  # (n,)
    labels: NDArray[np.int64]  # (n,) category ids
    boxes: NDArray[
        np.float32
    ]  # (n, 4): left, top, right, bottom of the masks' pixels; zeros of an empty mask
    size: tuple[int, int]  # height and width of the image, which every mask has

    def __post_init__(self) -> None:
        many = len(self.masks)
        shapes = self.scores.shape, self.labels.shape, self.boxes.shape
        if shapes != ((many,), (many,), (many, 4)):
            raise GramLoopError(
                f"{many} masks have scores {shapes[0]}, labels {shapes[1]} and boxes {shapes[2]}; they are ({many},), "
                f"({many},) and ({many}, 4)"
            )
        if strange := [mask["size"] for mask in self.masks if tuple(mask["size"]) != self.size]:
            raise GramLoopError(
                f"a mask of {strange[0][1]} x {strange[0][0]} pixels does not fit an image of {self.size[1]} x {self.size[0]}"
            )

    @classmethod
    def from_masks(
        cls, masks: NDArray[np.bool_], scores: NDArray[np.generic], labels: NDArray[np.generic]
    ) -> Self:  # (n, H, W), (n,), (n,)
        """Masks of pixels in any order."""
        best = np.argsort(-scores.astype(np.float64), kind="stable")
        return cls(
            tuple(run_lengths_of(masks[index]) for index in best),
            scores[best].astype(np.float32),
            labels[best].astype(np.int64),
            np.array([box_around(masks[index]) for index in best], dtype=np.float32).reshape(-1, 4),
            (masks.shape[1], masks.shape[2]),
        )

    def mask(self, index: int) -> NDArray[np.bool_]:  # → (H, W)
        """One of the masks as pixels."""
        return run_length_mask(self.masks[index]).astype(np.bool_)


def box_around(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:  # (H, W)
    """Left, top, right and bottom of a mask's pixels, the latter two one beyond the last; zeros if it has none."""
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    if not len(columns):
        return 0, 0, 0, 0
    return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1
