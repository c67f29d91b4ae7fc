"""Opening stored evaluations: which are there, what is complete, and which may be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.evaluate.cost import COSTS, stored_costs
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT_NOTE, Plan, condition_of
from gramloop.evaluate.results import score_condition
from gramloop.evaluate.store import (
    PLAN,
    Store,
    StoredCondition,
    plan_in,
    read_condition,
)
from gramloop.report.run import ConditionResults, Run
from gramloop.tasks.loading import INPUT_SIZE
from gramloop.util.processes import in_order, worker_count
from gramloop.util.progress import tracked

_POST_DRIFT = "post_drift"  # the column with the final drift of the accepted states
_MANY = 20_000  # predictions: fewer are read before processes have started
_MOST_WORKERS = 4  # by default; each holds a whole condition


@dataclass(frozen=True)
class LoadedRuns:
    """All runs of a report; those of one group were made alike, so that their rows may be compared."""

    runs: tuple[Run, ...]
    groups: tuple[tuple[Run, ...], ...]
    warnings: tuple[str, ...] = ()


def load_runs(folders: Sequence[Path], workers: int | None = None) -> LoadedRuns:
    """Read results folders.

    Args:
        folders: Folders of ``gramloop evaluate``; a folder of results folders stands for those inside.
        workers: Processes; as many as are of use by default.
    """
    places = find_results(folders)
    plans = [plan_in(place) for place in places]
    first: dict[object, Path] = {}
    for place, plan in zip(places, plans, strict=True):
        key = plan.hash, plan.methods
        if key in first:
            raise GramLoopError(f"{first[key]} and {place} hold the same plan, {plan.hash}; give one of them")
        first[key] = place
    many = report_workers(plans, workers)
    named = zip(_names(places, plans), places, plans, strict=True)
    runs = tuple(_read(name, place, plan, many) for name, place, plan in named)
    groups, reasons = _grouped(runs)
    return LoadedRuns(runs, groups, (*reasons, *(text for run in runs for text in _warnings(run))))


def find_results(folders: Sequence[Path]) -> list[Path]:
    """Every folder that holds a plan, in the order given."""
    found: list[Path] = []
    for folder in folders:
        here = results_in(folder)
        if not here:
            raise GramLoopError(
                f"{folder} holds no results of gramloop evaluate; it, or folders in it, would have a {PLAN}"
            )
        found += here
    return found


def results_in(folder: Path) -> list[Path]:
    """The evaluations of a folder: itself, or those directly inside; none where it is something else."""
    if (folder / PLAN).is_file():
        return [folder]
    return sorted(path.parent for path in folder.glob(f"*/{PLAN}")) if folder.is_dir() else []


def report_workers(plans: Sequence[Plan], asked: int | None = None) -> int:
    """The processes asked for; otherwise as many as there are cores, up to 4, for large results."""
    if asked is not None:
        return worker_count(asked)
    large = sum(plan.images * len(plan.methods) for plan in plans) >= _MANY
    return min(worker_count(None), _MOST_WORKERS) if large else 1


def _names(places: Sequence[Path], plans: Sequence[Plan]) -> list[str]:
    """The suite; with its task, then its folder, then its plan, where that does not tell runs apart."""
    tries = []
    for place, plan in zip(places, plans, strict=True):
        task = f"{plan.suite} {plan.task}"
        tries.append((plan.suite, task, f"{task} ({place.name})", f"{task} ({plan.hash})"))
    names = []
    for own in tries:
        others = [each for each in tries if each is not own]
        free = (name for rank, name in enumerate(own) if name not in [each[rank] for each in others])
        names.append(next(free, own[-1]))
    return names


def _read(name: str, folder: Path, plan: Plan, workers: int) -> Run:
    calls = [(Store(folder, plan), key) for key in plan.conditions]
    read = tracked(in_order(_read_condition, calls, workers), f"reading {name}", len(calls))
    found = dict(zip(plan.conditions, read, strict=True))
    results = tuple(each for each in found.values() if not isinstance(each, str))
    missing = {key: each for key, each in found.items() if isinstance(each, str)}
    times = {each.method: each.seconds for each in stored_costs(folder / COSTS)}
    return Run(name, folder, plan, results, missing, times)


def _read_condition(store: Store[Plan], key: str) -> ConditionResults | str:
    """One condition; or what of it is missing."""
    parts = store.plan.parts_of(key)
    missing, damage = store.survey(parts)
    if not missing and (stored := read_condition(store, key)) is not None:
        return measure_condition(store.plan, stored)
    total, lacking = (sum(len(part.methods) for part in some) for some in (parts, missing))
    return "; ".join([f"{total - lacking} of {total} units are stored", *damage])


# one condition


def measure_condition(plan: Plan, stored: StoredCondition) -> ConditionResults:
    """Everything a report needs of one condition, from all its units."""
    scored, task = score_condition(plan, stored), plan.load_task()
    found = ConditionResults(
        condition_of(stored.key),
        scored.images,
        scored.scores,
        scored.failures,
        blocks={name: float(sum(each.blocks)) for name, each in stored.methods.items()},
        ids=tuple(stored.image_ids),
    )
    if not scored.images:
        return found
    by_class = {name: task.class_scores(each.rows, plan.classes) for name, each in stored.methods.items()}
    return replace(
        found,
        classes={name: each.scores for name, each in by_class.items()},
        labelled=next(iter(by_class.values())).labelled,
        drift=_drift(stored),
    )


def _drift(stored: StoredCondition) -> dict[str, NDArray[np.float64]]:
    """The final drift of every image by method, where it was measured."""
    measured = {name: each.table[_POST_DRIFT].drop_null() for name, each in stored.methods.items()}
    return {name: values.to_numpy().astype(np.float64) for name, values in measured.items() if len(values)}


# runs next to each other


def incomparable(first: Run, second: Run) -> str:
    """Why the numbers of two runs cannot be compared; an empty string if they can."""
    one, two = first.plan, second.plan
    settings = {method.name: method for method in one.methods}
    changed = [each.name for each in two.methods if settings.get(each.name, each) != each]
    values = [{**plan.versions, **_machine(plan)} for plan in (one, two)]
    for name in dict.fromkeys((*values[0], *values[1])):
        here, there = (each.get(name, "none") for each in values)
        if here != there:
            return f"they were made with {name} {here} and {there}"
    if _weights(one, two) != _weights(two, one):
        return "they are of models with other weights"
    if one.task == two.task and one.model.sizes != two.model.sizes:
        return "images were given to the model in other sizes"
    if (one.suite, one.task) == (two.suite, two.task) and one.data.contents != two.data.contents:
        return "they are of other images"
    if one.truth != two.truth:
        return f"one is compared with {first.truth_words}, the other with {second.truth_words}"
    return f"the method {changed[0]} has other settings in each" if changed else ""


def _machine(plan: Plan) -> dict[str, object]:
    model = plan.model
    return {"batch": plan.batch, "depth": model.depth, "device": model.device, "threads": model.threads}


def _weights(plan: Plan, other: Plan) -> dict[str, str]:
    """Checksums that must agree: of all files for one task, without the head and its input size between tasks."""
    own = () if plan.task == other.task else ("head", INPUT_SIZE)
    return {name: value for name, value in plan.model.sha256.items() if name not in own}


def _grouped(runs: Sequence[Run]) -> tuple[tuple[tuple[Run, ...], ...], list[str]]:
    groups: list[list[Run]] = []
    reasons: list[str] = []
    for run in runs:
        home = next((group for group in groups if not any(incomparable(one, run) for one in group)), None)
        if home is not None:
            home.append(run)
            continue
        if groups:
            other, why = next((one, why) for one in groups[0] if (why := incomparable(one, run)))
            reasons.append(
                f"{other.name} and {run.name} cannot be compared: {why}. "
                "They are shown separately, and nothing is averaged over both."
            )
        groups.append([run])
    return tuple(tuple(group) for group in groups), reasons


def _warnings(run: Run) -> list[str]:
    sentences = [f"{run.name} was run without labels: {AGREEMENT_NOTE}."] if run.plan.label_free else []
    if run.missing:
        listed = _some([f"{key} ({why})" for key, why in run.missing.items()], 6)
        sentences.append(
            f"{run.name} is not complete, so it has no mean: {len(run.missing)} of "
            f"{len(run.plan.conditions)} conditions are missing: {listed}."
        )
    if run.unscored:
        sentences.append(f"{run.name} has no score for {_some(run.unscored, 6)}, so it has no mean.")
    lost = [(result.condition.key, failure) for result in run.results for failure in result.failures]
    if lost:
        listed = _some([f"{failure.image_id} in {key} ({failure.reason})" for key, failure in lost], 4)
        sentences.append(f"{run.name}: {len(lost)} images count for no method: {listed}.")
    expected, planned = {condition.key for condition in run.suite.conditions}, set(run.plan.conditions)
    if left_out := len(expected - planned):
        sentences.append(
            f"{run.name} covers {len(expected & planned)} of the suite's {len(expected)} conditions; "
            f"its means are over these, and {left_out} were not asked for."
        )
    if run.unlabelled:
        sentences.append(f"{run.name}: the {run.truth_words} never hold {_some(run.unlabelled, 8)}.")
    if BASELINE not in run.methods:
        sentences.append(f"{run.name} was run without the baseline, so it has no gains.")
    return sentences


def _some(words: Sequence[str], limit: int) -> str:
    rest = f" and {len(words) - limit} more" if len(words) > limit else ""
    return ", ".join(words[:limit]) + rest
