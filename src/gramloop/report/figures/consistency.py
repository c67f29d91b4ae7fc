"""Gram consistency at matched strength: how far each trajectory ends from the ordinary one, by shift.

R = (sum of the drift that was accepted, over severities and images) / (the same of the ungated replay).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.report.figures.style import (
    BLUE,
    COLUMN,
    FAINT,
    INK,
    ORANGE,
    Drawn,
    Sheet,
    display_name,
    styled,
    words_width,
)

RAW, UNIFORM, GATED = "raw", "uniform", "gated"
Drifts = Mapping[
    tuple[str, int], Mapping[str, NDArray[Any]]
]  # (shift, severity): trajectory: one number per image
_ROW, _TOP, _FOOT = 0.17, 0.24, 0.5  # inches


@dataclass(frozen=True)
class Consistency:
    """The ratios R of the uniform and the gated trajectory by shift, and how often gating ends nearer."""

    names: Sequence[str]
    uniform: NDArray[np.float64]  # (names,)
    gated: NDArray[np.float64]  # (names,)
    conditions_below: int  # in how many shift-severity conditions gated < uniform
    conditions: int
    images: int  # over all conditions

    @property
    def below(self) -> int:
        """In how many shifts gated < uniform."""
        return int((self.gated < self.uniform).sum())


def consistency_of(drifts: Drifts) -> Consistency:
    """The ratios from one mean drift per image, condition and trajectory; images must be paired."""
    sums: dict[str, dict[str, float]] = {}
    below = images = 0
    for (name, severity), each in drifts.items():
        lengths = {len(each[m]) for m in (RAW, UNIFORM, GATED)}
        if len(lengths) > 1 or 0 in lengths:
            raise GramLoopError(f"the trajectories of {name}/{severity} were not measured on the same images")
        totals = {m: float(np.sum(each[m], dtype=np.float64)) for m in (RAW, UNIFORM, GATED)}
        below += totals[GATED] < totals[UNIFORM]
        images += lengths.pop()
        so_far = sums.setdefault(name, dict.fromkeys(totals, 0.0))
        for m, total in totals.items():
            so_far[m] += total
    for name, summed in sums.items():
        if not summed[RAW] > 0:
            raise GramLoopError(f"the ungated replay of {name} drifts by {summed[RAW]:g}; there is no ratio")
    ratio = {m: np.array([summed[m] / summed[RAW] for summed in sums.values()]) for m in (UNIFORM, GATED)}
    return Consistency(list(sums), ratio[UNIFORM], ratio[GATED], below, len(drifts), images)


def gram_consistency(data: Consistency, width: float = COLUMN) -> Drawn:
    """Two markers for each shift, sorted, against the ungated replay at 1."""
    with styled():
        return Drawn(_draw(data, width), "Gram consistency at matched strength", *_words(data))


def _draw(data: Consistency, width: float) -> Any:
    order = np.argsort(data.gated, kind="stable")
    labels = [display_name(data.names[index]) for index in order]
    margin = max(words_width(label, 6.5) for label in labels) + 0.12
    rows = len(labels)
    sheet = Sheet(width, _TOP + _ROW * rows + _FOOT)
    axes = sheet.panel(margin, _TOP, width - margin - 0.1, _ROW * rows)
    axes.set_ylim(rows - 0.4, -0.6)
    places = np.arange(rows)
    gated, uniform = data.gated[order], data.uniform[order]
    axes.hlines(places, np.minimum(gated, uniform), np.maximum(gated, uniform), color=FAINT, linewidth=1.0)
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 2)), label="ungated (= 1)")
    look = {"markersize": 4, "linestyle": "none", "markeredgewidth": 0.9}
    axes.plot(
        uniform, places, marker="o", color=ORANGE, markerfacecolor="white", label="uniform, matched", **look
    )
    axes.plot(gated, places, marker="D", color=BLUE, label="Gram-gated", **{**look, "markersize": 3.4})
    axes.set_yticks(places, labels)
    axes.tick_params(axis="y", length=0, pad=3)
    low = min(0.0, float(np.min([gated, uniform])))
    high = max(1.0, float(np.max([gated, uniform])))
    axes.set_xlim(low, high + 0.06 * (high - low))
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.set_xlabel("final drift ÷ that of the ungated replay", labelpad=2)
    sheet.text(margin, sheet.height - 0.04, _count(data), fontsize=6.5, va="bottom")
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1.03, 1.0),
        ncols=3,
        frameon=False,
        handletextpad=0.2,
        borderpad=0.1,
        columnspacing=0.9,
        handlelength=1.2,
        reverse=True,
    )
    return sheet.figure


def _count(data: Consistency) -> str:
    return f"gated below uniform in {data.below} of {len(data.names)}"


def _words(data: Consistency) -> tuple[str, str]:
    spans = [f"{values.min():.3f} to {values.max():.3f}" for values in (data.gated, data.uniform)]
    caption = (
        "Cosine-Gram drift of the accepted state against the ordinary pass, summed over severities and images "
        "and divided by that of the ungated replay; lower is nearer to the ordinary pass. At equal mean step, "
        f"the gate ends below the uniform step in {data.below} of {len(data.names)} shifts and "
        f"{data.conditions_below} of {data.conditions} conditions ({data.images} paired images)."
    )
    return caption, f"Dot plot. {caption} Gated ratios go from {spans[0]}, uniform ones from {spans[1]}."
