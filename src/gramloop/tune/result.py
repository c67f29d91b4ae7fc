"""What a search found: the choice with its evidence, as an answer in words, as tables and as the file best.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gramloop import __version__
from gramloop.evaluate.answer import (
    SHORT,
    Answer,
    MethodGain,
    clean_words,
    deploy_lines,
    metric_words,
    recommend,
    short_path,
)
from gramloop.evaluate.plan import AGREEMENT, AGREEMENT_NOTE
from gramloop.evaluate.store import PLAN
from gramloop.metrics.bootstrap import Interval
from gramloop.mitigations.stack import (
    Replay,
    Stack,
    read_mitigations,
    replay_alone,
    replay_of,
    stack_json,
    stack_text,
    write_mitigations,
)
from gramloop.replay.config import ReplayConfig
from gramloop.tasks.base import get_task
from gramloop.tune.evidence import finite
from gramloop.tune.schedule import CLEAN
from gramloop.util.json_files import read_json
from gramloop.util.table import Column, Table, TableRepr

if TYPE_CHECKING:
    from gramloop.tune.planning import Search
    from gramloop.tune.search import CandidateScore, SearchOutcome

RESULT = "best.json"
_PARTS = {  # of the held-out data, the one that decides first
    "other families": "under shifts that the search did not use",
    "searched families": "under the shifts of the search",
}


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
    def answer(self) -> Answer:
        """What to use, by the images and, where some were kept, the shifts that the search did not use."""
        return found_answer(self.stack, self.about())

    def _table(self) -> Table:
        return self.answer._table()

    def about(self) -> dict[str, Any]:
        """What the file of the choice says about it: verdict, effort, data and model; plain values."""
        search, outcome, schedule = self.search, self.outcome, self.search.schedule
        left_out = dict((*search.offered.left_out, *outcome.refused))
        free = outcome.free
        found = {
            "found by": f"gramloop tune {__version__}",
            "date": self.date,
            "cost": outcome.leader.cost,
            "unseen images": outcome.leader.holdout,
            "at no extra cost": free
            and {**stack_json(free.stack), "cost": free.cost, "unseen images": free.holdout},
            "tried": {
                "candidates": len(search.candidates),
                "of": schedule.offered,
                "predictions": outcome.predictions,
                "budget": schedule.budget,
                "rungs": [[rung.candidates, rung.cells] for rung in schedule.rungs],
                "excluded images": len(outcome.failures),
                **({"left out": left_out} if left_out else {}),
            },
            "finalists": [_finalist(one, search.workload.label_free) for one in outcome.finalists],
            "nearest": None if outcome.chosen else stack_json(outcome.leader.stack),
            "split": search.split.as_json(),
            "task": search.workload.task,
            "subject": dict(search.plan["subject"]),
            "plan": search.workload.hash,
        }
        return {"verdict": _sentence(self.stack, found, search.too_few), **found}

    def write(self, path: Path) -> None:
        """Store the choice with its evidence, as evaluate, predict and apply take it, and attach if it is a replay."""
        uses = any(each.stage in ("pixels", "features") for each in self.stack)
        write_mitigations(path, self.stack, self.calibration if uses else None, self.about())


def _finalist(one: CandidateScore, label_free: bool) -> dict[str, Any]:
    estimate = one.estimate
    numbers = {"gain": estimate.gain, "error": estimate.error}
    numbers |= {"clean change" if label_free else "clean gain": estimate.clean, "cost": one.cost}
    return {**stack_json(one.stack), **{name: finite(value) for name, value in numbers.items()}}


# what a file says


def read_evidence(folder: Path) -> dict[str, Any]:
    """What the result of a search says about its choice."""
    return dict(read_json(folder / RESULT, "a choice of gramloop tune")["about"])


def read_asked(folder: Path) -> dict[str, str]:
    """How the model, the data and the command of a search were given; a call from Python has no command."""
    file = folder / PLAN
    return dict(read_json(file, "a plan written by gramloop tune").get("asked", {})) if file.is_file() else {}


def stored_answer(folder: Path) -> Answer:
    """The answer of a finished search, with the lines that deploy it."""
    (stack, _), about = read_mitigations(folder / RESULT), read_evidence(folder)
    model, alone = read_asked(folder).get("model", ""), replay_alone(stack) is not None
    lines = deploy_lines(model, about["task"], short_path(folder / RESULT), alone) if stack else ()
    return found_answer(stack, about, folder.name, tuple(lines))


def found_answer(
    stack: Stack, about: Mapping[str, Any], name: str = "", deploy: tuple[str, ...] = ()
) -> Answer:
    """The answer of a search from what its file says, with the lines that use the choice.

    ``name`` is that of the search, where its images have none.
    """
    unseen, tried, free = about["unseen images"], about["tried"], about["at no extra cost"]
    part = _deciding_part(about)
    gains = (_leader(stack, about), *([_gain(_name(free), part, free)] if free else []))
    notes = [
        f"Measured on {unseen[part]['images']} images that the search did not use; {tried['predictions']} "
        "predictions in all."
    ]
    if _label_free(about):
        agreement = unseen.get(CLEAN, {}).get("agreement")
        changed = "" if agreement is None else f"; clean predictions change by {100 - agreement:.2f} points"
        notes.append(f"Without labels, {AGREEMENT_NOTE}{changed}.")
    name = about["subject"].get("suite", name)
    return Answer(name, about["verdict"], _metric(about), stack_text(stack), gains, deploy, tuple(notes))


def _label_free(about: Mapping[str, Any]) -> bool:
    return "clean change" in about["finalists"][0]


def _metric(about: Mapping[str, Any]) -> str:
    metric = get_task(about["task"]).metrics[0]
    return f"{AGREEMENT} {metric}" if _label_free(about) else metric


def _deciding_part(about: Mapping[str, Any]) -> str:
    return next(part for part in _PARTS if part in about["unseen images"])


def _leader(stack: Stack, about: Mapping[str, Any]) -> MethodGain:
    return _gain(stack_text(stack) or _name(about["nearest"]), _deciding_part(about), about)


def _name(content: Mapping[str, Any]) -> str:
    """The mitigations of a stored candidate as text."""
    replay = [Replay(ReplayConfig.from_json(content["replay"]))] if "replay" in content else []
    return "+".join(filter(None, [content.get("mitigations"), stack_text(replay)]))


def _gain(name: str, part: str, about: Mapping[str, Any]) -> MethodGain:
    found, clean = about["unseen images"][part], about["unseen images"].get(CLEAN, {})
    on_clean = (clean["baseline score"], clean["mitigated score"]) if "baseline score" in clean else None
    scores = found["mitigated score"], found["baseline score"]
    return MethodGain(name, *scores, _interval(found), about["cost"], clean=on_clean)


def _interval(part: Mapping[str, Any]) -> Interval | None:
    ends = part["95% interval"]
    return None if ends is None else Interval(part["gain"], *ends)


def _sentence(stack: Stack, about: Mapping[str, Any], too_few: str) -> str:
    leader, metric, scope = _leader(stack, about), _metric(about), _PARTS[_deciding_part(about)]
    if stack and leader.verdict == "helps":
        return recommend(leader, metric, scope)
    cost = f"at {leader.cost} of the baseline{clean_words(leader)}"
    if stack:
        does = "lowers" if leader.verdict == "hurts" else "does not significantly change"
        return (
            f"{leader.method} won the search, but {does} {metric_words(metric)} {scope} ({leader.points}), {cost}. "
            "Judge it on more images before you deploy it."
        )
    tried = about["tried"]["candidates"]
    why = too_few or f"none of {tried} candidates improves {metric_words(metric)} beyond noise"
    return f"Use the model as it is: {why}. The closest is {leader.method} ({leader.points} {scope}), {cost}."


def evidence_tables(about: Mapping[str, Any]) -> tuple[Table, Table]:
    """The gains on images that the search did not use, and the finalists."""
    held_out = [
        (
            name,
            *(part[key] for key in ("images", "baseline score", "mitigated score", "gain")),
            _interval(part),
            SHORT.get(part["verdict"], part["verdict"]),
        )
        for name, part in about["unseen images"].items()
        if "gain" in part
    ]
    finalists = [
        (_name(one), one["gain"], one["error"], one.get("clean gain", one.get("clean change")), one["cost"])
        for one in about["finalists"]
    ]
    return (
        Table("Images that the search did not use", _HELD_OUT, held_out, key="verdict"),
        Table("Finalists, on the images of the decision", _FINALISTS, finalists, key="finalists"),
    )


_HELD_OUT = (
    Column("held out", kind="text"),
    Column("images"),
    Column("baseline", digits=2),
    Column("mitigated", digits=2),
    Column("gain", digits=2, signed=True),
    Column("interval", "95% interval", "interval", 2),
    Column("verdict", kind="text"),
)
_FINALISTS = (
    Column("candidate", kind="text"),
    Column("gain", digits=2, signed=True),
    Column("error", "± s.e.", digits=2),
    Column("clean", "Δ clean", digits=2, signed=True),
    Column("cost", "work", digits=2, unit="×"),
)
