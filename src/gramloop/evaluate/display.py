"""What a person sees while an evaluation runs: a bar, and the gains of every finished condition."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial

from rich.progress import ProgressColumn, Task
from rich.text import Text

from gramloop.evaluate.engines import Listener
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.results import Results, measures_gain
from gramloop.evaluate.runner import Done, Missed
from gramloop.util.progress import make_bar, use_screen


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
