"""One results folder of an evaluation, as a report sees it: what is complete, and the scores that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition, Suite, find_suite
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.store import Store, StoredCondition, read_condition
from gramloop.metrics.robustness import Comparison, compare
from gramloop.report.measure import ConditionResults, Spent, main_metric

TASK_WORDS = {
    "semantic": "segmentation",
    "detection": "detection",
    "depth": "depth",
    "panoptic": "panoptic segmentation",
    "instance": "instance segmentation",
}


@dataclass(frozen=True)
class Run:
    """One results folder: its plan, and every condition that is complete."""

    name: str  # in tables and headings; no two runs of a report share it
    folder: Path
    plan: Plan
    results: tuple[ConditionResults, ...]  # in the plan's order
    missing: Mapping[str, str] = field(default_factory=dict)  # condition: what is not there, in words

    @cached_property
    def suite(self) -> Suite:
        """The suite of the table of suites, or over one's own set."""
        return find_suite(self.plan.suite)

    @property
    def key(self) -> str:
        """The name as part of file names."""
        kept = "".join(letter if letter.isalnum() else "-" for letter in self.name.lower())
        return "-".join(part for part in kept.split("-") if part)

    @property
    def metric(self) -> str:
        """mIoU, AP, delta1 or PQ."""
        return main_metric(self.plan)

    @property
    def changes_only(self) -> bool:
        """Whether it only says how far clean predictions change: without labels, that is no gain and no loss."""
        return self.plan.label_free and not self.shifted

    @property
    def truth_words(self) -> str:
        """What predictions are compared with."""
        return "clean predictions" if self.plan.label_free else "labels"

    @property
    def methods(self) -> tuple[str, ...]:
        """Names, the baseline first."""
        names = [method.name for method in self.plan.methods]
        return tuple(sorted(names, key=lambda name: name != BASELINE))

    @property
    def replays(self) -> tuple[str, ...]:
        """The methods that are compared with the baseline; none where it was not run."""
        names = self.methods
        return tuple(name for name in names if name != BASELINE) if BASELINE in names else ()

    @property
    def gated(self) -> tuple[str, ...]:
        """The methods with the Gram gate, in the plan's order."""
        replays = {method.name: method.replay for method in self.plan.methods}
        return tuple(name for name, replay in replays.items() if replay is not None and replay.gate == "gram")

    @property
    def complete(self) -> bool:
        """Whether every condition of the plan is there with a score for every method."""
        return not self.missing and not self.unscored

    @property
    def unscored(self) -> tuple[str, ...]:
        """Conditions that are there and have no score, as when no image of them could be used."""
        return tuple(
            result.condition.key
            for result in self.results
            if not all(np.isfinite(values[self.metric]) for values in result.scores.values())
        )

    @property
    def shifted(self) -> tuple[Condition, ...]:
        """The conditions of the plan that are not clean."""
        conditions = (condition_of(key) for key in self.plan.conditions)
        return tuple(condition for condition in conditions if condition.name != "clean")

    @property
    def families(self) -> tuple[str, ...]:
        """Shifts of the plan, in its order."""
        return tuple(dict.fromkeys(condition.family for condition in self.shifted))

    @property
    def averaged(self) -> tuple[ConditionResults, ...]:
        """What means are over: the shifted conditions, or the clean one where there is no other."""
        shifted = tuple(result for result in self.results if result.condition.name != "clean")
        return shifted or self.results

    @property
    def spent(self) -> Spent:
        """What all stored conditions cost."""
        return sum((result.spent for result in self.results), Spent())

    def scores(self, method: str) -> dict[Condition, float]:
        """The main metric of every complete condition."""
        return {result.condition: result.scores[method][self.metric] for result in self.results}

    def compare(self, method: str, baseline: str = BASELINE) -> Comparison | None:
        """Two methods over the shifted conditions; None where one is missing, for a mean would mislead."""
        if not self.complete or not self.shifted:
            return None
        return compare(self.scores(baseline), self.scores(method), self.shifted)

    def score(self, method: str) -> float | None:
        """The suite's one number: mPC, COCO-O's mAP, or the score on clean images; None while incomplete."""
        if not self.complete:
            return None
        scores = self.scores(method)
        chosen = self.shifted or tuple(scores)
        return float(np.mean([scores[condition] for condition in chosen]))

    @property
    def score_title(self) -> str:
        """What that number is called."""
        if not self.shifted:
            return self.metric
        return f"m{self.metric}" if self.suite.kind == "o" else f"mPC ({self.metric})"

    def stored(self, key: str) -> StoredCondition | None:
        """The rows of a complete condition, read again."""
        return read_condition(Store(self.folder, self.plan), key)

    @property
    def unlabelled(self) -> tuple[str, ...]:
        """Classes that the truth of no condition holds."""
        seen = [result.labelled for result in self.results if result.labelled is not None]
        if not seen:
            return ()
        anywhere: NDArray[np.bool_] = np.any(seen, axis=0)
        pairs = zip(self.plan.categories.values(), anywhere, strict=True)
        return tuple(name for name, present in pairs if not present)
