"""What a search found: what a candidate does on images that nothing was chosen on, and the choice with its evidence.

A candidate is judged under the families searched, under others, and on clean images. The choice is given in words, as a
table and as the file best.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gramloop import __version__
from gramloop.errors import GramLoopError
from gramloop.evaluate.answer import SHORT
from gramloop.evaluate.plan import AGREEMENT_NOTE
from gramloop.metrics.bootstrap import (
    UNDECIDED,
    Delta,
    Interval,
    VerdictWord,
    Weights,
    cluster_bootstrap,
    image_bootstrap,
    spanning,
    verdict,
    widened,
)
from gramloop.mitigations.stack import (
    Stack,
    replay_alone,
    replay_of,
    stack_json,
    stack_text,
    write_mitigations,
)
from gramloop.replay.config import ReplayConfig
from gramloop.tune.gain import CandidateRow, MeasuredRows, Scoring
from gramloop.tune.schedule import ANY_CHANGE, CLEAN, Split, family
from gramloop.tune.space import NO_EXTRA_COST, candidate_json, describe_candidate
from gramloop.util.table import Column, Table, TableRepr

if TYPE_CHECKING:
    from gramloop.tune.search import CandidateScore, Search, SearchOutcome

HOLDOUT_REPLICATES = 2000  # of the bootstrap over images


@dataclass(frozen=True)
class HoldoutResult:
    """One part of the held-out data: the scores of baseline and candidate, and the gain's intervals."""

    name: str
    images: int
    families: int  # 0 for clean images
    baseline: float
    mitigated: float
    over_families: Interval | None  # None with fewer than two families
    over_images: Interval | None  # None where conditions have different images
    label_free: bool = False  # scores are agreement with the clean prediction

    @property
    def gain(self) -> float:
        """In points, of the unrounded scores."""
        return self.mitigated - self.baseline

    @cached_property
    def interval(self) -> Interval | None:
        """The one that decides: it spans what families and images give, each corrected for few units."""
        return spanning(widened(each) for each in (self.over_families, self.over_images) if each is not None)

    @property
    def verdict(self) -> VerdictWord:
        """Whether it helps or hurts, by that interval."""
        return UNDECIDED if self.interval is None else verdict(self.interval)

    @property
    def changes_only(self) -> bool:
        """Whether it only says how far clean predictions change: without labels, that is no gain and no loss."""
        return self.label_free and self.name == CLEAN

    @property
    def where(self) -> str:
        """Such as "3 searched families" or "clean images"."""
        name = self.name.replace("families", "family") if self.families == 1 else self.name
        return "clean images" if self.name == CLEAN else f"{self.families} {name}"

    def __str__(self) -> str:
        """In words."""
        if self.changes_only:
            return f"clean predictions change by {-self.gain:.2f} points, for better or worse"
        points = "points of agreement with the clean prediction" if self.label_free else "points"
        found = self.interval
        span = [] if found is None else [f"{found.level:.0%} interval [{found.low:+.2f}, {found.high:+.2f}]"]
        return f"{self.gain:+.2f} {points} on {self.where} ({', '.join([*span, self.verdict])})"

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        if self.changes_only:
            return {"images": self.images, "families": 0, "agreement": finite(self.mitigated)}
        return {
            "images": self.images,
            "families": self.families,
            "baseline score": finite(self.baseline),
            "mitigated score": finite(self.mitigated),
            "gain": finite(self.gain),
            "over families": _interval_json(self.over_families),
            "over images": _interval_json(self.over_images),
            "verdict": self.verdict,
        }


def holdout_table(title: str, parts: Mapping[str, Any], notes: Sequence[str] = ()) -> Table:
    """A row for each part of the held-out data, as `HoldoutResult.as_json` writes it, that shows a gain."""
    rows = [
        (
            name,
            part["images"],
            part["baseline score"],
            part["mitigated score"],
            part["gain"],
            deciding_interval(part),
            SHORT.get(part["verdict"], part["verdict"]),
        )
        for name, part in parts.items()
        if "gain" in part
    ]
    columns = (
        Column("held out", kind="text"),
        Column("images"),
        Column("baseline", digits=2),
        Column("mitigated", digits=2),
        Column("gain", digits=2, signed=True),
        Column("interval", "95% interval", "interval", 2),
        Column("verdict", kind="text"),
    )
    return Table(title, columns, rows, tuple(notes), key="verdict")


def deciding_interval(part: Mapping[str, Any]) -> Interval | None:
    """The one that decides, of a stored part of the held-out data."""
    given = [part[key] for key in ("over families", "over images") if part.get(key)]
    made = (
        Interval(part["gain"], each["low"], each["high"], each["level"], units=each["drawn from"])
        for each in given
    )
    return spanning(map(widened, made))


def judge(
    scoring: Scoring, split: Split, measured: MeasuredRows, label_free: bool = False
) -> tuple[HoldoutResult, ...]:
    """The results of one candidate: searched families, other families and clean images, where there are any."""
    found = []
    parts = (("searched families", split.seen), ("other families", split.unseen), (CLEAN, (CLEAN,)))
    for name, families in parts:
        shown = {key: rows for key, rows in measured.items() if family(key) in families and rows}
        if shown:
            found.append(_judge(name, scoring, shown, label_free))
    return tuple(found)


def _judge(name: str, scoring: Scoring, measured: MeasuredRows, label_free: bool) -> HoldoutResult:
    shared = _shared_images(measured)
    kept = measured if shared is None else shared
    deltas = {key: scoring.delta(rows) for key, rows in kept.items()}
    gains: dict[str, list[float]] = {}
    for key, delta in deltas.items():
        every = np.ones((1, len(kept[key])), dtype=np.int64)
        gains.setdefault(family(key), []).append(float(delta(every)[0]))
    baseline, mitigated = (
        float(np.mean([scoring.score([getattr(one, version) for one in rows]) for rows in kept.values()]))
        for version in ("baseline", "candidate")
    )
    return HoldoutResult(
        name,
        min(map(len, kept.values())),
        0 if name == CLEAN else len(gains),
        baseline,
        mitigated,
        cluster_bootstrap(gains) if len(gains) > 1 else None,
        None if shared is None else _over_images(deltas, next(iter(shared.values()))),
        label_free,
    )


def _shared_images(measured: MeasuredRows) -> dict[str, list[CandidateRow]] | None:
    """The images that every condition has, in the order of their ids; None if there are fewer than two."""
    by_id = {key: {one.sample.image_id: one for one in rows} for key, rows in measured.items()}
    common = sorted(set.intersection(*(set(each) for each in by_id.values())))
    return None if len(common) < 2 else {key: [rows[name] for name in common] for key, rows in by_id.items()}


def _over_images(deltas: Mapping[str, Delta], rows: Sequence[CandidateRow]) -> Interval | None:
    """Resampled by image, or by block where neighbours belong together."""
    units = sorted({one.sample.unit for one in rows})
    owner = np.searchsorted(units, [one.sample.unit for one in rows])

    def delta(weights: Weights) -> NDArray[np.float64]:
        mean: NDArray[np.float64] = np.mean([each(weights[:, owner]) for each in deltas.values()], axis=0)
        return mean

    try:
        return image_bootstrap(delta, len(units), replicates=HOLDOUT_REPLICATES)
    except GramLoopError:  # too few images: some draws hold nothing that can be scored
        return None


def _interval_json(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {"low": interval.low, "high": interval.high, "level": interval.level, "drawn from": interval.units}


def finite(value: float) -> float | None:
    """The value, or None where there is none."""
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Tuning(TableRepr):
    """What was chosen, what it does on images not searched, and how it was found."""

    search: Search
    outcome: SearchOutcome
    date: str
    calibration: Path | None = None  # the file of calibration statistics, next to the result

    @property
    def stack(self) -> Stack:
        """The mitigations to use; empty if nothing was chosen."""
        return self.outcome.leader.stack if self.outcome.chosen else ()

    @property
    def mitigations(self) -> str:
        """The same as text, as `gramloop.mitigations.apply` takes it."""
        return stack_text(self.stack)

    @property
    def config(self) -> ReplayConfig:
        """The replay of the choice; ``replays`` is 0 if it has none."""
        return replay_of(self.stack) or ReplayConfig(replays=0)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        search, outcome = self.search, self.outcome
        leader = f"{describe_candidate(outcome.leader.stack)} ({outcome.leader.cost:.2f}x the work)"
        unseen, results = "on images that the search has not seen", _in_words(outcome.holdout)
        if outcome.chosen:
            sentences = [f"Chosen: {leader}. {unseen.capitalize()}: {results}."]
        else:
            combined = " or their combinations" if any(rung.joining for rung in search.schedule.rungs) else ""
            sentences = [
                f"{search.nothing.capitalize()}: none of {len(search.candidates)} candidates{combined} beat it beyond "
                f"noise. The nearest, {leader}, {unseen}: {results}."
            ]
        if outcome.free is not None:
            also = "Also at" if outcome.leader.cost <= NO_EXTRA_COST else "At"
            name = describe_candidate(outcome.free.stack)
            sentences.append(f"{also} no extra cost, {name}: {_in_words(outcome.free_holdout)}.")
        if search.workload.label_free:
            sentences.append(f"Without labels, {AGREEMENT_NOTE}.")
        return " ".join(sentences)

    def _table(self) -> Table:
        title = self.mitigations or "the baseline: nothing was chosen"
        parts = {part.name: part.as_json() for part in self.outcome.holdout}
        return holdout_table(f"Chosen: {title}", parts, [self.sentence])

    def __str__(self) -> str:
        return self.sentence

    def about(self) -> dict[str, Any]:
        """What the file of the choice says about it: verdict, effort, data and model; plain values."""
        schedule, outcome = self.search.schedule, self.outcome
        left_out = dict((*self.search.offered.left_out, *outcome.refused))
        free = None
        if outcome.free is not None:
            unseen = {part.name: part.as_json() for part in outcome.free_holdout}
            free = {**_candidate(outcome.free), "cost": outcome.free.cost, "unseen images": unseen}
        return {
            "found by": f"gramloop tune {__version__}",
            "date": self.date,
            "verdict": self.sentence,
            "cost": outcome.leader.cost,
            "unseen images": {part.name: part.as_json() for part in outcome.holdout},
            "at no extra cost": free,
            "tried": {
                "candidates": len(self.search.candidates),
                "of": schedule.offered,
                "predictions": outcome.predictions,
                "budget": schedule.budget,
                "rungs": [[rung.candidates, rung.cells] for rung in schedule.rungs],
                "excluded images": len(outcome.failures),
                **({"left out": left_out} if left_out else {}),
            },
            "finalists": [_finalist(one, self.search.workload.label_free) for one in outcome.finalists],
            "nearest": None if outcome.chosen else candidate_json(outcome.leader.stack),
            "split": self.search.split.as_json(),
            "task": self.search.workload.task,
            "subject": dict(self.search.plan["subject"]),
            "plan": self.search.workload.hash,
        }

    def write(self, path: Path) -> None:
        """Store the choice with its evidence, as evaluate, predict and apply take it, and attach if it is a replay."""
        uses = any(each.stage in ("pixels", "features") for each in self.stack)
        write_mitigations(path, self.stack, self.calibration if uses else None, self.about())


def _in_words(results: Sequence[HoldoutResult]) -> str:
    return "; ".join(map(str, results))


def _candidate(one: CandidateScore) -> dict[str, Any]:
    config = replay_alone(one.stack)
    return stack_json(one.stack) if config is None else {"replay": config.as_json()}


def _finalist(one: CandidateScore, label_free: bool) -> dict[str, Any]:
    estimate = one.estimate
    numbers = {"gain": estimate.gain, "error": estimate.error}
    numbers |= {"clean change" if label_free else "clean gain": estimate.clean, "cost": one.cost}
    return {**_candidate(one), **{name: finite(value) for name, value in numbers.items()}}


def describe_search(search: Search) -> str:
    """What will be run, in a few lines."""
    schedule, split, nothing = search.schedule, search.split, search.nothing
    tried = f"{schedule.candidates} candidates"
    if schedule.candidates < schedule.offered:
        tried += f", as many as the budget can compare of {schedule.offered}"
    lines = [f"budget {schedule.budget} predictions, {schedule.predictions} planned; {tried}, and {nothing}"]
    lines += [f"left out: {text}: {reason}" for text, reason in search.offered.left_out]
    if schedule.calibration:
        lines.append(f"calibration: {schedule.calibration} clean images of the search, without labels")
    for number, rung in enumerate(schedule.rungs, 1):
        joining = f", and up to {rung.joining} combinations of winners" if rung.joining else ""
        cost = rung.predictions + schedule.baseline * rung.fresh
        lines.append(
            f"rung {number}: {rung.candidates} candidates x {rung.cells} images under a condition{joining} "
            f"({cost} predictions)"
        )
    free = " and the best without extra cost" if schedule.judged > 1 else ""
    lines += [
        f"decision: {schedule.finalists} finalists and {nothing} on {schedule.decide.images} other images x "
        f"{schedule.decide.conditions} conditions ({schedule.decide_predictions} predictions)",
        f"verdict: the best{free} on {schedule.verdict.images} other images x {schedule.verdict.conditions} "
        f"conditions ({schedule.verdict_predictions} predictions)",
        f"families searched: {', '.join(split.seen)}",
        f"families kept for the verdict: {', '.join(split.unseen) or 'none'}",
    ]
    if CLEAN not in split.images["search"]:
        lines.append("the clean images are not known, so they are not protected")
    if search.workload.label_free:
        limit = f"by at most {search.tolerance:g} points" if search.tolerance < ANY_CHANGE else "by anything"
        lines.append(f"without labels: {AGREEMENT_NOTE}; clean predictions may change {limit}")
    return "\n".join(lines)
