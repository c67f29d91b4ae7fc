"""What a search found: the choice with its evidence, in words, as tables and as the file best.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gramloop import __version__
from gramloop.evaluate.plan import AGREEMENT_NOTE
from gramloop.mitigations.stack import (
    Stack,
    replay_alone,
    replay_of,
    stack_json,
    stack_text,
    write_mitigations,
)
from gramloop.replay.config import ReplayConfig
from gramloop.tune.measurements import ANY_CHANGE, Search
from gramloop.tune.search import CandidateScore, SearchOutcome
from gramloop.tune.space import NO_EXTRA_COST, candidate_json, describe_candidate
from gramloop.tune.split import CLEAN
from gramloop.tune.verdict import HoldoutResult, finite, holdout_table
from gramloop.util.table import Cell, Table, TableRepr


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
            combined = " or their combinations" if search.combines else ""
            sentences = [
                f"{search.nothing.capitalize()}: none of {len(search.candidates)} candidates{combined} beat it beyond "
                f"noise. The nearest, {leader}, {unseen}: {results}."
            ]
        if outcome.free is not None:
            also = "Also at" if outcome.leader.cost <= NO_EXTRA_COST else "At"
            name = describe_candidate(outcome.free.stack)
            sentences.append(f"{also} no extra cost, {name}: {_in_words(outcome.free_holdout)}.")
        if search.subject.label_free:
            sentences.append(f"Without labels, {AGREEMENT_NOTE}.")
        return " ".join(sentences)

    def _table(self) -> Table:
        title = self.mitigations or "the baseline: nothing was chosen"
        return holdout_table(self.outcome.holdout, f"Chosen: {title}", [self.sentence])

    def __str__(self) -> str:
        return self.sentence

    def tables(self) -> list[Table]:
        """The decision and the verdict."""
        outcome = self.outcome
        label_free = self.search.subject.label_free
        changed = "clean changes" if label_free else "clean"
        columns = ("candidate", "agreement" if label_free else "gain", "± s.e.", changed, "cost", "")
        rows: list[tuple[Cell, ...]] = [
            (*_finalist_row(one, label_free), self._mark(one)) for one in outcome.finalists
        ]
        rows.append((self.search.nothing, "0.00", None, "0.00", "1.00x", "" if outcome.chosen else "chosen"))
        images = self.search.schedule.decide.images
        decision = Table(f"Decision, on {images} images not searched", columns, tuple(rows))
        what = "the choice" if outcome.chosen else "the nearest candidate"
        judged = [(what, outcome.holdout)]
        if outcome.free is not None:
            judged.append(
                (f"{describe_candidate(outcome.free.stack)}, at no extra cost", outcome.free_holdout)
            )
        titles = "Verdict on {}, 95% intervals"
        return [decision, *(holdout_table(results, titles.format(name)) for name, results in judged)]

    def _mark(self, one: CandidateScore) -> str:
        return "chosen" if self.outcome.chosen and one is self.outcome.leader else ""

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
            "finalists": [_finalist(one, self.search.subject.label_free) for one in outcome.finalists],
            "nearest": None if outcome.chosen else candidate_json(outcome.leader.stack),
            "split": self.search.split.as_json(),
            "task": self.search.subject.task,
            "subject": dict(self.search.plan["subject"]),
            "plan": self.search.subject.hash,
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


def _finalist_row(one: CandidateScore, label_free: bool) -> tuple[str, str, str, str, str]:
    estimate = one.estimate
    clean = f"{-estimate.clean:.2f}" if label_free else f"{estimate.clean:+.2f}"
    numbers = f"{estimate.gain:+.2f}", f"{estimate.error:.2f}", clean, f"{one.cost:.2f}x"
    return (describe_candidate(one.stack), *numbers)


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
    if search.subject.label_free:
        limit = f"by at most {search.tolerance:g} points" if search.tolerance < ANY_CHANGE else "by anything"
        lines.append(f"without labels: {AGREEMENT_NOTE}; clean predictions may change {limit}")
    return "\n".join(lines)
