"""Panoptic quality in its parts: how well segments are outlined (SQ), how many are found (RQ), of things and of stuff."""

from __future__ import annotations

import numpy as np

from gramloop.evaluate.results import metrics_of
from gramloop.metrics.panoptic import QUALITIES
from gramloop.report.run import Run
from gramloop.report.tables.main import method_cells, method_columns
from gramloop.util.table import Cell, Column, Table

_GROUPS = ("all", "things", "stuff")  # in the order of the metrics


def quality_table(run: Run) -> Table | None:
    """Means over the shifted conditions; None of another task, and while a condition is missing."""
    if run.plan.task != "panoptic" or not run.complete:
        return None
    columns = (
        Column("group", "Categories", "text"),
        Column("metric", "Metric", "text"),
        *method_columns(run.methods),
    )
    rows: list[tuple[Cell, ...]] = []
    for place, metric in enumerate(metrics_of(run.plan)):
        scores = {name: _mean(run, name, metric) for name in run.methods}
        cells = method_cells(run.methods, scores, run.changes_only)
        rows.append((_GROUPS[place // len(QUALITIES)], QUALITIES[place % len(QUALITIES)], *cells))
    over = f"averaged over {len(run.shifted)} shifted conditions" if run.shifted else "on clean images"
    what = ", as agreement with the clean prediction" if run.plan.label_free else ""
    return Table(
        f"{run.key}-qualities",
        f"{run.name}, panoptic quality in its parts",
        f"In percent, {over}{what}. Of a category PQ = SQ x RQ: SQ is the mean overlap of the segments that were found, RQ "
        "how many were (F1). Of the means over categories that product does not hold.",
        columns,
        tuple(rows),
        run.methods,
        ("A dash stands where no such category was seen.",),
    )


def _mean(run: Run, method: str, metric: str) -> float | None:
    values = [result.scores[method][metric] for result in run.averaged]
    return float(np.mean(values)) if np.isfinite(values).all() else None
