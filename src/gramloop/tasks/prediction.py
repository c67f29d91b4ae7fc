"""What predictors return: the predictions of each task, in the size of the original image, and pairs of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from gramloop.tasks.class_names import Classes
from gramloop.util.table import Table, TableRepr

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gramloop.tasks.images import ImageLike

_UNNAMED: Classes = MappingProxyType({})


@dataclass(frozen=True)
class ReplayMaps:
    """What each replay measured: over the resized image, averaged where crops overlap, or per patch.

    Every window of a detector is gated on its own, so values of different windows share a scale but not a median.
    """

    drift: NDArray[np.float32]  # (K, h, w), of each proposal
    gate: NDArray[np.float32]  # (K, h, w)
    post_drift: NDArray[np.float32] | None = None  # (h, w), of what was accepted in the end, where measured
    cell: int = 1  # entries along the side of a patch

    def plot(self) -> Any:
        """Draw drift and gate, a column for each replay; returns matplotlib's axes, (2, columns)."""
        from gramloop.util.plotting import plot_replays

        return plot_replays(list(self.drift), list(self.gate), self.post_drift)


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
        from gramloop.tasks.drawing import plot_prediction

        return plot_prediction(self, image, classes, threshold, ax)

    def _table(self) -> Table:
        from gramloop.tasks.base import task_of

        table = task_of(self).summary(self)
        replayed = "" if self.trace is None else ", replayed; its trace has the maps of drift and gate"
        note = f"{self.blocks} transformer block{'s' * (self.blocks != 1)} executed per view{replayed}."
        return replace(table, notes=(*table.notes, note))


P = TypeVar("P", bound=Prediction)
P_co = TypeVar("P_co", bound=Prediction, covariant=True)


@dataclass(frozen=True)
class Pair(Generic[P_co]):
    """The baseline prediction (``ordinary``) and the replayed one of an image, which share the baseline pass."""

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
        from gramloop.tasks.drawing import plot_pair

        return plot_pair(self.ordinary, self.replayed, image, classes, threshold)
