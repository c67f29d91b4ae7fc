"""Scores from stored units: a row for each condition and method, in full precision, and means over shifts.

Means (mPC, COCO-O's mAP) appear once all conditions are complete.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT, AGREEMENT_NOTE, Part, Plan, condition_of
from gramloop.evaluate.rows import Failure
from gramloop.evaluate.runner import Missed
from gramloop.evaluate.store import RESULTS, Store, StoredCondition, read_condition
from gramloop.metrics.scores import mean_performance
from gramloop.util.files import atomic_write
from gramloop.util.progress import tracked
from gramloop.util.table import ABSENT, Cell, Column, Table, TableRepr, spreadsheet_text

MEAN = "mean"  # over the shifted conditions: mPC, or COCO-O's mAP


def metrics_of(plan: Plan) -> tuple[str, ...]:
    """The names of a plan's scores, the main one first; without labels they say that they are agreement."""
    names = plan.load_task().metrics
    return tuple(f"{AGREEMENT} {name}" for name in names) if plan.label_free else names


def measures_gain(plan: Plan, key: str) -> bool:
    """Whether a difference to the baseline is a gain; on clean images without labels it is only a change."""
    return not plan.label_free or condition_of(key).name != "clean"


@dataclass(frozen=True)
class ConditionScores:
    """One condition: metrics by method, the main one first and in percent, and the images behind them."""

    condition: str
    images: int
    failures: tuple[Failure, ...]
    scores: Mapping[str, Mapping[str, float]]  # method: metric: value


@dataclass(frozen=True, repr=False)
class Results(TableRepr):
    """All conditions of a plan that are complete, and what went wrong in this run."""

    plan: Plan
    conditions: tuple[ConditionScores, ...]
    missed: tuple[Missed, ...] = ()  # parts that did not fit into memory: the next run tries them again
    warnings: tuple[str, ...] = ()  # stored files that could not be used

    @property
    def failures(self) -> tuple[tuple[str, Failure], ...]:
        """Images that count for no method, each with its condition."""
        return tuple((one.condition, failure) for one in self.conditions for failure in one.failures)

    @property
    def metric(self) -> str:
        """The main metric."""
        return metrics_of(self.plan)[0]

    @property
    def methods(self) -> list[str]:
        """Their names, in the plan's order."""
        return [method.name for method in self.plan.methods]

    def mean(self, method: str) -> float | None:
        """The unweighted mean of the main metric over all shifted conditions, once all are complete."""
        done = {condition_of(one.condition): one.scores[method][self.metric] for one in self.conditions}
        expected = [condition_of(key) for key in self.plan.conditions]
        shifted = [cell for cell in expected if cell.name != "clean"]
        if len(done) != len(expected) or not shifted or not np.isfinite([done[c] for c in shifted]).all():
            return None
        return mean_performance(done, expected)

    def means(self) -> dict[str, float]:
        """The mean of every method; empty until all conditions are complete."""
        found = {name: self.mean(name) for name in self.methods}
        return {name: mean for name, mean in found.items() if mean is not None}

    def csv(self) -> str:
        """The results table: the same bytes however the work was shared out."""
        metrics = metrics_of(self.plan)
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["condition", "method", "images", "excluded", *metrics, f"{metrics[0]} gain"])
        for one in self.conditions:
            known = one.scores.get(BASELINE, {}).get(metrics[0])
            baseline = known if measures_gain(self.plan, one.condition) else None
            for method, values in one.scores.items():
                names = map(spreadsheet_text, (one.condition, method))
                gain = _gain(values[metrics[0]], baseline, method)
                writer.writerow([*names, one.images, len(one.failures), *map(repr, values.values()), gain])
        means, blank = self.means(), [""] * (len(metrics) - 1)
        for method, mean in means.items():
            row = [MEAN, spreadsheet_text(method), "", "", repr(mean), *blank]
            writer.writerow([*row, _gain(mean, means.get(BASELINE), method)])
        return stream.getvalue()

    def to_arrow(self) -> pa.Table:
        """A row for each condition and method, as in ``csv``; the means are left to the reader."""
        rows = [
            {"condition": one.condition, "method": method, "images": one.images, **values}
            for one in self.conditions
            for method, values in one.scores.items()
        ]
        return pa.Table.from_pylist(rows)

    def to_pandas(self) -> Any:
        """The same as a data frame; pandas must be installed."""
        try:
            return self.to_arrow().to_pandas()
        except ModuleNotFoundError as error:
            raise GramLoopError(
                "to_pandas needs pandas, which is not installed; to_arrow does not"
            ) from error

    def as_json(self) -> dict[str, Any]:
        """Plain values: scores by condition, method and metric, means and gains by method, and what went wrong."""
        means = self.means()
        return {
            "suite": self.plan.suite,
            "task": self.plan.task,
            "plan": self.plan.hash,
            "methods": self.methods,
            "metric": self.metric,
            "scores": {one.condition: one.scores for one in self.conditions},
            "means": means,
            "gains": {name: mean - means[BASELINE] for name, mean in means.items() if BASELINE in means},
            "excluded": [f"{key}, image {one.image_id}: {one.reason}" for key, one in self.failures],
            "missed": [f"{one.part}: {one.reason}" for one in self.missed],
        }

    def __repr__(self) -> str:
        return str(self)

    def _table(self) -> Table:
        table = results_table(self)
        return replace(table, notes=(*table.notes, *self.warnings))


def _gain(value: float, baseline: float | None, method: str) -> str:
    return "" if baseline is None or method == BASELINE else repr(value - baseline)


def score_condition(plan: Plan, stored: StoredCondition) -> ConditionScores:
    """The scores of one condition."""
    task, names = plan.load_task(), metrics_of(plan)
    images = plan.conditions[stored.key] - len(stored.failures)
    scores: dict[str, dict[str, float]] = {}
    for method, found in stored.methods.items():
        values = task.score(found.rows, plan.classes) if images else dict.fromkeys(task.metrics, math.nan)
        scores[method] = {name: values[metric] for name, metric in zip(names, task.metrics, strict=True)}
    return ConditionScores(stored.key, images, stored.failures, scores)


def collect(store: Store[Plan], keys: Sequence[str] | None = None) -> Results:
    """The scores of every condition whose units are all stored; the store keeps them while its files are the same."""
    wanted = list(keys if keys is not None else store.plan.conditions)
    for key in tracked(wanted, "scoring", len(wanted)):
        state = _state(store, key)
        if key not in store.scored or store.scored[key][0] != state:
            stored = read_condition(store, key) if state else None
            store.scored[key] = state, None if stored is None else score_condition(store.plan, stored)
    found = (store.scored[key][1] for key in wanted)
    return Results(store.plan, tuple(each for each in found if each is not None))


def _state(store: Store[Plan], key: str) -> list[tuple[int, int, int]]:
    """What changes with any file of a condition; empty unless all are there."""
    paths = [store.path(unit) for part in store.plan.parts_of(key) for unit in part.units]
    try:
        return [(each.st_ino, each.st_size, each.st_mtime_ns) for each in (path.stat() for path in paths)]
    except OSError:
        return []


def write_results(store: Store[Plan], results: Results) -> None:
    """Store the table as results.csv."""
    atomic_write(store.folder / RESULTS, results.csv().encode(), durable=True)


# what a person sees


def results_table(results: Results) -> Table:
    """The main metric of every complete condition, with gains over the baseline, and the means."""
    names, plan, metric = results.methods, results.plan, results.metric
    rows: list[tuple[Cell, ...]] = []
    for one in results.conditions:
        scores = {name: one.scores[name][metric] for name in names}
        rows.append((one.condition, *_cells(names, scores, measures_gain(plan, one.condition))))
    means = results.means()
    footer = [(MEAN, *_cells(names, means))] if len(means) == len(names) else []
    lacking = len(plan.conditions) - len(results.conditions)
    excluded = sum(len(one.failures) for one in results.conditions)
    notes = [
        f"{lacking} of {len(plan.conditions)} conditions are not complete." if lacking else "",
        f"{excluded} images could not be used, and count for no method." if excluded else "",
        f"{AGREEMENT_NOTE[0].upper()}{AGREEMENT_NOTE[1:]}." if plan.label_free else "",
        *unscored(results),
    ]
    columns = (Column("condition", kind="text"), *(Column(name, kind="number") for name in names))
    title = f"{plan.suite}, {metric} in percent"
    return Table(title, columns, (*rows, *footer), filter(None, notes), footer=len(footer))


def unscored(results: Results) -> list[str]:
    """Why conditions have no score, in words, where some have none."""
    plan, metric = results.plan, results.metric
    lost = [
        one.condition
        for one in results.conditions
        if not all(math.isfinite(scores[metric]) for scores in one.scores.values())
    ]
    if not lost:
        return []
    if plan.label_free and plan.load_task().thresholded:
        reason = (
            f"no object of the clean predictions scores {plan.truth_score:g} or more, so there is nothing to agree "
            "with; a smaller --truth-score accepts more of them"
        )
    else:
        reason = "the images that could be used hold nothing that is scored"
    return [f"No score for {', '.join(lost)}: {reason}."]


def _cells(names: Sequence[str], scores: Mapping[str, float], gains: bool = True) -> list[str]:
    cells = []
    for name in names:
        compared = gains and BASELINE in scores and name != BASELINE
        gain = f" ({scores[name] - scores[BASELINE]:+.2f})" if compared else ""
        cells.append(f"{scores[name]:.2f}{gain}" if math.isfinite(scores[name]) else ABSENT)
    return cells


def print_status(results: Results, missing: Sequence[Part], damaged: Sequence[str]) -> None:
    """What is complete, and how many units are stored."""
    from rich.console import Console

    Console().print(results_table(results))
    for problem in damaged:
        print(f"{problem}; the next run computes it again", file=sys.stderr)
    total, lacking = len(results.plan.units), sum(len(part.methods) for part in missing)
    print(f"{total - lacking} of {total} units are stored, {lacking} are missing")
