"""Which method to take, in words: the best at no extra work, below 1.25 times the work, below 2.4 times.

The best of many on the same images is flattered. So each is said to help only where an interval that holds for all
methods at once lies above zero, what picking adds to its gain is estimated, and the next best is named with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT
from gramloop.metrics.bootstrap import Interval
from gramloop.mitigations.stack import replay_of
from gramloop.report.costs import time_of, work_of
from gramloop.report.document import Answer
from gramloop.report.evidence import Difference, Evidence
from gramloop.report.run import Run
from gramloop.report.statistics import Gain, signed

FREE = 1.05
LIMITS = ((FREE, "At no extra work"), (1.25, "Below 1.25 times the work"), (2.4, "Below 2.4 times the work"))


def answers_of(found: Sequence[Evidence], gains: Sequence[Gain]) -> list[Answer]:
    """For every run with shifts; ``gains`` are asked what its methods do on clean images."""
    return [
        Answer(each.run.name, (*_replay_and_rivals(each), *_by_cost(each, gains)))
        for each in found
        if each.run.shifted
    ]


def _replay_and_rivals(evidence: Evidence) -> Iterator[str]:
    """Whether anything else does better than replay, or replay better than anything else."""
    replays, rivals = kinds(evidence)
    if not replays or not rivals:
        return
    replay, rival = replays[0], rivals[0]
    better, worse = sorted((replay, rival), key=evidence.ranked.index)
    words = "gains more than replay" if better == rival else "gains more than what replays nothing"
    if evidence.gain(better) <= 0:
        yield f"Neither replay nor anything beside it gains: the least loss is {better}'s, {_gain(evidence, better)}."
        return
    told = "" if evidence.told_apart(better, worse) else ", which does not tell them apart"
    yield (
        f"{better} {words}: {signed(evidence.gain(better), 2)} points at {_cost(evidence.run, better)} against "
        f"{signed(evidence.gain(worse), 2)} of {worse} at {_cost(evidence.run, worse)}; the difference is "
        f"{_spans(evidence.pairs[better, worse])}{told}."
    )


def kinds(evidence: Evidence) -> tuple[list[str], list[str]]:
    """Methods that only replay, and methods that replay nothing, each the best first."""
    methods = {method.name: method for method in evidence.run.plan.methods}
    ranked = [methods[name] for name in evidence.ranked if name != BASELINE]
    replays = [each.name for each in ranked if each.replay is not None]
    return replays, [
        each.name for each in ranked if each.replay is None and replay_of(each.mitigations) is None
    ]


def _by_cost(evidence: Evidence, gains: Sequence[Gain]) -> Iterator[str]:
    run, nearest, taken, seen = evidence.run, "", "", 0
    costs = {method: work_of(run, method) for method in run.replays}
    for limit, words in LIMITS:
        within = [method for method in evidence.ranked if method != BASELINE and costs[method] <= limit]
        if len(within) == seen:
            continue
        best, seen = within[0], len(within)
        if best == nearest:
            yield f"{words}: nothing gains more than {best}."
        elif not evidence.helps(best):
            yield f"{words}: nothing is shown to help. {best} comes nearest, {_gain(evidence, best)}."
        elif taken and not evidence.told_apart(best, taken):
            yield (
                f"{words}: keep {taken}. {best} gains most, {_gain(evidence, best)}, but is not told apart from it, and "
                f"costs more: {_cost(run, best)}."
            )
        else:
            taken = best
            beside = f"{_cost(run, best)}{_clean(run, best, gains)}{_next(evidence, within)}"
            yield f"{words}: take {best}, {_gain(evidence, best)}, at {beside}."
        nearest = best


def _gain(evidence: Evidence, method: str) -> str:
    """The gain with its interval, and the one that holds for all methods together."""
    metric = evidence.run.metric.replace(AGREEMENT, "agreement in")
    alone = "; ".join(_span(each, each.corrected) for each in evidence.gains[method])
    joint = "; ".join(_ends(each.joint) for each in evidence.gains[method])
    many = len(evidence.run.replays)
    together = f", {joint} for all {many} methods together" if many > 1 else ""
    return f"{signed(evidence.gain(method), 2)} points of {metric}, {alone}{together}"


def _next(evidence: Evidence, within: Sequence[str]) -> str:
    """The runner-up, whether it is told apart, and what picking the best of many adds."""
    if len(within) < 2:
        return ""
    best, second = within[:2]
    told = "told apart from" if evidence.told_apart(best, second) else "not told apart from"
    luck = evidence.luck(within)
    flattered = f". As the best of {len(within)} on these images it is flattered by about {luck:.2f}" * (
        luck >= 0.005
    )
    return f"; {told} the next, {second} ({signed(evidence.gain(second), 2)}){flattered}"


def _clean(run: Run, method: str, gains: Sequence[Gain]) -> str:
    """What it does on clean images, where they were evaluated as well."""
    for gain in gains:
        other = gain.run
        alike = other.plan.task == run.plan.task and other.suite.base == run.suite.base
        if alike and not other.shifted and gain.method == method and gain.points is not None:
            span = "" if gain.corrected is None else f" {_ends(gain.corrected)}"
            return f"; on clean images {signed(gain.points, 2)}{span}"
    return ""


def _cost(run: Run, method: str) -> str:
    time = time_of(run, method)
    measured = "" if time is None else f" and {time:.2f}× the time"
    return f"{work_of(run, method):.2f}× the work{measured}"


def _spans(differences: Sequence[Difference]) -> str:
    return "; ".join(_span(each, each.joint) for each in differences)


def _span(each: Difference, interval: Interval) -> str:
    return f"{_ends(interval)} over {each.drawn.units} {each.drawn.drawn_from}"


def _ends(interval: Interval) -> str:
    return f"[{signed(interval.low, 2)}, {signed(interval.high, 2)}]"
