"""Tuning from Python: where, how often and how strongly to replay on this model and these data, and whether at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Unpack

from gramloop import __version__
from gramloop.core.config import ReplayConfig
from gramloop.core.settings import describe_replay, write_replay
from gramloop.data.labelled import LabelledImage
from gramloop.data.records import DataSet, Record
from gramloop.evaluate.truth import KNOWN
from gramloop.io.lock import locked
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tune.search.journal import Journal, check_folder, plan_hash, read_search_plan
from gramloop.tune.search.plan import Options, Search, plan_search
from gramloop.tune.search.rounds import SearchOutcome, Standing, run_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.subject import Subject, SubjectOptions, subject_of
from gramloop.tune.search.verdict import JudgedPart
from gramloop.tune.search.workers import start_workers
from gramloop.tune.search.worth import CLEAN

RESULT = "replay.json"


@dataclass(frozen=True)
class Tuning:
    """The setting that was found, what it does on unseen images, and how it was found."""

    search: Search
    outcome: SearchOutcome
    date: str

    @property
    def config(self) -> ReplayConfig:
        """The choice; ``replays`` is 0 where no replay was chosen."""
        return self.outcome.leader.config if self.outcome.chosen else ReplayConfig(replays=0)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        leader = describe_replay(self.outcome.leader.config)
        judged = "; ".join(_part_in_words(part) for part in self.outcome.parts)
        known = f" {KNOWN}" if self.search.subject.label_free else ""
        if self.outcome.chosen:
            return f"Chosen: {leader}. On images that the search has not seen: {judged}.{known}"
        return (
            f"No replay: none of {len(self.search.candidates)} candidates beat it beyond noise. The nearest, "
            f"{leader}, on images that the search has not seen: {judged}.{known}"
        )

    def __str__(self) -> str:
        return self.sentence

    def about(self) -> dict[str, Any]:
        """What the settings file tells: verdict, effort, data and model; plain values."""
        schedule = self.search.schedule
        return {
            "found by": f"gramloop tune {__version__}",
            "date": self.date,
            "verdict": self.sentence,
            "unseen images": {part.name: part.as_json() for part in self.outcome.parts},
            "tried": {
                "candidates": len(self.search.candidates),
                "of": schedule.offered,
                "predictions": self.outcome.predictions,
                "budget": schedule.budget,
                "rungs": [[rung.candidates, rung.cells] for rung in schedule.rungs],
                "excluded images": len(self.outcome.failures),
            },
            "finalists": [_finalist(one, self.search.subject.label_free) for one in self.outcome.finalists],
            "nearest": None if self.outcome.chosen else self.outcome.leader.config.as_json(),
            "split": self.search.split.as_json(),
            "task": self.search.subject.task,
            "subject": dict(self.search.subject.about),
            "plan": plan_hash(self.search.plan()),
        }

    def write(self, path: Path) -> None:
        """Store the setting with its evidence, as attach, evaluate and predict take it."""
        write_replay(path, self.config, self.about())


def tune(
    predictor: Subject | Predictor[Prediction] | Callable[[], Predictor[Prediction]],
    data: Mapping[str, Sequence[Record | LabelledImage]] | DataSet | None = None,
    space: Space | None = None,
    budget: int = 2000,
    *,
    options: Options | None = None,
    out: Path | str | None = None,
    workers: int | None = 1,
    advance: Callable[[int], None] = lambda _: None,
    **subject: Unpack[SubjectOptions],
) -> Tuning:
    """Find a replay setting within a budget of predictions, and judge it on images and shifts not searched.

    Args:
        predictor: a predictor, a function that makes one, or a `Subject`.
        data: records by condition, or a clean `DataSet` with ``conditions=[Condition("fog", 3), …]``.
        space: what to choose from; `Space.default` of the backbone's depth where nothing is said.
        budget: image predictions, everything included; never exceeded.
        options: how candidates are compared.
        out: a folder for plan, trials and result; the same call goes on there after an interruption.
        workers: processes; None takes as many as the cores hold.
        advance: told how many predictions were made or found.
        subject: the other arguments of `subject_of`: conditions, categories, …
    """
    if isinstance(predictor, Subject):
        described = predictor
    else:
        described = subject_of(predictor, data if data is not None else {}, **subject)
    search = plan_search(
        described, space or Space.default(described.depth, taps=described.taps), budget, options
    )
    return run(search, out, workers=workers, advance=advance)


def run(
    search: Search,
    out: Path | str | None = None,
    *,
    workers: int | None = 1,
    advance: Callable[[int], None] = lambda _: None,
) -> Tuning:
    """Run a planned search, or go on with it in its folder, and store the result there."""
    folder = None if out is None else Path(out)
    plan = {**search.plan(), "begun": datetime.now(UTC).date().isoformat()}
    if folder is not None:
        check_folder(folder, plan)  # what is refused stays untouched
    with nullcontext() if folder is None else locked(folder):
        journal = Journal(plan, folder)
        if folder is not None:
            plan = read_search_plan(folder) or plan
        try:
            with start_workers(search.subject, workers) as processes:
                outcome = run_search(search, journal, processes, advance)
        finally:
            journal.close()
        tuning = Tuning(search, outcome, plan["begun"])
        if folder is not None:
            tuning.write(folder / RESULT)
    return tuning


def counted(part: JudgedPart) -> str:
    """A part with its number of families, such as "3 searched families"."""
    name = part.name.replace("families", "family") if part.families == 1 else part.name
    return f"{part.families} {name}"


def _part_in_words(part: JudgedPart) -> str:
    if part.changes_only:
        return f"clean predictions change by {-part.gain:.2f} points, for better or worse"
    where = "clean images" if part.name == CLEAN else counted(part)
    interval = part.widest
    span = f" [{interval.low:+.2f}, {interval.high:+.2f}]" if interval is not None else ""
    points = "points of agreement with the clean prediction" if part.label_free else "points"
    return f"{part.gain:+.2f}{span} {points} on {where} ({part.word})"


def _finalist(one: Standing, label_free: bool) -> dict[str, Any]:
    numbers = {
        "gain": one.worth.gain,
        "error": one.worth.error,
        "clean change" if label_free else "clean gain": one.worth.clean,
        "cost": one.cost,
    }
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {"replay": one.config.as_json(), **finite}
