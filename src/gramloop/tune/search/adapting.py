"""A rule per candidate for single images: replay only where a signal of the ordinary pass says so.

With every image's signals stored beside its two predictions, any rule can be judged without predicting again:
an image gets the replayed prediction or the ordinary one. A rule is chosen on the images of the search, and like
its candidate it then has to prove itself on others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from gramloop.data.records import Task
from gramloop.replay.config import SIGNALS, Adaptive
from gramloop.tune.search.worth import PairedStatistics, Worth, worth

QUANTILES = 11  # thresholds tried per signal and direction, between the smallest and the largest value
_EDGE = 1e-4  # width of a switch that is on below its threshold, relative to it
Cells = Mapping[str, Sequence[PairedStatistics]]


def best_rule(
    task: Task, categories: Sequence[int], cells: Cells, end: int, tolerance: float, caution: float
) -> tuple[Adaptive, Worth] | None:
    """The rule on signals at block ``end`` whose cautious gain is largest while clean images keep their score.

    None where signals are not known, or no rule gains anything.
    """
    best: tuple[Adaptive, Worth] | None = None
    for rule in rules(cells, end):
        value = worth(task, categories, switched(cells, rule, end))
        if not value.harmless(tolerance) or not value.cautious(caution) > 0:
            continue
        if best is None or value.cautious(caution) > best[1].cautious(caution):
            best = rule, value
    return best


def rules(cells: Cells, end: int) -> list[Adaptive]:
    """Switches at quantiles of every signal, in both directions."""
    found = []
    for signal in SIGNALS:
        values = [_signal(one, signal, end) for each in cells.values() for one in each]
        if not values or not np.isfinite(values).all():
            continue
        levels = np.unique(np.quantile(values, np.linspace(0, 1, QUANTILES + 2)[1:-1]))
        for level in map(float, levels):
            found.append(Adaptive(signal, level, level))
            found.append(Adaptive(signal, level, level * (1 - _EDGE)))
    return found


def switched(cells: Cells, rule: Adaptive, end: int) -> dict[str, list[PairedStatistics]]:
    """The cells as the rule would have it: images that it passes over keep their ordinary prediction."""
    return {
        key: [
            one if is_on(rule, _signal(one, rule.signal, end)) else replace(one, mitigated=one.ordinary)
            for one in each
        ]
        for key, each in cells.items()
    }


def is_on(rule: Adaptive, signal: float) -> bool:
    """Whether a switch replays an image with this signal."""
    return signal > rule.off if rule.full >= rule.off else signal < rule.off


def _signal(one: PairedStatistics, signal: str, end: int) -> float:
    known = (one.signals or {}).get(signal)  # a search of before may know fewer
    return known[end] if known else float("nan")
