"""Tuning from Python: what makes this model better on these data under shift, at what cost, and whether anything does."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from gramloop import __version__
from gramloop.data.records import DataSet, LabelledImage, Record
from gramloop.mitigations.stack import replay_alone, replay_of, stack_json, stack_text, write_mitigations
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.prediction import Prediction
from gramloop.tasks.predictor import Predictor
from gramloop.tune.search.calibration import find_source
from gramloop.tune.search.journal import Journal, check_folder, plan_hash, read_search_plan
from gramloop.tune.search.options import Options
from gramloop.tune.search.plan import Search, plan_search
from gramloop.tune.search.rounds import Judged, SearchOutcome, Standing, run_search
from gramloop.tune.search.space import Space
from gramloop.tune.search.stacks import Stack, stack_as_json
from gramloop.tune.search.subject import Subject, SubjectOptions, subject_of
from gramloop.tune.search.verdict import parts_table
from gramloop.tune.search.words import verdict_in_words
from gramloop.tune.search.workers import start_workers
from gramloop.util.files import locked
from gramloop.util.table import Table, TableRepr

RESULT, SOURCE = "found.json", "source.safetensors"


@dataclass(frozen=True)
class Tuning(TableRepr):
    """What was chosen, what it does on unseen images, and how it was found."""

    search: Search
    outcome: SearchOutcome
    date: str
    source: Path | None = None  # the file about ordinary images, beside the result

    @property
    def stack(self) -> Stack:
        """The mitigations to use; none where nothing was chosen."""
        return self.outcome.leader.stack if self.outcome.chosen else ()

    @property
    def mitigations(self) -> str:
        """The same as text, as `gramloop.mitigations.apply` takes it."""
        return stack_text(self.stack)

    @property
    def config(self) -> ReplayConfig:
        """The replay of the choice; ``replays`` is 0 where it has none."""
        return replay_of(self.stack) or ReplayConfig(replays=0)

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        return verdict_in_words(self.search, self.outcome)

    def _table(self) -> Table:
        title = self.mitigations or "the plain model: nothing was chosen"
        return parts_table(self.outcome.parts, f"Chosen: {title}", [self.sentence])

    def __str__(self) -> str:
        return self.sentence

    def about(self) -> dict[str, Any]:
        """What the settings file tells: verdict, effort, data and model; plain values."""
        schedule, outcome = self.search.schedule, self.outcome
        label_free = self.search.subject.label_free
        left_out = dict((*self.search.offer.left_out, *outcome.refused))
        return {
            "found by": f"gramloop tune {__version__}",
            "date": self.date,
            "verdict": self.sentence,
            "cost": outcome.leader.cost,
            "unseen images": {part.name: part.as_json() for part in outcome.parts},
            "at no extra cost": None if outcome.free is None else _free(outcome.free),
            "tried": {
                "candidates": len(self.search.candidates),
                "of": schedule.offered,
                "predictions": outcome.predictions,
                "budget": schedule.budget,
                "rungs": [[rung.candidates, rung.cells] for rung in schedule.rungs],
                "excluded images": len(outcome.failures),
                **({"left out": left_out} if left_out else {}),
            },
            "finalists": [_finalist(one, label_free) for one in outcome.finalists],
            "nearest": None if outcome.chosen else stack_as_json(outcome.leader.stack),
            "split": self.search.split.as_json(),
            "task": self.search.subject.task,
            "subject": dict(self.search.subject.about),
            "plan": plan_hash(self.search.plan()),
        }

    def write(self, path: Path) -> None:
        """Store the choice with its evidence, as evaluate, predict and apply take it, and attach where it is a replay."""
        uses = any(each.stage in ("pixels", "features") for each in self.stack)
        write_mitigations(path, self.stack, self.source if uses else None, self.about())


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
    """Find mitigations within a budget of predictions, and judge them on images and shifts not searched.

    Args:
        predictor: a predictor, a function that makes one, or a `Subject`.
        data: records by condition, or a clean `DataSet` with ``conditions=[Condition("fog", 3), …]``.
        space: what to choose from; cheap mitigations and some replays where nothing is said.
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
    search = plan_search(described, space, budget, options)
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
    with nullcontext() if folder is None else locked(folder), TemporaryDirectory() as scratch:
        journal = Journal(plan, folder)
        if folder is not None:
            plan = read_search_plan(folder) or plan
        try:
            with start_workers(search.subject, workers) as processes:
                source = find_source(search, journal, processes, (folder or Path(scratch)) / SOURCE)
                advance(search.schedule.calibration)
                place = None if source is None else str(source)
                outcome = run_search(search, journal, processes, advance, place)
        finally:
            journal.close()
        tuning = Tuning(search, outcome, plan["begun"], None if folder is None else source)
        if folder is not None:
            tuning.write(folder / RESULT)
    return tuning


def _free(judged: Judged) -> dict[str, Any]:
    unseen = {part.name: part.as_json() for part in judged.parts}
    return {**_candidate(judged.standing), "cost": judged.standing.cost, "unseen images": unseen}


def _candidate(one: Standing) -> dict[str, Any]:
    config = replay_alone(one.stack)
    return stack_json(one.stack) if config is None else {"replay": config.as_json()}


def _finalist(one: Standing, label_free: bool) -> dict[str, Any]:
    numbers = {
        "gain": one.worth.gain,
        "error": one.worth.error,
        "clean change" if label_free else "clean gain": one.worth.clean,
        "cost": one.cost,
    }
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    return {**_candidate(one), **finite}
