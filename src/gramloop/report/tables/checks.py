"""Where a gain comes from: placements of the gate, parts of the set, classes, and Gram consistency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import display_name
from gramloop.evaluate.methods import BASELINE
from gramloop.replay.config import GateAt, ReplayConfig
from gramloop.report.consistency import gram_consistency, ratios
from gramloop.report.load import PARTS
from gramloop.report.run import Run
from gramloop.report.tables.main import (
    SCORE_DIGITS,
    TEXT,
    clean_coco_of,
    method_table,
    robustness_of,
)
from gramloop.util.table import ABSENT, Cell, Column, Table

PLACES = {"end": "Loop end", "final": "Final layer"}
_TOP = 10  # classes
_DIVISION = (
    "Images are ordered by the SHA-256 of their id and cut into four runs of equal length, so the subsets do not "
    "depend on content, order or method."
)


def placements_table(run: Run, group: Sequence[Run]) -> Table | None:
    """Where drift is measured and the step applied, one suite; None where that was not varied."""
    found_places = _placements(run, group)
    if not found_places:
        return None
    clean = clean_coco_of(run, group)
    base = run.score(BASELINE) if BASELINE in run.methods else None
    rows: list[tuple[Cell, ...]] = []
    if BASELINE in run.methods:
        own = (robustness_of(run, clean)[BASELINE],) if clean else ()
        rows.append((ABSENT, ABSENT, BASELINE, base, None, *own))
    for name, replay, peer in found_places:
        score = peer.score(name)
        gain = None if score is None or base is None else score - base
        robust = (robustness_of(peer, clean)[name],) if clean else ()
        gate_at = replay.gate_at
        gate = PLACES[gate_at] if isinstance(gate_at, str) else f"Block {gate_at}"
        rows.append((gate, PLACES[replay.update_at], name, score, gain, *robust))
    return Table(
        f"Placement of gate and update, {run.name}",
        (
            Column("gate", "Gate at", TEXT),
            Column("update", "Update at", TEXT),
            Column("method", "Method", TEXT),
            Column("score", run.score_title, digits=SCORE_DIGITS),
            Column("gain", "Δ", digits=SCORE_DIGITS, signed=True),
            *((Column("robustness", "ER", digits=SCORE_DIGITS),) if clean else ()),
        ),
        rows,
        key=f"{run.key}-placement",
        caption="Where drift is measured and where the accepted step is applied; all else is equal.",
        compared=("score", "robustness"),
        downwards=True,
    )


def _placements(run: Run, group: Sequence[Run]) -> list[tuple[str, ReplayConfig, Run]]:
    """Methods that differ in nothing but where drift is measured and the step applied, from runs like this one."""
    found: dict[ReplayConfig, dict[tuple[GateAt, str], tuple[str, ReplayConfig, Run]]] = {}
    for peer in group:
        if _images(peer) != _images(run):
            continue
        for method in peer.plan.methods:
            if method.replay is not None and method.replay.gate == "gram":
                rest = replace(method.replay, gate_at="final", update_at="end")
                place = (method.replay.gate_at, method.replay.update_at)
                found.setdefault(rest, {}).setdefault(place, (method.name, method.replay, peer))
    largest = max(found.values(), key=len, default={})
    return list(largest.values()) if len(largest) > 1 else []


def _images(run: Run) -> tuple[object, ...]:
    plan = run.plan
    return plan.suite, plan.task, dict(plan.data.contents), dict(plan.conditions)


def partition_table(run: Run) -> Table | None:
    """Scores on four fixed subsets of the images and on their complements; None where they are not known."""
    known = run.complete and all(result.parts for result in run.results)
    if run.changes_only or not run.compared or not known:
        return None
    means = {  # (2, PARTS)
        method: np.mean([result.parts[method] for result in run.averaged], axis=0) for method in run.methods
    }
    rows = [
        ((f"{prefix}S{part + 1}",), {name: float(found[kind, part]) for name, found in means.items()})
        for kind, prefix in enumerate(("", "all but "))
        for part in range(PARTS)
    ]
    notes = []
    for method in run.compared:
        subsets, rest = ((row > 0).sum() for row in means[method] - means[BASELINE])
        notes.append(f"{method} improves {subsets} of {PARTS} subsets and {rest} of {PARTS} complements.")
    return method_table(
        f"Partition consistency, {run.name}",
        (Column("part", "Images", TEXT),),
        run.methods,
        rows,
        (*notes, _DIVISION),
        key=f"{run.key}-partitions",
        caption=f"{run.score_title} in percent on four fixed subsets of the images, and on all other images.",
    )


@dataclass(frozen=True)
class ClassGains:
    """Scores of every class that the labels of all conditions hold, averaged over these."""

    names: tuple[str, ...]
    baseline: NDArray[np.float64]  # (K,)
    method: NDArray[np.float64]  # (K,)

    @property
    def gains(self) -> NDArray[np.float64]:  # (K,)
        """In points."""
        return self.method - self.baseline

    @property
    def improved(self) -> int:
        """How many gain; a class that stays as it was does not."""
        return int((self.gains > 0).sum())


def class_gains(run: Run, method: str) -> ClassGains | None:
    """Each class's score; None while a condition is missing, and for tasks without classes."""
    results = run.averaged
    if not run.complete or any(result.labelled is None for result in results):
        return None
    held: NDArray[np.bool_] = np.all(
        [result.labelled for result in results if result.labelled is not None], axis=0
    )
    means = [
        np.mean([result.classes[name] for result in results], axis=0)[held] for name in (BASELINE, method)
    ]
    names = np.array(list(run.plan.categories.values()), dtype=object)[held] if held.any() else ()
    return ClassGains(tuple(names), *means) if held.any() else None


def class_tables(run: Run, method: str) -> tuple[Table, ...]:
    """The classes that gain most, and those that lose most."""
    found = class_gains(run, method)
    if found is None or run.changes_only:
        return ()
    ranked = np.argsort(-found.gains, kind="stable").tolist()
    gaining = [place for place in ranked[:_TOP] if found.gains[place] > 0]
    losing = [place for place in reversed(ranked[-_TOP:]) if found.gains[place] < 0]
    each = (("gains", gaining), ("losses", losing))
    return tuple(_class_table(run, method, found, kind, places) for kind, places in each if places)


def _class_table(run: Run, method: str, found: ClassGains, kind: str, places: list[int]) -> Table:
    rows = [
        (
            (rank, found.names[place]),
            {BASELINE: float(found.baseline[place]), method: float(found.method[place])},
        )
        for rank, place in enumerate(places, start=1)
    ]
    metric = run.task.class_metric + " with the clean predictions" * run.plan.label_free
    lost = int((found.gains < 0).sum())
    notes = [f"Of {len(found.names)} classes {found.improved} improve under {method} and {lost} lose."]
    if run.unlabelled:
        notes.append(f"The {run.truth_words} never hold {', '.join(run.unlabelled)}.")
    if partly := len(run.plan.categories) - len(found.names) - len(run.unlabelled):
        notes.append(
            f"{partly} classes are in the {run.truth_words} of some conditions only, and not in this table."
        )
    return method_table(
        f"Classes with the largest {kind}, {run.name}, {method}",
        (Column("rank", "Rank", digits=0), Column("class", "Class", TEXT)),
        (BASELINE, method),
        rows,
        notes,
        key=f"{run.key}-{method}-class-{kind}",
        caption=f"{metric} of a class in percent, {run.scope}.",
    )


def consistency_tables(run: Run) -> Iterator[Table]:
    """Each family's discrepancy as a share of the ungated replay's, for every gated method."""
    for found in gram_consistency(run):
        families = zip(found.families, found.family_images, found.family_sums, strict=True)
        rows: list[tuple[Cell, ...]] = [
            *(
                (display_name(name, capital=True), int(images), *_ratios(sums))
                for name, images, sums in families
            ),
            ("All", int(found.images.sum()), *_ratios(found.sums.sum(axis=0))),
        ]
        yield Table(
            f"Gram consistency at matched strength, {run.name}",
            (
                Column("family", "Shift", TEXT),
                Column("images", "Images", digits=0),
                Column("uniform", "Uniform, matched", digits=3),
                Column("gated", "Gated", digits=3),
                Column("difference", "Gated − uniform", digits=3, signed=True),
            ),
            rows,
            (
                f"At matched mean step, {found.method} ends nearer to the baseline pass than the uniform replay in {found.below}.",
            ),
            key=f"{run.key}-{found.method}-gram",
            caption="Final-layer cosine-Gram discrepancy to the baseline pass, summed over severities and images, as a share "
            "of that of the ungated replay (1); lower is nearer.",
            compared=("uniform", "gated"),
            footer=1,
            lowest=True,
        )


def _ratios(sums: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    uniform, gated = map(float, ratios(sums))
    return (uniform, gated, gated - uniform) if np.isfinite(uniform) else (None, None, None)
