"""The demonstration's table, for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gramloop.demo.experiment import Condition, Outcome
from gramloop.metrics.bootstrap import Interval, verdict

_WORDS = {
    "helps": "replay helps",
    "hurts": "replay hurts",
    "cannot be told": "whether replay helps cannot be told",
}
_COLUMNS = ("condition", "mIoU", "replayed", "Δ [95%]", "AP", "replayed", "Δ [95%]")


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
            table.add_row(
                *row, end_section=row[0] == "clean", style="bold" if row[0].startswith("mean") else ""
            )
        return Group(table, *self.words)

    def markdown(self) -> str:
        """For a file."""
        lines = ["| " + " | ".join(_COLUMNS) + " |", "|---" + "|---:" * (len(_COLUMNS) - 1) + "|"]
        lines += ["| " + " | ".join(row) + " |" for row in self.rows]
        return "\n".join([self.title, "", *lines, "", *self.words, ""])


def summary(outcome: Outcome) -> Table:
    """Scores of every condition and of the shifted ones together, deltas with intervals over images."""
    shifted = [condition for condition in outcome.conditions if condition.severity]
    rows = [_row(str(condition), outcome, [condition]) for condition in outcome.conditions]
    rows.append(_row("mean of shifts", outcome, shifted))
    ordinary, paired = outcome.blocks()
    config = outcome.replay
    title = (
        f"{len(outcome.scenes)} unseen scenes; window {list(config.window or ())}, K={config.replays}, "
        f"strength {config.strength}; {ordinary} blocks become {paired}, both predictions included"
    )
    words = [
        f"{task} under shift: {_WORDS[verdict(interval)]} ({interval})."
        for task, interval in (
            ("Segmentation", outcome.miou(shifted)[2]),
            ("Detection", outcome.ap(shifted)[2]),
        )
    ]
    return Table(title, rows, words)


def _row(name: str, outcome: Outcome, conditions: Sequence[Condition]) -> tuple[str, ...]:
    return name, *_cells(*outcome.miou(conditions)), *_cells(*outcome.ap(conditions))


def _cells(ordinary: float, replayed: float, interval: Interval) -> tuple[str, str, str]:
    return (
        f"{ordinary:.2f}",
        f"{replayed:.2f}",
        f"{interval.estimate:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]",
    )
