"""The demonstration's table, for the terminal and as Markdown: both tasks, condition by condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gramloop.core.config import ReplayConfig
from gramloop.core.settings import describe_replay
from gramloop.data.suites import Condition
from gramloop.evaluate.methods import BASELINE, GRAMLOOP
from gramloop.evaluate.rows import boxes_of, counts_of
from gramloop.metrics.ap_bootstrap import ap_delta
from gramloop.metrics.bootstrap import Interval, image_bootstrap, miou_delta, verdict
from gramloop.report.load import Run
from gramloop.report.statistics import Gain

_WORDS = {
    "helps": "replay helps",
    "hurts": "replay hurts",
    "inconclusive": "inconclusive whether replay helps",
}
_COLUMNS = ("condition", "mIoU", "replayed", "Δ [95%]", "AP", "replayed", "Δ [95%]")
_MEAN = "mean of shifts"


@dataclass(frozen=True)
class Table:
    """Rows of text under a title, with what they say in words."""

    title: str
    rows: Sequence[tuple[str, ...]]
    words: Sequence[str]

    def rich(self) -> Any:
        """For the terminal."""
        from rich.console import Group
        from rich.table import Table as RichTable

        table = RichTable(title=self.title, title_justify="left")
        for index, name in enumerate(_COLUMNS):
            table.add_column(name, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*row, end_section=row[0] == "clean", style="bold" if row[0] == _MEAN else "")
        return Group(table, *self.words)

    def markdown(self) -> str:
        """For a file."""
        lines = ["| " + " | ".join(_COLUMNS) + " |", "|---" + "|---:" * (len(_COLUMNS) - 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([self.title, "", *lines, "", *self.words, ""])


def summary(gains: Sequence[Gain], replay: ReplayConfig, replicates: int) -> Table:
    """Scores clean, under each shift and over all of them; intervals are over images.

    ``gains`` are the report's: means and verdicts here are the same as there.
    """
    own = {(gain.run.plan.task, bool(gain.run.shifted)): gain for gain in gains if gain.method == GRAMLOOP}
    segmentation, detection = own["semantic", True], own["detection", True]
    rows: list[tuple[str, ...]] = [
        ("clean", *_mean_cells(own["semantic", False]), *_mean_cells(own["detection", False]))
    ]
    intervals = [_by_condition(gain.run, replicates) for gain in (segmentation, detection)]
    for condition in segmentation.run.shifted:
        cells = (
            text
            for gain, found in zip((segmentation, detection), intervals, strict=True)
            for text in _cells(gain.run.scores(BASELINE)[condition], found[condition])
        )
        rows.append((condition.display_name, *cells))
    rows.append((_MEAN, *_mean_cells(segmentation), *_mean_cells(detection)))
    words = [
        f"{task} under shift: {_WORDS[gain.words]} ({gain.interval}{_doubt(gain)})."
        for task, gain in (("Segmentation", segmentation), ("Detection", detection))
    ]
    return Table(_title(segmentation.run, replay), rows, words)


def _doubt(gain: Gain) -> str:
    """The interval corrected for few images, where it says something else."""
    corrected = gain.corrected
    if gain.interval is None or corrected is None or verdict(corrected) == verdict(gain.interval):
        return ""
    return (
        f"; corrected for so few images [{corrected.low:+.3f}, {corrected.high:+.3f}], so take it with care"
    )


def _title(run: Run, replay: ReplayConfig) -> str:
    ordinary, replayed = (run.spent.blocks[method] / run.spent.images for method in (BASELINE, GRAMLOOP))
    return (
        f"{run.results[0].images} unseen scenes; {describe_replay(replay)}; "
        f"{ordinary:g} blocks become {replayed:g}, both predictions included"
    )


def _by_condition(run: Run, replicates: int) -> Mapping[Condition, Interval]:
    found = {}
    for condition in run.shifted:
        tables = run.tables(condition.key)
        if run.plan.task == "semantic":
            counts = [counts_of(tables, method) for method in (BASELINE, GRAMLOOP)]
            delta, images = miou_delta(*counts), len(counts[0])
        else:
            categories = list(run.plan.categories)
            truth, ordinary = boxes_of(tables, BASELINE, categories)
            delta = ap_delta(truth, ordinary, boxes_of(tables, GRAMLOOP, categories)[1])
            images = len(truth.images)
        found[condition] = image_bootstrap(delta, images, replicates=replicates)
    return found


def _mean_cells(gain: Gain) -> tuple[str, str, str]:
    ordinary, interval = gain.run.score(BASELINE), gain.interval
    assert ordinary is not None
    assert interval is not None
    return _cells(ordinary, interval)


def _cells(ordinary: float, interval: Interval) -> tuple[str, str, str]:
    return (
        f"{ordinary:.2f}",
        f"{ordinary + interval.estimate:.2f}",
        f"{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]",
    )
