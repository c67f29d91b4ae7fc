"""How sure a difference is: scores on resampled suites, intervals of every difference, and one rule for verdicts.

Families of shifts or images are drawn once, the same for all methods, and every difference follows from these draws.

The rule, wherever something is said to help, to hurt or to differ: a 95% interval that is corrected for few units and
holds for all comparisons of its kind together leaves out zero, over everything that was drawn. Kinds of comparisons are
methods with the baseline, and two methods with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations, groupby
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.store import Store, read_condition
from gramloop.metrics.bootstrap import (
    REPLICATES,
    SEED,
    UNDECIDED,
    Interval,
    VerdictWord,
    family_draws,
    image_draws,
    joint_intervals,
    mean_interval,
    selection_bias,
    spanning,
    verdict,
    widened,
)
from gramloop.report.load import report_workers
from gramloop.report.run import Run
from gramloop.tasks.base import Rows
from gramloop.util.processes import in_order
from gramloop.util.progress import tracked

Over = Literal["families", "images"]
Draws = NDArray[np.float64]  # (1 + replicates,): on everything, then on every draw


@dataclass(frozen=True)
class Resampled:
    """One run's suite, resampled; without scores where there is nothing to draw from, and why."""

    run: Run
    over: Over
    scores: Mapping[str, Draws] = field(default_factory=dict, repr=False)
    units: int = 0  # families or images drawn from
    reason: str = ""

    def difference(self, method: str, other: str = BASELINE) -> Draws:
        """What a method gains over another: on everything, then on every draw."""
        return self.scores[method] - self.scores[other]

    @property
    def drawn_from(self) -> str:
        """The units, such as "15 shift families"."""
        families = "domains" if self.run.suite.kind == "o" else "shift families"
        return f"{self.units} {'images' if self.over == 'images' else families}"


@dataclass(frozen=True)
class Difference:
    """The difference of two methods, drawn from families or from images."""

    drawn: Resampled
    interval: Interval  # percentiles
    joint: Interval  # holds for all differences of its kind together

    @property
    def corrected(self) -> Interval:
        """The interval of this difference alone, widened for few units."""
        return widened(self.interval)


Differences = tuple[Difference, ...]  # of one pair: over families, over images, or both


def deciding(differences: Differences) -> Interval | None:
    """The one interval of a difference: it holds over everything that was drawn; None where nothing was."""
    return spanning(each.joint for each in differences)


def decision(differences: Differences) -> VerdictWord:
    """What the rule makes of a difference."""
    interval = deciding(differences)
    return UNDECIDED if interval is None else verdict(interval)


def differences_of(
    drawn: Sequence[Resampled], draws: Callable[[Resampled], Sequence[Draws]]
) -> list[Differences]:
    """Intervals of some differences, each alone and all together, for everything that was drawn from."""
    columns = []
    for one in drawn:
        found = np.stack(draws(one))
        joint = joint_intervals(found, one.units)
        alone = [mean_interval([each], one.units) for each in found]
        columns.append([Difference(one, *pair) for pair in zip(alone, joint, strict=True)])
    return list(zip(*columns, strict=True))


@dataclass(frozen=True)
class Evidence:
    """One run's methods compared with the baseline and with each other."""

    run: Run
    resampled: tuple[Resampled, ...]

    @cached_property
    def drawn(self) -> tuple[Resampled, ...]:
        """What there was something to draw from."""
        return tuple(each for each in self.resampled if each.scores)

    @cached_property
    def ranked(self) -> tuple[str, ...]:
        """All methods of a complete run, the best first."""
        return tuple(sorted(self.run.methods, key=lambda method: -self.score(method)))

    def score(self, method: str) -> float:
        """The suite's one number, of a complete run."""
        score = self.run.score(method)
        assert score is not None
        return score

    def gain(self, method: str, other: str = BASELINE) -> float:
        """In points."""
        return self.score(method) - self.score(other)

    @cached_property
    def gains(self) -> Mapping[str, Differences]:
        """Of every method over the baseline; empty where nothing was drawn."""
        methods = self.run.compared
        found = differences_of(self.drawn, lambda drawn: [drawn.difference(method) for method in methods])
        if len(methods) == 1:
            found = [tuple(replace(each, joint=each.corrected) for each in one) for one in found]
        return dict(zip(methods, found, strict=bool(found)))

    @cached_property
    def pairs(self) -> Mapping[tuple[str, str], Differences]:
        """Of every two methods, the better one first."""
        pairs = list(combinations(self.ranked, 2))
        found = differences_of(self.drawn, lambda drawn: [drawn.difference(*pair) for pair in pairs])
        return dict(zip(pairs, found, strict=True))

    @property
    def several(self) -> bool:
        """Whether there are intervals of several methods, so that these can be compared with each other."""
        return bool(self.drawn) and len(self.run.compared) > 1

    def apart(self, better: str, worse: str) -> Interval | None:
        """The one interval of the difference of two methods, the better one first."""
        if better == BASELINE:  # what is said of a method and the baseline is the same everywhere
            gain = deciding(self.gains[worse])
            ends = (0, 0, 0) if gain is None else (-gain.estimate, -gain.high, -gain.low)
            return gain and replace(gain, estimate=ends[0], low=ends[1], high=ends[2])
        return deciding(self.gains[better] if worse == BASELINE else self.pairs[better, worse])

    def differ(self, better: str, worse: str) -> bool:
        """Whether two methods, the better one first, differ significantly."""
        interval = self.apart(better, worse)
        return interval is not None and verdict(interval) != UNDECIDED

    def helps(self, method: str) -> bool:
        """Whether it gains significantly."""
        return decision(self.gains[method]) == "helps"

    def selection_bias(self, methods: Sequence[str]) -> float:
        """How much the best of these owes to having been picked on the same images."""
        each = (np.stack([drawn.difference(method) for method in methods]) for drawn in self.drawn)
        return max(selection_bias(draws) for draws in each)


# resampling


def compare_methods(
    runs: Sequence[Run],
    over: Sequence[Over] = ("families",),
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    workers: int | None = None,
) -> list[Evidence]:
    """Compare the methods of every run with its baseline and with each other.

    Args:
        runs: Loaded results.
        over: What intervals are drawn over; with both, a claim has to hold over both.
        replicates: Number of draws.
        seed: Of the stream of draws.
        workers: Processes; as many as are of use by default.

    Returns:
        The evidence of every run that has gains.
    """
    many = report_workers([run.plan for run in runs], workers)
    options = {"replicates": replicates, "seed": seed, "workers": many}
    return [
        Evidence(run, tuple(resample(run, each, **options) for each in over))
        for run in runs
        if run.compared and not run.changes_only
    ]


def resample(
    run: Run,
    over: Over = "families",
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    workers: int = 1,
) -> Resampled:
    """The scores of every method on drawn suites; the number of processes changes nothing."""
    if not run.complete:
        many = len(run.missing) + len(run.unscored)
        return Resampled(run, over, reason=f"{many} of {len(run.plan.conditions)} conditions have no score")
    draws = (replicates, seed)
    return _over_families(run, draws) if over == "families" else _over_images(run, draws, workers)


def _over_families(run: Run, draws: tuple[int, int]) -> Resampled:
    if not run.shifted:
        reason = "clean images are no shift; --bootstrap images draws images instead"
        return Resampled(run, "families", reason=reason)
    if len(run.families) < 2:
        reason = f"{run.families[0]} is the only shift family, and one family says nothing of others"
        return Resampled(run, "families", reason=reason)
    ordered = sorted(run.shifted, key=lambda condition: condition.family)
    drawn = {}
    for method in run.methods:
        scores = run.scores(method)
        by_family = {
            family: [scores[condition] for condition in members]
            for family, members in groupby(ordered, key=lambda condition: condition.family)
        }
        drawn[method] = family_draws(by_family, replicates=draws[0], seed=draws[1])
    return Resampled(run, "families", drawn, len(run.families))


def _over_images(run: Run, draws: tuple[int, int], workers: int) -> Resampled:
    """Images drawn with all their shifted versions; images of domains, each domain's own."""
    shared = run.suite.kind != "o"
    # an image counts where every condition could use it, so that a draw means the same images everywhere
    common = sorted(set.intersection(*(set(result.ids) for result in run.results))) if shared else None
    calls = []
    images = 0
    for index, result in enumerate(run.averaged):
        among = len(common) if common is not None else result.images
        if among < 2:
            few = f"{among} images of {result.condition} could be drawn, and it takes at least 2"
            return Resampled(run, "images", reason=few)
        images = among if shared else images + among
        own = draws if shared else (draws[0], draws[1] + index)
        calls.append((Store(run.folder, run.plan), result.condition.key, run.methods, common, own))
    drawn = tracked(in_order(_draw_condition, calls, workers), f"resampling {run.name}", len(calls))
    scores = dict(zip(run.methods, map(list, zip(*drawn, strict=True)), strict=True))
    return Resampled(run, "images", {name: np.mean(each, axis=0) for name, each in scores.items()}, images)


def _draw_condition(
    store: Store[Plan], key: str, methods: Sequence[str], among: Sequence[str] | None, draws: tuple[int, int]
) -> list[Draws]:
    """The scores of each method on one condition, then on every draw of its images or of those all conditions have."""
    stored = read_condition(store, key)
    assert stored is not None
    ids = stored.image_ids
    return [draw_images(store, stored.methods[name].rows, ids, among or ids, draws) for name in methods]


def draw_images(
    store: Store[Plan], rows: Rows, ids: Sequence[str], among: Sequence[str], draws: tuple[int, int]
) -> Draws:
    """The score of the images ``among`` those with rows, then of every draw of them.

    Args:
        store: whose task and classes the score is of.
        rows: statistics of the images ``ids``.
        ids: of the rows.
        among: the images that are drawn from; one seed draws the same of them wherever this is called.
        draws: number of replicates, and seed.
    """
    task, place = store.task, {each: index for index, each in enumerate(ids)}
    score, columns = task.scorer(rows, store.plan.classes), np.array([place[each] for each in among])

    def weighted(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        full = np.zeros((len(weights), len(ids)), dtype=np.int64)
        full[:, columns] = weights
        return score(full)

    replicates, seed = draws
    return image_draws(weighted, len(among), replicates=replicates, seed=seed, rows=task.draws_at_once)
