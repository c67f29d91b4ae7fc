"""Every method's score on resampled suites: families or images are drawn once, and the same for all methods.

All differences follow from these draws: of a method to the baseline, of any two methods, of a stack to the sum of
its parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.evaluate.plan import Plan
from gramloop.evaluate.store import Store, read_condition
from gramloop.metrics.bootstrap import (
    REPLICATES,
    SEED,
    Interval,
    Score,
    family_draws,
    image_draws,
    mean_interval,
)
from gramloop.report.run import Run
from gramloop.util.processes import in_order

Over = Literal["families", "images"]
OnProgress = Callable[[str], None]


@dataclass(frozen=True)
class Resampled:
    """One run's suite, resampled; without draws where there is nothing to draw from, and why."""

    run: Run
    over: Over
    scores: Mapping[str, NDArray[np.float64]] = field(default_factory=dict, repr=False)  # (1 + replicates,)
    units: int = 0  # families or images drawn from
    reason: str = ""

    def difference(self, method: str, other: str) -> NDArray[np.float64]:  # (1 + replicates,)
        """What a method gains over another: on everything, then on every draw."""
        return self.scores[method] - self.scores[other]

    def interval(self, differences: NDArray[np.float64]) -> Interval:
        """The percentile interval of such differences."""
        return mean_interval([differences], self.units)

    @property
    def drawn_from(self) -> str:
        """What was resampled, in words."""
        if self.over == "images":
            return "images"
        return "domains" if self.run.suite.kind == "o" else "shift families"


def resample(
    run: Run,
    over: Over = "families",
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    on_progress: OnProgress = lambda _: None,
    workers: int = 1,
) -> Resampled:
    """The scores of every method on drawn suites; ``on_progress`` hears of every condition and method.

    Images are drawn by so many processes, condition by condition; their number changes nothing.
    """
    if not run.complete:
        many = len(run.missing) + len(run.unscored)
        on_progress(run.name)
        return Resampled(run, over, reason=f"{many} of {len(run.plan.conditions)} conditions have no score")
    if over == "families":
        return _over_families(run, replicates, seed)
    return _over_images(run, _Draws(replicates, seed), on_progress, workers)


def count_resamplings(runs: Sequence[Run]) -> int:
    """How often `resample` over images will tell of its progress."""
    told = [run for run in runs if not run.changes_only and run.replays]
    return sum(len(run.methods) * len(run.averaged) if run.complete else 1 for run in told)


def _over_families(run: Run, replicates: int, seed: int) -> Resampled:
    if not run.shifted:
        return Resampled(
            run, "families", reason="clean images are no shift; --bootstrap images draws images instead"
        )
    if len(run.families) < 2:
        only = f"{run.families[0]} is the only shift family, and one family says nothing of others"
        return Resampled(run, "families", reason=only)
    ordered = sorted(run.shifted, key=lambda condition: condition.family)
    draws = {}
    for method in run.methods:
        found = run.scores(method)
        by_family = {
            family: [found[condition] for condition in members]
            for family, members in groupby(ordered, key=lambda condition: condition.family)
        }
        draws[method] = family_draws(by_family, replicates=replicates, seed=seed)
    return Resampled(run, "families", draws, len(run.families))


@dataclass(frozen=True)
class _Draws:
    replicates: int
    seed: int


def _over_images(run: Run, draws: _Draws, on_progress: OnProgress, workers: int) -> Resampled:
    """Images drawn with all their shifted versions; images of domains, each domain's own."""
    shared = run.suite.kind != "o"
    common = _common_images(run) if shared else None
    calls = []
    images = 0
    for index, result in enumerate(run.averaged):
        among = len(common) if common is not None else result.images
        if among < 2:
            few = f"{among} images of {result.condition} could be drawn, and it takes at least 2"
            return Resampled(run, "images", reason=few)
        images = among if shared else images + among
        own = draws if shared else replace(draws, seed=draws.seed + index)
        calls.append((Store(run.folder, run.plan), result.condition.key, run.methods, common, own))
    drawn: dict[str, list[NDArray[np.float64]]] = {method: [] for method in run.methods}
    for call, found in zip(calls, in_order(_draw_condition, calls, workers), strict=True):
        for method, scores in zip(run.methods, found, strict=True):
            drawn[method].append(scores)
            on_progress(f"{run.name} {method} {call[1]}")
    means = {method: np.mean(each, axis=0) for method, each in drawn.items()}
    return Resampled(run, "images", means, images)


def _draw_condition(
    store: Store[Plan], key: str, methods: Sequence[str], common: Sequence[str] | None, draws: _Draws
) -> list[NDArray[np.float64]]:  # → (1 + replicates,) for each method
    """The scores on one condition, then on every draw of its images or of those that all conditions have."""
    stored, task = read_condition(store, key), store.task
    assert stored is not None
    ids = stored.image_ids
    among = ids if common is None else common
    found = []
    for method in methods:
        score = task.scorer(stored.methods[method].rows, store.plan.classes)
        found.append(
            image_draws(
                _expanded(score, ids, among),
                len(among),
                replicates=draws.replicates,
                seed=draws.seed,
                rows=task.draws_at_once,
            )
        )
    return found


def _common_images(run: Run) -> list[str]:
    """Images used in every condition, in one order, so that a draw means the same images everywhere."""
    return sorted(set.intersection(*(set(result.ids) for result in run.results)))


def _expanded(score: Score, ids: Sequence[str], among: Sequence[str]) -> Score:
    """``score`` of weights over the images ``among``, where the condition's own images are ``ids``."""
    place = {each: index for index, each in enumerate(ids)}
    columns = np.array([place[each] for each in among])

    def expanded(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        full = np.zeros((len(weights), len(ids)), dtype=np.int64)
        full[:, columns] = weights
        return score(full)

    return expanded
