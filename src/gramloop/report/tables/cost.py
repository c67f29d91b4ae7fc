"""What a method costs: blocks executed, by formula and counted, time of one device per image, and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gramloop.evaluate.methods import BASELINE
from gramloop.report.run import Run
from gramloop.report.tables.table import Cell, Column, Table


@dataclass(frozen=True)
class PathCost:
    """One method's cost; times include the head, Gram algebra and the handling of images."""

    method: str
    blocks: float  # of one view of an image, counted
    formula: int  # the same by the formula
    depth: int
    seconds: float | None  # of one device per image
    together: str = ""  # what was predicted in the same call, and is in these seconds
    peak_memory: int = 0  # bytes

    @property
    def multiplier(self) -> float:
        """Blocks by the formula, per block of the ordinary model."""
        return self.formula / self.depth


def path_costs(run: Run, group: Sequence[Run] = ()) -> list[PathCost]:
    """The cost of every method of a run; the baseline's time comes from where it was timed alone."""
    spent, depth = run.spent, run.plan.model.depth
    if not spent.images:
        return []
    methods = {method.name: method for method in run.plan.methods}
    rows = []
    for name in run.methods:
        call = next((each for each in spent.calls if name in each.split("+")), None)
        alone = call == name
        shared = call is not None and not alone
        seconds = _seconds(run, call) if call is not None and not (shared and name == BASELINE) else None
        if name == BASELINE and seconds is None:
            peers = (one for one in group if BASELINE in one.spent.calls and _alike(one, run))
            seconds = next((_seconds(one, BASELINE) for one in peers), None)
        rows.append(
            PathCost(
                name,
                spent.blocks.get(name, 0) / spent.images,
                methods[name].blocks(depth),
                depth,
                seconds,
                BASELINE if shared and name != BASELINE else "",
                spent.peak_memory,
            )
        )
    return rows


def _alike(first: Run, second: Run) -> bool:
    return (first.plan.suite, first.plan.task) == (second.plan.suite, second.plan.task)


def _seconds(run: Run, call: str) -> float:
    """Predicting, and the handling of images, which all methods of a run share."""
    spent = run.spent
    handling = spent.seconds - sum(spent.calls.values())
    return (spent.calls[call] + handling) / spent.images


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
    )
    ordinary = next((cost.seconds for cost in costs if cost.method == BASELINE), None)
    rows: list[tuple[Cell, ...]] = []
    for cost in costs:
        observed = None if ordinary is None or cost.seconds is None else cost.seconds / ordinary
        memory = cost.peak_memory / 1e9 if cost.peak_memory else None
        blocks: Cell = round(cost.blocks) if abs(cost.blocks - round(cost.blocks)) < 1e-9 else cost.blocks
        rows.append((cost.method, blocks, cost.multiplier, cost.seconds, observed, memory))
    return Table(
        key,
        f"Compute cost{f', {name}' if name else ''}",
        "Transformer blocks executed per view of an image, as counted; their number by the formula against the "
        "ordinary model; time of one device per image, which is wall time times devices divided by images.",
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
