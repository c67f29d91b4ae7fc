"""Which classes gain and lose most, and how many improve at all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gramloop.evaluate.methods import BASELINE
from gramloop.report.run import Run
from gramloop.report.tables.main import method_cells, method_columns
from gramloop.util.table import Cell, Column, Table

TOP = 10


@dataclass(frozen=True)
class ClassGains:
    """Scores of every class that the labels hold, averaged over conditions; entry k of all belongs to one class."""

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

    def ranked(self) -> list[int]:
        """Places from the largest gain to the largest loss; equal gains in the order of the classes."""
        return [int(place) for place in np.argsort(-self.gains, kind="stable")]


def class_gains(run: Run, method: str) -> ClassGains | None:
    """Each class's score, its mean over all shifted conditions; None while a condition is missing.

    A class counts where the labels of every condition hold it.
    """
    results = run.averaged
    if not run.complete or any(result.labelled is None for result in results):
        return None
    held: NDArray[np.bool_] = np.all(
        [result.labelled for result in results if result.labelled is not None], axis=0
    )
    means = [
        np.mean([result.classes[name] for result in results], axis=0)[held] for name in (BASELINE, method)
    ]
    names = np.array(list(run.plan.categories.values()), dtype=object)[held]
    return ClassGains(tuple(names), *means) if held.any() else None


def class_tables(run: Run, method: str, top: int = TOP) -> tuple[Table, ...]:
    """The classes that gain most, and those that lose most."""
    found = class_gains(run, method)
    if found is None or run.changes_only:
        return ()
    ranked = found.ranked()
    gaining = [place for place in ranked[:top] if found.gains[place] > 0]
    losing = [place for place in reversed(ranked[-top:]) if found.gains[place] < 0]
    each = (("gains", gaining), ("losses", losing))
    return tuple(_table(run, method, found, kind, places) for kind, places in each if places)


def _table(run: Run, method: str, found: ClassGains, kind: str, places: list[int]) -> Table:
    pair = (BASELINE, method)
    columns = (Column("rank", "Rank", digits=0), Column("class", "Class", "text"), *method_columns(pair))
    rows: list[tuple[Cell, ...]] = []
    for rank, place in enumerate(places, start=1):
        scores = {BASELINE: float(found.baseline[place]), method: float(found.method[place])}
        rows.append((rank, found.names[place], *method_cells(pair, scores)))
    metric = {"semantic": "IoU", "panoptic": "PQ", "instance": "Mask AP"}.get(run.plan.task, "AP")
    metric += " with the clean predictions" if run.plan.label_free else ""
    over = f"averaged over {len(run.shifted)} shifted conditions" if run.shifted else "on clean images"
    return Table(
        f"{run.key}-{method}-class-{kind}",
        f"Classes with the largest {kind}, {run.name}, {method}",
        f"{metric} of a class in percent, {over}.",
        columns,
        tuple(rows),
        pair,
        _notes(run, method, found),
    )


def _notes(run: Run, method: str, found: ClassGains) -> tuple[str, ...]:
    lost = int((found.gains < 0).sum())
    notes = [f"Of {len(found.names)} classes {found.improved} improve under {method} and {lost} lose."]
    if run.unlabelled:
        notes.append(f"The {run.truth_words} never hold {', '.join(run.unlabelled)}.")
    partly = len(run.plan.categories) - len(found.names) - len(run.unlabelled)
    if partly:
        notes.append(
            f"{partly} classes are in the {run.truth_words} of some conditions only, and not in this table."
        )
    return tuple(notes)
