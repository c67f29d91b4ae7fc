"""Segments in the figure of predictions: colours are classes, white lines part one segment from the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from gramloop.data.truth import VOID, SegmentMap
from gramloop.errors import GramLoopError
from gramloop.metrics.panoptic import found_segments
from gramloop.report.figures.panels import draw_legend, draw_outline, nearest, painted, photograph, shrunk
from gramloop.report.figures.style import GAINED, LOST, OTHER, Sheet

_NO_CLASS = -1  # of pixels without a segment


@dataclass(frozen=True)
class SegmentsRow:
    """One image, its true segments and two predictions of them."""

    title: str
    image: NDArray[np.uint8]  # (H, W, 3)
    truth: SegmentMap
    baseline: SegmentMap
    method: SegmentMap
    names: Mapping[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, each in zip(("truth", "baseline", "method"), self.maps, strict=True):
            if each.ids.shape != self.image.shape[:2]:
                raise GramLoopError(
                    f"the {name} of {self.title!r} is {each.ids.shape}, unlike its image {self.image.shape[:2]}"
                )

    @property
    def maps(self) -> tuple[SegmentMap, SegmentMap, SegmentMap]:
        """Truth, baseline and method."""
        return self.truth, self.baseline, self.method

    @property
    def found(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which true segments the baseline finds, and which the method; (n,) each."""
        ordinary, changed = (found_segments(each, self.truth) for each in self.maps[1:])
        return ordinary, changed

    @property
    def gained(self) -> NDArray[np.bool_]:
        """True segments that the method alone finds, (n,)."""
        ordinary, changed = self.found
        return changed & ~ordinary

    @property
    def lost(self) -> NDArray[np.bool_]:
        """True segments that the baseline alone finds, (n,)."""
        ordinary, changed = self.found
        return ordinary & ~changed

    @property
    def present(self) -> dict[int, int]:
        """Classes of the row with their pixels over the three maps, the largest first."""
        labels, counts = np.unique(np.stack([class_map(each) for each in self.maps]), return_counts=True)
        order = np.argsort(-counts, kind="stable")
        return {int(labels[i]): int(counts[i]) for i in order if labels[i] != _NO_CLASS}


def class_map(found: SegmentMap) -> NDArray[np.int64]:  # → (H, W)
    """The category of every pixel; -1 where there is no segment."""
    categories: NDArray[np.int64] = np.append(_NO_CLASS, found.categories)[found.places()]
    return categories


def draw_segments(
    sheet: Sheet, panels: Sequence[Any], row: SegmentsRow, colours: Mapping[int, str], below: float
) -> None:
    """Input, truth, baseline and method in four panels, and the classes' colours below."""
    size, small = (row.image.shape[0], row.image.shape[1]), shrunk(row.image)
    photograph(panels[0], small, high=size)
    for panel, found in zip(panels[1:], row.maps, strict=True):
        photograph(panel, _picture(small, found, colours), high=size)
    for flags, colour in ((row.lost, LOST), (row.gained, GAINED)):
        for number in row.truth.numbers[flags]:
            draw_outline(panels[3], row.truth.ids == number, colour, small.shape[:2])
    handles: list[Any] = [
        Patch(color=colour, label=row.names.get(label, f"class {label}")) for label, colour in colours.items()
    ]
    if len(row.present) > len(colours):
        handles.append(Patch(color=OTHER, label="others"))
    for flags, colour, word in ((row.gained, GAINED, "gained"), (row.lost, LOST, "lost")):
        handles.append(Line2D([], [], color=colour, linewidth=1.4, label=f"{word} {int(flags.sum())}"))
    draw_legend(sheet, handles, below + 0.02)


def _picture(small: NDArray[np.uint8], found: SegmentMap, colours: Mapping[int, str]) -> NDArray[np.uint8]:
    """Segments over the photograph, which shows where there is none."""
    ids = nearest(found.places(), small.shape[:2])
    picture = painted(small, class_map(found), colours, _NO_CLASS)
    picture[ids == VOID] = small[ids == VOID]
    rims = np.zeros(ids.shape, dtype=np.bool_)
    rims[:, :-1] |= ids[:, :-1] != ids[:, 1:]
    rims[:-1] |= ids[:-1] != ids[1:]
    picture[rims] = 255
    return picture


def gist_of_segments(row: SegmentsRow) -> str:
    """The row in words."""
    real, (ordinary, changed) = int((~row.truth.crowd).sum()), row.found
    return f"{row.title}: of {real} segments {int(ordinary.sum())} are found before and {int(changed.sum())} after."


def words_of_segments(methods: Sequence[str], truth: str) -> str:
    """What the panels show."""
    return (
        "Colours are classes, and white lines part one segment from the next; the photograph shows where there is none. "
        f"Green outlines: segments of the {truth} that {methods[1]} alone finds, magenta: those that {methods[0]} alone "
        "finds, by a segment of the same class with an overlap of more than 0.50. Masks of instances are shown from a "
        "score of 0.40 on, the best on top; these filters serve the picture and enter no score."
    )
