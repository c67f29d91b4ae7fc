"""The figures of numbers: gains of every method, gains by shift and severity, and Gram consistency at matched strength."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import display_name
from gramloop.errors import GramLoopError
from gramloop.evaluate.answer import MethodGain, metric_words
from gramloop.report.breakdowns import GramConsistency, ratios
from gramloop.util.plotting import (
    BLUE,
    COLUMN,
    FAINT,
    FULL,
    GAIN_MAP,
    INK,
    ORANGE,
    RED,
    CaptionedFigure,
    Sheet,
    signed_difference,
    styled,
    text_width,
)

_GAIN_ROW, _GAIN_HEAD, _GAIN_FOOT, _GAIN_SIZE = 0.2, 0.22, 0.4, 7  # inches, points
_NAMES, _VERDICTS, _COSTS = 2.0, 1.42, 0.75  # inches: of the names at most, and of the columns on the right
_COLOURS = {"helps": BLUE, "hurts": RED}


def gain_chart(gains: Sequence[MethodGain], metric: str, chosen: str = "") -> CaptionedFigure:
    """A row for each method, the best first; ``chosen`` is the recommended one."""
    if not gains:
        raise GramLoopError("a chart of gains needs at least one method in addition to the baseline")
    ranked = sorted(gains, key=lambda one: -one.gain)
    with styled():
        figure = _draw_gains(ranked, metric, chosen)
    caption = (
        f"Gain in {metric_words(metric)} over the baseline, in points. A bar that leaves out 0 is coloured: blue helps, "
        "red hurts."
    )
    listed = "; ".join(f"{one.method}: {one.points}, {one.verdict}, {one.cost}" for one in ranked)
    return CaptionedFigure(
        figure, f"Gain in {metric} and cost of every method", caption, f"Dot plot. {caption} {listed}."
    )


def _draw_gains(ranked: Sequence[MethodGain], metric: str, chosen: str) -> Any:
    names = [fitted(one.method, _NAMES) for one in ranked]
    margin = max(text_width(name, _GAIN_SIZE) for name in names) * 1.08 + 0.14  # the chosen one is bold
    sheet = Sheet(FULL, _GAIN_HEAD + _GAIN_ROW * len(ranked) + _GAIN_FOOT)
    right = FULL - _VERDICTS - _COSTS
    axes = sheet.panel(margin, _GAIN_HEAD, right - margin - 0.1, _GAIN_ROW * len(ranked))
    axes.axvline(0, color=INK, linewidth=0.8)
    timed = any(one.time is not None for one in ranked)
    for row, one in enumerate(ranked):
        colour, weight = _COLOURS.get(one.verdict, "#777777"), "bold" if one.method == chosen else "normal"
        if one.interval is not None:
            axes.plot(
                [one.interval.low, one.interval.high], [row, row], color=colour, linewidth=2.2, alpha=0.55
            )
        axes.plot([one.gain], [row], "o", color=colour, markersize=4.5)
        middle = _GAIN_HEAD + _GAIN_ROW * (row + 0.5)
        numbers = {"va": "center", "fontweight": weight, "fontsize": _GAIN_SIZE}
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
    while kept > 8 and text_width(short, _GAIN_SIZE) > room:
        kept -= 1
        short = f"{name[: (kept + 1) // 2]}…{name[len(name) - kept // 2 :]}"
    return short


_CELL, _HEAT_TOP, _HEAT_FOOT = 0.165, 0.30, 0.43  # inches
_NARROW = 1.4  # inches of a lone column


def severity_heat(
    gains: Mapping[tuple[str, int], float], metric: str, method: str, subject: str = "shift"
) -> CaptionedFigure:
    """The heat map of a method's gains, with the mean of each row and column, and numbers in all cells.

    Args:
        gains: in points by name and severity, which is 0 where shifts have none; nan where there is no result.
        metric: that they are of.
        method: that gains.
        subject: what a row is.
    """
    if not gains:
        raise GramLoopError(f"no {subject} is complete that has severities and the method {method}")
    names = list(dict.fromkeys(name for name, _ in gains))
    severities = sorted({severity for _, severity in gains})
    values = np.array([[gains.get((name, each), np.nan) for each in severities] for name in names])
    columns = [*map(str, severities), "mean"] if len(severities) > 1 else [method]
    with styled():
        figure = _draw_heat(names, columns, values, f"gain in {metric} (points)")
    title = f"Gain of {method} by {subject} and severity"
    words = _heat_words({key: gain for key, gain in gains.items() if np.isfinite(gain)}, values.size)
    caption = f"Gain of {method} over the baseline in {metric} points; blue is better, red worse. {words}"
    return CaptionedFigure(figure, title, caption, f"Heat map. {caption}")


def _draw_heat(names: Sequence[str], columns: Sequence[str], values: NDArray[np.float64], label: str) -> Any:
    from matplotlib.colors import Normalize

    several, many = (
        values.shape[1] > 1,
        len(names) > 1,
    )  # the mean of a row or column that lacks a value is nan
    labels = [*map(display_name, names), *["mean"] * many]
    table = np.column_stack([values, values.mean(axis=1)]) if several else values
    table = np.vstack([table, table.mean(axis=0)]) if many else table
    margin = max(text_width(label, 6.5) for label in labels) + 0.12
    width = COLUMN if several else min(COLUMN, margin + _NARROW)
    top = _HEAT_TOP if several else _HEAT_TOP / 2
    sheet = Sheet(width, top + _CELL * len(labels) + _HEAT_FOOT)
    axes = sheet.panel(margin, top, width - margin - 0.04, _CELL * len(labels))
    largest = float(np.nanmax(np.abs(values))) if np.isfinite(values).any() else 0.0
    limit = largest or 1.0
    axes.set_facecolor("#e8e8e8")  # of cells without a result
    mappable = axes.imshow(
        np.ma.masked_invalid(table), cmap=GAIN_MAP, norm=Normalize(-limit, limit), aspect="auto"
    )
    digits = 3 if largest < 0.1 else 2 if largest < 10 else 1
    for (row, column), value in np.ndenumerate(table):
        strong = np.isfinite(value) and abs(value) > 0.6 * limit
        words = signed_difference(float(value), digits) if np.isfinite(value) else "–"
        ink = "white" if strong else INK
        axes.text(column, row, words, fontsize=6, ha="center", va="center_baseline", color=ink)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(labels) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=0.6)
    if several:
        axes.axvline(values.shape[1] - 0.5, color="white", linewidth=4)
        sheet.text(margin + (width - margin) / 2, 0.03, "severity", ha="center")
    if many:
        axes.axhline(len(names) - 0.5, color="white", linewidth=4)
    axes.xaxis.set_ticks_position("top")
    axes.tick_params(which="both", length=0, pad=2)
    axes.spines[:].set_visible(False)
    sheet.colour_bar(mappable, (margin, sheet.height - _HEAT_FOOT + 0.09, width - margin - 0.04), label)
    return sheet.figure


def _heat_words(gains: Mapping[tuple[str, int], float], cells: int) -> str:
    """What the known gains of so many cells say."""
    if not gains:
        return "No condition is complete yet."
    ends = [pick(gains, key=lambda key: gains[key]) for pick in (max, min)]
    best, least = (
        f"{signed_difference(gains[name, severity], 3)} ({display_name(name)}"
        + (f", severity {severity})" if severity else ")")
        for name, severity in ends
    )
    rest = f"The mean over all is {signed_difference(float(np.mean(list(gains.values()))), 3)}."
    if len(gains) < cells:
        rest = f"{cells - len(gains)} of {cells} cells have no result yet (grey)."
    gained, lost = sum(gain > 0 for gain in gains.values()), sum(gain < 0 for gain in gains.values())
    return f"{gained} of {len(gains)} conditions gain, {lost} lose; the largest gain is {best}, the lowest {least}. {rest}"


_SHIFT_ROW, _GRAM_TOP, _GRAM_FOOT = 0.17, 0.24, 0.5  # inches


def consistency_figure(data: GramConsistency) -> CaptionedFigure:
    """Two markers for each shift, sorted, against the ungated replay at 1."""
    for family, found in zip(data.families, ratios(data.family_sums), strict=True):
        if not np.isfinite(found).all():
            raise GramLoopError(f"the ungated replay of {family} does not drift, so there is no ratio to it")
    with styled():
        figure = _draw_consistency(data)
    return CaptionedFigure(figure, "Gram consistency at matched strength", *_consistency_words(data))


def _draw_consistency(data: GramConsistency) -> Any:
    found = ratios(data.family_sums)
    order = np.argsort(found[:, 1], kind="stable")
    uniform, gated = found[order].T
    families = list(data.families)
    labels = [display_name(families[index]) for index in order]
    margin = max(text_width(label, 6.5) for label in labels) + 0.12
    sheet = Sheet(COLUMN, _GRAM_TOP + _SHIFT_ROW * len(labels) + _GRAM_FOOT)
    axes = sheet.panel(margin, _GRAM_TOP, COLUMN - margin - 0.1, _SHIFT_ROW * len(labels))
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


def _consistency_words(data: GramConsistency) -> tuple[str, str]:
    uniform, gated = ratios(data.family_sums).T
    spans = [f"{values.min():.3f} to {values.max():.3f}" for values in (gated, uniform)]
    caption = (
        "Cosine-Gram drift of the accepted state against the baseline pass, summed over severities and images "
        "and divided by that of the ungated replay; lower is nearer to the baseline pass. At equal mean step, "
        f"the gate ends below the uniform step in {data.below} ({data.images.sum()} paired images)."
    )
    return caption, f"Dot plot. {caption} Gated ratios go from {spans[0]}, uniform ones from {spans[1]}."
