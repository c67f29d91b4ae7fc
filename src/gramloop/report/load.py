"""Opening stored evaluations: which are there, what is complete, and which may be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gramloop.errors import GramLoopError
from gramloop.evaluate.cost import read_times
from gramloop.evaluate.methods import BASELINE
from gramloop.evaluate.plan import AGREEMENT_NOTE, Plan, condition_of
from gramloop.evaluate.results import score_condition
from gramloop.evaluate.store import (
    PLAN,
    UNITS,
    Store,
    StoredCondition,
    UnusableFile,
    plan_in,
    read_condition,
)
from gramloop.report.run import ConditionResults, Run, RunCost
from gramloop.tasks.loading import INPUT_SIZE
from gramloop.util.processes import available_memory, in_order, worker_count

PARTS = 4  # fixed subsets of the images
_DIVIDED = 2 * PARTS  # images; fewer are not divided
_POST_DRIFT = "post_drift"  # the column with the final drift of the accepted states
_MANY = 20_000  # predictions: fewer are read before processes have started
_MOST_WORKERS = 8  # by default; each holds a whole condition
_PROCESS_BYTES, _UNPACKED = 500_000_000, 14  # of memory: Python itself; for each byte of a condition's files
OnProgress = Callable[[str], None]  # called with what is being read, resampled, drawn or written


@dataclass(frozen=True)
class LoadedRuns:
    """All runs of a report; those of one group were made alike, so that their rows may be compared."""

    runs: tuple[Run, ...]
    groups: tuple[tuple[Run, ...], ...]
    warnings: tuple[str, ...] = ()


def load_runs(
    folders: Sequence[Path], on_progress: OnProgress = lambda _: None, workers: int = 1
) -> LoadedRuns:
    """Read results folders.

    Args:
        folders: Folders of ``gramloop evaluate``; a folder of results folders stands for those inside.
        on_progress: Called after every condition.
        workers: Processes.
    """
    places = find_results(folders)
    plans = [plan_in(place) for place in places]
    first: dict[object, Path] = {}
    for place, plan in zip(places, plans, strict=True):
        key = plan.hash, plan.methods
        if key in first:
            raise GramLoopError(f"{first[key]} and {place} hold the same plan, {plan.hash}; give one of them")
        first[key] = place
    runs = [
        _read(name, place, plan, on_progress, workers)
        for name, place, plan in zip(_names(places, plans), places, plans, strict=True)
    ]
    groups, reasons = _grouped(runs)
    return LoadedRuns(tuple(runs), groups, (*reasons, *(text for run in runs for text in _warnings(run))))


def find_results(folders: Sequence[Path]) -> list[Path]:
    """Every folder that holds a plan, in the order given."""
    found: list[Path] = []
    for folder in folders:
        inside = sorted(path.parent for path in folder.glob(f"*/{PLAN}")) if folder.is_dir() else []
        here = [folder] if (folder / PLAN).is_file() else inside
        if not here:
            raise GramLoopError(
                f"{folder} holds no results of gramloop evaluate; it, or folders in it, would have a {PLAN}"
            )
        found += here
    return found


def count_conditions(folders: Sequence[Path]) -> int:
    """How many conditions there are to read."""
    return sum(len(plan_in(place).conditions) for place in find_results(folders))


def report_workers(folders: Sequence[Path], asked: int | None = None) -> int:
    """The processes asked for; otherwise as many as cores and memory allow, up to 8, for large results."""
    if asked is not None:
        return worker_count(asked)
    places = find_results(folders)
    plans = [plan_in(place) for place in places]
    if sum(plan.images * len(plan.methods) for plan in plans) < _MANY:
        return 1
    conditions = [each for place in places for each in (place / UNITS).glob("*")]
    sizes = [sum(file.stat().st_size for file in each.rglob("*.parquet")) for each in conditions]
    fitting = int(available_memory() // (_PROCESS_BYTES + _UNPACKED * max(sizes, default=0)))
    return max(1, min(worker_count(None), _MOST_WORKERS, fitting))


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


def _read(name: str, folder: Path, plan: Plan, on_progress: OnProgress, workers: int) -> Run:
    results: list[ConditionResults] = []
    missing: dict[str, str] = {}
    calls = [(Store(folder, plan), key) for key in plan.conditions]
    for key, found in zip(plan.conditions, in_order(_read_condition, calls, workers), strict=True):
        if isinstance(found, str):
            missing[key] = found
        else:
            results.append(found)
        on_progress(f"{name} {key}")
    return Run(name, folder, plan, tuple(results), missing, read_times(folder))


def _read_condition(store: Store[Plan], key: str) -> ConditionResults | str:
    """One condition; or what of it is missing."""
    wanted = [unit for part in store.plan.parts_of(key) for unit in part.units]
    held, damage = 0, list[str]()
    for unit in wanted:
        try:
            held += store.read(unit) is not None
        except UnusableFile as problem:
            damage.append(str(problem))
    if held == len(wanted) and (stored := read_condition(store, key)) is not None:
        return measure_condition(store.plan, stored)
    return "; ".join([f"{held} of {len(wanted)} units are stored", *damage])


# one condition


def measure_condition(plan: Plan, stored: StoredCondition) -> ConditionResults:
    """Everything a report needs of one condition, from all its units."""
    scored, task = score_condition(plan, stored), plan.load_task()
    used = tuple(stored.image_ids)
    found = ConditionResults(
        condition_of(stored.key),
        scored.images,
        scored.scores,
        scored.failures,
        cost=_cost(stored),
        ids=used,
    )
    if not scored.images:
        return found
    members = memberships([*used, *(failure.image_id for failure in scored.failures)], used)
    classes, labelled, parts = {}, None, {}
    for name, each in stored.methods.items():
        scores = task.class_scores(each.rows, plan.classes, members)
        classes[name], labelled = scores.scores, scores.labelled if labelled is None else labelled
        if len(members) > 1:
            parts[name] = scores.subsets.reshape(2, -1)
    return replace(found, classes=classes, labelled=labelled, parts=parts, drift=_drift(stored))


def partition_of(ids: Sequence[str]) -> dict[str, int]:
    """The fixed subset, 0 to 3, of every image.

    Images are ordered by the sha256 of their id and cut into four runs of equal length, give or take one. So
    the division knows nothing of content or order, and is the same wherever these images are evaluated.
    """
    ordered = sorted(set(ids), key=lambda each: (hashlib.sha256(each.encode()).digest(), each))
    return {each: place * PARTS // len(ordered) for place, each in enumerate(ordered)}


def memberships(ids: Sequence[str], used: Sequence[str]) -> NDArray[np.int64]:  # → (1 + 2 x PARTS, used)
    """Which of the images used count: all, then each subset, then each complement; of few images only all."""
    rows = [np.ones(len(used), dtype=np.int64)]
    if len(set(ids)) >= _DIVIDED:
        part_of = partition_of(ids)
        part = np.array([part_of[each] for each in used])
        subsets = [(part == number).astype(np.int64) for number in range(PARTS)]
        rows += [*subsets, *(1 - subset for subset in subsets)]
    return np.stack(rows)


def _drift(stored: StoredCondition) -> dict[str, NDArray[np.float64]]:
    """The final drift of every image by method, where it was measured."""
    measured = {name: each.table[_POST_DRIFT].drop_null() for name, each in stored.methods.items()}
    return {name: values.to_numpy().astype(np.float64) for name, values in measured.items() if len(values)}


def _cost(stored: StoredCondition) -> RunCost:
    first = next(iter(stored.methods.values()))
    calls: dict[str, float] = {}
    for name, each in stored.methods.items():
        for facts in each.facts:
            together = [other for other in (facts.paired_with, name) if other]
            call = name if not facts.paired_with else "+".join(sorted(together))
            calls[call] = calls.get(call, 0.0) + facts.seconds
    return RunCost(
        len(stored.image_ids),
        sum(facts.wall_seconds for facts in first.facts),
        calls,
        max(facts.peak_memory for each in stored.methods.values() for facts in each.facts),
        {name: float(sum(each.blocks)) for name, each in stored.methods.items()},
    )


# runs next to each other


def incomparable(first: Run, second: Run) -> str:
    """Why the numbers of two runs cannot be compared; an empty string if they can."""
    one, two = first.plan, second.plan
    if one.versions != two.versions:
        changed = [name for name in one.versions if one.versions[name] != two.versions.get(name)]
        name = (changed or [name for name in two.versions if name not in one.versions])[0]
        return f"they were made with {name} {one.versions.get(name, 'none')} and {two.versions.get(name, 'none')}"
    if _weights(one, two) != _weights(two, one):
        return "they are of models with other weights"
    if one.batch != two.batch:
        return f"they were made with batches of {one.batch} and {two.batch}"
    for part in ("depth", "device", "threads"):
        values = getattr(one.model, part), getattr(two.model, part)
        if values[0] != values[1]:
            return f"they were made with {part} {values[0]} and {values[1]}"
    if one.task == two.task and one.model.sizes != two.model.sizes:
        return "images were given to the model in other sizes"
    if one.suite == two.suite and one.task == two.task and one.data.contents != two.data.contents:
        return "they are of other images"
    if one.truth != two.truth:
        return f"one is compared with {first.truth_words}, the other with {second.truth_words}"
    settings = {method.name: method for method in one.methods}
    for method in two.methods:
        if settings.get(method.name, method) != method:
            return f"the method {method.name} has other settings in each"
    return ""


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
