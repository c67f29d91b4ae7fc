"""Two checks on a gain: does another place of gate and update do as well, and does it hold on parts of the set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gramloop.core.config import GateAt, ReplayConfig
from gramloop.evaluate.methods import BASELINE
from gramloop.report.measure import PARTS
from gramloop.report.run import Run
from gramloop.report.tables.main import DIGITS, clean_coco_of, method_cells, method_columns, robustness_of
from gramloop.util.table import ABSENT, Cell, Column, Table

_PLACES = {"end": "Loop end", "final": "Final layer"}


def placements(run: Run, group: Sequence[Run]) -> list[tuple[str, ReplayConfig, Run]]:
    """Methods that differ in nothing but where drift is measured and the step applied, from runs like this one."""
    found: dict[ReplayConfig, dict[tuple[GateAt, str], tuple[str, ReplayConfig, Run]]] = {}
    for peer in group:
        if peer is not run and not _same_images(peer, run):
            continue
        for method in peer.plan.methods:
            if method.replay is not None and method.replay.gate == "gram":
                rest = replace(method.replay, gate_at="final", update_at="end")
                place = (method.replay.gate_at, method.replay.update_at)
                found.setdefault(rest, {}).setdefault(place, (method.name, method.replay, peer))
    largest = max(found.values(), key=len, default={})
    return list(largest.values()) if len(largest) > 1 else []


def _same_images(first: Run, second: Run) -> bool:
    plans = (first.plan, second.plan)
    one, two = ((plan.suite, plan.task, plan.data.fingerprints, dict(plan.conditions)) for plan in plans)
    return one == two


def placement_table(run: Run, group: Sequence[Run]) -> Table | None:
    """The placement ablation of one suite, or None where it was not run."""
    found_places = placements(run, group)
    if not found_places:
        return None
    clean = clean_coco_of(run, group)
    columns = (
        Column("gate", "Gate at", "text"),
        Column("update", "Update at", "text"),
        Column("method", "Method", "text"),
        Column("score", run.score_title, digits=DIGITS),
        Column("gain", "Δ", digits=DIGITS, signed=True),
        *((Column("robustness", "ER", digits=DIGITS),) if clean else ()),
    )
    ordinary = run.score(BASELINE) if BASELINE in run.methods else None
    rows: list[tuple[Cell, ...]] = []
    if BASELINE in run.methods:
        own = (robustness_of(run, clean)[BASELINE],) if clean else ()
        rows.append((ABSENT, ABSENT, BASELINE, ordinary, None, *own))
    for name, replay, peer in found_places:
        score = peer.score(name)
        gain = None if score is None or ordinary is None else score - ordinary
        robust = (robustness_of(peer, clean)[name],) if clean else ()
        rows.append((_place(replay.gate_at), _PLACES[replay.update_at], name, score, gain, *robust))
    return Table(
        f"{run.key}-placement",
        f"Placement of gate and update, {run.name}",
        "Where drift is measured and where the accepted step is applied; all else is equal.",
        columns,
        tuple(rows),
        ("score", "robustness"),
        downwards=True,
    )


def _place(gate_at: GateAt) -> str:
    return _PLACES[gate_at] if isinstance(gate_at, str) else f"Block {gate_at}"


def partition_table(run: Run) -> Table | None:
    """Scores on four fixed subsets of the images and on their complements; None where it cannot be had."""
    if (
        run.changes_only
        or not run.replays
        or not run.complete
        or not all(result.parts for result in run.results)
    ):
        return None
    means = {  # (2, PARTS)
        method: np.mean([result.parts[method] for result in run.averaged], axis=0) for method in run.methods
    }
    columns = (Column("part", "Images", "text"), *method_columns(run.methods))
    rows: list[tuple[Cell, ...]] = []
    for kind in range(2):
        for part in range(PARTS):
            scores = {method: float(found[kind, part]) for method, found in means.items()}
            name = f"S{part + 1}" if kind == 0 else f"all but S{part + 1}"
            rows.append((name, *method_cells(run.methods, scores)))
    return Table(
        f"{run.key}-partitions",
        f"Partition consistency, {run.name}",
        f"{run.score_title} in percent on four fixed subsets of the images, and on all other images.",
        columns,
        tuple(rows),
        run.methods,
        (*(_improved(means, method) for method in run.replays), _DIVISION),
    )


_DIVISION = (
    "Images are ordered by the SHA-256 of their id and cut into four runs of equal length, so the subsets do not "
    "depend on content, order or method."
)


def _improved(means: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]], method: str) -> str:
    gains = means[method] - means[BASELINE]  # (2, PARTS)
    subsets, rest = ((row > 0).sum() for row in gains)
    return f"{method} improves {subsets} of {PARTS} subsets and {rest} of {PARTS} complements."
