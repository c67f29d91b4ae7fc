"""Gain against cost: what each method brings for its work and for its time, and the front of what is not beaten.

Methods are numbered by their gain, and a list beside the panels names them, so that no label can hide another.
What costs next to nothing stands side by side in a zone of its own; beyond it the axis is logarithmic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gramloop.errors import GramLoopError
from gramloop.report.answers import FREE, LIMITS
from gramloop.report.figures.axes import CostAxis
from gramloop.report.figures.heat import signed
from gramloop.report.figures.style import BLUE, FAINT, FULL, INK, RED, Drawn, Sheet, styled, words_width

_LEFT, _PANEL, _TALL, _HEAD, _FOOT = 0.5, 3.75, 1.75, 0.1, 0.42  # inches
_LIST, _ENTRY = _LEFT + _PANEL + 0.2, 0.235
_BADGE, _SIZE = 0.135, 6.2  # inches across, points
_TIME_STEP = 0.05  # times that differ by less are noise


@dataclass(frozen=True)
class Point:
    """One method: its work and time per those of the ordinary model, and its mean gain with an interval."""

    method: str
    work: float
    gain: float
    low: float | None = None
    high: float | None = None
    time: float | None = None

    @property
    def words(self) -> str:
        """The numbers, as the list and captions give them."""
        span = ""
        if self.low is not None and self.high is not None:
            span = f" [{signed(self.low, 2)}, {signed(self.high, 2)}]"
        time = "" if self.time is None else f", time {self.time:.2f}×"
        return f"{signed(self.gain, 2)}{span}, work {self.work:.2f}×{time}"


def gain_against_cost(
    points: Sequence[Point], metric: str, level: float = 0.95, over: str = "shift families"
) -> Drawn:
    """Points with intervals over work, and over time where it was measured; the cross is the baseline."""
    if not points:
        raise GramLoopError("gain against cost needs at least one method beside the baseline")
    ranked = sorted(points, key=lambda point: -point.gain)
    with styled():
        return Drawn(_draw(ranked, metric), "Gain against cost", *_words(ranked, metric, level, over))


def front(costs: Sequence[float], gains: Sequence[float]) -> list[bool]:
    """Which are not beaten: nothing, not even doing nothing, gains as much for as little; up to 1.05 is no cost."""
    costs = [1.0 if cost <= FREE else cost for cost in costs]
    known = [*zip(costs, gains, strict=True), (1.0, 0.0)]

    def beaten(cost: float, gain: float) -> bool:
        return any(c <= cost and g >= gain and (c, g) != (cost, gain) for c, g in known)

    return [gain > 0 and not beaten(cost, gain) for cost, gain in zip(costs, gains, strict=True)]


def _time_step(point: Point) -> float:
    assert point.time is not None
    return max(1.0, round(point.time / _TIME_STEP) * _TIME_STEP)


def _draw(ranked: Sequence[Point], metric: str) -> Any:
    timed = all(point.time is not None for point in ranked)
    many = 1 + timed
    height = max(_HEAD + many * (_TALL + _FOOT), _HEAD + _ENTRY * (len(ranked) + 1))
    sheet = Sheet(FULL, height)
    looks: list[tuple[str, Callable[[Point], float]]] = [
        ("work ÷ ordinary (blocks × area)", lambda each: each.work)
    ]
    if timed:
        looks.append(("time ÷ ordinary (measured)", _time_step))
    tall = (height - _HEAD) / many - _FOOT
    for index, (label, cost) in enumerate(looks):
        panel = sheet.panel(_LEFT, _HEAD + index * (tall + _FOOT), _PANEL, tall)
        _draw_panel(panel, ranked, [cost(point) for point in ranked], label)
        panel.set_ylabel(f"gain in mean {metric} (points)", labelpad=2)
    _draw_list(sheet, ranked, front([point.work for point in ranked], [point.gain for point in ranked]))
    return sheet.figure


def _draw_panel(panel: Any, ranked: Sequence[Point], costs: Sequence[float], label: str) -> None:
    gains = [point.gain for point in ranked]
    axis = CostAxis.over(costs, _PANEL, _BADGE, FREE)
    places, held = axis.places(costs), front(costs, gains)
    panel.axvspan(0, axis.free, color="#eef3f7", linewidth=0)
    panel.axhline(0, color=FAINT, linewidth=0.7)
    for limit, _ in LIMITS[1:]:
        if 0 < axis.place(limit) < _PANEL:
            panel.axvline(axis.place(limit), color=FAINT, linewidth=0.5, linestyle=(0, (1, 2)))
    _draw_front(panel, [(place, gain) for place, gain, on in zip(places, gains, held, strict=True) if on])
    panel.plot([axis.baseline], [0], marker="+", color=INK, markersize=6, linestyle="none", zorder=3)
    for number, (point, place, on) in enumerate(zip(ranked, places, held, strict=True), start=1):
        colour = _colour(point, on)
        if point.low is not None and point.high is not None:
            panel.plot([place, place], [point.low, point.high], color=colour, linewidth=0.9, zorder=3)
        _badge(panel, place, point.gain, number, colour, on)
    panel.set_xlim(0, _PANEL)
    panel.margins(y=0.1)
    panel.set_xticks(*axis.ticks())
    panel.set_xlabel(label, labelpad=1)
    panel.text(axis.free / 2, 0.985, "no extra", transform=panel.get_xaxis_transform(), fontsize=6,
               color="#5b6b78", ha="center", va="top")  # fmt: skip
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
    panel.grid(axis="y", color="#ececec", linewidth=0.5)
    panel.set_axisbelow(True)


def _colour(point: Point, on_front: bool) -> str:
    if on_front:
        return BLUE
    return RED if point.high is not None and point.high < 0 else "#777777"


def _badge(panel: Any, x: float, y: float, number: int, colour: str, filled: bool) -> None:
    panel.plot([x], [y], marker="o", markersize=72 * _BADGE * 0.92, markerfacecolor=colour if filled else "white",
               markeredgecolor=colour, markeredgewidth=0.8, linestyle="none", zorder=4)  # fmt: skip
    panel.annotate(str(number), (x, y), fontsize=5.4, fontweight="bold", color="white" if filled else INK,
                   ha="center", va="center_baseline", zorder=5)  # fmt: skip


def _draw_front(panel: Any, held: Sequence[tuple[float, float]]) -> None:
    """A staircase: what is the most that so much buys."""
    steps = sorted(held)
    if not steps:
        return
    across = [x for x, _ in steps] + [_PANEL]
    panel.step(
        across,
        [*(gain for _, gain in steps), steps[-1][1]],
        where="post",
        color=BLUE,
        linewidth=1.0,
        alpha=0.5,
        zorder=2,
    )


def _draw_list(sheet: Sheet, ranked: Sequence[Point], held: Sequence[bool]) -> None:
    axes = sheet.panel(_LIST, 0, FULL - _LIST, sheet.height)
    axes.set_xlim(0, FULL - _LIST)
    axes.set_ylim(sheet.height, 0)
    axes.set_axis_off()
    for index, (point, on) in enumerate(zip(ranked, held, strict=True)):
        middle = _HEAD + _ENTRY * (index + 0.5)
        _badge(axes, 0.09, middle, index + 1, _colour(point, on), on)
        room = FULL - _LIST - 0.28
        axes.text(0.2, middle, _fitted(point.method, room), fontsize=_SIZE, va="bottom")
        axes.text(0.2, middle + 0.015, point.words, fontsize=5.2, va="top", color="#555555")
    last = _HEAD + _ENTRY * (len(ranked) + 0.5)
    axes.plot([0.09], [last], marker="+", color=INK, markersize=6, linestyle="none")
    axes.text(0.2, last, "baseline", fontsize=_SIZE, va="center")


def _fitted(name: str, room: float) -> str:
    """A name, its middle left out where it is too long."""
    kept = len(name)
    while kept > 8 and words_width(_shortened(name, kept), _SIZE) > room:
        kept -= 1
    return _shortened(name, kept)


def _shortened(name: str, kept: int) -> str:
    return name if kept >= len(name) else f"{name[: (kept + 1) // 2]}…{name[len(name) - kept // 2 :]}"


def _words(ranked: Sequence[Point], metric: str, level: float, over: str) -> tuple[str, str]:
    held = front([point.work for point in ranked], [point.gain for point in ranked])
    not_beaten = [point for point, on in zip(ranked, held, strict=True) if on]
    bars = f" with {level:.0%} intervals over {over}" * any(point.low is not None for point in ranked)
    best = ranked[int(np.argmax([point.gain for point in ranked]))]
    said = (
        f"Not beaten by anything of less work: {', '.join(point.method for point in not_beaten)} (blue, joined by the line)"
        if not_beaten
        else "Nothing gains, so nothing beats the model as it is"
    )
    timed = " Below, the same over measured time, in steps of 5%." * all(
        point.time is not None for point in ranked
    )
    caption = (
        f"Gain in mean {metric} over all shifted conditions{bars} against work: transformer blocks times the area they "
        f"see, per those of the ordinary model; the cross is the baseline. {said}. The largest gain has {best.method}: "
        f"{best.words}. Methods of equal cost stand side by side; dotted lines are at 1.25 and 2.4 times.{timed} The "
        "front goes by estimates; which methods are told apart is in the tables."
    )
    return caption, f"Scatter plot. {caption} " + "; ".join(
        f"{each.method}: {each.words}" for each in ranked
    ) + "."
