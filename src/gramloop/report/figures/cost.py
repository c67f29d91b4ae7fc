"""Gain against cost: what each method brings for its work and for its time, and the front of what is not beaten.

Methods stand side by side in the order of their cost, so that no point hides another; they are numbered by their gain,
and a list beside the panels names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import Interval
from gramloop.report.answers import FREE, LIMITS
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

_LEFT, _PANEL, _TALL, _HEAD, _FOOT = 0.5, 3.75, 1.75, 0.1, 0.42  # inches
_LIST, _ENTRY = _LEFT + _PANEL + 0.2, 0.235
_SIZE = 6.2  # points
_TIME_STEP = 0.05  # times that differ by less are noise


@dataclass(frozen=True)
class MethodPoint:
    """One method: its work and time relative to the baseline, and its mean gain with an interval."""

    method: str
    work: float
    gain: float
    interval: Interval | None = None
    time: float | None = None

    @property
    def words(self) -> str:
        """The numbers, as the list and captions give them."""
        span = ""
        if self.interval is not None:
            low, high = (signed_difference(end, 2) for end in (self.interval.low, self.interval.high))
            span = f" [{low}, {high}]"
        time = "" if self.time is None else f", time {self.time:.2f}×"
        return f"{signed_difference(self.gain, 2)}{span}, work {self.work:.2f}×{time}"

    @property
    def rounded_time(self) -> float:
        """The time in steps that can be measured."""
        return max(1.0, round((self.time or 1.0) / _TIME_STEP) * _TIME_STEP)


def gain_against_cost(points: Sequence[MethodPoint], metric: str, over: str = "") -> CaptionedFigure:
    """Gains with intervals in the order of work, and of time where it was measured; the cross is the baseline."""
    if not points:
        raise GramLoopError("gain against cost needs at least one method beside the baseline")
    ranked = sorted(points, key=lambda point: -point.gain)
    with styled():
        return CaptionedFigure(_draw(ranked, metric), "Gain against cost", *_words(ranked, metric, over))


def front(costs: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Which are not beaten: nothing, not even doing nothing, gains as much for as little; up to 1.05 is no cost."""
    costs = [1.0 if cost <= FREE else cost for cost in costs]
    known = [*zip(costs, gains, strict=True), (1.0, 0.0)]

    def beaten(cost: float, gain: float) -> bool:
        return any(c <= cost and g >= gain and (c, g) != (cost, gain) for c, g in known)

    return [gain > 0 and not beaten(cost, gain) for cost, gain in zip(costs, gains, strict=True)]


def _draw(ranked: Sequence[MethodPoint], metric: str) -> Any:
    costs = {"work ÷ baseline (blocks × area)": [point.work for point in ranked]}
    if all(point.time is not None for point in ranked):
        costs["time ÷ baseline (measured)"] = [point.rounded_time for point in ranked]
    height = max(_HEAD + len(costs) * (_TALL + _FOOT), _HEAD + _ENTRY * (len(ranked) + 1))
    sheet = Sheet(FULL, height)
    tall = (height - _HEAD) / len(costs) - _FOOT
    for index, (label, values) in enumerate(costs.items()):
        panel = sheet.panel(_LEFT, _HEAD + index * (tall + _FOOT), _PANEL, tall)
        _draw_panel(panel, ranked, values)
        panel.set_xlabel(label, labelpad=1)
        panel.set_ylabel(f"gain in mean {metric} (points)", labelpad=2)
    _draw_list(sheet, ranked)
    return sheet.figure


def _draw_panel(panel: Any, ranked: Sequence[MethodPoint], costs: Sequence[float]) -> None:
    gains = [point.gain for point in ranked]
    held = front(costs, gains)
    order = sorted(range(len(ranked)), key=lambda index: (max(costs[index], FREE), index))
    places = {index: place for place, index in enumerate(order, start=1)}  # place 0 is the baseline's
    panel.axhline(0, color=FAINT, linewidth=0.7)
    cheap = sum(cost <= FREE for cost in costs)
    panel.axvspan(-0.6, cheap + 0.5, color="#eef3f7", linewidth=0)
    for limit, _ in LIMITS[1:]:
        within = sum(cost <= limit for cost in costs)
        if cheap < within < len(costs):
            panel.axvline(within + 0.5, color=FAINT, linewidth=0.5, linestyle=(0, (1, 2)))
    steps = [(places[index], gains[index]) for index in order if held[index]]
    if steps:
        across, up = zip(*steps, (len(ranked) + 0.6, steps[-1][1]), strict=True)
        panel.step(across, up, where="post", color=BLUE, linewidth=1.0, alpha=0.5, zorder=2)
    panel.plot([0], [0], marker="+", color=INK, markersize=6, linestyle="none", zorder=3)
    for number, point in enumerate(ranked, start=1):
        place, colour = places[number - 1], _colour(point, held[number - 1])
        if point.interval is not None:
            ends = [point.interval.low, point.interval.high]
            panel.plot([place, place], ends, color=colour, linewidth=0.9, zorder=3)
        _badge(panel, place, point.gain, number, colour, held[number - 1])
    panel.set_xlim(-0.6, len(ranked) + 0.6)
    panel.margins(y=0.1)
    firsts = [
        place
        for place, index in enumerate(order)
        if place == 0 or costs[index] > max(costs[order[place - 1]], FREE)
    ]
    labels = [
        f"{costs[order[place]]:.3g}×" if costs[order[place]] > FREE else f"≤ {FREE:g}×" for place in firsts
    ]
    panel.set_xticks([place + 1 for place in firsts], labels, rotation=45 if len(firsts) > 8 else 0)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.grid(axis="y", color="#ececec", linewidth=0.5)
    panel.set_axisbelow(True)


def _colour(point: MethodPoint, on_front: bool) -> str:
    if on_front:
        return BLUE
    return RED if point.interval is not None and point.interval.high < 0 else "#777777"


def _badge(panel: Any, x: float, y: float, number: int, colour: str, filled: bool) -> None:
    face = colour if filled else "white"
    panel.plot(
        [x], [y], marker="o", markersize=9, markerfacecolor=face, markeredgecolor=colour, markeredgewidth=0.8,
        linestyle="none", zorder=4,
    )  # fmt: skip
    ink = "white" if filled else INK
    panel.annotate(
        str(number),
        (x, y),
        fontsize=5.4,
        fontweight="bold",
        color=ink,
        ha="center",
        va="center_baseline",
        zorder=5,
    )


def _draw_list(sheet: Sheet, ranked: Sequence[MethodPoint]) -> None:
    held = front([point.work for point in ranked], [point.gain for point in ranked])
    axes = sheet.panel(_LIST, 0, FULL - _LIST, sheet.height)
    axes.set_xlim(0, FULL - _LIST)
    axes.set_ylim(sheet.height, 0)
    axes.set_axis_off()
    for index, (point, on) in enumerate(zip(ranked, held, strict=True)):
        middle = _HEAD + _ENTRY * (index + 0.5)
        _badge(axes, 0.09, middle, index + 1, _colour(point, on), on)
        axes.text(0.2, middle, _fitted(point.method, FULL - _LIST - 0.28), fontsize=_SIZE, va="bottom")
        axes.text(0.2, middle + 0.015, point.words, fontsize=5.2, va="top", color="#555555")
    last = _HEAD + _ENTRY * (len(ranked) + 0.5)
    axes.plot([0.09], [last], marker="+", color=INK, markersize=6, linestyle="none")
    axes.text(0.2, last, "baseline", fontsize=_SIZE, va="center")


def _fitted(name: str, room: float) -> str:
    """A name, its middle left out where it is too long."""
    kept, short = len(name), name
    while kept > 8 and text_width(short, _SIZE) > room:
        kept -= 1
        short = f"{name[: (kept + 1) // 2]}…{name[len(name) - kept // 2 :]}"
    return short


def _words(ranked: Sequence[MethodPoint], metric: str, over: str) -> tuple[str, str]:
    held = front([point.work for point in ranked], [point.gain for point in ranked])
    front_names = ", ".join(point.method for point, on in zip(ranked, held, strict=True) if on)
    bars = f" with 95% intervals over {over}" * any(point.interval is not None for point in ranked)
    leaders = (
        f"Not beaten by anything of less work: {front_names} (blue, joined by the line)"
        if front_names
        else "Nothing gains, so nothing beats the model as it is"
    )
    timed = " Below, the same over measured time, in steps of 5%." * all(
        point.time is not None for point in ranked
    )
    caption = (
        f"Gain in mean {metric} over all shifted conditions{bars}, methods in the order of their work: transformer blocks "
        f"times the area they see, relative to the baseline, which is the cross. {leaders}. The largest gain has "
        f"{ranked[0].method}: {ranked[0].words}. Dotted lines are at 1.25 and 2.4 times.{timed} The front goes by "
        "estimates; which methods differ significantly is in the tables."
    )
    listed = "; ".join(f"{each.method}: {each.words}" for each in ranked)
    return caption, f"Dot plot. {caption} {listed}."
