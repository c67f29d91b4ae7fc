"""The answer of an evaluation or a search: which method to use, what it gains and costs, and how to deploy it.

One rule decides everywhere: a method helps or hurts where the one interval of its gain leaves out zero.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gramloop.evaluate.methods import BASELINE, Method
from gramloop.evaluate.plan import AGREEMENT, PlannedModel
from gramloop.metrics.bootstrap import UNDECIDED, Interval, VerdictWord, verdict
from gramloop.mitigations.stack import Stack, stack_text, write_mitigations
from gramloop.util.files import atomic_write
from gramloop.util.plotting import signed_difference
from gramloop.util.table import Cell, Column, Table, TableRepr

SHORT = {UNDECIDED: "n.s."}  # in tables


@dataclass(frozen=True)
class MethodGain:
    """One method against the baseline; the verdict follows from the interval and from nothing else."""

    method: str
    score: float
    baseline: float  # the score of the baseline
    interval: Interval | None = None
    work: float = 1.0  # blocks times the area they see, relative to the baseline
    time: float | None = None  # seconds of predicting alone, relative to the baseline
    clean: tuple[float, float] | None = None  # scores of the baseline and of the method on clean images

    @property
    def gain(self) -> float:
        """In points, of the unrounded scores."""
        return self.score - self.baseline

    @property
    def verdict(self) -> VerdictWord:
        """By the rule."""
        return UNDECIDED if self.interval is None else verdict(self.interval)

    @property
    def cost(self) -> str:
        """In words: the time where it was measured, otherwise the work."""
        return f"{self.work:.2f}× the work" if self.time is None else f"{self.time:.2f}× the time"

    @property
    def points(self) -> str:
        """The gain with its interval."""
        return f"{signed_difference(self.gain, 2)} points{_span(self.interval)}"


def _span(interval: Interval | None) -> str:
    if interval is None:
        return ", without an interval"
    low, high = (signed_difference(end, 2) for end in (interval.low, interval.high))
    return f", {interval.level:.0%} interval [{low}, {high}]"


@dataclass(frozen=True)
class Answer(TableRepr):
    """Which method to use, and why.

    Attributes:
        name: what was evaluated, such as the suite and the task.
        sentence: the answer.
        metric: the main one.
        method: the one to use; empty for the model as it is.
        gains: of all methods, the best first.
        deploy: commands and lines of Python that use the method.
        notes: what a reader should know of it.
        file: the name of the file that a report stores the method in, if it does.
        stack: the mitigations of the method.
        calibration: the file of statistics that they use.
    """

    name: str
    sentence: str
    metric: str = ""
    method: str = ""
    gains: tuple[MethodGain, ...] = ()
    deploy: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    file: str = ""
    stack: Stack = ()
    calibration: Path | None = None

    def write(self, folder: Path) -> None:
        """Store the method as predict, export and Python take it, with the statistics that it uses."""
        used = None
        if self.calibration is not None:
            used = folder / f"{Path(self.file).stem}{self.calibration.suffix}"
            atomic_write(used, self.calibration.read_bytes())
        write_mitigations(folder / self.file, self.stack, used, {"verdict": self.sentence})

    def _table(self) -> Table:
        clean = any(each.clean is not None for each in self.gains)
        timed = any(each.time is not None for each in self.gains)
        columns = (
            Column("method", "method", "text"),
            Column("gain", f"Δ {self.metric}", digits=2, signed=True),
            Column("interval", "95% interval", "interval", 2),
            Column("verdict", "verdict", "text"),
            Column("cost", "time" if timed else "work", digits=2, unit="×"),
            *((Column("clean", "Δ clean", digits=2, signed=True),) if clean else ()),
        )
        undecided = any(each.verdict == UNDECIDED for each in self.gains)
        note = (f"n.s.: {UNDECIDED} from the baseline.",) * undecided
        rows = [self._row(each, timed, clean) for each in self.gains]
        return Table(self.name, columns, rows, (*note, *self.notes), key="answer", caption=self.sentence)

    def _row(self, one: MethodGain, timed: bool, clean: bool) -> tuple[Cell, ...]:
        name = f"{one.method} ←" if one.method == self.method else one.method
        change = None if one.clean is None else one.clean[1] - one.clean[0]
        cost = one.time if timed else one.work
        cells = (name, one.gain, one.interval, SHORT.get(one.verdict, one.verdict), cost)
        return (*cells, change) if clean else cells

    def markdown(self) -> str:
        """The table, and the lines that deploy the method."""
        lines = "".join(f"    {line}\n" for line in self.deploy)
        return self._table().markdown(2) + (f"\n{lines}" if lines else "")

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "suite": self.name,
            "sentence": self.sentence,
            "method": self.method,
            "deploy": list(self.deploy),
            "notes": list(self.notes),
        }


def recommend(one: MethodGain, metric: str, scope: str = "under shift") -> str:
    """The answer where a method helps."""
    return (
        f"Use {one.method}: {metric_words(metric)} {scope} rises from {one.baseline:.2f} to {one.score:.2f} "
        f"({one.points}), at {one.cost} of the baseline{clean_words(one)}."
    )


def keep_baseline(ranked: Sequence[MethodGain], metric: str, scope: str = "under shift") -> str:
    """The answer where no method helps; the best is given first."""
    best, many, words = ranked[0], len(ranked), metric_words(metric)
    if many == 1:
        does = "lowers" if best.verdict == "hurts" else "does not significantly change"
        start = f"{best.method} {does} {words} {scope} ({best.points})"
    else:
        none = "neither method" if many == 2 else f"none of {many} methods"
        start = f"{none} significantly improves {words} {scope}. The closest is {best.method} ({best.points})"
    return f"Use the model as it is: {start}, at {best.cost} of the baseline{clean_words(best)}."


def clean_words(one: MethodGain) -> str:
    """What it does to the score on clean images, where that is known."""
    return "" if one.clean is None else f"; clean {one.clean[0]:.2f} → {one.clean[1]:.2f}"


def metric_words(metric: str) -> str:
    """The metric in a sentence."""
    if metric.startswith(AGREEMENT):
        return f"agreement with the clean prediction ({metric.removeprefix(AGREEMENT).strip()})"
    return metric


# how to deploy it


def method_text(method: Method) -> str:
    """A method as ``--method`` takes it."""
    return stack_text(method.stack) or BASELINE


def model_options(model: PlannedModel) -> str:
    """The model as options of the command line; empty for one that exists in memory alone."""
    from gramloop.models.tiny import WEIGHTS

    files = model.files
    if files.get("folder") == str(WEIGHTS):
        return "--model tiny"
    for kind, prefix in (("folder", ""), ("hf", "hf:"), ("graph", ""), ("make", "")):
        if kind in files:
            return f"--model {shlex.quote(prefix + short_path(files[kind]))}"
    named = {
        name: shlex.quote(short_path(path)) for name, path in files.items() if name in ("backbone", "head")
    }
    return " ".join(f"--{name} {path}" for name, path in named.items())


def short_path(path: str | Path) -> str:
    """A path relative to the working directory; of one elsewhere its last part, for pages are sent to others."""
    try:
        return str(Path(path).absolute().relative_to(Path.cwd()))
    except ValueError:
        return Path(path).name


def deploy_lines(
    model: str, task: str, method: str, replay_alone: bool, calibration: str = ""
) -> Iterator[str]:
    """Commands and Python that predict with a method: a text, or a file that `gramloop tune` wrote."""
    stats = f" --calibration {shlex.quote(calibration)}" if calibration else ""
    chosen = f"{model} --task {task} --method {shlex.quote(method)}{stats}"
    if model:
        yield f"gramloop predict photos {chosen} --out out/photos"
        yield f"gramloop export {chosen} --out model.onnx"
    if replay_alone and method.endswith(".json"):
        yield f"loop = gramloop.attach(model, {method!r})"
    else:
        known = f", stats={calibration!r}" if calibration else ""
        yield f"predictor = gramloop.mitigations.apply({method!r}, predictor{known})"
