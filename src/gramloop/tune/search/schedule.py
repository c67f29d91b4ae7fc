"""How a stated budget is spent: rungs of ever fewer candidates on ever more images, a decision, a verdict.

The budget counts predictions: one image under one condition with one candidate. The ordinary prediction comes
with the first candidate that looks at an image, as the pass that its replay needs anyway, and is not counted.
A candidate keeps what it has been measured on, so a rung pays for new cells only (a cell is an image under a
condition). The decision and the verdict look at images of their own, under every condition of theirs.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from gramloop.errors import GramLoopError

ETA = 3
FINALISTS = 3
RUNGS_SHARE, DECIDE_SHARE = 0.4, 0.25  # of the budget; the verdict has the rest, and what is left over
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

    @property
    def predictions(self) -> int:
        """What it costs."""
        return self.candidates * self.fresh


@dataclass(frozen=True)
class Schedule:
    """The whole search, before it begins."""

    budget: int
    offered: int  # candidates of the space; the first rung may take fewer
    rungs: tuple[Rung, ...]
    finalists: int
    decide: Stage  # as many images as will be used
    verdict: Stage

    @property
    def candidates(self) -> int:
        """How many candidates are tried at all."""
        return self.rungs[0].candidates if self.rungs else self.finalists

    @property
    def decide_predictions(self) -> int:
        """What deciding between the finalists and no replay costs."""
        return self.finalists * self.decide.images * self.decide.conditions

    @property
    def verdict_predictions(self) -> int:
        """What the verdict costs."""
        return self.verdict.images * self.verdict.conditions

    @property
    def predictions(self) -> int:
        """What everything costs; never more than the budget."""
        return (
            sum(rung.predictions for rung in self.rungs) + self.decide_predictions + self.verdict_predictions
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def plan_schedule(
    budget: int,
    candidates: int,
    search: Stage,
    decide: Stage,
    verdict: Stage,
    *,
    eta: int = ETA,
    finalists: int = FINALISTS,
) -> Schedule:
    """Share out a budget; if it is too small for all candidates, the first rung takes as many as it can judge."""
    if eta < 2 or finalists < 1 or candidates < 1:
        raise GramLoopError(
            f"halving needs an eta of 2 or more, a finalist and a candidate, not {eta}, {finalists}, {candidates}"
        )
    least = least_budget(min(finalists, candidates), decide, verdict)
    if budget < least:
        raise GramLoopError(
            f"a budget of {budget} predictions is too small: deciding between {min(finalists, candidates)} "
            f"finalists and judging the choice needs {least}; ask for more, or for fewer conditions or finalists"
        )
    for_rungs = max(int(budget * RUNGS_SHARE), budget - _most(min(finalists, candidates), decide, verdict))
    tried, rungs = candidates, _rungs(for_rungs, candidates, search, eta, finalists)
    while tried > finalists and not _sound(rungs, search):
        tried -= 1
        rungs = _rungs(for_rungs, tried, search, eta, finalists)
    kept = min(finalists, tried)
    left = budget - sum(rung.predictions for rung in rungs)
    price = kept * decide.conditions  # of one image of the decision
    decided = min(decide.images, int(left * DECIDE_SHARE / (1 - RUNGS_SHARE)) // price)
    judged = min(verdict.images, (left - decided * price) // verdict.conditions)
    left -= decided * price + judged * verdict.conditions
    decided = min(decide.images, decided + left // price)  # where the verdict ran out of images
    return Schedule(
        budget, candidates, rungs, kept, Stage(decided, decide.conditions), Stage(judged, verdict.conditions)
    )


def least_budget(finalists: int, decide: Stage, verdict: Stage) -> int:
    """The smallest budget with which something can be decided and judged."""
    for_decision = FEWEST_IMAGES * finalists * decide.conditions
    for_verdict = FEWEST_IMAGES * verdict.conditions
    # each must fit into its share of what the rungs leave, rounding included
    shares = (for_decision / DECIDE_SHARE, for_verdict / (1 - RUNGS_SHARE - DECIDE_SHARE))
    return math.ceil(max(shares)) + 1


def _sizes(candidates: int, eta: int, finalists: int) -> list[int]:
    sizes = []
    while candidates > finalists:
        sizes.append(candidates)
        candidates = max(finalists, math.ceil(candidates / eta))
    return sizes


def _most(finalists: int, decide: Stage, verdict: Stage) -> int:
    """What decision and verdict cost with all their images."""
    return finalists * decide.images * decide.conditions + verdict.images * verdict.conditions


def _rungs(budget: int, candidates: int, search: Stage, eta: int, finalists: int) -> tuple[Rung, ...]:
    """Rungs of about equal price; where the cells run out, earlier rungs get more, as far as the budget goes."""
    sizes = _sizes(candidates, eta, finalists)
    low, high = 0, budget  # the price of one rung: `low` is affordable, beyond `high` it is not
    while low < high:
        price = (low + high + 1) // 2
        if sum(rung.predictions for rung in _at_price(price, sizes, search)) <= budget:
            low = price
        else:
            high = price - 1
    return _at_price(low, sizes, search)


def _at_price(price: int, sizes: list[int], search: Stage) -> tuple[Rung, ...]:
    available, cells, rungs = search.images * search.conditions, 0, []
    for size in sizes:
        fresh = min(available - cells, price // size)
        cells += fresh
        rungs.append(Rung(size, cells, fresh))
    return tuple(rungs)


def _sound(rungs: tuple[Rung, ...], search: Stage) -> bool:
    return rungs[0].cells >= min(FEWEST_CELLS, search.images * search.conditions)
