"""How sure a gain is: paired intervals over shift families or over images, and what they say in plain words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.rows import boxes_of, counts_of, depth_scores_of
from gramloop.evaluate.store import StoredUnit
from gramloop.evaluate.truth import AGREEMENT
from gramloop.metrics.ap_bootstrap import ap_delta
from gramloop.metrics.bootstrap import (
    REPLICATES,
    SEED,
    Delta,
    Interval,
    VerdictWord,
    cluster_bootstrap,
    coverage,
    image_draws,
    mean_delta,
    mean_interval,
    miou_delta,
    verdict,
    widened,
)
from gramloop.report.document import Verdict
from gramloop.report.measure import used_ids
from gramloop.report.run import Run

Over = Literal["families", "images"]
TRUSTED = 0.90  # a percentile interval that covers less gives no verdict; the corrected one does


@dataclass(frozen=True)
class Gain:
    """What one method gains over the baseline on one run, and how sure that is."""

    run: Run
    method: str
    points: float | None  # None while conditions are missing
    over: Over
    interval: Interval | None = None  # percentiles, as the paper has them
    reason: str = ""  # why there is no interval

    @property
    def corrected(self) -> Interval | None:
        """The interval widened for the few units it was drawn from."""
        return None if self.interval is None else widened(self.interval)

    @property
    def coverage(self) -> float | None:
        """How often such a percentile interval holds the truth, if effects are normal."""
        return None if self.interval is None else coverage(self.interval.units, self.interval.level)

    @property
    def deciding(self) -> Interval | None:
        """The interval that the verdict goes by: the corrected one where the other covers too little."""
        return self.interval if (self.coverage or 0) >= TRUSTED else self.corrected

    @property
    def drawn_from(self) -> str:
        """What was resampled, in words."""
        if self.over == "images":
            return "images"
        return "domains" if self.run.suite.kind == "o" else "shift families"

    @property
    def words(self) -> VerdictWord:
        """helps, hurts, inconclusive."""
        return "inconclusive" if self.deciding is None else verdict(self.deciding)


def gains_of(
    runs: Sequence[Run],
    over: Over = "families",
    *,
    replicates: int = REPLICATES,
    seed: int = SEED,
    on_progress: Callable[[str], None] = lambda _: None,
) -> list[Gain]:
    """The gain of every method over the baseline, run by run; ``on_progress`` hears of every condition resampled."""
    found = []
    for run in runs:
        for method in () if run.changes_only else run.replays:
            ordinary, replayed = run.score(BASELINE), run.score(method)
            points = None if ordinary is None or replayed is None else replayed - ordinary
            if points is None:
                found.append(Gain(run, method, None, over, None, _incomplete(run)))
                on_progress(f"{run.name} {method}")
            elif over == "families":
                found.append(_over_families(run, method, points, replicates, seed))
            else:
                found.append(_over_images(run, method, points, replicates, seed, on_progress))
    return found


def count_resamplings(runs: Sequence[Run]) -> int:
    """How often `gains_of` over images will tell of its progress."""
    told = [run for run in runs if not run.changes_only]
    return sum(len(run.replays) * (len(run.results) if run.complete else 1) for run in told)


def _incomplete(run: Run) -> str:
    many = len(run.missing) + len(run.unscored)
    return f"{many} of {len(run.plan.conditions)} conditions have no score"


def _over_families(run: Run, method: str, points: float, replicates: int, seed: int) -> Gain:
    compared = run.compare(method)
    if compared is None:
        reason = "clean images are no shift; --bootstrap images draws images instead"
        return Gain(run, method, points, "families", None, reason)
    if len(run.families) < 2:
        reason = f"{run.families[0]} is the only shift family, and one family says nothing of others"
        return Gain(run, method, points, "families", None, reason)
    interval = cluster_bootstrap(compared.family_deltas(), replicates=replicates, seed=seed)
    return Gain(run, method, points, "families", interval)


def _over_images(
    run: Run, method: str, points: float, replicates: int, seed: int, on_progress: Callable[[str], None]
) -> Gain:
    """Images drawn with all their shifted versions; images of domains, each domain's own."""
    chosen = run.averaged
    shared = run.suite.kind != "o"
    common = _common_images(run) if shared else []
    draws, images = [], 0
    for index, result in enumerate(chosen):
        units = run.units(result.condition.key)
        ids = used_ids(units)
        among = common if shared else ids
        if len(among) < 2:
            reason = f"{len(among)} images of {result.condition} could be drawn, and it takes at least 2"
            return Gain(run, method, points, "images", None, reason)
        delta = _expanded(stored_delta(run, units, method), ids, among)
        own_seed = seed if shared else seed + index
        draws.append(image_draws(delta, len(among), replicates=replicates, seed=own_seed))
        images = len(among) if shared else images + len(among)
        on_progress(f"{run.name} {method} {result.condition}")
    return Gain(run, method, points, "images", mean_interval(draws, images))


def _common_images(run: Run) -> list[str]:
    """Images used in every condition, in one order, so that a draw means the same images everywhere."""
    sets = [set(used_ids(run.units(result.condition.key))) for result in run.results]
    return sorted(set.intersection(*sets))


def stored_delta(run: Run, units: Sequence[StoredUnit], method: str) -> Delta:
    """The gain of a method over the baseline on the stored images of a condition, for any weights of them."""
    tables = [unit.table for unit in units]
    if run.plan.task == "semantic":
        return miou_delta(counts_of(tables, BASELINE), counts_of(tables, method))
    if run.plan.task == "depth":
        ordinary_scores, scores = (depth_scores_of(tables, name)[:, 0] for name in (BASELINE, method))
        return mean_delta(ordinary_scores, scores)
    categories = list(run.plan.categories)
    truth, ordinary = boxes_of(tables, BASELINE, categories)
    return ap_delta(truth, ordinary, boxes_of(tables, method, categories)[1])


def _expanded(delta: Delta, ids: Sequence[str], among: Sequence[str]) -> Delta:
    """``delta`` of weights over the images ``among``, where the condition's own images are ``ids``."""
    place = {each: index for index, each in enumerate(ids)}
    columns = np.array([place[each] for each in among])

    def expanded(weights: NDArray[np.int64]) -> NDArray[np.float64]:
        full = np.zeros((len(weights), len(ids)), dtype=np.int64)
        full[:, columns] = weights
        return delta(full)

    return expanded


def verdict_of(gain: Gain) -> Verdict:
    """The gain in a sentence that anybody can read."""
    return Verdict(gain.run.name, gain.method, gain.words, gain.interval, _sentence(gain))


def _sentence(gain: Gain) -> str:
    run, metric = gain.run, gain.run.metric
    if run.plan.label_free:
        metric = (
            f"{AGREEMENT.capitalize()} with the clean prediction ({metric.removeprefix(AGREEMENT).strip()})"
        )
    if gain.points is None:
        return f"There is no mean {metric}, for {gain.reason}."
    scope = f"over {len(run.shifted)} shifted conditions" if run.shifted else "on clean images"
    moved = f"{metric} {scope} changes by {_signed(gain.points)} points"
    if gain.interval is None:
        return f"{moved}, without an interval: {gain.reason}."
    evidence = f"{gain.interval.level:.0%} interval {_ends(gain.interval)} over {gain.interval.units} {gain.drawn_from}"
    return f"{moved}, {evidence}{_caution(gain)}."


def _caution(gain: Gain) -> str:
    plain, corrected, share = gain.interval, gain.corrected, gain.coverage
    if plain is None or corrected is None or share is None or round(share, 2) >= plain.level:
        return ""
    words = (
        f"; drawn from so few it covers about {share:.0%}, and corrected for that it is {_ends(corrected)}"
    )
    if verdict(plain) == verdict(corrected):
        return words
    if gain.deciding is plain:
        return f"{words}, which no longer leaves out zero: take the verdict with care"
    return f"{words}, by which the verdict goes"


def _ends(interval: Interval) -> str:
    return f"{_signed(interval.low)} to {_signed(interval.high)}"


def _signed(points: float) -> str:
    return f"{points:+.3f}".replace("-", "−")
