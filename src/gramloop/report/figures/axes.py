"""An axis of costs, in inches: a zone for what costs next to nothing, then a logarithm, and no two points at one place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_EDGE = 0.1  # inches left free at both ends
_TICKS = (1.25, 1.5, 2, 2.4, 3, 4, 5, 6, 8, 10, 15, 20, 50, 100)
_APART = 0.32  # inches between ticks


@dataclass(frozen=True)
class CostAxis:
    """Costs from 1 up to ``highest`` on ``width`` inches; those up to ``limit`` share the first ``free`` of them."""

    width: float
    free: float
    limit: float
    highest: float
    gap: float  # between points

    @classmethod
    def over(cls, costs: Sequence[float], width: float, gap: float, limit: float) -> CostAxis:
        """The axis for these costs; points come nearer to each other where there are too many for their gap."""
        cheap = sum(cost <= limit for cost in costs)
        gap = min(gap, (width - 8 * _EDGE) / (len(costs) + 1))
        free = (cheap + 1) * gap + 2 * _EDGE  # one place is the baseline's
        highest = max([cost for cost in costs if cost > limit], default=0.0)
        if not highest:
            return cls(width, width, limit, limit, gap)
        return cls(width, max(free, 0.7), limit, highest * 1.02, gap)

    @property
    def baseline(self) -> float:
        """The place of the ordinary model: the first one."""
        return _EDGE + self.gap / 2

    def place(self, cost: float) -> float:
        """Where a cost beyond the free zone stands, in inches."""
        if self.highest <= self.limit:
            return self.width
        share = np.log(cost / self.limit) / np.log(self.highest / self.limit)
        return float(self.free + _EDGE + share * (self.width - self.free - 2 * _EDGE))

    def places(self, costs: Sequence[float]) -> list[float]:
        """Where points stand: in the order of their costs, and of their numbers where these are equal."""
        cheap = [index for index, cost in enumerate(costs) if cost <= self.limit]
        found = {index: self.baseline + (rank + 1) * self.gap for rank, index in enumerate(cheap)}
        dear = sorted((index for index in range(len(costs)) if index not in found), key=lambda i: costs[i])
        lowest, highest = self.free + self.gap / 2, self.width - self.gap / 2
        wanted = np.array([self.place(costs[index]) for index in dear])
        found.update(zip(dear, spread(wanted, self.gap, lowest, highest).tolist(), strict=True))
        return [found[index] for index in range(len(costs))]

    def ticks(self) -> tuple[list[float], list[str]]:
        """Places and words."""
        found = [((_EDGE + self.free) / 2, f"≤ {self.limit:g}×")]
        for cost in _TICKS if self.highest > self.limit else ():
            place = self.place(cost)
            if cost > self.limit and place <= self.width and place - found[-1][0] >= _APART:
                found.append((place, f"{cost:g}×"))
        return [place for place, _ in found], [words for _, words in found]


def spread(
    wanted: NDArray[np.float64], gap: float, lowest: float, highest: float
) -> NDArray[np.float64]:  # (points,) → (points,)
    """Places at least ``gap`` apart, in the same order, as near to those wanted (sorted) as can be.

    Least squares under that constraint: without the gaps it is an isotonic regression, solved by pooling neighbours.
    """
    steps = gap * np.arange(len(wanted))
    pools: list[tuple[float, int]] = []  # mean and size
    for value in wanted - steps:
        pools.append((float(value), 1))
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            (low, few), (high, more) = pools[-2:]
            pools[-2:] = [((low * few + high * more) / (few + more), few + more)]
    level = np.repeat([mean for mean, _ in pools], [size for _, size in pools])
    top = max(lowest, highest - (steps[-1] if len(steps) else 0.0))
    placed: NDArray[np.float64] = np.clip(level, lowest, top) + steps
    return placed
