"""One condition of a stored evaluation, read once: scores, classes, partitions, drift, and what it cost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.results import metrics_of, score_condition
from gramloop.evaluate.rows import Failure
from gramloop.evaluate.store import StoredCondition

PARTS = 4  # fixed subsets of the images
SMALLEST = 2 * PARTS  # images; fewer are not divided
POST_DRIFT = "post_drift"  # the column with the final drift of the accepted states, one number per replay


@dataclass(frozen=True)
class Spent:
    """What units cost, added up: seconds are those of one device, whatever their number."""

    images: int = 0
    seconds: float = 0.0  # everything included
    calls: Mapping[str, float] = field(default_factory=dict)  # "baseline+gramloop": seconds of predicting
    peak_memory: int = 0  # bytes, the largest of any unit
    blocks: Mapping[str, float] = field(default_factory=dict)  # method: blocks of all images, per view
    alone: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # method: shares of a call

    def __add__(self, other: Spent) -> Spent:
        return Spent(
            self.images + other.images,
            self.seconds + other.seconds,
            _added(self.calls, other.calls),
            max(self.peak_memory, other.peak_memory),
            _added(self.blocks, other.blocks),
            {
                name: self.alone.get(name, ()) + other.alone.get(name, ())
                for name in {**self.alone, **other.alone}
            },
        )

    def predicting(self, method: str) -> float | None:
        """Seconds of predicting all images with one method by itself; None where that was not measured."""
        call = next((each for each in self.calls if method in each.split("+")), None)
        if call is None or call == method:
            return None if call is None else self.calls[call]
        if not self.alone.get(method):
            return None
        # the median: a machine that does something else for a moment spoils a single sample
        return self.calls[call] * float(np.median(self.alone[method]))


@dataclass(frozen=True)
class ConditionResults:
    """One complete condition; arrays over classes follow the order of the plan's categories."""

    condition: Condition
    images: int
    scores: Mapping[str, Mapping[str, float]]  # method: metric: percent
    failures: tuple[Failure, ...] = ()
    classes: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # method: (K,) IoU or AP
    labelled: NDArray[np.bool_] | None = None  # (K,) which classes the truth holds
    parts: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # method: (2, PARTS)
    drift: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)  # method: (images,) after the gate
    spent: Spent = Spent()
    ids: tuple[str, ...] = ()  # (images,) of those that were scored, in order of position


def measure_condition(plan: Plan, stored: StoredCondition) -> ConditionResults:
    """Everything a report says of one condition, from all its units."""
    scored, task = score_condition(plan, stored), plan.load_task()
    used = tuple(stored.image_ids)
    found = ConditionResults(
        condition_of(stored.key),
        scored.images,
        scored.scores,
        scored.failures,
        spent=_spent(stored),
        ids=used,
    )
    if not scored.images:
        return found
    members = memberships([*used, *(failure.image_id for failure in scored.failures)], used)
    classes = {name: task.class_scores(each.rows, plan.classes) for name, each in stored.methods.items()}
    parts = {}
    for name, each in stored.methods.items():
        with np.errstate(invalid="ignore"):  # a part whose images could not be used has no score
            parts[name] = task.scorer(each.rows, plan.classes)(members)[1:].reshape(2, -1)
    return replace(
        found,
        classes={name: each.scores for name, each in classes.items()},
        labelled=next(iter(classes.values())).labelled,
        parts=parts if len(members) > 1 else {},
        drift=_drift(stored),
    )


def main_metric(plan: Plan) -> str:
    """mIoU, AP, delta1 or PQ; without labels, agreement in it."""
    return metrics_of(plan)[0]


def partition_of(ids: Sequence[str]) -> dict[str, int]:
    """The fixed subset, 0 to 3, of every image.

    Images are ordered by the sha256 of their id and cut into four runs of equal length, give or take one. So
    the division knows nothing of content or order, and is the same wherever these images are evaluated.
    """
    ordered = sorted(set(ids), key=lambda each: (hashlib.sha256(each.encode()).digest(), each))
    return {each: place * PARTS // len(ordered) for place, each in enumerate(ordered)}


def memberships(ids: Sequence[str], used: Sequence[str]) -> NDArray[np.int64]:
    """Which of the images used count: all in the first row, then the subsets, then their complements."""
    rows = [np.ones(len(used), dtype=np.int64)]
    if len(set(ids)) >= SMALLEST:
        part_of = partition_of(ids)
        part = np.array([part_of[each] for each in used])
        subsets = [(part == number).astype(np.int64) for number in range(PARTS)]
        rows += [*subsets, *(1 - subset for subset in subsets)]
    return np.stack(rows)


def _drift(stored: StoredCondition) -> dict[str, NDArray[np.float64]]:
    measured = {name: each.column(POST_DRIFT) for name, each in stored.methods.items()}
    return {
        name: np.array([value for value in values if value is not None])
        for name, values in measured.items()
        if any(value is not None for value in values)
    }


def _spent(stored: StoredCondition) -> Spent:
    first = next(iter(stored.methods.values()))
    calls: dict[str, float] = {}
    for name, each in stored.methods.items():
        for facts in each.facts:
            together = [other for other in (facts.paired_with, name) if other]
            call = name if not facts.paired_with else "+".join(sorted(together))
            calls[call] = calls.get(call, 0.0) + facts.seconds
    return Spent(
        len(stored.image_ids),
        sum(facts.wall_seconds for facts in first.facts),
        calls,
        max(facts.peak_memory for each in stored.methods.values() for facts in each.facts),
        {name: float(sum(each.blocks)) for name, each in stored.methods.items()},
    )


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
