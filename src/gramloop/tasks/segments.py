"""What panoptic and instance segmentation share: segments are drawn in the colours of their classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.truth import VOID, SegmentMap
from gramloop.metrics.panoptic import found_segments
from gramloop.tasks.base import P, T, Task
from gramloop.tasks.class_names import Classes
from gramloop.tasks.drawing import NO_CLASS, Changes, DrawStyle, class_style
from gramloop.util.plotting import GAINED, LOST, nearest, paint_classes, photograph, shrunk

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class SegmentTask(Task[P, T]):
    """A task whose predictions are segments, or masks that are laid over each other."""

    figure_caption = (
        "Colours are classes, and white lines part one segment from the next; the photograph shows where there is none. "
        "Green outlines: segments of the {truth} that {after} alone finds, magenta: those that {before} alone finds, by a "
        "segment of the same class with an overlap of more than 0.50. Masks of instances are shown from a score of 0.40 "
        "on, the best on top; these filters serve the picture and enter no score."
    )

    def segments(self, prediction: P, threshold: float) -> SegmentMap:
        """The segments, or the masks that score at least the threshold, the best on top."""
        raise NotImplementedError

    def style(
        self,
        predictions: Sequence[P],
        classes: Classes,
        threshold: float = 0.5,
        known: Mapping[int, str] = MappingProxyType({}),
    ) -> DrawStyle:
        """The largest classes of all predictions."""
        labels = [_class_map(self.segments(each, threshold)) for each in predictions]
        return class_style(labels, classes, threshold, known)

    def draw(
        self,
        axes: Axes,
        image: NDArray[np.uint8],
        prediction: P,
        style: DrawStyle,
        colours: Sequence[str] = (),
    ) -> None:
        """Segments over the photograph, which shows where there is none."""
        found, small = self.segments(prediction, style.threshold), shrunk(image)
        ids = nearest(found.places(), small.shape)
        picture = paint_classes(small, _class_map(found), style.colours, NO_CLASS)
        picture[ids == VOID] = small[ids == VOID]
        rims = np.zeros(ids.shape, dtype=np.bool_)
        rims[:, :-1] |= ids[:, :-1] != ids[:, 1:]
        rims[:-1] |= ids[:-1] != ids[1:]
        picture[rims] = 255
        photograph(axes, picture, image.shape)

    def changes(self, before: P, after: P, truth: P | None, style: DrawStyle) -> Changes:
        """Which true segments are found; without truth, how many pixels change their class."""
        maps = [self.segments(each, style.threshold) for each in (before, after)]
        if truth is None:
            share = (_class_map(maps[0]) != _class_map(maps[1])).mean()
            return Changes(f"{share:.1%} of pixels change their class")
        true = self.segments(truth, 0.0)
        first, second = (found_segments(each, true) for each in maps)
        gained, lost = second & ~first, first & ~second
        outlines = [
            (true.ids == number, colour)
            for flags, colour in ((lost, LOST), (gained, GAINED))
            for number in true.numbers[flags]
        ]
        real = int((~true.crowd).sum())
        return Changes(
            f"of {real} segments {int(first.sum())} are found before and {int(second.sum())} after",
            outlines,
            legend=((GAINED, f"gained {int(gained.sum())}"), (LOST, f"lost {int(lost.sum())}")),
        )


def _class_map(found: SegmentMap) -> NDArray[Any]:  # → (H, W)
    """The category of every pixel; -1 where there is no segment."""
    categories: NDArray[np.int64] = np.append(NO_CLASS, found.categories)[found.places()]
    return categories
