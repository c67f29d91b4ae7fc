"""Methods against each other: who is told apart from whom at a glance, every pair's numbers, and how gains add."""

from __future__ import annotations

from collections.abc import Sequence

from gramloop.report.evidence import Evidence
from gramloop.report.stacking import Stack
from gramloop.report.tables.main import DIGITS
from gramloop.report.tables.table import OPEN
from gramloop.util.table import BETTER, WORSE, Cell, Column, Table


def matrix_table(evidence: Evidence) -> Table:
    """Every method against every other, best first, as marks; it stays narrow with any number of methods."""
    ranked = evidence.ranked
    columns = (
        Column("rank", "#", digits=0),
        Column("method", "Method", "text"),
        Column("score", evidence.run.score_title, digits=DIGITS),
        *(Column(f"against {name}", str(place), "mark") for place, name in enumerate(ranked, start=1)),
    )
    rows: list[tuple[Cell, ...]] = [
        (place, name, evidence.score(name), *(_mark(evidence, name, other) for other in ranked))
        for place, name in enumerate(ranked, start=1)
    ]
    return Table(
        f"{evidence.run.key}-matrix",
        f"Which methods are told apart, {evidence.run.name}",
        f"A row's method against the one whose number heads the column: {BETTER} better, {WORSE} worse, {OPEN} not "
        f"told apart. Marks go by {_held_together(evidence)}.",
        columns,
        tuple(rows),
        notes=(
            "Whether a method is shown to help, above, goes by intervals that hold for its comparison and those of all "
            "others with the baseline together, which are fewer, and so narrower.",
        ),
    )


def _mark(evidence: Evidence, row: str, column: str) -> str:
    if row == column:
        return ""
    first, second = sorted((row, column), key=evidence.ranked.index)
    if not evidence.told_apart(first, second):
        return OPEN
    return BETTER if row == first else WORSE


def _held_together(evidence: Evidence) -> str:
    drawn = " and ".join(f"over {each.units} {each.drawn_from}" for each in evidence.drawn)
    return f"95% intervals {drawn} that hold for all {len(evidence.pairs)} pairs together"


def pairs_table(evidence: Evidence) -> Table:
    """The numbers behind the marks: every pair, the better method first."""
    columns = (
        Column("better", "Method", "text"),
        Column("worse", "against", "text"),
        Column("gain", "Δ", digits=DIGITS, signed=True),
        Column("interval", "95% CI", "interval", digits=DIGITS),
        Column("corrected", "95% CI, corrected", "interval", digits=DIGITS),
        Column("joint", "95% CI, all pairs", "interval", digits=DIGITS),
        Column("units", "Drawn from", "text"),
        Column("verdict", "Told apart", "text"),
    )
    rows: list[tuple[Cell, ...]] = [
        (
            better, worse, evidence.gain(better, worse), each.interval, each.corrected, each.joint,
            f"{each.drawn.units} {each.drawn.over}", "yes" if each.joint.low > 0 else "no",
        )
        for (better, worse), differences in evidence.pairs.items()
        for each in differences
    ]  # fmt: skip
    return Table(
        f"{evidence.run.key}-pairs",
        f"Every two methods, {evidence.run.name}",
        f"What a method gains over another in {evidence.run.score_title}, in points; families or images are drawn for "
        "both alike.",
        columns,
        tuple(rows),
        notes=(
            "The first interval is of percentiles, the second stretched by Student's t for few units; both are those "
            f"of one pair looked at alone. Of {len(evidence.pairs)} such intervals some miss by chance, so what is told "
            "apart goes by the third, which holds for all pairs together.",
        ),
    )


def stacking_table(evidence: Evidence, stacks: Sequence[Stack]) -> Table:
    """The gains of two methods, their sum, and that of both together."""
    numbers = [
        ("first gain", "Δ first"), ("second gain", "Δ second"), ("sum", "Sum"), ("gain", "Δ together"),
    ]  # fmt: skip
    columns = (
        Column("method", "Stack", "text"),
        Column("first", "First", "text"),
        Column("second", "Second", "text"),
        *(Column(key, title, digits=DIGITS, signed=True) for key, title in numbers),
        Column("excess", "Beyond the sum, 95% CI", "interval", digits=DIGITS, estimate=True),
        Column("joint", "all stacks", "interval", digits=DIGITS),
        Column("units", "Drawn from", "text"),
        Column("words", "Together", "text"),
    )
    rows: list[tuple[Cell, ...]] = []
    for stack in stacks:
        gains = [evidence.gain(part) for part in stack.parts]
        for each in stack.excess:
            drawn = f"{each.drawn.units} {each.drawn.over}"
            numbers_of = (*gains, sum(gains), evidence.gain(stack.whole))
            rows.append(
                (stack.whole, *stack.parts, *numbers_of, each.interval, each.joint, drawn, stack.words)
            )
    return Table(
        f"{evidence.run.key}-stacking",
        f"How gains add, {evidence.run.name}",
        f"Gains over the baseline in {evidence.run.score_title}, in points, of two methods and of both together. "
        "Beyond the sum is what they gain together less what they gain each alone.",
        columns,
        tuple(rows),
        notes=(
            "Whether they gain more or less than the sum goes by an interval that holds for all stacks together.",
        ),
    )
