"""Drawing that every room shares: colours, panels placed in inches, photographs with labels and boxes, maps with scales.

matplotlib is imported when something is drawn, for not every installation has it.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from gramloop.errors import GramLoopError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Legend = Sequence[tuple[str, str]]  # colour and what it stands for
COLUMN, FULL = 3.3, 6.9  # inches: one column of a paper, and both
DPI = 220

# Okabe and Ito's colours
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, PLUM = "#56B4E9", "#D55E00", "#F0E442", "#882255"
CLASS_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, PLUM)
GAINED, LOST = "#00D860", "#FF2DC8"  # vivid, to stand out on classes; green and magenta differ for every eye
INK, PAPER, FAINT, OTHER = "#222222", "#e3e7eb", "#8a8a8a", "#999999"
DRIFT_MAP, GATE_MAP, GAIN_MAP = "viridis", "cividis", "RdBu"

LONGEST_SIDE = 640  # pixels of a photograph inside a figure
_FEW_PIXELS = 400
_MOST_REPLAYS = 6  # in one row; with more of them none can be seen
_SIDE = 2.3  # inches of a panel in a notebook
LEGEND_LINE = 0.14  # inches
_RC: Mapping[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, hence the same everywhere
    "mathtext.fontset": "dejavusans",
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # whole outlines, which journals and search engines can read
    "pdf.compression": 6,
    "svg.hashsalt": "gramloop",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw inside; the caller's matplotlib settings stay untouched."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


@dataclass(frozen=True)
class CaptionedFigure:
    """A figure with its title and caption, and the same in words for those who cannot see it."""

    figure: Any  # matplotlib.figure.Figure
    title: str
    caption: str
    alt: str

    def of(self, name: str) -> CaptionedFigure:
        """The same figure, its title with the name of the run it is of."""
        return replace(self, title=f"{self.title}: {name}")

    def png(self) -> bytes:
        """The figure for a screen."""
        return self._saved("png", dpi=DPI, metadata={"Software": None})

    def pdf(self) -> bytes:
        """The figure for a paper, with its fonts inside and no date."""
        nothing = {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}
        return self._saved("pdf", dpi=300, metadata=nothing)

    def dark_png(self) -> bytes:
        """The figure for a dark page: light words on nothing, photographs and maps as they are."""
        from matplotlib.text import Text

        dark = [text for text in self.figure.findobj(Text) if text.get_color() == INK]
        for text in dark:
            text.set_color(PAPER)
        try:
            return self._saved(
                "png", dpi=DPI, metadata={"Software": None}, facecolor="none", transparent=True
            )
        finally:
            for text in dark:
                text.set_color(INK)

    def _saved(self, kind: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        with styled():
            self.figure.savefig(buffer, format=kind, **{"facecolor": "white", **options})
        return buffer.getvalue()


@dataclass
class Sheet:
    """A figure on which panels are placed in inches from its top left corner, so that they line up exactly."""

    width: float
    height: float

    def __post_init__(self) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(self.width, self.height))

    def panel(self, left: float, top: float, width: float, height: float) -> Any:
        """New axes."""
        below = self.height - top - height
        return self.figure.add_axes(
            (left / self.width, below / self.height, width / self.width, height / self.height)
        )

    def text(self, left: float, top: float, words: str, **options: Any) -> Any:
        """Text at a place; its top left corner, unless the options say otherwise."""
        options = {"va": "top", "ha": "left", **options}
        return self.figure.text(left / self.width, 1 - top / self.height, words, **options)

    def legend(self, entries: Legend, top: float) -> None:
        """What colours stand for, in lines of the sheet's width from ``top`` inches on."""
        from matplotlib.patches import Rectangle

        for number, line in enumerate(legend_lines(entries, self.width)):
            left, above = 0.02, top + number * LEGEND_LINE
            for colour, label, width in line:
                corner = (left / self.width, 1 - (above + 0.1) / self.height)
                size = (0.12 / self.width, 0.075 / self.height)
                patch = Rectangle(corner, *size, color=colour, transform=self.figure.transFigure, label=label)
                self.figure.add_artist(patch)
                self.text(left + 0.16, above + 0.02, label, fontsize=6)
                left += width

    def colour_bar(
        self, mappable: Any, place: tuple[float, float, float], label: str, *, beyond: bool = False
    ) -> None:
        """The scale of a map at ``place`` (left, top, width in inches); ``beyond``: some values exceed it."""
        from matplotlib.ticker import MaxNLocator

        left, top, width = place
        axes = self.panel(left, top, width, 0.055)
        low, high = float(mappable.norm.vmin), float(mappable.norm.vmax)
        extend = "max" if beyond else "neither"
        bar = self.figure.colorbar(mappable, cax=axes, orientation="horizontal", extend=extend)
        bar.outline.set_linewidth(0.4)
        bar.ax.tick_params(length=1.5, pad=1, labelsize=6)
        exponent = 0 if 0.1 <= high < 100 else int(np.floor(np.log10(high)))
        unit = 10.0**exponent
        ticks = MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]).tick_values(low / unit, high / unit)
        ticks = [tick for tick in ticks if low / unit * 1.0001 <= tick <= high / unit * 1.0001]
        bar.set_ticks(
            [tick * unit for tick in ticks], labels=[f"{tick:g}".replace("-", "−") for tick in ticks]
        )
        times = f" (×$10^{{{exponent}}}$)" if exponent else ""
        self.text(left + width / 2, top + 0.17, label + times, fontsize=6.5, ha="center")


def legend_lines(entries: Legend, width: float) -> list[list[tuple[str, str, float]]]:
    """The entries of a legend line by line, each with the inches it takes."""
    lines: list[list[tuple[str, str, float]]] = []
    room = 0.0
    for colour, label in entries:
        wide = text_width(label, 6) + 0.28
        if not lines or wide > room:
            lines.append([])
            room = width
        lines[-1].append((colour, label, wide))
        room -= wide
    return lines


def text_width(words: str, size: float) -> float:
    """Inches that words take in the figures' font, so that margins fit their labels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not words.strip():
        return 0.0
    path = TextPath((0, 0), words, size=size, prop=FontProperties(family="DejaVu Sans"))
    return float(path.get_extents().x1) / 72


def signed_difference(value: float, digits: int) -> str:
    """A difference with its sign and a true minus; what rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def percent_of(part: float, whole: float) -> str:
    """A part in percent, with two digits where it is small: 12%, 0.26%."""
    percent = 100 * part / whole
    return f"{percent:.0f}%" if percent >= 10 or not percent else f"{percent:.2g}%"


# pictures in one panel


def bare(axes: Any) -> Any:
    """No ticks, no numbers, a hairline around."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_linewidth(0.4)
        side.set_color(FAINT)
    return axes


def photograph(axes: Any, picture: NDArray[Any], size: Sequence[int] | None = None) -> Any:
    """An image (H, W, 3) in a bare panel; coordinates stay those of the pixels ``size`` = (H, W) it stands for."""
    rows, columns = (size or picture.shape)[:2]
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


def nearest(values: NDArray[Any], size: Sequence[int]) -> NDArray[Any]:
    """Values (H, W) in another size, each pixel from the nearest one."""
    rows = (np.arange(size[0]) + 0.5) * values.shape[0] / size[0]
    columns = (np.arange(size[1]) + 0.5) * values.shape[1] / size[1]
    picked: NDArray[Any] = values[rows.astype(int)[:, None], columns.astype(int)[None]]
    return picked


def paint_classes(
    image: NDArray[np.uint8], labels: NDArray[Any], colours: Mapping[int, str], no_class: int
) -> NDArray[np.uint8]:
    """An image in grey under the colours of its labels (H, W); other labels are grey, pixels without one white."""
    labels = nearest(labels, image.shape[:2])
    paint = np.empty((*labels.shape, 3))
    paint[:] = _rgb(OTHER)
    for label, colour in colours.items():
        paint[labels == label] = _rgb(colour)
    grey = image.mean(axis=2, keepdims=True)  # the photo's hues would mislead
    blended = 0.3 * grey + 0.7 * paint
    blended[labels == no_class] = 255
    picture: NDArray[np.uint8] = blended.astype(np.uint8)
    return picture


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def draw_outline(panel: Any, mask: NDArray[np.bool_], colour: str) -> None:
    """The outline of a region (H, W), black beneath so that it shows on any class."""
    height, width = mask.shape
    shrink = max(1.0, max(mask.shape) / LONGEST_SIDE)
    size = (max(1, round(height / shrink)), max(1, round(width / shrink)))
    small = nearest(mask.astype(np.uint8), size)
    if not small.any():
        return
    framed = np.pad(small, 1).astype(float)  # so that an outline closes at the rim
    across = ((np.arange(-1, size[1] + 1) + 0.5) * width / size[1]).clip(0, width)
    down = ((np.arange(-1, size[0] + 1) + 0.5) * height / size[0]).clip(0, height)
    for line, thickness in (("black", 1.3), (colour, 0.8)):
        panel.contour(across, down, framed, [0.5], colors=line, linewidths=thickness)


def draw_box(panel: Any, box: NDArray[Any], colour: str, words: str, *, dashed: bool = False) -> None:
    """A box (left, top, right, bottom) with words at its corner, legible on anything."""
    from matplotlib.patches import Rectangle

    x, y, x1, y1 = map(float, box)
    style: Any = {"linestyle": (0, (3, 1.5))} if dashed else {}
    for edge, width, more in (("white", 1.7, {}), (colour, 0.95, style)):
        panel.add_patch(
            Rectangle((x, y), x1 - x, y1 - y, fill=False, edgecolor=edge, linewidth=width, **more)
        )
    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    at_right = x >= left + 0.75 * (right - left)  # no room to the right: the words end where the box does
    near_top = y - top < 0.08 * (bottom - top)  # no room above: write inside the box
    panel.text(
        min(x1, right) if at_right else max(x, left),
        max(y, top) if near_top else y,
        words,
        fontsize=4.8,
        color="black" if colour == ORANGE else "white",
        va="top" if near_top else "bottom",
        ha="right" if at_right else "left",
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 0.6},
        clip_on=True,
    )


def draw_values(panel: Any, values: NDArray[Any], colours: str, high: float, low: float = 0.0) -> Any:
    """Values (h, w) in a bare panel; returns what a colour bar belongs to."""
    matrix = np.asarray(values, dtype=np.float64)
    return bare(panel).imshow(
        matrix, cmap=colours, vmin=low, vmax=high, interpolation="nearest", aspect="auto"
    )


def colour_of(colours: str, share: float) -> str:
    """The colour at a share of a colour map."""
    import matplotlib
    from matplotlib.colors import to_hex

    return to_hex(matplotlib.colormaps[colours](share))


# figures of notebooks


def pyplot() -> Any:
    """matplotlib.pyplot, so that figures appear where people expect them."""
    try:
        import matplotlib.pyplot
    except ModuleNotFoundError as error:
        raise GramLoopError(
            "plot needs matplotlib, which is not installed; pip install 'gramloop[eval]' brings it"
        ) from error
    return matplotlib.pyplot


def draw_replay(
    sheet: Sheet, panels: Sequence[Any], maps: Sequence[NDArray[Any]], top: float, high: float | None = None
) -> None:
    """Drift and gate of a replay and, where it is given, the drift of what was accepted, with their means.

    Args:
        sheet: what the panels are on.
        panels: one for each map.
        maps: (h, w) each; what is not finite stays white.
        top: where the scales lie, in inches from the top.
        high: where the scale of drift ends; by default where few values exceed it.
    """
    high = high or drift_end([maps[0], *maps[2:]])
    kinds = (
        ("drift", DRIFT_MAP, high),
        ("gate", GATE_MAP, 1.0),
        ("drift of what was accepted", DRIFT_MAP, high),
    )
    for panel, values, (name, colours, end) in zip(panels, maps, kinds, strict=False):
        mappable = draw_values(panel, values, colours, end)
        mean = float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")
        panel.set_title(f"{name}, mean {mean:.2g}")
        place = panel.get_position()
        left, width = place.x0 * sheet.width + 0.2, place.width * sheet.width - 0.4
        sheet.colour_bar(
            mappable, (left, top, width), "gate" if end == 1.0 else "Gram drift", beyond=end == high
        )


def drift_end(maps: Sequence[NDArray[Any]]) -> float:
    """Where the scale of drift maps ends, so that few patches do not hide the others."""
    finite = np.concatenate([each[np.isfinite(each)] for each in map(np.asarray, maps)]).astype(np.float64)
    if not finite.size:
        return 1e-12
    return float(np.percentile(finite, 99.5)) or float(finite.max()) or 1e-12


def plot_replays(
    drift: Sequence[NDArray[Any]], gate: Sequence[NDArray[Any]], post_drift: NDArray[Any] | None = None
) -> Figure:
    """Drift and gate, a row for each replay, and the drift of what was accepted in the last one."""
    if not drift:
        raise GramLoopError(
            "nothing was measured, so there is no map to plot; a replay with a trace measures"
        )
    pyplot()
    kept = sorted({*range(min(len(drift), _MOST_REPLAYS - 1)), len(drift) - 1})
    accepted = [] if post_drift is None else [post_drift]
    high = drift_end([*(drift[index] for index in kept), *accepted])
    tall = _SIDE * min(max(drift[0].shape[0] / drift[0].shape[1], 0.3), 1.7)
    with styled():
        sheet = Sheet((2 + len(accepted)) * _SIDE, len(kept) * (tall + 0.6))
        for row, index in enumerate(kept):
            maps = [drift[index], gate[index], *(accepted if index == kept[-1] else [])]
            top = row * (tall + 0.6) + 0.2
            panels = [
                sheet.panel(column * _SIDE + 0.15, top, _SIDE - 0.2, tall) for column in range(len(maps))
            ]
            panels[0].set_ylabel(f"replay {index + 1}", labelpad=2)
            draw_replay(sheet, panels, maps, top + tall + 0.05, high)
        return sheet.figure
