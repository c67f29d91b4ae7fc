"""The table of Gram consistency at matched strength."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gramloop.data.suites import display_name
from gramloop.report.consistency import GramConsistency, ratios
from gramloop.report.run import Run
from gramloop.util.table import Cell, Column, Table


def consistency_table(run: Run, found: GramConsistency) -> Table:
    """Each family's discrepancy as a share of the raw replay's."""
    columns = (
        Column("family", "Shift", "text"),
        Column("images", "Images", digits=0),
        Column("uniform", "Uniform, matched", digits=3),
        Column("gated", "Gated", digits=3),
        Column("difference", "Gated − uniform", digits=3, signed=True),
    )
    each = zip(found.families, found.family_images, found.family_sums, strict=True)
    rows: tuple[tuple[Cell, ...], ...] = (
        *((display_name(name, capital=True), int(images), *_ratios(sums)) for name, images, sums in each),
        ("All", int(found.images.sum()), *_ratios(found.sums.sum(axis=0))),
    )
    return Table(
        f"{run.key}-{found.method}-gram",
        f"Gram consistency at matched strength, {run.name}",
        "Final-layer cosine-Gram discrepancy to the ordinary pass, summed over severities and images, as a share "
        "of that of the ungated replay (1); lower is nearer.",
        columns,
        rows,
        ("uniform", "gated"),
        (_sentence(found),),
        footer=1,
        lowest=True,
    )


def _ratios(sums: NDArray[np.float64]) -> tuple[float | None, float | None, float | None]:
    uniform, gated = map(float, ratios(sums))
    return (uniform, gated, gated - uniform) if np.isfinite(uniform) else (None, None, None)


def _sentence(found: GramConsistency) -> str:
    return (
        f"At matched mean step, {found.method} ends nearer to the ordinary pass than the uniform replay in "
        f"{found.conditions_below} of {len(found.conditions)} conditions and {found.families_below} of "
        f"{len(found.families)} families."
    )
