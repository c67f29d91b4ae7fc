"""What a person sees of an evaluation: progress with the gain of every finished condition, and tables at the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.text import Text

from gramloop.evaluate.engines import Listener
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT_NOTE, Part
from gramloop.evaluate.results import MEAN, Results, measures_gain
from gramloop.evaluate.runner import Done, Missed
from gramloop.util.progress import make_bar, use_screen
from gramloop.util.table import ABSENT, Cell, Column, Table


class Display(Listener):
    """A bar with images per second and time left, and a line with its gains for every condition that is complete."""

    def __init__(self) -> None:
        self._bar, self._stack = make_bar(_Speed()), ExitStack()
        self._task = self._bar.add_task("images", total=None, visible=False)
        self.images = partial(self._bar.advance, self._task)  # type: ignore[method-assign]

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def started(self, images: int, stored: int = 0) -> None:
        """There are so many images, of which some are stored already."""
        self._bar.reset(self._task, total=images, completed=stored, visible=True)
        if self._stack.enter_context(use_screen()):
            self._stack.enter_context(self._bar)

    def message(self, text: str) -> None:
        """What is found, or waited for."""
        self._bar.console.print(Text(text), soft_wrap=True)

    def outcome(self, outcome: Done | Missed) -> None:
        """A part was stored, or did not fit into memory."""
        if isinstance(outcome, Missed):
            self.message(f"{outcome.part}: {outcome.reason}")

    def scored(self, results: Results, name: str = "") -> None:
        """A condition is complete."""
        for one in results.conditions:
            found = {method: values[results.metric] for method, values in one.scores.items()}
            baseline = (
                found.pop(BASELINE, math.nan) if measures_gain(results.plan, one.condition) else math.nan
            )
            gains = {method: score - baseline for method, score in found.items()}
            words = [f", {method} {gain:+.3f}" for method, gain in gains.items() if math.isfinite(gain)]
            self.message(f"{name} {one.condition}: {one.images} images{''.join(words)}".lstrip())


class _Speed(ProgressColumn):
    """Images per second of this run."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} images/s")


def results_table(results: Results) -> Table:
    """The main metric of every complete condition, with gains over the baseline, and the means."""
    names, plan, metric = results.methods, results.plan, results.metric
    rows: list[tuple[Cell, ...]] = []
    for one in results.conditions:
        scores = {name: one.scores[name][metric] for name in names}
        rows.append((one.condition, *_cells(names, scores, measures_gain(plan, one.condition))))
    means = results.means()
    footer = [(MEAN, *_cells(names, means))] if len(means) == len(names) else []
    lacking = len(plan.conditions) - len(results.conditions)
    excluded = sum(len(one.failures) for one in results.conditions)
    notes = [
        f"{lacking} of {len(plan.conditions)} conditions are not complete." if lacking else "",
        f"{excluded} images could not be used, and count for no method." if excluded else "",
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


def print_status(results: Results, missing: Sequence[Part], damaged: Sequence[str]) -> None:
    """What is complete, and how many units are stored."""
    Console().print(results_table(results))
    for problem in damaged:
        print(f"{problem}; the next run computes it again", file=sys.stderr)
    total, lacking = len(results.plan.units), sum(len(part.methods) for part in missing)
    print(f"{total - lacking} of {total} units are stored, {lacking} are missing")
