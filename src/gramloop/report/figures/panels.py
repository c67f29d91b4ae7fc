"""What one panel shows: a photograph, labels painted over it, a box, or a map with its scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from gramloop.errors import GramLoopError
from gramloop.report.figures.style import FAINT, ORANGE, OTHER, Sheet

LONGEST_SIDE = 640  # pixels of a photograph inside a figure
_FEW_PIXELS = 400


@dataclass(frozen=True)
class PixelRow:
    """One image, its truth and two predictions with a value for every pixel, all (H, W) of the image's size."""

    title: str
    image: NDArray[np.uint8]  # (H, W, 3)
    truth: NDArray[Any]
    baseline: NDArray[Any]
    method: NDArray[Any]

    def __post_init__(self) -> None:
        size = self.image.shape[:2]
        for name in ("truth", "baseline", "method"):
            if getattr(self, name).shape != size:
                raise GramLoopError(
                    f"the {name} of {self.title!r} is {getattr(self, name).shape}, unlike its image {size}"
                )


def bare(axes: Any) -> Any:
    """No ticks, no numbers, a hairline around."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_linewidth(0.4)
        side.set_color(FAINT)
    return axes


def photograph(axes: Any, picture: NDArray[Any], *, high: tuple[int, int] | None = None) -> Any:
    """An image (H, W, 3) in a bare panel; coordinates stay those of the pixels ``high`` = (H, W) it stands for."""
    rows, columns = high or picture.shape[:2]
    small = max(picture.shape[:2]) < _FEW_PIXELS  # goes into a PDF as it is, instead of many times as large
    style = "none" if small else "antialiased"
    bare(axes).imshow(picture, extent=(0, columns, rows, 0), interpolation=style, aspect="auto")
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    return axes


def shrunk(picture: NDArray[np.uint8], longest: int = LONGEST_SIDE) -> NDArray[np.uint8]:
    """A photograph no larger than a figure can show."""
    if max(picture.shape[:2]) <= longest:
        return picture
    small = Image.fromarray(picture)
    small.thumbnail((longest, longest))
    return np.asarray(small)


def painted(
    image: NDArray[np.uint8], labels: NDArray[Any], colours: Mapping[int, str], ignored: int
) -> NDArray[np.uint8]:
    """An image in grey under the colours of its labels (H, W); other labels are grey, ignored pixels white."""
    labels = nearest(labels, image.shape[:2])
    paint = np.empty((*labels.shape, 3))
    paint[:] = _rgb(OTHER)
    for label, colour in colours.items():
        paint[labels == label] = _rgb(colour)
    grey = image.mean(axis=2, keepdims=True)  # the photo's own hues would mislead
    blended = 0.3 * grey + 0.7 * paint
    blended[labels == ignored] = 255
    painted: NDArray[np.uint8] = blended.astype(np.uint8)
    return painted


def nearest(values: NDArray[Any], size: tuple[int, ...]) -> NDArray[Any]:
    """Values (H, W) in another size, each pixel from the nearest one."""
    rows = (np.arange(size[0]) + 0.5) * values.shape[0] / size[0]
    columns = (np.arange(size[1]) + 0.5) * values.shape[1] / size[1]
    picked: NDArray[Any] = values[rows.astype(int)[:, None], columns.astype(int)[None]]
    return picked


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def draw_outline(panel: Any, mask: NDArray[np.bool_], colour: str, size: tuple[int, ...]) -> None:
    """The outline of a region, black beneath so that it shows on any class."""
    small = nearest(mask.astype(np.uint8), size)
    if not small.any():
        return
    height, width = mask.shape
    framed = np.pad(small, 1).astype(float)  # so that an outline closes at the rim
    across = (np.arange(-1, size[1] + 1) + 0.5) * width / size[1]
    down = (np.arange(-1, size[0] + 1) + 0.5) * height / size[0]
    for line, thickness in (("black", 1.3), (colour, 0.8)):
        panel.contour(
            across.clip(0, width), down.clip(0, height), framed, [0.5], colors=line, linewidths=thickness
        )


def draw_box(
    panel: Any, box: NDArray[Any], colour: str, words: str, *, dashed: bool = False, scale: float = 1.0
) -> None:
    """A box (left, top, right, bottom) with words at its corner, legible on anything; ``scale`` for small panels."""
    x, y, x1, y1 = map(float, box)
    width, height = x1 - x, y1 - y
    style: Any = {"linestyle": (0, (3, 1.5))} if dashed else {}
    panel.add_patch(Rectangle((x, y), width, height, fill=False, edgecolor="white", linewidth=1.7 * scale))
    panel.add_patch(
        Rectangle((x, y), width, height, fill=False, edgecolor=colour, linewidth=0.95 * scale, **style)
    )
    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    at_right = x >= left + 0.75 * (right - left)  # no room to the right: the words end where the box does
    near_top = y - top < 0.08 * (bottom - top)  # no room above: write inside the box
    panel.text(
        min(x + width, right) if at_right else max(x, left),
        max(y, top) if near_top else y,
        words,
        fontsize=4.8 * scale,
        color="black" if colour == ORANGE else "white",
        va="top" if near_top else "bottom",
        ha="right" if at_right else "left",
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6 * scale},
        clip_on=True,
    )


def draw_values(panel: Any, values: NDArray[Any], colours: str, high: float) -> Any:
    """Values (h, w) in a bare panel, on a scale from 0; what is shown is what a colour bar belongs to."""
    return bare(panel).imshow(
        np.asarray(values, dtype=np.float64),
        cmap=colours,
        vmin=0.0,
        vmax=high,
        interpolation="nearest",
        aspect="auto",
    )


def colour_bar(
    sheet: Sheet, shown: Any, place: tuple[float, float, float], label: str, *, beyond: bool = False
) -> None:
    """The scale of a map at ``place`` (left, top, width in inches); ``beyond`` says that some values exceed it."""
    left, top, width = place
    axes = sheet.panel(left, top, width, 0.055)
    high = float(shown.norm.vmax)
    bar = sheet.figure.colorbar(
        shown, cax=axes, orientation="horizontal", extend="max" if beyond else "neither"
    )
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(length=1.5, pad=1, labelsize=6)
    exponent = 0 if 0.1 <= high < 100 else int(np.floor(np.log10(high)))
    ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(0, high / 10.0**exponent)
    ticks = [tick for tick in ticks if tick <= high / 10.0**exponent * 1.0001]
    bar.set_ticks([tick * 10.0**exponent for tick in ticks])
    bar.set_ticklabels([f"{tick:g}" for tick in ticks])
    times = f" (×$10^{{{exponent}}}$)" if exponent else ""
    sheet.text(left + width / 2, top + 0.17, label + times, fontsize=6.5, ha="center")


def draw_legend(sheet: Sheet, handles: Sequence[Any], top: float, *, lower: bool = False) -> None:
    """Handles in one row, their upper edge at ``top`` inches, or their lower one."""
    sheet.figure.legend(
        handles=handles,
        loc="lower left" if lower else "upper left",
        bbox_to_anchor=(0, 1 - top / sheet.height),
        ncols=len(handles),
        fontsize=6,
        frameon=False,
        borderpad=0.1,
        handlelength=1.0,
        handletextpad=0.4,
        columnspacing=1.0,
        borderaxespad=0.1,
    )
