"""How candidates of a search are compared: what a user can choose, with its defaults; nothing heavy is imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gramloop.errors import GramLoopError
from gramloop.tune.search.schedule import ETA, FINALISTS


@dataclass(frozen=True)
class Options:
    """How candidates are compared.

    clean_tolerance: points that clean images may lose, 0.1 where nothing is said. Without labels it is how far their
        predictions may change, and nothing is asked where nothing is said: a change need be no loss.
    confidence: of the decision that a candidate is better than nothing, over all finalists together.
    caution: standard errors that are taken off a gain when candidates are ranked.
    objective: the gain, or the gain per ordinary forward that the candidate adds.
    max_cost: no candidate that costs more than so many ordinary forwards; a block on twice the area counts twice.
    stacking: also try winners of different stages together.
    adaptive: also look for a rule per candidate that replays some images only (`gramloop.tune.search.adapting`).
    block: consecutive images that belong together, as frames of a video.
    unseen: families kept from the search; a third of them by default.
    judge_on: a pattern of image ids, such as ``drive7_*``, that only the verdict sees; a part of all by default.
    """

    clean_tolerance: float | None = None
    confidence: float = 0.95
    caution: float = 1.0
    objective: Literal["gain", "gain-per-cost"] = "gain"
    max_cost: float | None = None
    adaptive: bool = True
    eta: int = ETA
    finalists: int = FINALISTS
    block: int = 1
    unseen: tuple[str, ...] | None = None
    seed: int = 0
    judge_on: str | None = None
    stacking: bool = True

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence < 1:
            raise GramLoopError(f"the confidence lies from 0.5 to below 1, not at {self.confidence}")
        tolerance = self.clean_tolerance
        if not (self.caution >= 0 and (tolerance is None or tolerance >= 0)):
            raise GramLoopError(f"caution and tolerance are 0 or more, not {self.caution} and {tolerance}")
        if self.objective not in ("gain", "gain-per-cost"):
            raise GramLoopError(f"the objective is gain or gain-per-cost, not {self.objective!r}")
        if self.max_cost is not None and not self.max_cost >= 1:
            raise GramLoopError(f"no candidate costs less than 1 ordinary forward, so not {self.max_cost}")
