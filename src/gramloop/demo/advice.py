"""What a user should do, in one paragraph, from the numbers of the run at hand."""

from __future__ import annotations

from collections.abc import Sequence

from gramloop.demo.methods import FREE, MITIGATIONS, ORDINARY, REPLAY, ways
from gramloop.report.stats import Evidence, signed


def advice(found: Sequence[Evidence]) -> str:
    """The first sentence says what to take for each task, the others what replay does and how sure all of it is."""
    chosen: dict[tuple[str, str], list[Evidence]] = {}
    for evidence in found:
        chosen.setdefault((choice(evidence), MITIGATIONS[evidence.run.plan.task]), []).append(evidence)
    parts = [_taken(way, text, each) for (way, text), each in chosen.items() if way]
    nothing = [_task(evidence) for (way, _), each in chosen.items() if not way for evidence in each]
    if nothing:
        parts.append(f"for {_listed(nothing)} nothing is shown to help")
    first = "; ".join(parts)
    return " ".join([f"{first[0].upper()}{first[1:]}.", _about_replay(found), _how_sure(found)])


def choice(evidence: Evidence) -> str:
    """The cheapest way that is shown to help and not told apart from the best; an empty text where none is."""
    way_of = {method: way for way, method in ways(evidence.run.plan.task).items()}
    helping = [each for each in evidence.ranked if way_of[each] != ORDINARY and evidence.helps(each)]
    alike = [each for each in helping if each == helping[0] or not evidence.differ(helping[0], each)]
    cheapest = min(alike, key=lambda method: evidence.run.work(method), default=None)
    return "" if cheapest is None else way_of[cheapest]


def _taken(way: str, text: str, found: Sequence[Evidence]) -> str:
    """The advice for tasks that take the same; ``text`` is what is free for them."""
    what = {FREE: text, REPLAY: "replay"}.get(way, f"{text} with replay")
    tasks = _listed([_task(each) for each in found])
    return f"for {tasks} take {what}: {_gains(way, found)} under shift, {_cost(way, found)}"


def _cost(way: str, found: Sequence[Evidence]) -> str:
    pairs = [(each.run, ways(each.run.plan.task)[way]) for each in found]
    times = sorted(time for run, method in pairs if (time := run.time(method)) is not None)
    span = dict.fromkeys(f"{time:.2f}" for time in times[:1] + times[-1:])
    measured = f" and {' to '.join(span)} times the time" if span else ""
    run, method = pairs[0]
    return f"for {run.work(method):.2f} times the blocks{measured}"


def _gains(way: str, found: Sequence[Evidence]) -> str:
    return _listed([f"{_gain(way, each)} points of {each.run.metric}" for each in found])


def _gain(way: str, evidence: Evidence) -> str:
    method = ways(evidence.run.plan.task)[way]
    (difference,) = evidence.gains[method]
    span = f"[{signed(difference.joint.low, 2)}, {signed(difference.joint.high, 2)}]"
    return f"{signed(evidence.gain(method), 2)} {span}"


def _about_replay(found: Sequence[Evidence]) -> str:
    helped = [each for each in found if each.helps(ways(each.run.plan.task)[REPLAY])]
    words = (
        f"shown to help for {_listed([_task(each) for each in helped])}" if helped else "not shown to help"
    )
    return f"Replay alone is {words} here: {_gains(REPLAY, found)}."


def _how_sure(found: Sequence[Evidence]) -> str:
    drawn = found[0].drawn[0]
    return (
        f"Intervals are over {drawn.units} scenes and hold for all {len(found[0].run.compared)} ways of a task together; "
        "the ways were chosen on other scenes. On your model and data the answer may be another."
    )


def _task(evidence: Evidence) -> str:
    return evidence.run.task.title


def _listed(words: Sequence[str]) -> str:
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last
