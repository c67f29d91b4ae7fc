"""How a stated budget is spent: rungs of ever fewer candidates on ever more images, a decision, a verdict.

The budget counts predictions: one image under one condition with one candidate. Where all candidates are replays, the
ordinary prediction comes out of the pass that the first of them needs anyway, and is not counted; otherwise it counts
as one, and so does every image that is looked at to learn what ordinary images are like. A candidate keeps what it
has been measured on, so a rung pays for new cells only (a cell is an image under a condition); combinations that enter
a rung catch up on the cells before. The decision and the verdict look at images of their own, under every condition of
theirs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gramloop.errors import GramLoopError

ETA = 3
FINALISTS = 3
RUNGS_SHARE, DECIDE_SHARE = 0.4, 0.25  # of the budget; the verdict has the rest, and what is left over
STACKED = (3, 2)  # combinations that the second and the third rung have room for
FEWEST_CELLS = 8  # that a candidate is judged by in the first rung
FEWEST_IMAGES = 3  # in the decision and in the verdict


@dataclass(frozen=True)
class Stage:
    """Images available to a stage, and the conditions that each is shown under."""

    images: int
    conditions: int


@dataclass(frozen=True)
class Rung:
    """So many candidates, compared on the first ``cells`` cells of the search, ``fresh`` of them new."""

    candidates: int
    cells: int
    fresh: int
    stacked: int = 0  # combinations of them that join, at most; they have seen no cell yet

    @property
    def predictions(self) -> int:
        """What it costs, at most."""
        return self.candidates * self.fresh + self.stacked * self.cells


@dataclass(frozen=True)
class Schedule:
    """The whole search, before it begins."""

    budget: int
    offered: int  # candidates of the space; the first rung may take fewer
    rungs: tuple[Rung, ...]
    finalists: int
    decide: Stage  # as many images as will be used
    verdict: Stage
    judged: int = 1  # candidates of the verdict, at most
    plain: int = 0  # predictions per cell without any candidate
    calibration: int = 0  # predictions that tell what ordinary images look like

    @property
    def candidates(self) -> int:
        """How many candidates are tried at all."""
        return self.rungs[0].candidates if self.rungs else self.finalists

    @property
    def decide_predictions(self) -> int:
        """What deciding between the finalists and nothing costs."""
        return (self.finalists + self.plain) * self.decide.images * self.decide.conditions

    @property
    def verdict_predictions(self) -> int:
        """What the verdict costs, at most."""
        return (self.judged + self.plain) * self.verdict.images * self.verdict.conditions

    @property
    def rung_predictions(self) -> int:
        """What the rungs cost, at most."""
        return _price(self.rungs, self.plain)

    @property
    def predictions(self) -> int:
        """What everything costs; never more than the budget."""
        return self.calibration + self.rung_predictions + self.decide_predictions + self.verdict_predictions

    def as_json(self) -> dict[str, Any]:
        """Plain values; what came later is told where it says something, so that plans stay what they were."""
        rungs = [_without_zero(asdict(rung), "stacked") for rung in self.rungs]
        content = {**_without_zero(asdict(self), "plain", "calibration"), "rungs": rungs}
        return {name: value for name, value in content.items() if (name, value) != ("judged", 1)}


def plan_schedule(
    budget: int,
    candidates: int,
    search: Stage,
    decide: Stage,
    verdict: Stage,
    *,
    eta: int = ETA,
    finalists: int = FINALISTS,
    stacked: Sequence[int] = (),
    judged: int = 1,
    plain: int = 0,
    calibration: int = 0,
) -> Schedule:
    """Share out a budget; if it is too small for all candidates, the first rung takes as many as it can judge.

    Args:
        budget: predictions, everything included.
        candidates: that are offered.
        search, decide, verdict: the images that there are, and their conditions.
        eta: a rung keeps one in so many.
        finalists: candidates of the decision.
        stacked: combinations that may join the second rung, the third, and so on.
        judged: candidates of the verdict.
        plain: predictions without any candidate that each cell costs.
        calibration: predictions before the first rung.
    """
    if eta < 2 or finalists < 1 or candidates < 1:
        raise GramLoopError(
            f"halving needs an eta of 2 or more, a finalist and a candidate, not {eta}, {finalists}, {candidates}"
        )
    fewest = finalists if stacked else min(finalists, candidates)
    least = least_budget(fewest, decide, verdict, judged, plain) + calibration
    if budget < least:
        raise GramLoopError(
            f"a budget of {budget} predictions is too small: deciding between {fewest} "
            f"finalists and judging the choice needs {least}; ask for more, or for fewer conditions or finalists"
        )
    free = budget - calibration
    price, judging = (fewest + plain) * decide.conditions, (judged + plain) * verdict.conditions
    most = price * decide.images + judging * verdict.images
    for_rungs = max(int(free * RUNGS_SHARE), free - most)
    rungs = _most_rungs(for_rungs, candidates, search, eta, finalists, stacked, plain)
    kept = fewest if rungs else min(finalists, candidates)
    left = free - _price(rungs, plain)
    price = (kept + plain) * decide.conditions  # of one image of the decision
    decided = min(decide.images, int(left * DECIDE_SHARE / (1 - RUNGS_SHARE)) // price)
    seen = min(verdict.images, (left - decided * price) // judging)
    left -= decided * price + seen * judging
    decided = min(decide.images, decided + left // price)  # where the verdict ran out of images
    return Schedule(
        budget,
        candidates,
        rungs,
        kept,
        Stage(decided, decide.conditions),
        Stage(seen, verdict.conditions),
        judged,
        plain,
        calibration,
    )


def least_budget(finalists: int, decide: Stage, verdict: Stage, judged: int = 1, plain: int = 0) -> int:
    """The smallest budget with which something can be decided and judged."""
    for_decision = FEWEST_IMAGES * (finalists + plain) * decide.conditions
    for_verdict = FEWEST_IMAGES * (judged + plain) * verdict.conditions
    # each must fit into its share of what the rungs leave, rounding included
    shares = (for_decision / DECIDE_SHARE, for_verdict / (1 - RUNGS_SHARE - DECIDE_SHARE))
    return math.ceil(max(shares)) + 1


def _most_rungs(
    budget: int,
    candidates: int,
    search: Stage,
    eta: int,
    finalists: int,
    stacked: Sequence[int],
    plain: int,
) -> tuple[Rung, ...]:
    """The rungs of as many candidates as can be judged; room for combinations is given up first."""
    most: tuple[Rung, ...] = ()
    for many in range(len(stacked), -1, -1):
        rungs = _sound_rungs(budget, candidates, search, eta, finalists, stacked[:many], plain)
        if rungs and (not most or rungs[0].candidates > most[0].candidates):
            most = rungs
    return most


def _sound_rungs(
    budget: int,
    candidates: int,
    search: Stage,
    eta: int,
    finalists: int,
    stacked: Sequence[int],
    plain: int,
) -> tuple[Rung, ...]:
    for tried in range(candidates, min(finalists, candidates) - 1, -1):
        rungs = _rungs(budget, _sizes(tried, eta, finalists, stacked), search, plain)
        if rungs and rungs[0].cells >= min(FEWEST_CELLS, search.images * search.conditions):
            return rungs
    return ()


def _sizes(candidates: int, eta: int, finalists: int, stacked: Sequence[int] = ()) -> list[tuple[int, int]]:
    """Candidates of each rung, and combinations that join it."""
    sizes, together = [(candidates, 0)], candidates
    for joining in itertools.chain(stacked, itertools.repeat(0)):
        carried = min(together, max(finalists, math.ceil(together / eta)))
        if carried <= finalists and not joining:
            return sizes if candidates > finalists or stacked else []
        sizes.append((carried, joining))
        together = carried + joining
    raise AssertionError("unreachable: without combinations each rung is smaller")


def _rungs(budget: int, sizes: Sequence[tuple[int, int]], search: Stage, plain: int) -> tuple[Rung, ...]:
    """Rungs of about equal price; where the cells run out, earlier rungs get more, as far as the budget goes."""
    low, high = 0, budget  # the price of one rung: `low` is affordable, beyond `high` it is not
    while low < high:
        price = (low + high + 1) // 2
        if _price(_at_price(price, sizes, search, plain), plain) <= budget:
            low = price
        else:
            high = price - 1
    return _at_price(low, sizes, search, plain)


def _at_price(price: int, sizes: Sequence[tuple[int, int]], search: Stage, plain: int) -> tuple[Rung, ...]:
    available, cells, rungs = search.images * search.conditions, 0, []
    for carried, joining in sizes:
        fresh = min(available - cells, max(0, price - joining * cells) // (carried + joining + plain))
        cells += fresh
        rungs.append(Rung(carried, cells, fresh, joining))
    return tuple(rungs)


def _price(rungs: Sequence[Rung], plain: int) -> int:
    return sum(rung.predictions for rung in rungs) + plain * (rungs[-1].cells if rungs else 0)


def _without_zero(content: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value or name not in names}
