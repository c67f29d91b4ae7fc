"""Intervals drawn as small bars around zero, as SVG that takes its colours from the page's style."""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup

from gramloop.metrics.bootstrap import Interval

_MARGIN = 4.0  # percent left free at both ends, so that a dot at the limit stays whole
MINUS = "\u2212"


def reach(intervals: Iterable[Interval | None]) -> float:
    """How far from zero a common axis must go: the largest end of any interval, rounded up to 1, 2 or 5."""
    ends = [abs(end) for one in intervals if one is not None for end in (one.low, one.high, one.estimate)]
    largest = max((end for end in ends if math.isfinite(end)), default=0.0)
    if largest < 1e-12:  # nothing that a number with digits would show
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= largest * (1 - 1e-12))


def bar(interval: Interval, limit: float, tone: str, *, height: int = 20, label: str = "") -> Markup:
    """The interval on an axis from -limit to +limit; with no label it is decoration beside its own text."""
    if not all(map(math.isfinite, (interval.low, interval.high, interval.estimate))):
        return Markup("")
    middle = height / 2
    low, high, at = (_place(value, limit) for value in (interval.low, interval.high, interval.estimate))
    about = Markup('role="img" aria-label="{}"').format(label) if label else Markup('aria-hidden="true"')
    drawing = (
        '<svg class="interval {tone}" width="100%" height="{height}" {about}>'
        '<line class="axis" x1="0%" x2="100%" y1="{middle}" y2="{middle}"/>'
        '<line class="zero" x1="50%" x2="50%" y1="0" y2="{height}"/>'
        '<line class="range" x1="{low}%" x2="{high}%" y1="{middle}" y2="{middle}"/>'
        '<circle class="estimate" cx="{at}%" cy="{middle}" r="{radius}"/></svg>'
    )
    return Markup(drawing).format(
        tone=tone, height=height, about=about, middle=middle, low=low, high=high, at=at,
        radius=height / 5,
    )  # fmt: skip


def _place(value: float, limit: float) -> float:
    """Percent of the drawing's width at which a value stands."""
    share = max(-1.0, min(1.0, value / limit))
    return round(50 + share * (50 - _MARGIN), 2)
