"""The diagnostic of a replay: input, drift of the last proposal, gate, and drift of what was accepted.

Each image is a row of four panels. All drift panels of a figure share one scale, from 0, and the gate's is 0 to 1.
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
    DRIFT_MAP,
    FULL,
    GATE_MAP,
    CaptionedFigure,
    Sheet,
    bare,
    draw_values,
    drift_end,
    percent_of,
    photograph,
    shrunk,
    styled,
)

_GAP, _TITLE, _NOTE, _FOOT, _SIDE, _EDGE = 0.07, 0.19, 0.2, 0.36, 0.17, 0.02  # inches
_TALLEST = 1.5  # of a panel's width; a longer strip would leave nothing to see
_PANELS = ("input", "proposal drift", "gate", "post-gating drift")


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
        """The last replay's maps next to the image as the model saw it."""
        return cls(label, image, found.drift[-1], found.gate[-1], found.post_drift)


def diagnostic(
    rows: Sequence[Diagnosed], title: str = "Diagnostic", high: float | None = None
) -> CaptionedFigure:
    """The figure, a row for each image; ``high`` is where the scale of drift ends."""
    if not rows:
        raise GramLoopError("a diagnostic figure needs at least one image")
    high = high or drift_end(drift_maps(rows))
    with styled():
        return CaptionedFigure(_draw(rows, high), title, *_words(rows, high))


def drift_maps(rows: Sequence[Diagnosed]) -> list[NDArray[Any]]:
    """All maps that share the scale of drift."""
    return [each for row in rows for each in (row.drift, row.post) if each is not None]


def _draw(rows: Sequence[Diagnosed], high: float) -> Any:
    width = (FULL - _SIDE - 3 * _GAP - _EDGE) / 4
    heights = [width * min(row.image.shape[0] / row.image.shape[1], _TALLEST) for row in rows]
    sheet = Sheet(FULL, _TITLE + sum(heights) + _NOTE * len(rows) + _FOOT)
    left, top = [_SIDE + column * (width + _GAP) for column in range(4)], _TITLE
    for row, tall in zip(rows, heights, strict=True):
        panels = [sheet.panel(x, top, width, tall) for x in left]
        photograph(panels[0], shrunk(row.image), row.image.shape).set_ylabel(row.label, labelpad=3)
        drift = draw_values(panels[1], row.drift, DRIFT_MAP, high)
        gate = draw_values(panels[2], row.gate, GATE_MAP, 1.0)
        if row.post is not None:
            draw_values(panels[3], row.post, DRIFT_MAP, high)
        for panel, note in zip(panels[1:], _notes(row), strict=True):
            bare(panel).set_xlabel(note, fontsize=6, labelpad=1.5)
        if row is rows[0]:
            for panel, name in zip(panels, _PANELS, strict=True):
                panel.set_title(name, pad=2.5)
        top += tall + _NOTE
    beyond = any(np.nanmax(each) > high for each in drift_maps(rows))
    for column, mappable in ((1, drift), (2, gate), (3, drift)):
        label, more = ("gate", False) if mappable is gate else ("Gram drift", bool(beyond))
        sheet.colour_bar(mappable, (left[column] + 0.12, top, width - 0.24), label, beyond=more)
    return sheet.figure


def _notes(row: Diagnosed) -> list[str]:
    post = "not measured" if row.post is None else f"mean {_short(row.post)}"
    return [f"mean {_short(row.drift)}", f"mean {float(np.nanmean(row.gate)):.2f}", post]


def _short(values: NDArray[Any]) -> str:
    mantissa, exponent = f"{float(np.nanmean(values)):.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _words(rows: Sequence[Diagnosed], high: float) -> tuple[str, str]:
    caption = (
        f"{'Columns: input' if len(rows) > 1 else 'Input'}, drift of the last replay's proposal, gate, and drift of the "
        f"accepted state. All drift panels share the scale 0 to {high:.2e}; the gate's is 0 to 1. Numbers at the maps are "
        "means."
    )
    described = []
    for row in rows:
        drift, gate, post = _notes(row)
        before = float(np.nanmean(row.drift))
        kept = ""
        if row.post is not None and before > 0:
            kept = f", {percent_of(float(np.nanmean(row.post)), before)} of it"
        described.append(f"{row.label}: proposal drift {drift}, gate {gate}, post-gating drift {post}{kept}.")
    return caption, " ".join([caption, *described])
