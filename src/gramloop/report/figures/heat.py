"""The severity heat map: the gain of a method for every shift family at every severity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import display_name
from gramloop.util.plotting import (
    COLUMN,
    GAIN_MAP,
    INK,
    CaptionedFigure,
    Sheet,
    signed_difference,
    styled,
    text_width,
)

_ROW, _TOP, _FOOT = 0.165, 0.30, 0.43  # inches
_NARROW = 1.4  # inches of a lone column


@dataclass(frozen=True)
class Gains:
    """Gains in points: one row per family (or suite), one column per severity; nan where there is no result."""

    names: Sequence[str]
    severities: Sequence[int]  # a single 0 where the shifts have no severities
    values: NDArray[np.float64]  # (names, severities)
    metric: str
    method: str
    subject: str = "shift"  # what a row is

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

    def with_means(self) -> NDArray[np.float64]:
        """The values with the mean of each row and column; nan where one is missing, for it would mislead."""
        table = self.values
        if len(self.severities) > 1:
            table = np.column_stack([table, table.mean(axis=1)])
        return np.vstack([table, table.mean(axis=0)]) if len(self.names) > 1 else table

    def cell_name(self, place: int) -> str:
        """A cell of the flattened values in words."""
        row, column = divmod(place, len(self.severities))
        severity = self.severities[column]
        return display_name(self.names[row]) + (f", severity {severity}" if severity else "")


def severity_heat(gains: Gains, width: float = COLUMN) -> CaptionedFigure:
    """The heat map, with the mean of each row and column, and numbers in all cells."""
    with styled():
        return CaptionedFigure(_draw(gains, width), *_words(gains))


def _draw(gains: Gains, width: float) -> Any:
    from matplotlib.colors import Normalize

    several, many = len(gains.severities) > 1, len(gains.names) > 1
    labels = [*map(display_name, gains.names), *["mean"] * many]
    heads = [*map(str, gains.severities), "mean"] if several else [gains.method]
    table = gains.with_means()
    margin = max(text_width(label, 6.5) for label in labels) + 0.12
    width = width if several else min(width, margin + _NARROW)
    top = _TOP if several else _TOP / 2
    sheet = Sheet(width, top + _ROW * len(labels) + _FOOT)
    axes = sheet.panel(margin, top, width - margin - 0.04, _ROW * len(labels))
    largest = float(np.nanmax(np.abs(gains.values))) if np.isfinite(gains.values).any() else 0.0
    limit = largest or 1.0
    axes.set_facecolor("#e8e8e8")  # of cells without a result
    shown = axes.imshow(
        np.ma.masked_invalid(table), cmap=GAIN_MAP, norm=Normalize(-limit, limit), aspect="auto"
    )
    digits = 3 if largest < 0.1 else 2 if largest < 10 else 1
    for (row, column), value in np.ndenumerate(table):
        strong = np.isfinite(value) and abs(value) > 0.6 * limit
        words = signed_difference(float(value), digits) if np.isfinite(value) else "–"
        ink = "white" if strong else INK
        axes.text(column, row, words, fontsize=6, ha="center", va="center_baseline", color=ink)
    axes.set_xticks(range(len(heads)), heads)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xticks(np.arange(len(heads) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(labels) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    if several:
        axes.axvline(len(gains.severities) - 0.5, color="white", linewidth=4)
        sheet.text(margin + (width - margin) / 2, 0.03, "severity", ha="center")
    if many:
        axes.axhline(len(gains.names) - 0.5, color="white", linewidth=4)
    axes.xaxis.set_ticks_position("top")
    axes.tick_params(which="both", length=0, pad=2)
    axes.spines[:].set_visible(False)
    place = (margin, sheet.height - _FOOT + 0.09, width - margin - 0.04)
    sheet.colour_bar(shown, place, f"gain in {gains.metric} (points)")
    return sheet.figure


def _words(gains: Gains) -> tuple[str, str, str]:
    title, values = f"Gain of {gains.method} by {gains.subject} and severity", gains.values
    finite = np.isfinite(values)
    cells = int(finite.sum())
    if not cells:
        return title, "No condition is complete yet.", f"{title}: no condition is complete yet."
    ends = int(np.nanargmax(values)), int(np.nanargmin(values))
    best, least = (
        f"{signed_difference(float(values.flat[end]), 3)} ({gains.cell_name(end)})" for end in ends
    )
    rest = f"The mean over all is {signed_difference(float(values.mean()), 3)}."
    if cells < finite.size:
        rest = f"{finite.size - cells} of {finite.size} cells have no result yet (grey)."
    caption = (
        f"Gain of {gains.method} over the baseline in {gains.metric} points; blue is better, red worse. "
        f"{(values[finite] > 0).sum()} of {cells} conditions gain, {(values[finite] < 0).sum()} lose; the largest gain is "
        f"{best}, the lowest {least}. {rest}"
    )
    return title, caption, f"Heat map. {caption}"
