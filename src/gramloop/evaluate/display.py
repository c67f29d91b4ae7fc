"""What a person sees of an evaluation: progress with the gain of every finished condition, and tables at the end."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import ProgressColumn, Task
from rich.table import Table as Grid
from rich.text import Text

from gramloop.evaluate.evaluation import Listener, StoreState
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT_NOTE, Part, Plan
from gramloop.evaluate.results import (
    MCE_NOTE,
    MEAN,
    Results,
    collect,
    measures_gain,
    robustness,
)
from gramloop.evaluate.runner import Done, Missed
from gramloop.evaluate.store import Store
from gramloop.metrics.robustness import EXPECTED_SHARE
from gramloop.util.progress import make_bar, use_screen
from gramloop.util.table import ABSENT, Cell, Column, Table

SHOWN_CONDITIONS = 8  # in the live table


class Display(Listener):
    """A live bar with images per second, time left and the gains of finished conditions.

    Where there is no terminal, every finished condition becomes one line.
    """

    def __init__(self, store: Store[Plan]) -> None:
        self._store, self._plan = store, store.plan
        self._left = {key: len(store.plan.parts_of(key)) for key in store.plan.conditions}
        self._gains: dict[str, dict[str, float]] = {}  # of finished conditions, the latest last
        self._bar = make_bar(_Speed())
        self._console, self._stack = self._bar.console, ExitStack()
        self._task = self._bar.add_task("images", total=store.plan.images)
        self._earlier = 0  # images stored before
        self.images = partial(self._bar.advance, self._task)  # type: ignore[method-assign]
        self._live = Live(self._content(), console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._stack.enter_context(use_screen()):
            self._stack.enter_context(self._live)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def stored(self, part: Part) -> None:
        """A part was stored before."""
        self._earlier += len(part)
        self._left[part.condition] -= 1
        # a fresh start of the clock: what was found must not count as speed
        self._bar.reset(self._task, completed=self._earlier, total=self._plan.images)

    def warning(self, message: str) -> None:
        """A stored file cannot be used."""
        self._console.print(Text(message, style="yellow"), soft_wrap=True)

    def waiting(self, message: str) -> None:
        """What a cluster is waited for."""
        self._console.print(Text(message), soft_wrap=True)

    def missed(self, missed: Missed) -> None:
        """A part did not fit into memory."""
        self._console.print(Text(f"{missed.part}: {missed.reason}", style="red"), soft_wrap=True)

    def finished(self, done: Done) -> None:
        """A part was run and stored."""
        key = done.part.condition
        self._left[key] -= 1
        if self._left[key]:
            return
        gains = condition_gains(collect(self._store, [key]))
        if gains:
            self._gains[key] = gains
        if not self._console.is_terminal:
            words = "".join(f", {name} {gain:+.3f}" for name, gain in gains.items())
            self._console.print(f"{key}: {self._plan.conditions[key]} images{words}")
        self._live.update(self._content())

    def _content(self) -> Group:
        table = Grid(box=None, padding=(0, 2, 0, 0))
        if self._gains:
            table.add_column("gain")
            for name in next(iter(self._gains.values())):
                table.add_column(name, justify="right")
            for key, gains in list(self._gains.items())[-SHOWN_CONDITIONS:]:
                table.add_row(key, *(f"{gain:+.3f}" for gain in gains.values()))
        return Group(self._bar, table)


class _Speed(ProgressColumn):
    """Images per second of this run."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} images/s")


def condition_gains(results: Results) -> dict[str, float]:
    """What methods gain over the baseline on one condition."""
    if not results.conditions or not measures_gain(results.plan, results.conditions[0].condition):
        return {}
    one = results.conditions[0]
    baseline = one.scores.get(BASELINE, {}).get(results.metric, math.nan)
    gains = {name: values[results.metric] - baseline for name, values in one.scores.items()}
    return {name: gain for name, gain in gains.items() if name != BASELINE and math.isfinite(gain)}


_ER = f"ER = mAP - {EXPECTED_SHARE:g} AP on COCO"


def results_table(results: Results, clean: Path | None = None) -> Table:
    """The main metric of every complete condition, with gains over the baseline, and the means.

    ``clean`` is a finished evaluation on clean images, for rPC.
    """
    names, plan, metric = results.methods, results.plan, results.metric
    rows: list[tuple[Cell, ...]] = []
    for one in results.conditions:
        scores = {name: one.scores[name][metric] for name in names}
        rows.append((one.condition, *_cells(names, scores, measures_gain(plan, one.condition))))
    means, found = results.means(), robustness(results, clean)
    footer = [
        (name, *_cells(names, dict(values)))
        for name, values in ((MEAN, means), ("rPC", found.rpc), ("mCE", found.mce), ("ER", found.er))
        if len(values) == len(names)
    ]
    lacking = len(plan.conditions) - len(results.conditions)
    excluded = sum(len(one.failures) for one in results.conditions)
    notes = [
        f"{lacking} of {len(plan.conditions)} conditions are not complete." if lacking else "",
        f"{excluded} images could not be used, and count for no method." if excluded else "",
        MCE_NOTE if found.mce else "",
        f"{_ER}." if found.er else "",
        found.reason,
        f"{AGREEMENT_NOTE[0].upper()}{AGREEMENT_NOTE[1:]}." if plan.label_free else "",
        *unscored(results),
    ]
    columns = (Column("condition", kind="text"), *(Column(name, kind="number") for name in names))
    title = f"{plan.suite}, {metric} in percent"
    return Table(title, columns, (*rows, *footer), filter(None, notes), footer=len(footer))


def unscored(results: Results) -> list[str]:
    """Why conditions have no score, in words, where some have none."""
    plan, metric = results.plan, results.metric
    lost = [
        one.condition
        for one in results.conditions
        if not all(math.isfinite(scores[metric]) for scores in one.scores.values())
    ]
    if not lost:
        return []
    if plan.label_free and plan.load_task().thresholded:
        reason = (
            f"no object of the clean predictions scores {plan.truth_score:g} or more, so there is nothing to agree "
            "with; a smaller --truth-score accepts more of them"
        )
    else:
        reason = "the images that could be used hold nothing that is scored"
    return [f"No score for {', '.join(lost)}: {reason}."]


def _cells(names: Sequence[str], scores: Mapping[str, float], gains: bool = True) -> list[str]:
    cells = []
    for name in names:
        compared = gains and BASELINE in scores and name != BASELINE
        gain = f" ({scores[name] - scores[BASELINE]:+.2f})" if compared else ""
        cells.append(f"{scores[name]:.2f}{gain}" if math.isfinite(scores[name]) else ABSENT)
    return cells


def print_robustness(results: Results, clean: Path | None) -> None:
    """rPC, mCE and effective robustness of every method, as far as they are known."""
    found = robustness(results, clean)
    for name, values in (("rPC", found.rpc), ("mCE", found.mce), (_ER, found.er)):
        if values:
            cells = _cells(list(values), dict(values))
            print(f"{name}: " + ", ".join(f"{each} {cell}" for each, cell in zip(values, cells, strict=True)))
    if found.reason:
        print(found.reason)


def print_status(store: Store[Plan], state: StoreState, results: Results) -> None:
    """How far every condition is, and what is wrong with files that cannot be used."""
    plan = store.plan
    methods = [name for name in results.methods if name != BASELINE] if results.conditions else []
    scored = {one.condition: one for one in results.conditions}
    units, images, rows = Counter[str](), Counter[str](), list[tuple[Cell, ...]]()
    for part in state.stored:
        units[part.condition] += len(part.methods)
        images[part.condition] += len(part) if len(part.methods) == len(plan.methods) else 0
    for key, many in plan.conditions.items():
        total = len(plan.parts_of(key)) * len(plan.methods)
        one = scored.get(key)
        gains = {} if one is None else condition_gains(Results(plan, (one,)))
        excluded = "" if one is None else str(len(one.failures))
        cells = (f"{gains[name]:+.3f}" if name in gains else "" for name in methods)
        rows.append((key, f"{units[key]}/{total}", f"{images[key]}/{many}", excluded, *cells))
    names = ("units", "images", "excluded", *(f"Δ {name}" for name in methods))
    columns = (Column("condition", kind="text"), *(Column(name, kind="number") for name in names))
    title = f"{plan.suite}, plan {plan.hash}, gains in {results.metric}"
    Console().print(Table(title, columns, rows))
    for problem in state.damaged:
        print(f"{problem}; the next run computes it again", file=sys.stderr)
    total, held = len(plan.units), sum(units.values())
    print(f"{held} of {total} units are stored, {total - held} are missing")
