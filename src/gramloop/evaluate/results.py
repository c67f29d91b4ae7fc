"""Scores from stored units: a row for each condition and method, in full precision, means over shifts, and robustness.

Means (mPC, COCO-O's mAP) appear once all conditions are complete. rPC, mCE and effective robustness are not in
results.csv: they need a second evaluation, or follow from its rows.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from gramloop.data.suites import Condition, find_suite
from gramloop.errors import GramLoopError
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT, Plan, condition_of
from gramloop.evaluate.rows import Failure
from gramloop.evaluate.store import (
    PLAN,
    RESULTS,
    Store,
    StoredCondition,
    plan_in,
    read_condition,
)
from gramloop.metrics.robustness import (
    coco_o_map,
    effective_robustness,
    mean_corruption_error,
    mean_performance,
    relative_performance,
)
from gramloop.util.files import atomic_write
from gramloop.util.progress import tracked
from gramloop.util.table import Table, TableRepr, spreadsheet_text

MEAN = "mean"  # over the shifted conditions: mPC, or COCO-O's mAP
MCE_NOTE = "mCE: errors (100 - score) against the baseline's, by shift, in percent; 100 is the baseline, lower is better."
COCO_O, COCO = "coco-o", "coco"  # the suites of effective robustness


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
    """All conditions of a plan that are complete."""

    plan: Plan
    conditions: tuple[ConditionScores, ...]

    @property
    def metric(self) -> str:
        """The main metric."""
        return metrics_of(self.plan)[0]

    @property
    def methods(self) -> list[str]:
        """Their names, in the plan's order."""
        return [method.name for method in self.plan.methods]

    def scores_of(self, method: str) -> dict[Condition, float]:
        """The main metric of every complete condition."""
        return {condition_of(one.condition): one.scores[method][self.metric] for one in self.conditions}

    def mean(self, method: str) -> float | None:
        """The unweighted mean of the main metric over all shifted conditions, once all are complete."""
        done = self.scores_of(method)
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
                names, counts = (
                    map(spreadsheet_text, (one.condition, method)),
                    (one.images, len(one.failures)),
                )
                gain = _gain(values[metrics[0]], baseline, method)
                writer.writerow([*names, *counts, *map(repr, values.values()), gain])
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

    def __repr__(self) -> str:
        return str(self)

    def _table(self) -> Table:
        from gramloop.evaluate.display import results_table

        return results_table(self)


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
    """The scores of every condition whose units are all stored."""
    wanted = list(keys if keys is not None else store.plan.conditions)
    found = (_scored(store, key) for key in tracked(wanted, "scoring", len(wanted)))
    return Results(store.plan, tuple(one for one in found if one is not None))


# by folder, plan, methods and condition: the state of its files, and the scores that followed
_known: dict[tuple[object, ...], tuple[object, ConditionScores]] = {}


def _scored(store: Store[Plan], key: str) -> ConditionScores | None:
    """The scores of a complete condition; those of this process are kept while its files are the same ones."""
    paths = [store.path(unit) for part in store.plan.parts_of(key) for unit in part.units]
    try:
        state = [(each.st_ino, each.st_size, each.st_mtime_ns) for each in (path.stat() for path in paths)]
    except OSError:
        return None
    place = store.folder.absolute(), store.plan.hash, store.plan.methods, key
    if place not in _known or _known[place][0] != state:
        stored = read_condition(store, key)
        if stored is None:  # removed meanwhile
            return None
        _known[place] = state, score_condition(store.plan, stored)
    return _known[place][1]


def write_results(store: Store[Plan], results: Results) -> None:
    """Store the table as results.csv."""
    atomic_write(store.folder / RESULTS, results.csv().encode(), durable=True)


@dataclass(frozen=True)
class Robustness:
    """rPC, mCE and effective robustness by method, in percent (points); empty where not known, and perhaps why."""

    rpc: Mapping[str, float] = field(default_factory=dict)
    mce: Mapping[str, float] = field(default_factory=dict)
    er: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def robustness(results: Results, clean: Path | None = None) -> Robustness:
    """How much of the clean score is left: rPC, errors against the baseline's (mCE), and on COCO-O ER = mAP - 0.45 AP.

    Args:
        results: on shifted images.
        clean: the folder of a finished evaluation on the same images without their shifts; for COCO-O, on COCO.
    """
    names, means, plan = results.methods, results.means(), results.plan
    rpc: dict[str, float] = {}
    mce: dict[str, float] = {}
    er: dict[str, float] = {}
    reasons = []
    shifted = find_suite(plan.suite).generated and len(means) == len(names)
    try:
        if shifted and BASELINE in names:
            reference, expected = results.scores_of(BASELINE), [condition_of(key) for key in plan.conditions]
            mce = {
                name: mean_corruption_error(results.scores_of(name), reference, expected) for name in names
            }
    except GramLoopError as error:
        reasons.append(f"mCE is not known: {error}")
    try:
        if shifted and (scores := _clean_scores(results, clean)):
            rpc = {name: relative_performance(means[name], scores[name]) for name in names}
        elif has_effective(plan):
            scores = _clean_scores(results, clean)
            for name in names:
                domains = {one.condition: one.scores[name]["AP"] for one in results.conditions}
                er[name] = effective_robustness(coco_o_map(domains), scores[name])
    except GramLoopError as error:
        er = {}
        reasons.append(f"{'ER' if has_effective(plan) else 'rPC'} is not known: {error}")
    return Robustness(rpc, mce, er, "; ".join(reasons))


def has_effective(plan: Plan) -> bool:
    """Whether effective robustness is defined for what a plan evaluates."""
    return plan.suite == COCO_O and plan.task == "detection"


def check_clean_results(plan: Plan, clean: Path | None) -> Plan | None:
    """The plan of results on clean images; refuses those that do not belong to a plan, before any work is done."""
    if clean is None:
        return None
    suite = find_suite(plan.suite)
    if plan.label_free or not (suite.generated or has_effective(plan)):
        raise GramLoopError(
            f"results on clean images belong to a -c or -p suite, or to {COCO_O}, with labels; this is "
            f"{plan.suite}, {plan.task}, truth {plan.truth}"
        )
    if not (clean / PLAN).is_file():
        raise GramLoopError(
            f"{clean} holds no evaluation; give the folder of a finished one of the suite {suite.base}"
        )
    found = plan_in(clean)
    if reason := _misfit(plan, found, COCO if has_effective(plan) else suite.base):
        raise GramLoopError(f"{clean} {reason}")
    if suite.generated and (reason := other_images(plan, found, str(clean))):
        raise GramLoopError(reason)
    return found


def other_images(shifted: Plan, clean: Plan, name: str) -> str:
    """How an evaluation on clean images has others than one on shifted images was made from, or nothing."""
    [many] = set(clean.conditions.values())
    if set(shifted.conditions.values()) != {many}:
        asked = ", ".join(map(str, sorted(set(shifted.conditions.values()))))
        return f"{name} has {many} images; rPC needs the {asked} of this evaluation"
    here, there = shifted.data.contents.get("clean"), clean.data.contents.get("clean")
    if here is not None and there is not None and here != there:
        return f"{name} was made with other images; rPC needs those of this evaluation, unshifted"
    return ""


def _clean_scores(results: Results, clean: Path | None) -> dict[str, float]:
    """The scores on clean images by method; empty where they are not known."""
    own = next((one for one in results.conditions if one.condition == "clean"), None)
    if (plan := check_clean_results(results.plan, clean)) is not None and clean is not None:
        found = collect(Store(clean, plan)).conditions
        if not found:
            raise GramLoopError(f"the evaluation in {clean} is not finished")
        own = found[0]
    elif has_effective(results.plan):
        raise GramLoopError(f"give --coco-results DIR, a finished evaluation of the suite {COCO}")
    if own is None or results.plan.label_free:
        return {}
    scores = {name: values[results.metric] for name, values in own.scores.items()}
    if not all(map(math.isfinite, scores.values())):
        raise GramLoopError("clean images have no score for every method")
    return scores


def _misfit(shifted: Plan, clean: Plan, suite: str) -> str:
    """Why an evaluation on the clean images of a suite does not belong to one on shifted ones, or nothing."""
    if (clean.suite, clean.task, clean.truth) != (suite, shifted.task, shifted.truth):
        return (
            f"evaluates {clean.suite}, {clean.task}; needed is {suite}, {shifted.task}, with {shifted.truth}"
        )
    if dict(clean.model.sha256) != dict(shifted.model.sha256):
        return "was made with other weights"
    if dict(clean.model.sizes) != dict(shifted.model.sizes):
        return f"used images in other sizes ({dict(clean.model.sizes)}, not {dict(shifted.model.sizes)})"
    if lacking := [method.name for method in shifted.methods if method not in clean.methods]:
        return (
            f"has no method {lacking[0]} with these settings; every method of this evaluation is needed there"
        )
    return ""
