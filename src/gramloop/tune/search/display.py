"""A search on the screen: the plan before it begins, the finalists and the verdict when it is over."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console

from gramloop.evaluate.plan import AGREEMENT_NOTE
from gramloop.tune.search.plan import ANY_CHANGE, Search
from gramloop.tune.search.stacks import describe_stack
from gramloop.tune.search.tuning import Tuning
from gramloop.tune.search.verdict import JudgedPart
from gramloop.tune.search.words import counted
from gramloop.tune.search.worth import CLEAN
from gramloop.util.table import Cell, Column, Table


def describe_plan(search: Search) -> str:
    """What will be run, in a few lines."""
    schedule, split = search.schedule, search.split
    tried = f"{schedule.candidates} candidates"
    if schedule.candidates < schedule.offered:
        tried += f", as many as the budget can judge of {schedule.offered}"
    lines = [
        f"budget {schedule.budget} predictions, {schedule.predictions} planned; {tried}, and {search.nothing}"
    ]
    lines += [f"left out: {text}: {reason}" for text, reason in search.offer.left_out]
    if schedule.calibration:
        lines.append(
            f"what ordinary images look like: from {schedule.calibration} clean images of the search, without labels"
        )
    for number, rung in enumerate(schedule.rungs, 1):
        joining = f", and up to {rung.stacked} combinations of winners" if rung.stacked else ""
        lines.append(
            f"rung {number}: {rung.candidates} candidates x {rung.cells} images under a condition{joining}"
            f" ({rung.predictions + schedule.plain * rung.fresh} predictions)"
        )
    lines += [
        f"decision: {schedule.finalists} finalists and {search.nothing} on {schedule.decide.images} fresh images x "
        f"{schedule.decide.conditions} conditions ({schedule.decide_predictions} predictions)",
        f"verdict: the best{' and the best without extra cost' if schedule.judged > 1 else ''} on {schedule.verdict.images} other images x {schedule.verdict.conditions} conditions "
        f"({schedule.verdict_predictions} predictions)",
        f"families searched: {', '.join(split.seen)}",
        f"families kept for the verdict: {', '.join(split.unseen) or 'none'}",
    ]
    if CLEAN not in search.subject.images:
        lines.append("the clean images are not known: nothing is asked of them")
    if search.subject.label_free:
        limit = "nothing is asked of their change"
        if search.tolerance < ANY_CHANGE:
            limit = f"they may change by {search.tolerance:g} points"
        lines.append(f"without labels: {AGREEMENT_NOTE}")
        lines.append(f"clean predictions are the measure, so no change of them is a gain; {limit}")
    return "\n".join(lines)


def print_tuning(tuning: Tuning, console: Console | None = None) -> None:
    """The last rung and the verdict."""
    console = console or Console()
    outcome = tuning.outcome
    console.print(_finalists(tuning))
    what = "the choice" if outcome.chosen else "the nearest candidate"
    console.print(_verdict(what, outcome.parts))
    if outcome.free is not None:
        name = describe_stack(outcome.free.standing.stack)
        console.print(_verdict(f"{name}, at no extra cost", outcome.free.parts))
    for text, reason in outcome.refused:
        console.print(f"left out: {text}: {reason}", highlight=False, markup=False)
    for text, seconds in outcome.filter_seconds.items():
        console.print(f"{text} took {1000 * seconds:.1f} ms per image beside the model", highlight=False)
    console.print(tuning.sentence, highlight=False, markup=False)


def _finalists(tuning: Tuning) -> Table:
    label_free = tuning.search.subject.label_free
    names = (
        ("agreement", "± s.e.", "clean changes", "cost")
        if label_free
        else ("gain", "± s.e.", "clean", "cost")
    )
    rows: list[tuple[Cell, ...]] = []
    for one in tuning.outcome.finalists:
        chosen = tuning.outcome.chosen and one is tuning.outcome.leader
        clean = f"{-one.worth.clean:.2f}" if label_free else _signed(one.worth.clean)
        numbers = (_signed(one.worth.gain), f"{one.worth.error:.2f}", clean, f"{one.cost:.2f}×")
        rows.append((describe_stack(one.stack), *numbers, "chosen" if chosen else ""))
    nothing = "" if tuning.outcome.chosen else "chosen"
    rows.append((tuning.search.nothing, "0.00", None, "0.00", "1.00×", nothing))
    title = f"Decision, {tuning.search.schedule.decide.images} fresh images"
    return Table(title, ("candidate", *names, ""), rows)


def _verdict(what: str, parts: Sequence[JudgedPart]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for part in parts:
        name = part.name if part.name == CLEAN else counted(part).rsplit(" ", 1)[0]
        if part.changes_only:
            rows.append((CLEAN, *[None] * 4, f"{-part.gain:.2f} points changed"))
        else:
            rows.append((name, part.ordinary, part.gain, part.over_families, part.over_images, part.word))
    columns = (
        Column("families", kind="text"),
        Column("baseline", digits=2),
        Column("agreement gain" if parts[0].label_free else "gain", digits=2, signed=True),
        Column("over families", kind="interval", digits=2),
        Column("over images", kind="interval", digits=2),
        Column("", kind="text"),
    )
    images = min(part.images for part in parts)
    return Table(f"Verdict on {what}, {images} images not searched, 95% intervals", columns, rows)


def _signed(value: float) -> str | None:
    return f"{value:+.2f}" if math.isfinite(value) else None
