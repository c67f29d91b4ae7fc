"""Scores from stored units: a row for each condition and method, in full precision, and means over shifts."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Plan, condition_of
from gramloop.evaluate.rows import DEPTH, Failure, boxes_of, counts_of, depth_scores_of
from gramloop.evaluate.segment_rows import matches_of, qualities_of
from gramloop.evaluate.store import RESULTS, Store, StoredUnit
from gramloop.evaluate.truth import AGREEMENT
from gramloop.metrics.ap import average_precision, mask_average_precision
from gramloop.metrics.miou import mean_iou
from gramloop.metrics.panoptic import EVERY, QUALITIES, mean_quality
from gramloop.metrics.robustness import mean_performance
from gramloop.util.files import atomic_write
from gramloop.util.progress import tracked
from gramloop.util.table import Cell, Shown, ShownTable, text_cell

METRICS = {
    "semantic": ("mIoU",),
    "detection": ("AP", "AP50", "AP75", "APs", "APm", "APl"),
    "depth": DEPTH,
    "panoptic": tuple(f"{name}{group}" for group in ("", "th", "st") for name in QUALITIES),
    "instance": ("AP", "AP50", "AP75", "APs", "APm", "APl"),
}
MEAN = "mean"  # over the shifted conditions: mPC, or COCO-O's mAP


def metrics_of(plan: Plan) -> tuple[str, ...]:
    """The names of a plan's scores, the main one first; without labels they say that they are agreement."""
    names = METRICS[plan.task]
    return tuple(f"{AGREEMENT} {name}" for name in names) if plan.label_free else names


def tells_gain(plan: Plan, key: str) -> bool:
    """Whether a difference to the baseline is a gain; on clean images without labels it only says how much changed."""
    return not plan.label_free or condition_of(key).name != "clean"


@dataclass(frozen=True)
class ConditionScores:
    """One condition: metrics by method, the main one first and in percent, and the images behind them."""

    condition: str
    images: int
    failures: tuple[Failure, ...]
    scores: Mapping[str, Mapping[str, float]]  # method: metric: value


@dataclass(frozen=True, repr=False)
class Results(Shown):
    """All conditions of a plan that are complete."""

    plan: Plan
    conditions: tuple[ConditionScores, ...]

    @property
    def metric(self) -> str:
        """The main metric."""
        return metrics_of(self.plan)[0]

    def mean(self, method: str) -> float | None:
        """The unweighted mean of the main metric over all shifted conditions, once all are complete."""
        done = {condition_of(one.condition): one.scores[method][self.metric] for one in self.conditions}
        expected = [condition_of(key) for key in self.plan.conditions]
        shifted = [cell for cell in expected if cell.name != "clean"]
        if len(done) != len(expected) or not shifted or not np.isfinite([done[c] for c in shifted]).all():
            return None
        return mean_performance(done, expected)

    def csv(self) -> str:
        """The results table: the same bytes however the work was shared out."""
        metrics = metrics_of(self.plan)
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(["condition", "method", "images", "excluded", *metrics, f"{metrics[0]} gain"])
        for one in self.conditions:
            for method, values in one.scores.items():
                ordinary = one.scores.get(BASELINE, {}).get(metrics[0])
                told = ordinary if tells_gain(self.plan, one.condition) else None
                gain = _gain(values[metrics[0]], told, method)
                counts = [one.images, len(one.failures)]
                writer.writerow(
                    [text_cell(one.condition), text_cell(method), *counts, *map(repr, values.values()), gain]
                )
        ordinary = self.mean(BASELINE) if BASELINE in self._names else None
        for method in self._names:
            if (mean := self.mean(method)) is not None:
                blank = [""] * (len(metrics) - 1)
                writer.writerow(
                    [MEAN, text_cell(method), "", "", repr(mean), *blank, _gain(mean, ordinary, method)]
                )
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

    def __str__(self) -> str:
        from rich.console import Console

        from gramloop.evaluate.display import print_results

        stream = io.StringIO()
        print_results(self, Console(file=stream, width=120, force_jupyter=False))
        return stream.getvalue().rstrip()

    __repr__ = __str__

    def _shown(self) -> ShownTable:
        from gramloop.evaluate.relative import MCE_WORDS, relative

        names = self._names
        rows: list[tuple[Cell, ...]] = [
            (one.condition, *(f"{one.scores[name][self.metric]:.3f}" for name in names))
            for one in self.conditions
        ]
        means = [mean for name in names if (mean := self.mean(name)) is not None]
        rows += [(MEAN, *(f"{mean:.3f}" for mean in means))] if len(means) == len(names) else []
        lacking = len(self.plan.conditions) - len(self.conditions)
        notes = [f"{lacking} of {len(self.plan.conditions)} conditions are not complete."] if lacking else []
        excluded = sum(len(one.failures) for one in self.conditions)
        notes += [f"{excluded} images could not be used, and count for no method."] if excluded else []
        if errors := relative(self).mce:
            rows.append(("mCE", *(f"{errors[name]:.3f}" for name in names)))
            notes.append(MCE_WORDS)
        title = f"{self.plan.suite}, {self.metric}"
        return ShownTable(title, ("condition", *names), tuple(rows), tuple(notes))

    @property
    def _names(self) -> list[str]:
        return [method.name for method in self.plan.methods]


def _gain(value: float, baseline: float | None, method: str) -> str:
    return "" if baseline is None or method == BASELINE else repr(value - baseline)


def score_condition(plan: Plan, key: str, units: Sequence[StoredUnit]) -> ConditionScores:
    """The scores of one condition from its units, in any order."""
    tables = [unit.table for unit in units]
    failures = sorted((f for unit in units for f in unit.failures), key=lambda failure: failure.position)
    images = plan.conditions[key] - len(failures)
    scores: dict[str, dict[str, float]] = {}
    for method in plan.methods:
        unknown = [math.nan] * len(METRICS[plan.task])
        values = _scores(plan, tables, method.name) if images else unknown
        scores[method.name] = dict(zip(metrics_of(plan), values, strict=True))
    return ConditionScores(key, images, tuple(failures), scores)


def _scores(plan: Plan, tables: Sequence[Any], method: str) -> list[float]:
    """The numbers of a method in the order of `METRICS`."""
    categories = list(plan.categories)
    if plan.task == "semantic":
        return [float(mean_iou(counts_of(tables, method).sum(axis=0)))]  # of (3, classes)
    if plan.task == "depth":
        means: list[float] = depth_scores_of(tables, method).mean(axis=0).tolist()
        return means
    if plan.task == "panoptic":
        total = qualities_of(tables, method).sum(axis=0)  # (4, categories)
        things = np.isin(categories, plan.things)
        groups = [mean_quality(total, chosen) for chosen in (EVERY, things, ~things)]
        qualities: list[float] = np.concatenate(groups).tolist()
        return qualities
    if plan.task == "instance":
        matches, many = matches_of(tables, method)
        found = mask_average_precision(matches, categories, many)
    else:
        found = average_precision(*boxes_of(tables, method, categories))
    return [found.ap, found.ap50, found.ap75, found.small, found.medium, found.large]


def collect(store: Store, keys: Sequence[str] | None = None) -> Results:
    """The scores of every condition whose units are all stored."""
    wanted = list(keys if keys is not None else store.plan.conditions)
    found = (_scored(store, key) for key in tracked(wanted, "scoring", len(wanted)))
    return Results(store.plan, tuple(one for one in found if one is not None))


_known: dict[tuple[Path, str, str], tuple[object, ConditionScores]] = {}  # by folder, plan and condition


def _scored(store: Store, key: str) -> ConditionScores | None:
    """The scores of a complete condition; those of this process are kept while its files are the same ones."""
    place = (store.folder.absolute(), store.plan.hash, key)
    state = store.state(key)
    if state is None:
        return None
    if place not in _known or _known[place][0] != state:
        units = [store.read(unit) for unit in store.plan.units_of(key)]
        complete = [unit for unit in units if unit is not None]
        if len(complete) < len(units):  # taken away meanwhile
            return None
        _known[place] = state, score_condition(store.plan, key, complete)
    return _known[place][1]


def write_results(store: Store, results: Results) -> None:
    """Store the table as results.csv."""
    atomic_write(store.folder / RESULTS, results.csv().encode(), durable=True)
