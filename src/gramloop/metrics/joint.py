"""Many comparisons at once: intervals that hold together, and how much the best of many owes to luck.

With fifteen methods there are a hundred pairs, and five of a hundred 95% intervals miss. The intervals here are
wide enough that all of them hold together in 95 of 100 cases: from 50 units on they reach as far as the largest of
all standardised deviations does in 95% of the draws (the max-statistic bootstrap), below that as far as Bonferroni
says, for draws from few units never stray far enough. Either way Student's t makes up for few units, as in `widened`.
A statement about the winner, whoever it is, may therefore go by its joint interval.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.metrics.bootstrap import LEVEL, Interval

MANY = 50  # units; in simulation the largest deviation of draws from fewer is a little too small
Draws = NDArray[np.float64]  # (comparisons, 1 + replicates): each difference, then that of every draw


def joint_intervals(draws: Draws, units: int, level: float = LEVEL) -> list[Interval]:
    """Intervals of all comparisons, which hold together; ``units`` is how many families or images were drawn from.

    A comparison that never varies has no width.
    """
    from scipy.special import stdtrit

    if units < 2:
        raise GramLoopError(f"an interval needs at least 2 units, not {units}")
    spread = draws[:, 1:].std(axis=1)  # (comparisons,)
    student = float(stdtrit(units - 1, 1 - _tail(draws[:, 1:], spread, units, level)))
    reach = student * spread * np.sqrt(units / (units - 1))
    return [
        Interval(
            float(one[0]), float(one[0] - width), float(one[0] + width), level, draws.shape[1] - 1, units
        )
        for one, width in zip(draws, reach, strict=True)
    ]


def _tail(drawn: Draws, spread: NDArray[np.float64], units: int, level: float) -> float:
    """The share of either tail that each single interval leaves out, so that all hold together."""
    from scipy.special import ndtr

    varies = spread > 0
    least = (1 - level) / 2 / max(int(varies.sum()), 1)  # Bonferroni's
    if units < MANY or not varies.any():
        return least
    middle = drawn[varies].mean(axis=1, keepdims=True)
    away = np.abs(drawn[varies] - middle) / spread[varies, np.newaxis]
    furthest = np.quantile(away.max(axis=0), level)
    return max(least, float(ndtr(-furthest)))


def winners_luck(draws: Draws) -> float:
    """By how much the largest of these differences is flattered, because it was picked by the same data.

    In every draw the winner of that draw is picked, and its difference there compared with its difference on
    everything: the mean excess is what picking by chance adds. It is an estimate, and a rough one where many tie.
    """
    drawn = draws[:, 1:]
    winners = drawn.argmax(axis=0)
    excess = drawn[winners, np.arange(drawn.shape[1])] - draws[winners, 0]
    return max(float(excess.mean()), 0.0)
