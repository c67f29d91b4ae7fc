"""One condition of a stored evaluation, read once: scores, classes, partitions, drift, and what it cost."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import Condition
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.results import metrics_of, score_condition
from gramloop.evaluate.rows import Failure, boxes_of, counts_of, depth_scores_of
from gramloop.evaluate.segment_rows import matches_of, qualities_of
from gramloop.evaluate.store import StoredUnit
from gramloop.metrics.ap import rank_matches, weighted_ap
from gramloop.metrics.miou import class_iou, mean_iou, mean_of_known
from gramloop.metrics.panoptic import class_quality, mean_quality

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


def measure_condition(plan: Plan, key: str, units: Sequence[StoredUnit]) -> ConditionResults:
    """Everything a report says of one condition, from all its units."""
    scored = score_condition(plan, key, units)
    tables = [unit.table for unit in units]
    names = [method.name for method in plan.methods]
    used = tuple(used_ids(units))
    found = ConditionResults(
        condition_of(key), scored.images, scored.scores, scored.failures, spent=_spent(units), ids=used
    )
    if not scored.images:
        return found
    members = memberships([*used, *(failure.image_id for failure in scored.failures)], used)
    look = _LOOKS[plan.task]
    looked = {name: look(plan, tables, name, members) for name in names}
    return replace(
        found,
        classes={name: each.classes for name, each in looked.items()},
        labelled=next(iter(looked.values())).labelled,
        parts={name: each.parts for name, each in looked.items()} if len(members) > 1 else {},
        drift=_drift(tables, names),
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


def used_ids(units: Sequence[StoredUnit]) -> list[str]:
    """The ids of the images that were scored, in order of position."""
    found: dict[int, str] = {}
    for unit in units:
        found.update(zip(unit.table["position"].to_pylist(), unit.table["image_id"].to_pylist(), strict=True))
    return [found[position] for position in sorted(found)]


@dataclass(frozen=True)
class _Looked:
    classes: NDArray[np.float64]  # (K,)
    labelled: NDArray[np.bool_]  # (K,)
    parts: NDArray[np.float64]  # (2, PARTS), or (2, 0)


def _look_at_pixels(plan: Plan, tables: Sequence[Any], method: str, members: NDArray[np.int64]) -> _Looked:
    counts = counts_of(tables, method)  # (images, 3, K)
    sums = np.tensordot(members, counts, axes=1)  # (rows, 3, K)
    scores = np.asarray(mean_iou(sums))
    return _Looked(class_iou(sums[0]), sums[0, 2] > 0, scores[1:].reshape(2, -1))


def _look_at_boxes(plan: Plan, tables: Sequence[Any], method: str, members: NDArray[np.int64]) -> _Looked:
    order = list(plan.categories)
    scores, by_category = weighted_ap(*boxes_of(tables, method, order), members)
    classes = by_category[0][np.argsort(np.argsort(order))]
    return _Looked(classes, ~np.isnan(classes), scores[1:].reshape(2, -1))


def _look_at_depth(plan: Plan, tables: Sequence[Any], method: str, members: NDArray[np.int64]) -> _Looked:
    within = depth_scores_of(tables, method)[:, 0]  # (images,)
    with np.errstate(invalid="ignore"):  # a part whose images could not be used has no score
        scores = members @ within / members.sum(axis=1)
    return _Looked(np.zeros(0), np.zeros(0, dtype=np.bool_), scores[1:].reshape(2, -1))


def _look_at_segments(plan: Plan, tables: Sequence[Any], method: str, members: NDArray[np.int64]) -> _Looked:
    sums = np.tensordot(members, qualities_of(tables, method), axes=1)  # (rows, 4, K)
    held = sums[0, 1] + sums[0, 3] > 0  # found or missed
    return _Looked(class_quality(sums[0])[0], held, mean_quality(sums)[1:, 0].reshape(2, -1))


def _look_at_masks(plan: Plan, tables: Sequence[Any], method: str, members: NDArray[np.int64]) -> _Looked:
    order = list(plan.categories)
    matches, many = matches_of(tables, method)
    by_category = rank_matches(matches, order, many).by_category(members, len(order))
    classes = by_category[0][np.argsort(np.argsort(order))]
    return _Looked(classes, ~np.isnan(classes), mean_of_known(by_category)[1:].reshape(2, -1))


_LOOKS = {
    "semantic": _look_at_pixels,
    "detection": _look_at_boxes,
    "depth": _look_at_depth,
    "panoptic": _look_at_segments,
    "instance": _look_at_masks,
}


def _drift(tables: Sequence[Any], names: Sequence[str]) -> dict[str, NDArray[np.float64]]:
    if any(POST_DRIFT not in table.column_names for table in tables):
        return {}
    found: dict[str, dict[int, float]] = {name: {} for name in names}
    for table in tables:
        columns = (table[name].to_pylist() for name in ("method", "position", POST_DRIFT))
        for method, position, values in zip(*columns, strict=True):
            last = values[-1] if isinstance(values, list) and values else values
            if isinstance(last, float):
                found[method][position] = last
    return {
        name: np.array([values[position] for position in sorted(values)])
        for name, values in found.items()
        if values
    }


def _spent(units: Sequence[StoredUnit]) -> Spent:
    total = Spent()
    for unit in units:
        blocks: dict[str, float] = {}
        columns = (unit.table[name].to_pylist() for name in ("method", "blocks"))
        for method, number in zip(*columns, strict=True):
            blocks[method] = blocks.get(method, 0) + number
        facts = unit.facts
        images = len(set(unit.table["position"].to_pylist()))
        alone = {name: (share,) for name, share in facts.alone.items()}
        total += Spent(images, facts.seconds, facts.predict_seconds, facts.peak_memory, blocks, alone)
    return total


def _added(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
