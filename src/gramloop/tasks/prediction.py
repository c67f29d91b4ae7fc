"""What predictors return: the predictions of each task, in the size of the original image, and pairs of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError


@dataclass(frozen=True)
class ReplayMaps:
    """What each replay measured, over the resized image, averaged where crops overlap."""

    drift: NDArray[np.float32]  # (K, h, w), of each proposal
    gate: NDArray[np.float32]  # (K, h, w)
    post_drift: NDArray[np.float32] | None = None  # (h, w), of what was accepted in the end, where measured
    cell: int = 1  # entries along the side of a patch


@dataclass(frozen=True, kw_only=True)
class WindowMaps(ReplayMaps):
    """The same per patch, window beside window; and in the overview.

    Every window is gated on its own, so values of different windows share a scale but not a median.
    """

    overview_drift: NDArray[np.float32]  # (K, h', w')
    overview_gate: NDArray[np.float32]  # (K, h', w')
    overview_post_drift: NDArray[np.float32] | None = None  # (h', w')


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is known of every prediction, whatever its task.

    blocks: transformer blocks executed per view of the image; the mean where an adaptive replay passes over some.
    trace: what the replay measured; only of a replayed prediction.
    """

    blocks: int = 1  # of a model without blocks: it ran once
    trace: ReplayMaps | None = None


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
