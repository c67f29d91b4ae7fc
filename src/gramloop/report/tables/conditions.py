"""Means by shift and by kind of shift, every single condition and metric, and what methods cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gramloop.data.suites import Condition, display_name
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.results import measures_gain, metrics_of
from gramloop.metrics.segmentation import QUALITIES
from gramloop.report.run import Run
from gramloop.report.tables.main import DIGITS, TEXT, method_cells, method_columns
from gramloop.util.table import Cell, Column, Table

_NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five"}
Means = Mapping[str, Mapping[str, float | None]]  # of a family or kind: by method


def family_means(run: Run) -> Table:
    """Means over the severities of every shift, and the macro mean once everything is there."""
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
        found[name] = {
            method: float(np.mean(each)) if np.isfinite(each).all() else None
            for method, each in values.items()
        }
    return found


def _means_table(run: Run, kind: str, title: str, caption: str, head: str, found: Means) -> Table:
    rows = [
        (display_name(name, capital=True), *method_cells(run.methods, scores))
        for name, scores in found.items()
    ]
    rows.append(
        ("Macro mean", *method_cells(run.methods, {method: run.score(method) for method in run.methods}))
    )
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
    return Table(
        title,
        (Column("name", head, TEXT), *method_columns(run.methods)),
        rows,
        notes,
        key=f"{run.key}-{kind}",
        caption=f"{caption}; differences are computed before rounding.",
        compared=run.methods,
        footer=1,
    )


def _gains(scores: Mapping[str, float | None], method: str) -> bool:
    base, score = scores.get(BASELINE), scores.get(method)
    return base is not None and score is not None and score > base


def every_condition(run: Run) -> Table:
    """The main metric of every condition of the plan; a row without numbers where it is missing."""
    results = {result.condition.key: result for result in run.results}
    rows: list[tuple[Cell, ...]] = []
    for key in run.plan.conditions:
        if (result := results.get(key)) is None:
            rows.append((key, None, None, *method_cells(run.methods, {})))
            continue
        scores = {name: found[run.metric] for name, found in result.scores.items()}
        cells = method_cells(run.methods, scores, not measures_gain(run.plan, key))
        rows.append((key, result.images, len(result.failures), *cells))
    return Table(
        f"{run.name}, every condition",
        (
            Column("condition", "Condition", TEXT),
            Column("images", "Images", digits=0),
            Column("excluded", "Excluded", digits=0),
            *method_columns(run.methods),
        ),
        rows,
        (f"{key}: {why}." for key, why in run.missing.items()),
        key=f"{run.key}-conditions",
        caption=f"{run.metric} in percent; excluded images count for no method.",
        compared=run.methods,
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
            *(Column(name, digits=DIGITS) for name in metrics),
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
    rows: list[tuple[Cell, ...]] = []
    for place, metric in enumerate(metrics_of(run.plan)):
        scores: dict[str, float | None] = {}
        for name in run.methods:
            values = [result.scores[name][metric] for result in run.averaged]
            scores[name] = float(np.mean(values)) if np.isfinite(values).all() else None
        group, quality = divmod(place, len(QUALITIES))
        rows.append((groups[group], QUALITIES[quality], *method_cells(run.methods, scores, run.changes_only)))
    what = ", as agreement with the clean prediction" * run.plan.label_free
    return Table(
        f"{run.name}, panoptic quality in its parts",
        (Column("group", "Categories", TEXT), Column("metric", "Metric", TEXT), *method_columns(run.methods)),
        rows,
        ("A dash stands where no such category was seen.",),
        key=f"{run.key}-qualities",
        caption=f"In percent, {run.scope}{what}. Of a category PQ = SQ x RQ: SQ is the mean overlap of the segments that "
        "were found, RQ how many were (F1). Of the means over categories that product does not hold.",
        compared=run.methods,
    )


# cost


@dataclass(frozen=True)
class PathCost:
    """One method's cost; device seconds include the head, Gram algebra and the handling of images."""

    method: str
    blocks: float  # of one view of an image, counted
    formula: int  # the same by the formula
    depth: int
    seconds: float | None  # of one device per image
    together: bool = False  # predicted in one call with the baseline, which is in these seconds
    peak_memory: int = 0  # bytes
    work: float = 1.0  # blocks times the area they see, relative to the baseline
    time: float | None = None  # seconds of predicting alone, relative to the baseline


def path_costs(run: Run, group: Sequence[Run] = ()) -> list[PathCost]:
    """The cost of every method of a run; the baseline's time comes from where it was timed alone."""
    spent, depth = run.spent, run.plan.model.depth
    costs = []
    for name in run.methods if spent.images else ():
        call, predicting = spent.call_of(name), spent.predicting(name)
        if predicting is None and name in run.times:
            predicting = run.times[name] * spent.images
        together = call is not None and predicting is None and name != BASELINE
        if together:
            predicting = spent.calls[str(call)]
        seconds = None if predicting is None else spent.per_image(predicting)
        if name == BASELINE and seconds is None:
            alike = [
                one.spent
                for one in group
                if (one.plan.suite, one.plan.task) == (run.plan.suite, run.plan.task)
            ]
            seconds = next(
                (one.per_image(one.calls[BASELINE]) for one in alike if BASELINE in one.calls), None
            )
        blocks, formula = spent.blocks.get(name, 0) / spent.images, run.method(name).blocks(depth)
        costs.append(
            PathCost(
                name,
                blocks,
                formula,
                depth,
                seconds,
                together,
                spent.peak_memory,
                run.work(name),
                run.time(name),
            )
        )
    return costs


def cost_table(
    costs: Sequence[PathCost],
    key: str = "cost",
    name: str = "",
    device: str = "device",
    diagnostics: bool = False,
) -> Table:
    """Blocks executed, by formula and counted, time of one device per image, and memory."""
    base = next((cost.seconds for cost in costs if cost.method == BASELINE), None)
    rows: list[tuple[Cell, ...]] = []
    for cost in costs:
        observed = None if base is None or cost.seconds is None else cost.seconds / base
        memory = cost.peak_memory / 1e9 if cost.peak_memory else None
        blocks: Cell = round(cost.blocks) if abs(cost.blocks - round(cost.blocks)) < 1e-9 else cost.blocks
        analytic = cost.formula / cost.depth
        rows.append((cost.method, blocks, analytic, cost.seconds, observed, memory, cost.work, cost.time))
    return Table(
        f"Compute cost{f', {name}' if name else ''}",
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
        _cost_notes(costs, device, diagnostics),
        key=key,
        caption="Transformer blocks executed per view of an image, as counted; their number by the formula relative to the "
        "baseline; time of one device per image, which is wall time times devices divided by images. Work is blocks times "
        "the area that each sees, time is that of predicting alone, both relative to the baseline.",
    )


def _cost_notes(costs: Sequence[PathCost], device: str, diagnostics: bool) -> list[str]:
    notes = [
        f"Time is that of a {device} worker while it had work, with the head, Gram algebra and the handling of "
        "images; it is an accounting quantity and no latency. Memory is the largest of any worker, all methods "
        "of the run together."
    ]
    if pairs := [cost.method for cost in costs if cost.together]:
        notes.append(
            f"{', '.join(pairs)} and the baseline come from one call, whose time includes the baseline's "
            "prediction by the head."
        )
    if any(cost.time is not None for cost in costs):
        notes.append(
            "Where the baseline and a replay come from one call, one image of every condition was also predicted by "
            "each of them alone, and their times are their shares of that call. Filters on pixels execute no block: "
            "only the time shows them."
        )
    if any(cost.method == BASELINE and cost.seconds is None for cost in costs):
        notes.append(
            "The baseline was not timed alone, so there is no observed multiplier; "
            "gramloop evaluate --method baseline into another folder, reported together, gives one."
        )
    if odd := [cost.method for cost in costs if abs(cost.blocks - cost.formula) > 1e-9]:
        notes.append(
            f"{', '.join(odd)} executed another number of blocks than the formula gives: a trace of what a "
            "replay would not measure, or a rule that stops replays, changes it."
        )
    if diagnostics:
        notes.append("Diagnostics were stored, which cost time and memory; without them replays are cheaper.")
    return notes
