"""What all figures share: sizes of a paper's columns, colours for every eye, and files of the same bytes each time.

Panels are placed in inches from the top left corner, so that they line up exactly and nothing is laid out twice.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
from matplotlib.figure import Figure

COLUMN, FULL = 3.3, 6.9  # inches: one column of a paper, and both
DPI = 220

# Okabe and Ito's colours
BLUE, ORANGE, GREEN, PINK = "#0072B2", "#E69F00", "#009E73", "#CC79A7"
SKY, RED, YELLOW, PLUM = "#56B4E9", "#D55E00", "#F0E442", "#882255"
CLASS_COLOURS = (BLUE, ORANGE, GREEN, PINK, SKY, RED, YELLOW, PLUM)
GAINED, LOST = "#00D860", "#FF2DC8"  # vivid, to stand out on classes; green and magenta differ for every eye
INK, FAINT, OTHER = "#222222", "#8a8a8a", "#999999"
DRIFT_MAP, GATE_MAP, GAIN_MAP = "viridis", "cividis", "RdBu"
DEPTH_MAP = "viridis_r"  # perceptually even, what is near is bright

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
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # whole outlines, which journals and search engines can read
    "pdf.compression": 6,
    "svg.hashsalt": "gramloop",
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw inside, and the caller's own matplotlib settings stay untouched."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)
        yield


@dataclass(frozen=True)
class Drawn:
    """A figure with its words: what it is, what to read in it, and the same for those who cannot see it."""

    figure: Any  # matplotlib.figure.Figure
    title: str
    caption: str
    alt: str

    def of(self, name: str) -> Drawn:
        """The same figure, its title with the name of the run it is of."""
        return replace(self, title=f"{self.title}: {name}")

    def png(self) -> bytes:
        """The figure for a screen."""
        return self._saved("png", dpi=DPI, metadata={"Software": None})

    def pdf(self) -> bytes:
        """The figure for a paper, with its fonts inside and no date."""
        nothing = {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}
        return self._saved("pdf", dpi=300, metadata=nothing)

    def _saved(self, kind: str, **options: Any) -> bytes:
        buffer = io.BytesIO()
        with styled():
            self.figure.savefig(buffer, format=kind, facecolor="white", **options)
        return buffer.getvalue()


@dataclass
class Sheet:
    """A figure on which panels are placed in inches, measured from its top left corner."""

    width: float
    height: float

    def __post_init__(self) -> None:
        self.figure = Figure(figsize=(self.width, self.height))

    def panel(self, left: float, top: float, width: float, height: float) -> Any:
        """New axes."""
        below = self.height - top - height
        return self.figure.add_axes(
            (left / self.width, below / self.height, width / self.width, height / self.height)
        )

    def text(self, left: float, top: float, words: str, **options: Any) -> Any:
        """Words at a place; their top left corner, unless the options say otherwise."""
        options = {"va": "top", "ha": "left", **options}
        return self.figure.text(left / self.width, 1 - top / self.height, words, **options)


def words_width(words: str, size: float) -> float:
    """Inches that words take in the figures' font, so that margins fit their labels."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not words.strip():
        return 0.0
    path = TextPath((0, 0), words, size=size, prop=FontProperties(family="DejaVu Sans"))
    return float(path.get_extents().x1) / 72


def percent_of(part: float, whole: float) -> str:
    """A part in percent, with two digits where it is small: 12%, 0.26%."""
    percent = 100 * part / whole
    return f"{percent:.0f}%" if percent >= 10 or not percent else f"{percent:.2g}%"
