"""The diagnostic of a replay: input, drift of the last proposal, gate, and drift of what was accepted.

One image makes two rows of two panels, several severities a row of four panels each. All drift panels of a
figure share one scale, from 0, and the gate's is 0 to 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.tasks.diagnosis import Diagnosis
from gramloop.util.plotting import (
    COLUMN,
    DRIFT_MAP,
    FULL,
    GATE_MAP,
    CaptionedFigure,
    Sheet,
    bare,
    draw_values,
    percent_of,
    photograph,
    shrunk,
    styled,
)

_GAP, _TITLE, _NOTE, _FOOT, _SIDE, _EDGE = 0.07, 0.19, 0.2, 0.36, 0.17, 0.02  # inches
_TALLEST = 1.5  # of a panel's width; a longer strip would leave nothing to see
_CLIPPED = 99.5  # percentile of all drift at which the scale ends, so that one patch does not hide the others


@dataclass(frozen=True)
class Diagnosed:
    """One row: an image as the model saw it, and maps over its patches."""

    label: str
    image: NDArray[np.uint8]  # (H, W, 3)
    drift: NDArray[Any]  # (h, w) of the last proposal
    gate: NDArray[Any]  # (h, w)
    post: NDArray[Any] | None  # (h, w) of the accepted state, where it was measured

    @classmethod
    def of(cls, found: Diagnosis, label: str, image: NDArray[np.uint8]) -> Diagnosed:
        """The last replay's maps beside the image as the model saw it."""
        return cls(label, image, found.drift[-1], found.gate[-1], found.post_drift)


def diagnostic(
    rows: Sequence[Diagnosed], title: str = "Diagnostic", high: float | None = None
) -> CaptionedFigure:
    """The figure: two by two for one row, otherwise four columns; ``high`` is where the scale of drift ends."""
    if not rows:
        raise GramLoopError("a diagnostic figure needs at least one image")
    high = high or drift_scale(rows)
    with styled():
        figure = _square(rows[0], high) if len(rows) == 1 else _rows(rows, high)
        return CaptionedFigure(figure, title, *_words(rows, high))


def drift_scale(rows: Sequence[Diagnosed]) -> float:
    """Where the common scale of all drift panels ends."""
    maps = [each for row in rows for each in (row.drift, row.post) if each is not None]
    values = np.concatenate([np.asarray(each, dtype=np.float64).ravel() for each in maps])
    values = values[np.isfinite(values)]
    top = float(np.percentile(values, _CLIPPED)) if len(values) else 0.0
    return top or float(values.max(initial=0.0)) or 1e-12


def _square(row: Diagnosed, high: float) -> Any:
    width = (COLUMN - _GAP - 2 * _EDGE) / 2
    tall = _height(row, width)
    sheet = Sheet(COLUMN, 2 * (_TITLE + tall) + _GAP + 0.07 + _FOOT)
    left, lower = (_EDGE, _EDGE + width + _GAP), _TITLE + tall + _GAP + _TITLE
    places = [(left[0], _TITLE), (left[1], _TITLE), (left[0], lower), (left[1], lower)]
    panels = [sheet.panel(x, y, width, tall) for x, y in places]
    drift, gate = _fill(panels, row, high)
    for panel, name, letter in zip(panels, _titles(row), "abcd", strict=True):
        panel.set_title(f"({letter}) {name}", loc="left", pad=2.5)
    below = lower + tall + 0.07
    sheet.colour_bar(gate, (left[0] + 0.12, below, width - 0.24), "gate")
    place = (left[1] + 0.12, below, width - 0.24)
    sheet.colour_bar(drift, place, "Gram drift, (b) and (d)", beyond=_exceeds([row], high))
    return sheet.figure


def _rows(rows: Sequence[Diagnosed], high: float) -> Any:
    width = (FULL - _SIDE - 3 * _GAP - _EDGE) / 4
    heights = [_height(row, width) for row in rows]
    sheet = Sheet(FULL, _TITLE + sum(heights) + _NOTE * len(rows) + _FOOT)
    left = [_SIDE + column * (width + _GAP) for column in range(4)]
    top = _TITLE
    for index, (row, tall) in enumerate(zip(rows, heights, strict=True)):
        panels = [sheet.panel(x, top, width, tall) for x in left]
        drift, gate = _fill(panels, row, high)
        for panel, name in zip(panels, ("input", "proposal drift", "gate", "post-gating drift"), strict=True):
            if index == 0:
                panel.set_title(name, pad=2.5)
        for panel, note in zip(panels[1:], _notes(row), strict=True):
            panel.set_xlabel(note, fontsize=6, labelpad=1.5)
        panels[0].set_ylabel(row.label, labelpad=3)
        top += tall + _NOTE
    beyond = _exceeds(rows, high)
    for column, shown in ((1, drift), (2, gate), (3, drift)):
        label, more = ("gate", False) if shown is gate else ("Gram drift, all rows", beyond)
        sheet.colour_bar(shown, (left[column] + 0.12, top, width - 0.24), label, beyond=more)
    return sheet.figure


def _exceeds(rows: Sequence[Diagnosed], high: float) -> bool:
    return any(
        bool(np.nanmax(each) > high) for row in rows for each in (row.drift, row.post) if each is not None
    )


def _fill(panels: Sequence[Any], row: Diagnosed, high: float) -> tuple[Any, Any]:
    """Draw one row's four panels; the shown drift and gate are what colour bars belong to."""
    photograph(panels[0], shrunk(row.image), row.image.shape)
    drift = draw_values(panels[1], row.drift, DRIFT_MAP, high)
    gate = draw_values(panels[2], row.gate, GATE_MAP, 1.0)
    if row.post is not None:
        draw_values(panels[3], row.post, DRIFT_MAP, high)
    else:
        bare(panels[3]).text(
            0.5, 0.5, "not measured", ha="center", va="center", transform=panels[3].transAxes
        )
    return drift, gate


def _height(row: Diagnosed, width: float) -> float:
    return width * min(float(row.image.shape[0] / row.image.shape[1]), _TALLEST)


def _titles(row: Diagnosed) -> list[str]:
    names = ("proposal drift", "gate", "post-gating drift")
    notes = [note.removeprefix("mean ") for note in _notes(row)]
    return ["input", *(f"{name} {note}" for name, note in zip(names, notes, strict=True))]


def _notes(row: Diagnosed) -> list[str]:
    post = "not measured" if row.post is None else f"mean {_short(row.post)}"
    return [f"mean {_short(row.drift)}", f"mean {float(np.nanmean(row.gate)):.2f}", post]


def _short(values: NDArray[Any]) -> str:
    mantissa, exponent = f"{float(np.nanmean(values)):.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _words(rows: Sequence[Diagnosed], high: float) -> tuple[str, str]:
    layout = (
        "Input, drift of the last replay's proposal, gate, and drift of the accepted state, in reading order."
        if len(rows) == 1
        else "Columns: input, drift of the last replay's proposal, gate, and drift of the accepted state."
    )
    caption = f"{layout} All drift panels share the scale 0 to {high:.2e}; the gate's is 0 to 1. Numbers at the maps are means."
    said = [caption]
    for row in rows:
        drift, gate, post = _notes(row)
        before = float(np.nanmean(row.drift))
        kept = ""
        if row.post is not None and before > 0:
            kept = f", {percent_of(float(np.nanmean(row.post)), before)} of it"
        said.append(f"{row.label}: proposal drift {drift}, gate {gate}, post-gating drift {post}{kept}.")
    if len(rows) == 1:
        return f"{rows[0].label[:1].upper()}{rows[0].label[1:]}. {caption}", " ".join(said)
    return caption, " ".join(said)
