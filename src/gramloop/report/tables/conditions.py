"""Means by shift and by kind of shift, every single condition and metric, and what methods cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gramloop.data.suites import Condition, display_name
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.results import measures_gain, metrics_of
from gramloop.metrics.segmentation import QUALITIES
from gramloop.report.run import Run
from gramloop.report.tables.main import SCORE_DIGITS, TEXT, method_table
from gramloop.util.table import Cell, Column, Table

_NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five"}
Means = Mapping[str, Mapping[str, float | None]]  # of a family or kind: by method


def family_means(run: Run) -> Table | None:
    """Means over the severities of every shift, and the macro mean once everything is there; None without shifts."""
    if not run.shifted:
        return None
    severities = len({condition.severity for condition in run.shifted})
    found = _means(run, run.families, lambda condition: condition.family)
    if run.suite.kind == "o":
        caption = f"{run.metric} of each domain, in percent"
        return _means_table(run, "families", f"{run.name} by domain", caption, "Domain", found)
    many = _NUMBERS.get(severities, str(severities))
    caption = f"{many}-severity means of {run.metric} by shift, in percent"
    return _means_table(run, "families", f"{run.name} by shift", caption, "Shift", found)


def group_means(run: Run) -> Table | None:
    """Means over the conditions of each kind of shift; None where that says nothing new."""
    groups = tuple(dict.fromkeys(condition.group for condition in run.shifted))
    if len(groups) < 2 or len(groups) == len(run.families):
        return None
    caption = f"Means of {run.metric} over all conditions of a kind, in percent"
    found = _means(run, groups, lambda condition: condition.group)
    return _means_table(run, "groups", f"{run.name} by kind of shift", caption, "Kind", found)


def _means(run: Run, names: Sequence[str], name_of: Callable[[Condition], str]) -> Means:
    """None where a member is missing: a mean over the rest would mislead."""
    scores = {method: run.scores(method) for method in run.methods}
    found: dict[str, dict[str, float | None]] = {}
    for name in names:
        members = [condition for condition in run.shifted if name_of(condition) == name]
        values = {method: [each.get(one, np.nan) for one in members] for method, each in scores.items()}
        found[name] = {method: _mean(each) for method, each in values.items()}
    return found


def _means_table(run: Run, kind: str, title: str, caption: str, head: str, found: Means) -> Table:
    rows = [((display_name(name, capital=True),), scores) for name, scores in found.items()]
    rows.append((("Macro mean",), {method: run.score(method) for method in run.methods}))
    notes = []
    if not run.complete:
        notes.append("Where a condition is missing there is no mean over it.")
    elif kind == "groups":
        notes.append("The macro mean is over all conditions, so kinds with more shifts weigh more in it.")
    if run.compared and found:
        gaining = (
            f"{method} gains in {sum(_gains(scores, method) for scores in found.values())}"
            for method in run.compared
        )
        notes.append(f"Of {len(found)} rows, {', '.join(gaining)}.")
    return method_table(
        title,
        (Column("name", head, TEXT),),
        run.methods,
        rows,
        notes,
        key=f"{run.key}-{kind}",
        caption=f"{caption}; differences are computed before rounding.",
        footer=1,
    )


def _gains(scores: Mapping[str, float | None], method: str) -> bool:
    base, score = scores.get(BASELINE), scores.get(method)
    return base is not None and score is not None and score > base


def every_condition(run: Run) -> Table:
    """The main metric of every condition of the plan; a row without numbers where it is missing."""
    results = {result.condition.key: result for result in run.results}
    rows: list[tuple[tuple[Cell, ...], Mapping[str, float | None]]] = []
    for key in run.plan.conditions:
        result = results.get(key)
        counts = (None, None) if result is None else (result.images, len(result.failures))
        found = {} if result is None else result.scores
        rows.append(((key, *counts), {name: scores[run.metric] for name, scores in found.items()}))
    return method_table(
        f"{run.name}, every condition",
        (
            Column("condition", "Condition", TEXT),
            Column("images", "Images", digits=0),
            Column("excluded", "Excluded", digits=0),
        ),
        run.methods,
        rows,
        (f"{key}: {why}." for key, why in run.missing.items()),
        changes_only=lambda key: not measures_gain(run.plan, str(key)),
        key=f"{run.key}-conditions",
        caption=f"{run.metric} in percent; excluded images count for no method.",
    )


def every_metric(run: Run) -> Table | None:
    """All metrics of every condition and method; None where there is but one metric."""
    metrics = metrics_of(run.plan)
    if len(metrics) == 1:
        return None
    return Table(
        f"{run.name}, every metric",
        (
            Column("condition", "Condition", TEXT),
            Column("method", "Method", TEXT),
            *(Column(name, digits=SCORE_DIGITS) for name in metrics),
        ),
        [
            (result.condition.key, method, *(result.scores[method][name] for name in metrics))
            for result in run.results
            for method in run.methods
        ],
        ("A dash stands where the truth holds no such object.",) if run.plan.categories else (),
        key=f"{run.key}-metrics",
        caption=run.task.metrics_caption,
    )


def quality_table(run: Run) -> Table | None:
    """Panoptic quality in its parts, of things and of stuff; None of another task, and while incomplete."""
    if run.plan.task != "panoptic" or not run.complete:
        return None
    groups = ("all", "things", "stuff")  # in the order of the metrics
    rows: list[tuple[tuple[str, str], Mapping[str, float | None]]] = []
    for place, metric in enumerate(metrics_of(run.plan)):
        values = {name: [result.scores[name][metric] for result in run.averaged] for name in run.methods}
        group, quality = divmod(place, len(QUALITIES))
        rows.append(
            ((groups[group], QUALITIES[quality]), {name: _mean(each) for name, each in values.items()})
        )
    what = ", as agreement with the clean prediction" * run.plan.label_free
    return method_table(
        f"{run.name}, panoptic quality in its parts",
        (Column("group", "Categories", TEXT), Column("metric", "Metric", TEXT)),
        run.methods,
        rows,
        ("A dash stands where no such category was seen.",),
        changes_only=lambda _: run.changes_only,
        key=f"{run.key}-qualities",
        caption=f"In percent, {run.scope}{what}. Of a category PQ = SQ x RQ: SQ is the mean overlap of the segments that "
        "were found, RQ how many were (F1). Of the means over categories that product does not hold.",
    )


def _mean(values: Sequence[float]) -> float | None:
    """None where one is missing: a mean over the rest would mislead."""
    return float(np.mean(values)) if np.isfinite(values).all() else None


def cost_table(run: Run) -> Table | None:
    """Blocks executed, by formula and counted, time of one device per image, and memory; None without images."""
    cost, depth, device = run.cost, run.plan.model.depth, run.plan.model.device.upper()
    if not cost.images:
        return None
    base, memory = run.seconds(BASELINE), cost.peak_memory / 1e9 if cost.peak_memory else None
    rows: list[tuple[Cell, ...]] = []
    for name in run.methods:
        counted, seconds = cost.blocks.get(name, 0) / cost.images, run.seconds(name)
        blocks: Cell = round(counted) if abs(counted - round(counted)) < 1e-9 else counted
        observed = None if base is None or seconds is None else seconds / base
        analytic = run.method(name).blocks(depth) / depth
        rows.append((name, blocks, analytic, seconds, observed, memory, run.work(name), run.time(name)))
    notes = [
        f"Time is that of a {device} worker while it had work, with the head, Gram algebra and the handling of "
        "images; it is an accounting quantity and no latency. Memory is the largest of any worker, all methods "
        "of the run together."
    ]
    if any(row[3] is None for row in rows):
        notes.append(
            "A dash marks where a method was predicted in one call with the baseline, and not timed alone."
        )
    if run.plan.diagnostics:
        notes.append("Diagnostics were stored, which cost time and memory; without them replays are cheaper.")
    return Table(
        f"Compute cost, {run.name}",
        (
            Column("method", "Path", TEXT),
            Column("blocks", "Blocks", digits=0),
            Column("analytic", "Analytic", digits=2, unit="×"),
            Column("seconds", "Device time (s/image)", digits=3),
            Column("observed", "Obs.", digits=2, unit="×"),
            Column("memory", "Peak GB", digits=2),
            Column("work", "Work", digits=2, unit="×"),
            Column("time", "Time", digits=2, unit="×"),
        ),
        rows,
        notes,
        key=f"{run.key}-cost",
        caption="Transformer blocks executed per view of an image, as counted; their number by the formula relative to the "
        "baseline; time of one device per image, which is wall time times devices divided by images. Work is blocks times "
        "the area that each sees, time is that of predicting alone, both relative to the baseline.",
    )
