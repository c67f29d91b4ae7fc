"""Gram consistency at matched strength: how far gated and uniform replays end from the ordinary pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gramloop.report.load import Run
from gramloop.report.tables.conditions import display_name
from gramloop.report.tables.table import Cell, Column, Table, mark_best_of_rows

RAW, UNIFORM, GATED = range(3)  # places of the trajectories


@dataclass(frozen=True)
class Consistency:
    """Discrepancies of three trajectories, summed over the images of each condition."""

    run: Run
    method: str  # the gated one
    conditions: tuple[str, ...]  # families of the conditions, in order
    sums: NDArray[np.float64]  # (conditions, 3): raw, uniform, gated
    images: tuple[int, ...]

    @property
    def below(self) -> int:
        """Conditions in which the gated trajectory ends nearer than the uniform one."""
        return int((self.sums[:, GATED] < self.sums[:, UNIFORM]).sum())

    def families(self) -> Mapping[str, NDArray[np.float64]]:
        """Sums over the severities of each family, (3,)."""
        names = dict.fromkeys(self.conditions)
        own = np.array(self.conditions)
        return {name: self.sums[own == name].sum(axis=0) for name in names}

    @property
    def families_below(self) -> int:
        """Families in which it does."""
        return sum(bool(each[GATED] < each[UNIFORM]) for each in self.families().values())

    @property
    def sentence(self) -> str:
        """The finding in plain words."""
        families = self.families()
        return (
            f"At matched mean step, {self.method} ends nearer to the ordinary pass than the uniform replay in "
            f"{self.below} of {len(self.conditions)} conditions and {self.families_below} of {len(families)} families."
        )


def consistency(run: Run, names: tuple[str, str, str]) -> Consistency | None:
    """The diagnostic of one set of trajectories, (raw, uniform, gated); None where drift was not stored."""
    results = [result for result in run.results if all(name in result.drift for name in names)]
    if not results or len(results) != len(run.plan.conditions):
        return None
    sums = np.array([[result.drift[name].sum() for name in names] for result in results])
    families = tuple(result.condition.family for result in results)
    return Consistency(run, names[GATED], families, sums, tuple(result.images for result in results))


def consistency_table(found: Consistency) -> Table:
    """Each family's discrepancy as a share of the raw replay's."""
    columns = (
        Column("family", "Shift", "text"),
        Column("images", "Images", digits=0),
        Column("uniform", "Uniform, matched", digits=3),
        Column("gated", "Gated", digits=3),
        Column("difference", "Gated − uniform", digits=3, signed=True),
    )
    own, images = np.array(found.conditions), np.array(found.images)
    rows: list[tuple[Cell, ...]] = [
        (display_name(name), int(images[own == name].sum()), *_ratios(sums))
        for name, sums in found.families().items()
    ]
    rows.append(("All", int(images.sum()), *_ratios(found.sums.sum(axis=0))))
    table_rows = tuple(rows)
    return Table(
        f"{found.run.key}-{found.method}-gram",
        f"Gram consistency at matched strength, {found.run.name}",
        "Final-layer cosine-Gram discrepancy to the ordinary pass, summed over severities and images, as a share "
        "of that of the ungated replay (1); lower is nearer.",
        columns,
        table_rows,
        mark_best_of_rows(columns, table_rows, ("uniform", "gated"), lowest=True),
        (found.sentence,),
        footer=1,
    )


def _ratios(sums: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    if not sums[RAW] > 0:
        return None, None, None
    uniform, gated = float(sums[UNIFORM] / sums[RAW]), float(sums[GATED] / sums[RAW])
    return uniform, gated, gated - uniform
