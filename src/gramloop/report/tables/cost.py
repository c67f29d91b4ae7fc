"""What a method costs: blocks executed, by formula and counted, time of one device per image, and memory."""

from __future__ import annotations

from collections.abc import Sequence

from gramloop.evaluate.methods import BASELINE
from gramloop.report.costs import PathCost
from gramloop.util.table import Cell, Column, Table


def cost_table(
    costs: Sequence[PathCost],
    key: str = "cost",
    name: str = "",
    device: str = "device",
    diagnostics: bool = False,
) -> Table:
    """The compute accounting of one suite's methods."""
    columns = (
        Column("method", "Path", "text"),
        Column("blocks", "Blocks", digits=0),
        Column("analytic", "Analytic", unit="×"),
        Column("seconds", "Device time (s/image)", digits=3),
        Column("observed", "Obs.", unit="×"),
        Column("memory", "Peak GB"),
        Column("work", "Work", unit="×"),
        Column("time", "Time", unit="×"),
    )
    ordinary = next((cost.seconds for cost in costs if cost.method == BASELINE), None)
    rows: list[tuple[Cell, ...]] = []
    for cost in costs:
        observed = None if ordinary is None or cost.seconds is None else cost.seconds / ordinary
        memory = cost.peak_memory / 1e9 if cost.peak_memory else None
        blocks: Cell = round(cost.blocks) if abs(cost.blocks - round(cost.blocks)) < 1e-9 else cost.blocks
        rows.append(
            (cost.method, blocks, cost.multiplier, cost.seconds, observed, memory, cost.work, cost.time)
        )
    return Table(
        key,
        f"Compute cost{f', {name}' if name else ''}",
        "Transformer blocks executed per view of an image, as counted; their number by the formula against the "
        "ordinary model; time of one device per image, which is wall time times devices divided by images. Work is "
        "blocks times the area that each sees, time is that of predicting alone, both against the baseline.",
        columns,
        tuple(rows),
        notes=(*_notes(costs, device), *((_DIAGNOSED,) if diagnostics else ())),
    )


_DIAGNOSED = (
    "Diagnostics were stored, which cost time and memory of their own; without them replays are cheaper."
)


def _notes(costs: Sequence[PathCost], device: str) -> tuple[str, ...]:
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
            "gramloop evaluate --method baseline into a folder of its own, reported together, gives one."
        )
    if odd := [cost.method for cost in costs if abs(cost.blocks - cost.formula) > 1e-9]:
        notes.append(
            f"{', '.join(odd)} executed another number of blocks than the formula gives: a trace of what a "
            "replay would not measure, or a rule that stops replays, changes it."
        )
    return tuple(notes)
