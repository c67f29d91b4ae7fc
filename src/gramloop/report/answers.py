"""Which method to take: the best at no extra work, below 1.25 times the work, below 2.4 times.

The best of many on the same images is biased by its selection. So a method is taken only where the rule of
`gramloop.report.stats` says that it helps, its selection bias is estimated, and the next best is named with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT
from gramloop.mitigations.stack import replay_of
from gramloop.report.run import Run
from gramloop.report.stats import Difference, Differences, Evidence, signed

FREE = 1.05
LIMITS = ((FREE, "At no extra work"), (1.25, "Below 1.25 times the work"), (2.4, "Below 2.4 times the work"))


@dataclass(frozen=True)
class Answer:
    """Which method to take on one suite, in sentences, the most important first."""

    suite: str
    sentences: tuple[str, ...]


def answers_of(evidence: Sequence[Evidence]) -> list[Answer]:
    """For every run with shifts and several methods; runs on clean images say what these do there."""
    return [
        Answer(each.run.name, (*_replay_and_rivals(each), *_by_cost(each, evidence)))
        for each in evidence
        if each.several and each.run.shifted
    ]


def _replay_and_rivals(evidence: Evidence) -> Iterator[str]:
    """Whether anything else does better than replay, or replay better than anything else."""
    ranked = [evidence.run.method(name) for name in evidence.ranked if name != BASELINE]
    replays = [each.name for each in ranked if each.replay is not None]
    rivals = [each.name for each in ranked if each.replay is None and replay_of(each.mitigations) is None]
    if not replays or not rivals:
        return
    better, worse = sorted((replays[0], rivals[0]), key=evidence.ranked.index)
    if evidence.gain(better) <= 0:
        yield f"Neither replay nor any other mitigation gains: the least loss is {better}'s, {_gain(evidence, better)}."
        return
    than = "than replay" if better == rivals[0] else "than any method without replay"
    doubt = "" if evidence.differ(better, worse) else ", not significant"
    yield (
        f"{better} gains more {than}: {signed(evidence.gain(better), 2)} points at {_cost(evidence.run, better)} against "
        f"{signed(evidence.gain(worse), 2)} of {worse} at {_cost(evidence.run, worse)}; the difference is "
        f"{_spans(evidence.pairs[better, worse])}{doubt}."
    )


def _by_cost(evidence: Evidence, others: Sequence[Evidence]) -> Iterator[str]:
    run, nearest, taken, seen = evidence.run, "", "", 0
    for limit, words in LIMITS:
        within = [name for name in evidence.ranked if name != BASELINE and run.work(name) <= limit]
        if len(within) == seen:
            continue
        best, seen = within[0], len(within)
        if best == nearest:
            yield f"{words}: nothing gains more than {best}."
        elif not evidence.helps(best):
            yield f"{words}: nothing helps significantly. {best} comes nearest, {_gain(evidence, best)}."
        elif taken and not evidence.differ(best, taken):
            yield (
                f"{words}: keep {taken}. {best} gains most, {_gain(evidence, best)}, but is not significantly better, and "
                f"costs more: {_cost(run, best)}."
            )
        else:
            taken = best
            more = f"{_cost(run, best)}{_clean(run, best, others)}{_next(evidence, within)}"
            yield f"{words}: take {best}, {_gain(evidence, best)}, at {more}."
        nearest = best


def _gain(evidence: Evidence, method: str) -> str:
    metric = evidence.run.metric.replace(AGREEMENT, "agreement in")
    return f"{signed(evidence.gain(method), 2)} points of {metric}, {_spans(evidence.gains[method])}"


def _next(evidence: Evidence, within: Sequence[str]) -> str:
    """The runner-up, whether it differs, and the selection bias of the best."""
    if len(within) < 2:
        return ""
    best, second = within[:2]
    words = "significantly more than" if evidence.differ(best, second) else "not significantly more than"
    bias = evidence.selection_bias(within)
    biased = f". As the best of {len(within)} on these images it is overestimated by about {bias:.2f}" * (
        bias >= 0.005
    )
    return f"; {words} the next, {second} ({signed(evidence.gain(second), 2)}){biased}"


def _clean(run: Run, method: str, others: Sequence[Evidence]) -> str:
    """What it does on clean images, where they were evaluated as well."""
    for other in others:
        alike = other.run.plan.task == run.plan.task and other.run.suite.base == run.suite.base
        points = other.run.gain(method) if method in other.run.compared else None
        if alike and not other.run.shifted and points is not None:
            span = "".join(f" {_ends(each)}" for each in other.gains.get(method, ()))
            return f"; on clean images {signed(points, 2)}{span}"
    return ""


def _cost(run: Run, method: str) -> str:
    time = run.time(method)
    measured = "" if time is None else f" and {time:.2f}× the time"
    return f"{run.work(method):.2f}× the work{measured}"


def _spans(differences: Differences) -> str:
    return "; ".join(f"{_ends(each)} over {each.drawn.drawn_from}" for each in differences)


def _ends(difference: Difference) -> str:
    interval = difference.joint
    return f"[{signed(interval.low, 2)}, {signed(interval.high, 2)}]"
