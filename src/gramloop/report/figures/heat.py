"""The severity heat map: the gain of a method for every shift family at every severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from gramloop.data.suites import display_name
from gramloop.errors import GramLoopError
from gramloop.report.figures.style import COLUMN, GAIN_MAP, INK, Drawn, Sheet, styled, words_width

_ROW, _GAP, _TOP, _FOOT = 0.165, 0.06, 0.30, 0.43  # inches
_NARROW = 1.4  # inches of a lone column
_CELL_SIZE = 6.0  # points
_MACRO = "mean"


@dataclass(frozen=True)
class Gains:
    """Gains in points: one row per family (or suite), one column per severity; nan where there is no result."""

    names: Sequence[str]
    severities: Sequence[int]  # a single 0 where the shifts have no severities
    values: NDArray[np.float64]  # (names, severities)
    metric: str
    method: str
    subject: str = "shift"  # what a row is

    def __post_init__(self) -> None:
        expected = (len(self.names), len(self.severities))
        if self.values.shape != expected or 0 in expected:
            raise GramLoopError(f"a heat map of gains needs {expected} values, not {self.values.shape}")

    @classmethod
    def of(
        cls, gains: Mapping[tuple[str, int], float], metric: str, method: str, subject: str = "shift"
    ) -> Gains:
        """From gains by family and severity, in the order in which families come."""
        names = list(dict.fromkeys(name for name, _ in gains))
        severities = sorted({severity for _, severity in gains})
        values = np.full((len(names), len(severities)), np.nan)
        for (name, severity), gain in gains.items():
            values[names.index(name), severities.index(severity)] = gain
        return cls(names, severities, values, metric, method, subject)

    def row_means(self) -> NDArray[np.float64]:
        """Of each family, where it is complete; a mean over what happens to be there would mislead."""
        means: NDArray[np.float64] = self.values.mean(axis=1)
        return means

    def column_means(self) -> NDArray[np.float64]:
        """Of each severity, where all families are there."""
        means: NDArray[np.float64] = self.values.mean(axis=0)
        return means

    @property
    def mean(self) -> float:
        """Of everything, or nan."""
        return float(self.values.mean())


def severity_heat(gains: Gains, width: float = COLUMN) -> Drawn:
    """The heat map, with the mean of each row and column, and numbers in all cells."""
    with styled():
        return Drawn(_draw(gains, width), *_words(gains))


def _draw(gains: Gains, width: float) -> Any:
    labels = [display_name(name) for name in gains.names]
    several, many = len(gains.severities) > 1, len(gains.names) > 1
    margin = max(words_width(label, 6.5) for label in [*labels, _MACRO]) + 0.12
    if not several:
        width = min(width, margin + _NARROW)
    rows, columns = len(labels) + many, len(gains.severities) + several
    top = _TOP if several else _TOP / 2
    height = top + _ROW * rows + _GAP * many + _FOOT
    cell = (width - margin - _GAP * several - 0.04) / columns
    sheet = Sheet(width, height)
    axes = sheet.panel(margin, top, width - margin - 0.04, _ROW * rows + _GAP * many)
    axes.set_xlim(0, cell * columns + _GAP * several)
    axes.set_ylim(_ROW * rows + _GAP * many, 0)
    blocks = [(gains.values, 0.0, 0.0)]
    if several:
        blocks.append((gains.row_means()[:, None], cell * len(gains.severities) + _GAP, 0.0))
    if many:
        blocks.append((gains.column_means()[None], 0.0, _ROW * len(labels) + _GAP))
    if several and many:
        corner = cell * len(gains.severities) + _GAP, _ROW * len(labels) + _GAP
        blocks.append((np.array([[gains.mean]]), *corner))
    scale = _scale(gains.values)
    style = _Cells(cell, scale, _decimals(scale.vmax))
    for values, left, top in blocks:
        style.draw(axes, values, left, top)
    _label(axes, gains, labels, cell)
    _colour_bar(sheet, scale, gains, margin, height)
    return sheet.figure


@dataclass(frozen=True)
class _Cells:
    width: float
    scale: Any
    decimals: int

    def draw(self, axes: Any, values: NDArray[np.float64], left: float, top: float) -> None:
        colours = matplotlib.colormaps[GAIN_MAP]
        for row, column in np.ndindex(values.shape):
            x, y, value = left + column * self.width, top + row * _ROW, values[row, column]
            missing = not np.isfinite(value)
            face = (0.96, 0.96, 0.96) if missing else colours(self.scale(value))
            look: Any = {"hatch": "//////", "edgecolor": "#bbbbbb"} if missing else {"edgecolor": "white"}
            axes.add_patch(Rectangle((x, y), self.width, _ROW, facecolor=face, linewidth=0.6, **look))
            if not missing:
                axes.text(
                    x + self.width / 2,
                    y + _ROW / 2,
                    signed(float(value), self.decimals),
                    fontsize=_CELL_SIZE,
                    ha="center",
                    va="center_baseline",
                    color="white" if _is_dark(face) else INK,
                )


def _label(axes: Any, gains: Gains, labels: list[str], cell: float) -> None:
    several, many = len(gains.severities) > 1, len(labels) > 1
    middle = [(index + 0.5) * _ROW for index in range(len(labels))]
    if many:
        middle.append(_ROW * len(labels) + _GAP + _ROW / 2)
    axes.set_yticks(middle, [*labels, _MACRO][: len(middle)])
    centres = [(index + 0.5) * cell for index in range(len(gains.severities))]
    names = [str(severity) for severity in gains.severities] if several else [gains.method]
    if several:
        centres.append(cell * len(gains.severities) + _GAP + cell / 2)
        names.append(_MACRO)
    axes.set_xticks(centres, names)
    axes.xaxis.set_ticks_position("top")
    axes.tick_params(length=0, pad=2)
    if several:
        axes.text(cell * len(gains.severities) / 2, -0.165, "severity", fontsize=7, ha="center", va="bottom")
    for side in axes.spines.values():
        side.set_visible(False)


def _colour_bar(sheet: Sheet, scale: Any, gains: Gains, margin: float, height: float) -> None:
    mappable = matplotlib.cm.ScalarMappable(norm=scale, cmap=GAIN_MAP)
    axes = sheet.panel(margin, height - _FOOT + 0.09, sheet.width - margin - 0.04, 0.06)
    bar = sheet.figure.colorbar(mappable, cax=axes, orientation="horizontal")
    bar.outline.set_visible(False)
    bar.set_ticks([scale.vmin, 0, scale.vmax])
    digits = _decimals(scale.vmax)
    bar.set_ticklabels([signed(scale.vmin, digits), "0", signed(scale.vmax, digits)])
    first, _, last = bar.ax.get_xticklabels()
    first.set_horizontalalignment("left")
    last.set_horizontalalignment("right")
    bar.ax.tick_params(length=1.5, pad=1, labelsize=6)
    sheet.text(
        margin + (sheet.width - margin) / 2,
        height - 0.03,
        f"gain in {gains.metric} (points)",
        fontsize=6.5,
        ha="center",
        va="bottom",
    )


def _words(gains: Gains) -> tuple[str, str, str]:
    title = f"Gain of {gains.method} by {gains.subject} and severity"
    finite = np.isfinite(gains.values)
    cells = int(finite.sum())
    if not cells:
        return title, "No condition is complete yet.", f"{title}: no condition is complete yet."
    better, worse = int((gains.values[finite] > 0).sum()), int((gains.values[finite] < 0).sum())
    best = np.unravel_index(np.nanargmax(gains.values), gains.values.shape)
    least = np.unravel_index(np.nanargmin(gains.values), gains.values.shape)
    missing = f" {finite.size - cells} of {finite.size} cells have no result yet (hatched)." * (
        cells < finite.size
    )
    mean = "" if missing else f" The mean over all is {signed(gains.mean, 3)}."
    where = [_cell_name(gains, *map(int, place)) for place in (best, least)]
    extremes = [signed(float(gains.values[place]), 3) for place in (best, least)]
    caption = (
        f"Gain of {gains.method} over the baseline in {gains.metric} points; blue is better, red worse, and the "
        f"scale is symmetric about 0. {better} of {cells} conditions gain, {worse} lose; the largest gain is "
        f"{extremes[0]} ({where[0]}), the lowest {extremes[1]} ({where[1]}).{mean}{missing}"
    )
    if len(gains.severities) > 1 and not missing:
        steps = ", ".join(
            f"{severity}: {signed(float(value), 3)}"
            for severity, value in zip(gains.severities, gains.column_means(), strict=True)
        )
        return title, caption, f"Heat map. {caption} Means by severity: {steps}."
    return title, caption, f"Heat map. {caption}"


def _cell_name(gains: Gains, row: int, column: int) -> str:
    severity = gains.severities[column]
    return display_name(gains.names[row]) + (f", severity {severity}" if severity else "")


def signed(value: float, digits: int) -> str:
    """A difference with its sign and a true minus; what rounds to zero has none."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def _scale(values: NDArray[np.float64]) -> Any:
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    return Normalize(-(largest or 1.0), largest or 1.0)


def _decimals(largest: float) -> int:
    return 3 if largest < 0.1 else 2 if largest < 10 else 1


def _is_dark(colour: Sequence[float]) -> bool:
    return 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 0.55
