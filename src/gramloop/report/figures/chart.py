"""The chart of an answer: the gain of every method with its one interval, labelled with its verdict and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.evaluate.answer import MethodGain, metric_words
from gramloop.util.plotting import (
    BLUE,
    FAINT,
    FULL,
    INK,
    RED,
    CaptionedFigure,
    Sheet,
    signed_difference,
    styled,
    text_width,
)

_ROW, _HEAD, _FOOT, _SIZE = 0.2, 0.22, 0.4, 7  # inches, points
_NAMES, _VERDICTS, _COSTS = 2.0, 1.42, 0.75  # inches: of the names at most, and of the columns on the right
_COLOURS = {"helps": BLUE, "hurts": RED}


def gain_chart(gains: Sequence[MethodGain], metric: str, chosen: str = "") -> CaptionedFigure:
    """A row for each method, the best first; ``chosen`` is the recommended one."""
    if not gains:
        raise GramLoopError("a chart of gains needs at least one method in addition to the baseline")
    ranked = sorted(gains, key=lambda one: -one.gain)
    with styled():
        figure = _draw(ranked, metric, chosen)
    caption = (
        f"Gain in {metric_words(metric)} over the baseline, in points. A bar that leaves out 0 is coloured: blue helps, "
        "orange hurts."
    )
    listed = "; ".join(f"{one.method}: {one.points}, {one.verdict}, {one.cost}" for one in ranked)
    return CaptionedFigure(
        figure, f"Gain in {metric} and cost of every method", caption, f"Dot plot. {caption} {listed}."
    )


def _draw(ranked: Sequence[MethodGain], metric: str, chosen: str) -> Any:
    names = [fitted(one.method, _NAMES) for one in ranked]
    margin = max(text_width(name, _SIZE) for name in names) * 1.08 + 0.14  # the chosen one is bold
    sheet = Sheet(FULL, _HEAD + _ROW * len(ranked) + _FOOT)
    right = FULL - _VERDICTS - _COSTS
    axes = sheet.panel(margin, _HEAD, right - margin - 0.1, _ROW * len(ranked))
    axes.axvline(0, color=INK, linewidth=0.8)
    timed = any(one.time is not None for one in ranked)
    for row, one in enumerate(ranked):
        colour, weight = _COLOURS.get(one.verdict, "#777777"), "bold" if one.method == chosen else "normal"
        if one.interval is not None:
            axes.plot(
                [one.interval.low, one.interval.high], [row, row], color=colour, linewidth=2.2, alpha=0.55
            )
        axes.plot([one.gain], [row], "o", color=colour, markersize=4.5)
        middle = _HEAD + _ROW * (row + 0.5)
        numbers = {"va": "center", "fontweight": weight, "fontsize": _SIZE}
        sheet.text(margin - 0.08, middle, names[row], ha="right", **numbers)
        sheet.text(right, middle, _interval(one), **numbers)
        cost = one.time if timed else one.work
        sheet.text(FULL - 0.04, middle, "–" if cost is None else f"{cost:.2f}×", ha="right", **numbers)
    sheet.text(right, 0.03, "gain [95% interval]", color="#555555")
    sheet.text(FULL - 0.04, 0.03, "time" if timed else "work", ha="right", color="#555555")
    axes.set_ylim(len(ranked) - 0.5, -0.5)
    axes.margins(x=0.06)
    axes.set_yticks([])
    axes.grid(axis="x", color="#e4e4e4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.set_xlabel(f"gain in {metric} (points)", labelpad=2)
    return sheet.figure


def _interval(one: MethodGain) -> str:
    ends = ""
    if one.interval is not None:
        ends = (
            " [" + ", ".join(signed_difference(end, 2) for end in (one.interval.low, one.interval.high)) + "]"
        )
    return f"{signed_difference(one.gain, 2)}{ends}"


def fitted(name: str, room: float) -> str:
    """A name, its middle left out where it takes more inches than there are."""
    kept, short = len(name), name
    while kept > 8 and text_width(short, _SIZE) > room:
        kept -= 1
        short = f"{name[: (kept + 1) // 2]}…{name[len(name) - kept // 2 :]}"
    return short
