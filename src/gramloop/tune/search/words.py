"""A verdict in words: what to use, what it gains where nothing was chosen, what it costs, and what comes for free."""

from __future__ import annotations

from collections.abc import Sequence

from gramloop.metrics.bootstrap import Interval
from gramloop.tune.search.choices import FREE
from gramloop.tune.search.plan import Search
from gramloop.tune.search.rounds import SearchOutcome
from gramloop.tune.search.stacks import describe_stack
from gramloop.tune.search.verdict import JudgedPart
from gramloop.tune.search.worth import CLEAN

UNSEEN = "on images that the search has not seen"


def verdict_in_words(search: Search, outcome: SearchOutcome) -> str:
    """A few sentences."""
    leader = f"{describe_stack(outcome.leader.stack)} ({outcome.leader.cost:.2f}x the work)"
    told = [
        f"Chosen: {leader}. {UNSEEN.capitalize()}: {_in_words(outcome.parts)}."
        if outcome.chosen
        else f"{search.nothing.capitalize()}: none of {len(search.candidates)} candidates"
        f"{' or their combinations' if search.combines else ''} beat it beyond noise. "
        f"The nearest, {leader}, {UNSEEN}: {_in_words(outcome.parts)}."
    ]
    if outcome.free is not None:
        name, parts = describe_stack(outcome.free.standing.stack), _in_words(outcome.free.parts)
        also = "Also at" if outcome.leader.cost <= FREE else "At"
        told.append(f"{also} no extra cost, {name}: {parts}.")
    return " ".join(told)


def counted(part: JudgedPart) -> str:
    """A part with its number of families, such as "3 searched families"."""
    name = part.name.replace("families", "family") if part.families == 1 else part.name
    return f"{part.families} {name}"


def _in_words(parts: Sequence[JudgedPart]) -> str:
    return "; ".join(map(_part_in_words, parts))


def _part_in_words(part: JudgedPart) -> str:
    if part.changes_only:
        return f"clean predictions change by {-part.gain:.2f} points, for better or worse"
    where = "clean images" if part.name == CLEAN else counted(part)
    points = "points of agreement with the clean prediction" if part.label_free else "points"
    spans = [
        f"{_span(each)} over {kind}"
        for kind, each in (("families", part.over_families), ("images", part.over_images))
        if each is not None
    ]
    return f"{part.gain:+.2f} {points} on {where} ({', '.join([*spans, part.word])})"


def _span(interval: Interval) -> str:
    return f"[{interval.low:+.2f}, {interval.high:+.2f}]"
