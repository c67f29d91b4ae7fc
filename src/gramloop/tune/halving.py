"""How a budget is spent: successive halving over rungs, then a decision between finalists, then a verdict.

The budget counts predictions: one image under one condition with one candidate. Where all candidates are replays, the
baseline prediction comes out of the pass that the first of them needs anyway, and is not counted; otherwise it counts
as one, and so does every image that calibration statistics are learnt from. A candidate keeps what it has been measured
on, so a rung pays for new cells only (a cell is an image under a condition); combinations that join a rung catch up on
the cells before. The decision and the verdict have images of their own, under every condition of theirs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from gramloop.errors import GramLoopError

ETA = 3  # a rung keeps one in so many
FINALISTS = 3
RUNGS_SHARE, DECIDE_SHARE = 0.4, 0.25  # of the budget; the verdict gets the rest, and what is left over
JOINING = (3, 2)  # combinations that the second and the third rung have room for
MIN_CELLS = 8  # that a candidate is measured on in the first rung
MIN_STAGE_IMAGES = 3  # in the decision and in the verdict


@dataclass(frozen=True)
class Options:
    """How candidates are compared.

    Attributes:
        clean_tolerance: points that clean images may lose, 0.1 by default. Without labels it is how far their predictions
            may change, and by default anything may: a change need not be a loss.
        confidence: of the decision that a candidate is better than nothing, over all finalists together.
        max_cost: no candidate that takes more than so many baseline forwards; a block on twice the area counts twice.
        adaptive: also look for a rule per replay that replays some images only.
        finalists: candidates of the decision.
        block: consecutive images that belong together, as frames of a video.
        unseen: families kept from the search; a third of them by default.
        seed: another split of the same data.
        judge_on: a pattern of image ids, such as ``drive7_*``, that only the verdict sees; a part of all by default.
        stacking: also try winners of different stages together.
    """

    clean_tolerance: float | None = None
    confidence: float = 0.95
    max_cost: float | None = None
    adaptive: bool = True
    finalists: int = FINALISTS
    block: int = 1
    unseen: tuple[str, ...] | None = None
    seed: int = 0
    judge_on: str | None = None
    stacking: bool = True

    def __post_init__(self) -> None:
        tolerance = 0.0 if self.clean_tolerance is None else self.clean_tolerance
        checks = (
            (0.5 <= self.confidence < 1, f"confidence is {self.confidence}; it is 0.5 or more and below 1"),
            (tolerance >= 0, f"clean_tolerance is {self.clean_tolerance}; it is 0 or more"),
            (
                self.max_cost is None or self.max_cost >= 1,
                f"max_cost is {self.max_cost}; it is 1 baseline forward or more",
            ),
        )
        for right, message in checks:
            if not right:
                raise GramLoopError(message)


@dataclass(frozen=True)
class StageSize:
    """Images of a stage, and the conditions that each is shown under."""

    images: int
    conditions: int

    @property
    def cells(self) -> int:
        """Images under a condition."""
        return self.images * self.conditions


@dataclass(frozen=True)
class Rung:
    """Candidates that are compared on the first ``cells`` cells of the search, ``fresh`` of them new."""

    candidates: int
    cells: int
    fresh: int
    joining: int = 0  # combinations that join, at most; they have seen no cell yet

    @property
    def predictions(self) -> int:
        """What it costs, at most."""
        return self.candidates * self.fresh + self.joining * self.cells


@dataclass(frozen=True)
class Schedule:
    """The whole search, before it begins."""

    budget: int
    offered: int  # candidates of the space; the first rung may take fewer
    rungs: tuple[Rung, ...]
    finalists: int
    decide: StageSize  # as many images as will be used
    verdict: StageSize
    judged: int = 1  # candidates of the verdict, at most
    baseline: int = 0  # predictions per cell without any candidate
    calibration: int = 0  # predictions that calibration statistics are learnt from

    @property
    def candidates(self) -> int:
        """How many candidates are tried at all."""
        return self.rungs[0].candidates if self.rungs else self.finalists

    @property
    def decide_predictions(self) -> int:
        """What deciding between the finalists and nothing costs."""
        return (self.finalists + self.baseline) * self.decide.cells

    @property
    def verdict_predictions(self) -> int:
        """What the verdict costs, at most."""
        return (self.judged + self.baseline) * self.verdict.cells

    @property
    def predictions(self) -> int:
        """What everything costs; never more than the budget."""
        rungs = _price(self.rungs, self.baseline)
        return self.calibration + rungs + self.decide_predictions + self.verdict_predictions


def plan_schedule(
    budget: int,
    candidates: int,
    search: StageSize,
    decide: StageSize,
    verdict: StageSize,
    *,
    finalists: int = FINALISTS,
    joining: Sequence[int] = (),
    judged: int = 1,
    baseline: int = 0,
    calibration: int = 0,
) -> Schedule:
    """Divide a budget; if it is too small for all candidates, the first rung takes as many as it can compare.

    Args:
        budget: predictions, everything included.
        candidates: that are offered.
        search, decide, verdict: the images that there are, and their conditions.
        finalists: candidates of the decision.
        joining: combinations that may join the second rung, the third, and so on.
        judged: candidates of the verdict.
        baseline: predictions without any candidate that each cell costs.
        calibration: predictions before the first rung.
    """
    if finalists < 1 or candidates < 1:
        raise GramLoopError(f"halving needs a finalist and a candidate, not {finalists} and {candidates}")
    fewest = finalists if joining else min(finalists, candidates)
    least = calibration + _least(
        (fewest + baseline) * decide.conditions, (judged + baseline) * verdict.conditions
    )
    if budget < least:
        raise GramLoopError(
            f"a budget of {budget} predictions is too small: deciding between {fewest} finalists and judging the "
            f"choice needs {least}; give more, or fewer conditions or finalists"
        )
    left = budget - calibration
    most = (fewest + baseline) * decide.cells + (judged + baseline) * verdict.cells
    ladder = _Ladder(search.cells, finalists, baseline)
    rungs = ladder.most(max(int(left * RUNGS_SHARE), left - most), candidates, joining)
    kept = fewest if rungs else min(finalists, candidates)
    left -= _price(rungs, baseline)
    price, judging = (kept + baseline) * decide.conditions, (judged + baseline) * verdict.conditions
    decided = min(decide.images, int(left * DECIDE_SHARE / (1 - RUNGS_SHARE)) // price)
    seen = min(verdict.images, (left - decided * price) // judging)
    left -= decided * price + seen * judging
    decided = min(decide.images, decided + left // price)  # where the verdict ran out of images
    stages = StageSize(decided, decide.conditions), StageSize(seen, verdict.conditions)
    return Schedule(budget, candidates, rungs, kept, *stages, judged, baseline, calibration)


def _least(decide_price: int, verdict_price: int) -> int:
    """The smallest budget for a decision and a verdict, from the prices of one image of each."""
    # each must fit into its share of what the rungs leave, rounding included
    prices = ((decide_price, DECIDE_SHARE), (verdict_price, 1 - RUNGS_SHARE - DECIDE_SHARE))
    return math.ceil(max(MIN_STAGE_IMAGES * price / share for price, share in prices)) + 1


@dataclass(frozen=True)
class _Ladder:
    """Rungs for any number of candidates."""

    cells: int  # of the search
    finalists: int
    baseline: int

    def most(self, budget: int, candidates: int, joining: Sequence[int]) -> tuple[Rung, ...]:
        """The rungs of as many candidates as can be compared; room for combinations is given up first."""
        best: tuple[Rung, ...] = ()
        for many in range(len(joining), -1, -1):
            rungs = self._affordable(budget, candidates, joining[:many])
            if rungs and (not best or rungs[0].candidates > best[0].candidates):
                best = rungs
        return best

    def _affordable(self, budget: int, candidates: int, joining: Sequence[int]) -> tuple[Rung, ...]:
        for tried in range(candidates, min(self.finalists, candidates) - 1, -1):
            rungs = self._rungs(budget, self._sizes(tried, joining))
            if rungs and rungs[0].cells >= min(MIN_CELLS, self.cells):
                return rungs
        return ()

    def _sizes(self, candidates: int, joining: Sequence[int]) -> list[tuple[int, int]]:
        """Candidates of each rung, and combinations that join it."""
        sizes, together = [(candidates, 0)], candidates
        for room in itertools.chain(joining, itertools.repeat(0)):
            carried = min(together, max(self.finalists, math.ceil(together / ETA)))
            if carried <= self.finalists and not room:
                break
            sizes.append((carried, room))
            together = carried + room
        return sizes if candidates > self.finalists or joining else []

    def _rungs(self, budget: int, sizes: Sequence[tuple[int, int]]) -> tuple[Rung, ...]:
        """Rungs of about equal price; where the cells run out, earlier rungs get more, as far as the budget goes."""
        low, high = 0, budget  # the price of one rung: `low` is affordable, above `high` is not
        while low < high:
            price = (low + high + 1) // 2
            if _price(self._at_price(price, sizes), self.baseline) <= budget:
                low = price
            else:
                high = price - 1
        return self._at_price(low, sizes)

    def _at_price(self, price: int, sizes: Sequence[tuple[int, int]]) -> tuple[Rung, ...]:
        cells, rungs = 0, []
        for carried, joining in sizes:
            affordable = max(0, price - joining * cells) // (carried + joining + self.baseline)
            fresh = min(self.cells - cells, affordable)
            cells += fresh
            rungs.append(Rung(carried, cells, fresh, joining))
        return tuple(rungs)


def _price(rungs: Sequence[Rung], baseline: int) -> int:
    return sum(rung.predictions for rung in rungs) + baseline * (rungs[-1].cells if rungs else 0)
