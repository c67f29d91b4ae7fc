"""What one run says of its methods against each other: ranks, every pair's intervals, and what is told apart.

Two methods are told apart where an interval that holds for all pairs of the run at once leaves out zero; a method is
shown to help where one that holds for all methods at once lies above zero. Where families and images were both drawn,
both have to say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from gramloop.evaluate.methods import BASELINE
from gramloop.metrics.bootstrap import Interval, joint_intervals, selection_bias, widened
from gramloop.report.resampling import Resampled
from gramloop.report.run import Run
from gramloop.report.statistics import Gain, resampled_of


@dataclass(frozen=True)
class Difference:
    """What one method gains over another, drawn from families or from images."""

    drawn: Resampled
    interval: Interval  # percentiles
    joint: Interval  # holds for all differences that it was computed with

    @property
    def corrected(self) -> Interval:
        """The interval of this pair alone, widened for few units."""
        return widened(self.interval)


Differences = tuple[Difference, ...]  # of one pair: over families, over images, or both


@dataclass(frozen=True)
class Evidence:
    """The methods of one complete run, and what was drawn."""

    run: Run
    drawn: tuple[Resampled, ...]

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """All methods, the best first."""
        return tuple(sorted(self.run.methods, key=lambda method: -self.score(method)))

    def score(self, method: str) -> float:
        """The suite's one number."""
        score = self.run.score(method)
        assert score is not None  # the run is complete
        return score

    def gain(self, method: str, other: str = BASELINE) -> float:
        """In points."""
        return self.score(method) - self.score(other)

    @cached_property
    def pairs(self) -> Mapping[tuple[str, str], Differences]:
        """Of every two methods, the better one first."""
        return self._differences(list(combinations(self.ranked, 2)))

    @cached_property
    def gains(self) -> Mapping[str, Differences]:
        """Of every method over the baseline; joint intervals hold for all of these."""
        found = self._differences([(method, BASELINE) for method in self.run.replays])
        return {method: differences for (method, _), differences in found.items()}

    def told_apart(self, better: str, worse: str) -> bool:
        """Whether the first is better beyond doubt; it has to be ranked before the second."""
        return leaves_out_zero(self.pairs[better, worse])

    def helps(self, method: str) -> bool:
        """Whether it is shown to gain, with all other methods beside it."""
        return leaves_out_zero(self.gains[method])

    def luck(self, methods: Sequence[str]) -> float:
        """By how much the best of these is flattered for having been picked on the same images."""
        each = (np.stack([drawn.difference(method, BASELINE) for method in methods]) for drawn in self.drawn)
        return max(selection_bias(draws) for draws in each)

    def _differences(self, wanted: Sequence[tuple[str, str]]) -> dict[tuple[str, str], Differences]:
        found = differences_of(self.drawn, lambda drawn: [drawn.difference(*pair) for pair in wanted])
        return dict(zip(wanted, found, strict=True))


def differences_of(
    drawn: Sequence[Resampled], draws: Callable[[Resampled], Sequence[NDArray[np.float64]]]
) -> list[Differences]:
    """Intervals of some differences, each alone and all together, for everything that was drawn from."""
    columns = []
    for one in drawn:
        found = np.stack(draws(one))
        joint = joint_intervals(found, one.units)
        columns.append(
            [Difference(one, one.interval(each), held) for each, held in zip(found, joint, strict=True)]
        )
    return list(zip(*columns, strict=True))


def leaves_out_zero(differences: Iterable[Difference]) -> bool:
    """Whether all joint intervals lie above zero."""
    return all(each.joint.low > 0 for each in differences)


def evidence_of(gains: Sequence[Gain]) -> list[Evidence]:
    """Of every complete run in which at least two methods stand beside the baseline."""
    by_run: dict[str, list[Resampled]] = {}
    for drawn in resampled_of(gains):
        if drawn.scores and len(drawn.run.replays) > 1:
            by_run.setdefault(drawn.run.name, []).append(drawn)
    return [Evidence(each[0].run, tuple(each)) for each in by_run.values()]
