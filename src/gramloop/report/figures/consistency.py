"""The figure of Gram consistency at matched strength: where each trajectory ends, by shift."""

from __future__ import annotations

from typing import Any

import numpy as np

from gramloop.data.suites import display_name
from gramloop.errors import GramLoopError
from gramloop.report.consistency import GramConsistency, ratios
from gramloop.report.figures.style import BLUE, COLUMN, FAINT, INK, ORANGE, Drawn, Sheet, styled, words_width

_ROW, _TOP, _FOOT = 0.17, 0.24, 0.5  # inches


def consistency_figure(data: GramConsistency, width: float = COLUMN) -> Drawn:
    """Two markers for each shift, sorted, against the ungated replay at 1."""
    for family, found in zip(data.families, ratios(data.family_sums), strict=True):
        if not np.isfinite(found).all():
            raise GramLoopError(f"the ungated replay of {family} does not drift, so there is no ratio to it")
    with styled():
        return Drawn(_draw(data, width), "Gram consistency at matched strength", *_words(data))


def _draw(data: GramConsistency, width: float) -> Any:
    uniform, gated = ratios(data.family_sums).T
    order = np.argsort(gated, kind="stable")
    uniform, gated = uniform[order], gated[order]
    labels = [display_name(data.families[index]) for index in order]
    margin = max(words_width(label, 6.5) for label in labels) + 0.12
    rows = len(labels)
    sheet = Sheet(width, _TOP + _ROW * rows + _FOOT)
    axes = sheet.panel(margin, _TOP, width - margin - 0.1, _ROW * rows)
    axes.set_ylim(rows - 0.4, -0.6)
    places = np.arange(rows)
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


def _count(data: GramConsistency) -> str:
    return f"gated below uniform in {data.families_below} of {len(data.families)}"


def _words(data: GramConsistency) -> tuple[str, str]:
    uniform, gated = ratios(data.family_sums).T
    spans = [f"{values.min():.3f} to {values.max():.3f}" for values in (gated, uniform)]
    caption = (
        "Cosine-Gram drift of the accepted state against the ordinary pass, summed over severities and images "
        "and divided by that of the ungated replay; lower is nearer to the ordinary pass. At equal mean step, "
        f"the gate ends below the uniform step in {data.families_below} of {len(data.families)} shifts and "
        f"{data.conditions_below} of {len(data.conditions)} conditions ({data.images.sum()} paired images)."
    )
    return caption, f"Dot plot. {caption} Gated ratios go from {spans[0]}, uniform ones from {spans[1]}."
