"""Gram consistency at matched strength: how far three trajectories of one replay end from the baseline pass.

R = (sum of the drift that was accepted, over severities and images) / (the same of the ungated replay). The table
and the figure both show this one computation; where a condition is missing there is none, for a sum over the rest
would mislead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition, display_name
from gramloop.errors import GramLoopError
from gramloop.evaluate.plan import trajectories_of
from gramloop.report.run import Run
from gramloop.util.plotting import (
    BLUE,
    COLUMN,
    FAINT,
    INK,
    ORANGE,
    CaptionedFigure,
    Sheet,
    styled,
    text_width,
)

RAW, UNIFORM, GATED = range(3)  # places of the trajectories
_ROW, _TOP, _FOOT = 0.17, 0.24, 0.5  # inches


@dataclass(frozen=True)
class GramConsistency:
    """The drift of three trajectories, summed over the images of each condition."""

    method: str  # the gated one
    conditions: tuple[Condition, ...]
    images: NDArray[np.int64]  # (conditions,)
    sums: NDArray[np.float64]  # (conditions, 3): raw, uniform, gated

    @cached_property
    def families(self) -> tuple[str, ...]:
        """The shifts, in the order of the conditions."""
        return tuple(dict.fromkeys(condition.family for condition in self.conditions))

    @cached_property
    def family_images(self) -> NDArray[np.int64]:  # (families,)
        """Images of each shift, over its severities."""
        return np.array([self.images[self._of(family)].sum() for family in self.families])

    @cached_property
    def family_sums(self) -> NDArray[np.float64]:  # (families, 3)
        """Sums over the severities of each shift."""
        return np.array([self.sums[self._of(family)].sum(axis=0) for family in self.families])

    def _of(self, family: str) -> NDArray[np.bool_]:
        return np.array([condition.family == family for condition in self.conditions])

    @property
    def conditions_below(self) -> int:
        """Conditions in which the gated trajectory ends nearer than the uniform one."""
        return int((self.sums[:, GATED] < self.sums[:, UNIFORM]).sum())

    @property
    def families_below(self) -> int:
        """Shifts in which it does."""
        return int((self.family_sums[:, GATED] < self.family_sums[:, UNIFORM]).sum())

    @property
    def below(self) -> str:
        """Both counts, in words."""
        return (
            f"{self.families_below} of {len(self.families)} shifts and "
            f"{self.conditions_below} of {len(self.conditions)} conditions"
        )


def ratios(sums: NDArray[np.float64]) -> NDArray[np.float64]:  # (..., 3) → (..., 2)
    """R of the uniform and of the gated trajectory; nan where the ungated replay does not drift."""
    raw = sums[..., RAW, np.newaxis]
    return np.divide(sums[..., UNIFORM:], raw, out=np.full_like(sums[..., UNIFORM:], np.nan), where=raw > 0)


def gram_consistency(run: Run) -> Iterator[GramConsistency]:
    """One for every Gram-gated method whose companions were run; none without all drifts of all conditions."""
    for gated, names in trajectories_of(run.plan).items():
        measured = [one for one in run.results if all(len(one.drift.get(n, ())) == one.images for n in names)]
        if measured and len(measured) == len(run.plan.conditions):
            yield GramConsistency(
                gated,
                tuple(one.condition for one in measured),
                np.array([one.images for one in measured]),
                np.array([[one.drift[name].sum() for name in names] for one in measured]),
            )


def consistency_figure(data: GramConsistency, width: float = COLUMN) -> CaptionedFigure:
    """Two markers for each shift, sorted, against the ungated replay at 1."""
    for family, found in zip(data.families, ratios(data.family_sums), strict=True):
        if not np.isfinite(found).all():
            raise GramLoopError(f"the ungated replay of {family} does not drift, so there is no ratio to it")
    with styled():
        figure = _draw(data, width)
    return CaptionedFigure(figure, "Gram consistency at matched strength", *_words(data))


def _draw(data: GramConsistency, width: float) -> Any:
    found = ratios(data.family_sums)
    order = np.argsort(found[:, 1], kind="stable")
    uniform, gated = found[order].T
    labels = [display_name(data.families[index]) for index in order]
    margin = max(text_width(label, 6.5) for label in labels) + 0.12
    sheet = Sheet(width, _TOP + _ROW * len(labels) + _FOOT)
    axes = sheet.panel(margin, _TOP, width - margin - 0.1, _ROW * len(labels))
    places = np.arange(len(labels))
    axes.hlines(places, found[order].min(axis=1), found[order].max(axis=1), color=FAINT, linewidth=1.0)
    axes.axvline(1.0, color=INK, linewidth=0.8, linestyle=(0, (4, 2)), label="ungated (= 1)")
    axes.plot(
        uniform, places, "o", color=ORANGE, markerfacecolor="white", markersize=4, label="uniform, matched"
    )
    axes.plot(gated, places, "D", color=BLUE, markersize=3.4, label="Gram-gated")
    axes.set_yticks(places, labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    low, high = min(0.0, float(found.min())), max(1.0, float(found.max()))
    axes.set_xlim(low, high + 0.06 * (high - low))
    axes.tick_params(axis="y", length=0, pad=3)
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_xlabel("final drift ÷ that of the ungated replay", labelpad=2)
    count = f"gated below uniform in {data.families_below} of {len(data.families)}"
    sheet.text(margin, sheet.height - 0.04, count, fontsize=6.5, va="bottom")
    spacing = {"handletextpad": 0.2, "borderpad": 0.1, "columnspacing": 0.9, "handlelength": 1.2}
    axes.legend(
        loc="lower right", bbox_to_anchor=(1.03, 1.0), ncols=3, frameon=False, reverse=True, **spacing
    )
    return sheet.figure


def _words(data: GramConsistency) -> tuple[str, str]:
    uniform, gated = ratios(data.family_sums).T
    spans = [f"{values.min():.3f} to {values.max():.3f}" for values in (gated, uniform)]
    caption = (
        "Cosine-Gram drift of the accepted state against the baseline pass, summed over severities and images "
        "and divided by that of the ungated replay; lower is nearer to the baseline pass. At equal mean step, "
        f"the gate ends below the uniform step in {data.below} ({data.images.sum()} paired images)."
    )
    return caption, f"Dot plot. {caption} Gated ratios go from {spans[0]}, uniform ones from {spans[1]}."
