"""What a person sees of an evaluation: progress with the running gain, and tables at the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import ProgressColumn, Task
from rich.table import Table
from rich.text import Text

from gramloop.evaluate.effective import SHIFTED, effective
from gramloop.evaluate.engines import Done
from gramloop.evaluate.evaluation import RunningGain, StoreState, Watcher
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import Plan
from gramloop.evaluate.relative import MCE_WORDS, relative
from gramloop.evaluate.results import MEAN, Results, collect, tells_gain
from gramloop.evaluate.session import Missed
from gramloop.evaluate.store import Store
from gramloop.evaluate.truth import SENTENCE
from gramloop.metrics.robustness import EXPECTED_SHARE
from gramloop.util.progress import make_bar, use_screen

SHOWN = 8  # conditions in the live table


class Display(Watcher):
    """A live bar with images per second, time left and the gain of each condition so far.

    Where there is no terminal, every finished condition becomes one line.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._plan = store, store.plan
        self._gain = RunningGain(store.plan)
        self._left = {key: len(list(store.plan.units_of(key))) for key in store.plan.conditions}
        self._gains: dict[str, dict[str, float]] = {}  # in the order of the latest news
        self._bar = make_bar(_Speed())
        self._console, self._shown = self._bar.console, ExitStack()
        self._task = self._bar.add_task("images", total=store.plan.images)
        self._counted = 0  # images predicted in this run
        self._earlier = 0  # images stored before
        self._live = Live(self._content(), console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Display:
        if self._shown.enter_context(use_screen()):
            self._shown.enter_context(self._live)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shown.close()

    def found(self, done: Done) -> None:
        """A unit was stored before."""
        self._earlier += len(done.unit)
        self._take(done)
        # a fresh start of the clock: what was found must not count as speed
        self._bar.reset(self._task, completed=self._earlier, total=self._plan.images)

    def rejected(self, sentence: str) -> None:
        """A stored file cannot be used."""
        self._console.print(Text(sentence, style="yellow"), soft_wrap=True)

    def missed(self, missed: Missed) -> None:
        """A unit did not fit into memory."""
        self._console.print(Text(f"{missed.unit}: {missed.reason}", style="red"), soft_wrap=True)

    def images(self, number: int) -> None:
        """So many more images were predicted."""
        self._counted += number
        self._bar.update(self._task, completed=self._earlier + self._counted)

    def finished(self, done: Done) -> None:
        """A unit was run and stored."""
        self._take(done)
        key = done.unit.condition
        if self._left[key] == 0 and not self._console.is_terminal:
            self._console.print(f"{key}: {self._plan.conditions[key]} images{_gain_words(self._gains, key)}")
        self._live.update(self._content())

    def _take(self, done: Done) -> None:
        key = done.unit.condition
        self._left[key] -= 1
        self._gain.add(done)
        gains = self._gain.of(key) if tells_gain(self._plan, key) else {}
        if self._plan.task != "semantic" and self._left[key] == 0:
            gains = _final_gains(collect(self._store, [key]))
        if gains:
            self._gains.pop(key, None)
            self._gains[key] = gains

    def _content(self) -> Group:
        table = Table(box=None, padding=(0, 2, 0, 0))
        if self._gains:
            table.add_column("gain so far")
            for name in next(iter(self._gains.values())):
                table.add_column(name, justify="right")
            for key, gains in list(self._gains.items())[-SHOWN:]:
                table.add_row(key, *(f"{gain:+.3f}" for gain in gains.values()))
        return Group(self._bar, table)


class _Speed(ProgressColumn):
    """Images per second of this run."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} images/s")


def _gain_words(gains: dict[str, dict[str, float]], key: str) -> str:
    words = [f"{name} {gain:+.3f}" for name, gain in gains.get(key, {}).items()]
    return f", {', '.join(words)}" if words else ""


def _final_gains(results: Results) -> dict[str, float]:
    one = results.conditions[0]
    if not tells_gain(results.plan, one.condition):
        return {}
    ordinary = one.scores.get(BASELINE, {}).get(results.metric, math.nan)
    gains = {name: values[results.metric] - ordinary for name, values in one.scores.items()}
    return {name: gain for name, gain in gains.items() if name != BASELINE and math.isfinite(gain)}


def print_results(results: Results, console: Console | None = None, clean: Path | None = None) -> None:
    """The main metric of every complete condition, with gains over the baseline, and the means.

    ``clean`` is a finished evaluation on clean images, for rPC.
    """
    names = [method.name for method in results.plan.methods]
    table = Table(box=box.SIMPLE, title=f"{results.plan.suite}, {results.metric} in percent")
    table.add_column("condition")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for one in results.conditions:
        scores = {name: one.scores[name][results.metric] for name in names}
        table.add_row(one.condition, *_cells(names, scores, tells_gain(results.plan, one.condition)))
    means = {name: mean for name in names if (mean := results.mean(name)) is not None}
    if len(means) == len(names):
        table.add_section()
        table.add_row(MEAN, *_cells(names, means))
    found = relative(results, clean)
    for name, values in (("rPC", found.rpc), ("mCE", found.mce)):
        if values:
            table.add_row(name, *_cells(names, dict(values)))
    console = console or Console()
    console.print(table)
    if found.mce:
        console.print(MCE_WORDS, highlight=False)
    if found.reason:
        console.print(found.reason, highlight=False)
    if results.plan.label_free:
        console.print(f"{SENTENCE[0].upper()}{SENTENCE[1:]}.", highlight=False)


def _cells(names: Sequence[str], scores: dict[str, float], gains: bool = True) -> list[str]:
    cells = []
    for name in names:
        told = gains and BASELINE in scores and name != BASELINE
        gain = f" ({scores[name] - scores[BASELINE]:+.3f})" if told else ""
        cells.append(f"{scores[name]:.3f}{gain}")
    return cells


def print_relative(results: Results, clean: Path | None) -> None:
    """rPC and mCE of every method, once all conditions are complete."""
    found = relative(results, clean)
    for name, values in (("rPC", found.rpc), ("mCE", found.mce)):
        if values:
            cells = _cells(list(values), dict(values))
            print(f"{name}: " + ", ".join(f"{each} {cell}" for each, cell in zip(values, cells, strict=True)))
    if found.reason:
        print(found.reason)


def print_effective(results: Results, clean: Path | None) -> None:
    """The effective robustness of every method on COCO-O, or a sentence about why it is not known."""
    if results.plan.suite != SHIFTED or results.plan.task != "detection":
        return
    found = effective(results, clean)
    cells = _cells(list(found.values), dict(found.values))
    words = [f"{name} {cell}" for name, cell in zip(found.values, cells, strict=True)]
    print(f"ER = mAP - {EXPECTED_SHARE:g} AP on COCO: {', '.join(words)}" if words else found.reason)


def print_status(store: Store, stored: StoreState, results: Results, console: Console | None = None) -> None:
    """How far every condition is, and what is wrong with files that cannot be used."""
    plan = store.plan
    table = Table(box=box.SIMPLE, title=f"{plan.suite}, plan {plan.hash}")
    for name in ("condition", "units", "images", "excluded", *_gain_columns(plan, results)):
        table.add_column(name, justify="left" if name == "condition" else "right")
    gains = {one.condition: _final_gains(Results(plan, (one,))) for one in results.conditions}
    for key, images in plan.conditions.items():
        done = [each for each in stored.stored if each.unit.condition == key]
        total = len(list(plan.units_of(key)))
        row: list[Any] = [key, f"{len(done)}/{total}", f"{sum(len(each.unit) for each in done)}/{images}"]
        row.append(str(sum(each.excluded for each in done)))
        row += [f"{gains[key][n]:+.3f}" if n in gains.get(key, {}) else "" for n in _replays(plan)]
        table.add_row(*row[: len(table.columns)])
    (console or Console()).print(table)
    for _, problem in stored.rejected:
        print(f"{problem}; the next run computes it again", file=sys.stderr)
    units = len(plan.units)
    print(f"{len(stored.stored)} of {units} units are stored, {len(stored.missing)} are missing")


def _replays(plan: Plan) -> list[str]:
    return [method.name for method in plan.methods if method.name != BASELINE]


def _gain_columns(plan: Plan, results: Results) -> list[str]:
    return [f"{results.metric} {name}" for name in _replays(plan)] if results.conditions else []
