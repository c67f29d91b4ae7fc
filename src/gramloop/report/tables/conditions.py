"""Where a gain comes from: means by shift family and by kind of shift, and every single condition."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gramloop.data.suites import Condition, display_name
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.results import measures_gain, metrics_of
from gramloop.report.run import Run
from gramloop.report.tables.main import DIGITS, method_cells, method_columns
from gramloop.report.tables.table import Cell, Column, Table

_METRICS = {
    "detection": "COCO's average precision in percent: over IoU 0.50 to 0.95, at 0.50, at 0.75, and of small, medium and "
    "large objects.",
    "instance": "COCO's average precision of masks in percent: over IoU 0.50 to 0.95, at 0.50, at 0.75, and of small, medium "
    "and large objects.",
    "panoptic": "Panoptic quality in percent, PQ = SQ x RQ for each category: SQ is the mean overlap of the segments that "
    "were found, RQ the share found (F1). Means over all categories, over things (th) and over stuff (st).",
    "depth": "Means over images. delta1 to delta3 are the share of pixels whose depth is within a factor of 1.25, 1.25² and "
    "1.25³ of the truth, in percent, higher is better; of the others lower is better: AbsRel, RMSE in metres, log10, and "
    "SILog times 100.",
}
MACRO = "Macro mean"
_NUMBERS = {1: "One", 2: "Two", 3: "Three", 4: "Four", 5: "Five"}


def family_means(run: Run) -> Table:
    """Means over the severities of every shift, and the macro mean once everything is there."""
    severities = len({condition.severity for condition in run.shifted})
    domains = run.suite.kind == "o"
    many = _NUMBERS.get(severities, str(severities))
    if domains:
        title, caption = f"{run.name} by domain", f"{run.metric} of each domain, in percent"
    else:
        title = f"{run.name} by shift"
        caption = f"{many}-severity means of {run.metric} by shift, in percent"
    rows = _mean_rows(run, run.families, lambda condition: condition.family)
    return _means_table(run, "families", title, caption, "Domain" if domains else "Shift", rows)


def group_means(run: Run) -> Table | None:
    """Means over the conditions of each kind of shift; None where that says nothing new."""
    groups = tuple(dict.fromkeys(condition.group for condition in run.shifted))
    if len(groups) < 2 or len(groups) == len(run.families):
        return None
    rows = _mean_rows(run, groups, lambda condition: condition.group)
    caption = f"Means of {run.metric} over all conditions of a kind, in percent"
    return _means_table(run, "groups", f"{run.name} by kind of shift", caption, "Kind", rows)


def _mean_rows(
    run: Run, names: Sequence[str], name_of: Callable[[Condition], str]
) -> list[tuple[str, dict[str, float | None]]]:
    scores = {method: run.scores(method) for method in run.methods}
    rows = []
    for name in names:
        members = [condition for condition in run.shifted if name_of(condition) == name]
        rows.append((name, {method: _mean(found, members) for method, found in scores.items()}))
    return rows


def _mean(scores: dict[Condition, float], members: Sequence[Condition]) -> float | None:
    """None where a member is missing: a mean over the rest would mislead."""
    values = [scores.get(condition, np.nan) for condition in members]
    return float(np.mean(values)) if np.isfinite(values).all() else None


def _means_table(
    run: Run, kind: str, title: str, caption: str, head: str, found: list[tuple[str, dict[str, float | None]]]
) -> Table:
    columns = (Column("name", head, "text"), *method_columns(run.methods))
    rows = [(display_name(name, capital=True), *method_cells(run.methods, scores)) for name, scores in found]
    overall: dict[str, float | None] = {method: run.score(method) for method in run.methods}
    rows.append((MACRO, *method_cells(run.methods, overall)))
    notes = []
    if not run.complete:
        notes.append("Where a condition is missing there is no mean over it.")
    elif kind == "groups":
        notes.append("The macro mean is over all conditions, so kinds with more shifts weigh more in it.")
    if run.replays and found:
        won = [
            f"{method} gains in {sum(_gains(scores, method) for _, scores in found)}"
            for method in run.replays
        ]
        notes.append(f"Of {len(found)} rows, {', '.join(won)}.")
    return Table(
        f"{run.key}-{kind}",
        title,
        f"{caption}; differences are computed before rounding.",
        columns,
        tuple(rows),
        run.methods,
        tuple(notes),
        footer=1,
    )


def _gains(scores: dict[str, float | None], method: str) -> bool:
    ordinary, replayed = scores.get(BASELINE), scores.get(method)
    return ordinary is not None and replayed is not None and replayed > ordinary


def every_condition(run: Run) -> Table:
    """The main metric of every condition of the plan; a row without numbers where it is missing."""
    columns = (
        Column("condition", "Condition", "text"),
        Column("images", "Images", digits=0),
        Column("excluded", "Excluded", digits=0),
        *method_columns(run.methods),
    )
    results = {result.condition.key: result for result in run.results}
    rows: list[tuple[Cell, ...]] = []
    for key in run.plan.conditions:
        if (result := results.get(key)) is None:
            rows.append((key, None, None, *method_cells(run.methods, {})))
            continue
        scores: dict[str, float | None] = {name: found[run.metric] for name, found in result.scores.items()}
        cells = method_cells(run.methods, scores, not measures_gain(run.plan, key))
        rows.append((key, result.images, len(result.failures), *cells))
    return Table(
        f"{run.key}-conditions",
        f"{run.name}, every condition",
        f"{run.metric} in percent; excluded images count for no method.",
        columns,
        tuple(rows),
        run.methods,
        tuple(f"{key}: {why}." for key, why in run.missing.items()),
    )


def every_metric(run: Run) -> Table | None:
    """All metrics of every condition and method; None where there is but one metric."""
    metrics = metrics_of(run.plan)
    if len(metrics) == 1:
        return None
    columns = (
        Column("condition", "Condition", "text"),
        Column("method", "Method", "text"),
        *(Column(name, name, digits=DIGITS) for name in metrics),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (result.condition.key, method, *(result.scores[method][name] for name in metrics))
        for result in run.results
        for method in run.methods
    )
    return Table(
        f"{run.key}-metrics",
        f"{run.name}, every metric",
        _METRICS[run.plan.task],
        columns,
        rows,
        notes=() if run.plan.task == "depth" else ("A dash stands where the truth holds no such object.",),
    )
