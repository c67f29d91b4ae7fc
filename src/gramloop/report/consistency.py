"""Gram consistency at matched strength: how far three trajectories of one replay end from the ordinary pass.

R = (sum of the drift that was accepted, over severities and images) / (the same of the ungated replay). The table
and the figure both show this one computation; where a condition is missing there is none, for a sum over the rest
would mislead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition
from gramloop.evaluate.plan import trajectories_of
from gramloop.report.run import Run

RAW, UNIFORM, GATED = range(3)  # places of the trajectories


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
